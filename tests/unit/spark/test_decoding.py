"""Columns must say what the record codec says, whatever is in the records."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.errors import ProtocolError
from cosmodrome.spark.decoding import Records, timestamps
from cosmodrome.wire import properties as properties_string
from cosmodrome.wire.compression import compress
from cosmodrome.wire.record import decode_records, encode_record, offset_msg_id, pack_host

V4 = pack_host("127.0.0.1", 10911)
V6 = pack_host("::1", 20911)

hosts = st.sampled_from([V4, V6])
parts = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02\x00"), max_size=6)
# Whole items and every way in which one can be none.
properties = st.lists(
    st.one_of(
        st.tuples(parts, parts).map("\x01".join), parts, st.sampled_from(["TAGS\x01a", "TAGS\x01b", "x\x01y\x01z"])
    ),
    max_size=6,
).map("\x02".join)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    body, flag = draw(st.binary(max_size=40)), 0
    if draw(st.booleans()):
        body, flag = compress(body)
    return encode_record(
        draw(st.sampled_from(["T", "orders", "x" * 130])).encode(),
        body,
        draw(st.one_of(properties, properties.map(lambda raw: raw + "\x02"))).encode(),
        draw(st.integers(0, 7)),
        draw(st.integers(-5, 5)),
        flag,
        draw(st.integers(0, 2**41)),
        draw(hosts),
        draw(st.integers(0, 2**41)),
        draw(hosts),
        draw(st.integers(0, 2**40)),
        draw(st.integers(0, 2**40)),
        draw(st.integers(0, 20)),
    )


@given(st.lists(records(), max_size=8))
def test_columns_agree_with_the_codec(encoded: list[bytes]) -> None:
    columns, expected = Records(b"".join(encoded)), decode_records(b"".join(encoded))
    assert len(columns) == len(expected)
    assert columns.topics.to_pylist() == [record.topic for record in expected]
    assert columns.queue_ids.tolist() == [record.queue_id for record in expected]
    assert columns.queue_offsets.tolist() == [record.queue_offset for record in expected]
    assert columns.commit_log_offsets.tolist() == [record.physical_offset for record in expected]
    assert columns.flags.tolist() == [record.flag for record in expected]
    assert columns.born_timestamps.tolist() == [record.born_timestamp for record in expected]
    assert columns.store_timestamps.tolist() == [record.store_timestamp for record in expected]
    assert columns.reconsume_times.tolist() == [record.reconsume_times for record in expected]
    assert columns.born_hosts.to_pylist() == [f"{record.born_host}:{record.born_port}" for record in expected]
    assert columns.raw_properties.to_pylist() == [record.properties for record in expected]
    decoded = [properties_string.decode(record.properties) for record in expected]
    assert [dict(row) for row in columns.properties.to_pylist()] == decoded
    assert columns.property("TAGS").to_pylist() == [row.get("TAGS") for row in decoded]
    columns.properties.validate(full=True)


items = st.tuples(parts, parts).map("\x01".join)


@given(st.integers(0, 3), st.booleans(), st.data())
def test_properties_of_one_shape_agree_with_the_codec(per_row: int, has_end: bool, data: st.DataObject) -> None:
    """As messages of one producer have them: as many in each, with or without a separator behind the last one."""
    rows = data.draw(st.lists(st.lists(items, min_size=per_row, max_size=per_row), min_size=1, max_size=5))
    texts = ["\x02".join(row) + ("\x02" if has_end and row else "") for row in rows]
    encoded = b"".join(encode_record(b"T", b"", text.encode(), 0, 0, 0, 0, V4, 0, V4, 0, 0, 0) for text in texts)
    assert [dict(row) for row in Records(encoded).properties.to_pylist()] == [*map(properties_string.decode, texts)]


@given(st.lists(records(), min_size=1, max_size=5), st.data())
def test_bytes_that_are_no_records_are_refused(encoded: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(encoded)
    cut = data.draw(st.integers(1, len(encoded[-1]) - 1))
    with pytest.raises(ProtocolError):
        Records(whole[:-cut])


def test_compressed_bodies_are_unpacked_among_others() -> None:
    packed, flag = compress(b"long " * 2_000)
    rows = [(b"plain", 0), (packed, flag), (b"again", 0)]
    encoded = [encode_record(b"T", body, b"", 0, 0, bits, 1, V4, 2, V4) for body, bits in rows]
    assert Records(b"".join(encoded)).bodies.to_pylist() == [b"plain", b"long " * 2_000, b"again"]


def test_an_id_is_the_producers_or_the_place() -> None:
    encoded = [
        encode_record(b"T", b"x", b"UNIQ_KEY\x01U\x02", 0, 0, 0, 1, V4, 2, V4, 0, 77),
        encode_record(b"T", b"x", b"", 0, 0, 0, 1, V4, 2, V6, 0, 88),
    ]
    assert Records(b"".join(encoded)).message_ids.to_pylist() == ["U", offset_msg_id(V6, 88)]


def test_text_that_is_no_utf8_does_not_stop_a_reader() -> None:
    encoded = encode_record(b"T", b"x", b"k\x01\xff\x02ok\x01yes\x02", 0, 0, 0, 1, V4, 2, V4)
    assert Records(encoded).properties.to_pylist() == [[("k", "\ufffd"), ("ok", "yes")]]


def test_some_records_alone() -> None:
    encoded = [encode_record(b"T", b"%d" % n, b"", 0, 0, 0, 1, V4, 2, V4, n) for n in range(5)]
    columns = Records(b"".join(encoded))
    assert columns.select(columns.queue_offsets % 2 == 1).bodies.to_pylist() == [b"1", b"3"]
    assert len(columns.select(columns.queue_offsets > 9)) == 0


def test_times_are_microseconds_in_utc() -> None:
    column = timestamps(Records(encode_record(b"T", b"x", b"", 0, 0, 0, 1_700_000_000_123, V4, 2, V4)).born_timestamps)
    assert column.type == pa.timestamp("us", tz="UTC")
    assert column.cast(pa.int64()).to_pylist() == [1_700_000_000_123_000]


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_sealed_records_hide_their_seal_and_no_flipped_bit_passes(place: int, bit: int) -> None:
    """A flip in the name of a seal leaves it a property that nobody set; all else is as it was."""
    arguments = (b"orders", b"body", b"A\x01b\x02", 0, 0, 0, 1, V4, 1, V4)
    whole = [encode_record(*arguments, queue_offset=offset, sealed=True) for offset in range(3)]
    records = Records(b"".join(whole))
    assert records.are_sound().all()
    assert records.properties.to_pylist() == [[("A", "b")]] * 3
    assert Records(b"".join(whole)).select(records.queue_offsets != 1).queue_offsets.tolist() == [0, 2]
    rotten = bytearray(whole[1])
    place %= len(rotten)
    rotten[place] ^= 1 << bit
    try:
        found = Records(whole[0] + rotten + whole[2])
    except ProtocolError:
        return
    is_in_name = 0 <= place - (len(rotten) - 20) < 9
    assert found.are_sound().tolist() == [True, is_in_name, True]
    assert found.bodies.to_pylist()[1] == b"body" or not is_in_name
