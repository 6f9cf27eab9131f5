"""The stored message, against the reference bytes and in all its layouts."""

from __future__ import annotations

import itertools
import zlib

import pytest

from cosmodrome.errors import DamagedRecord, ProtocolError
from cosmodrome.wire import record
from cosmodrome.wire.record import Record, SysFlag, check_at, decode_records, encode_record, head_at, pack_host

HOST = pack_host("127.0.0.1", 0)

REFERENCE = bytes.fromhex(
    "00000068 daa320a7 58932aac 00000001 00000000 0000000000000007 0000000000000400 00000000 0000018bcfe56800"
    "0a00000100001388 0000018bcfe56801 0a00000200002a9f 00000000 0000000000000000 00000002 6869 01 54 000a"
    "54414753015461674102"
)
MESSAGE = Record(
    total_size=104,
    magic=record.MAGIC_V1,
    body_crc=1486039724,
    queue_id=1,
    flag=0,
    queue_offset=7,
    physical_offset=1024,
    sys_flag=0,
    born_timestamp=1700000000000,
    born_host="10.0.0.1",
    born_port=5000,
    store_timestamp=1700000000001,
    store_host="10.0.0.2",
    store_port=10911,
    reconsume_times=0,
    prepared_transaction_offset=0,
    body=b"hi",
    topic="T",
    properties="TAGS\x01TagA\x02",
)


def encoded(topic: bytes = b"T", body: bytes = b"hi", born: str = "10.0.0.1", store: str = "10.0.0.2") -> bytes:
    return record.encode_record(
        topic,
        body,
        b"A\x01b\x02",
        queue_id=3,
        flag=4,
        sys_flag=SysFlag.COMPRESSED,
        born_timestamp=5,
        born_host=pack_host(born, 6),
        store_timestamp=7,
        store_host=pack_host(store, 8),
        queue_offset=9,
        physical_offset=10,
        reconsume_times=11,
        prepared_transaction_offset=12,
    )


LAYOUTS = [
    encoded(topic, body, born, store)
    for topic, body, born, store in itertools.product(
        (b"T", b"t" * 127, b"t" * 128), (b"", b"hi"), ("10.0.0.1", "fe80::1"), ("10.0.0.2", "2001:db8::2")
    )
]


@pytest.mark.parametrize("topic", [b"T", b"t" * 127, b"t" * 128])
@pytest.mark.parametrize("born", ["10.0.0.1", "fe80::1"])
@pytest.mark.parametrize("store", ["10.0.0.2", "2001:db8::2"])
def test_several_records_are_each_as_if_alone(topic: bytes, born: str, store: str) -> None:
    items = [(4, b"hi", "A\x01b\x02"), (-1, b"", ""), (7, b"x" * 300, "Ä\x01ü\x02")]
    hosts = pack_host(born, 6), pack_host(store, 8)
    data, bounds = record.encode_records(topic, items, 3, SysFlag.COMPRESSED, 5, hosts[0], 7, hosts[1], 9, 1 << 40, 11)
    alone = [
        record.encode_record(
            topic,
            body,
            properties.encode(),
            queue_id=3,
            flag=flag,
            sys_flag=SysFlag.COMPRESSED,
            born_timestamp=5,
            born_host=hosts[0],
            store_timestamp=7,
            store_host=hosts[1],
            queue_offset=9 + number,
            physical_offset=bounds[number],
            reconsume_times=11,
        )
        for number, (flag, body, properties) in enumerate(items)
    ]
    assert data == b"".join(alone)
    assert bounds == list(itertools.accumulate(map(len, alone), initial=1 << 40))


@pytest.mark.parametrize("item", [(0, b"", "x" * 32768), (1 << 31, b"", "")])
def test_several_records_are_refused_when_one_does_not_fit(item: tuple[int, bytes, str]) -> None:
    host = pack_host("10.0.0.1", 6)
    with pytest.raises(ProtocolError):
        record.encode_records(b"T", [(0, b"", ""), item], 0, 0, 0, host, 0, host, 0, 0, 0)


def test_a_message_is_the_reference_bytes() -> None:
    assert MESSAGE.encode() == REFERENCE
    assert decode_records(REFERENCE) == [MESSAGE]
    assert MESSAGE.offset_msg_id == "0A00000200002A9F0000000000000400"


@pytest.mark.parametrize("raw", LAYOUTS)
def test_every_layout_comes_back_whole(raw: bytes) -> None:
    (one,) = decode_records(memoryview(raw))
    assert one.encode() == raw
    assert one.total_size == len(raw)
    assert (one.magic == record.MAGIC_V2) == (len(one.topic) > 127)
    assert bool(one.sys_flag & SysFlag.BORN_V6) == (":" in one.born_host)
    assert bool(one.sys_flag & SysFlag.STORE_V6) == (":" in one.store_host)
    assert (one.queue_id, one.flag, one.queue_offset, one.physical_offset) == (3, 4, 9, 10)
    assert (one.born_timestamp, one.born_port, one.store_timestamp, one.store_port) == (5, 6, 7, 8)
    assert (one.reconsume_times, one.prepared_transaction_offset) == (11, 12)
    assert one.body_crc == zlib.crc32(one.body) & 0x7FFFFFFF


@pytest.mark.parametrize("raw", LAYOUTS)
def test_the_head_tells_the_same_as_the_whole(raw: bytes) -> None:
    view = memoryview(b"before" + raw + b"behind")
    head = head_at(view, 6, 6 + len(raw))
    (one,) = decode_records(raw)
    assert head.size == len(raw) == check_at(view, 6, 6 + len(raw))
    assert (head.topic, head.queue_id, head.queue_offset) == (one.topic, one.queue_id, one.queue_offset)
    assert (head.physical_offset, head.sys_flag) == (one.physical_offset, one.sys_flag)
    assert (head.store_timestamp, head.reconsume_times) == (one.store_timestamp, one.reconsume_times)
    assert (head.prepared_transaction_offset, head.properties) == (12, one.properties)
    assert (head.body_crc, bytes(view[head.body_at : head.body_at + head.body_size])) == (one.body_crc, one.body)


@pytest.mark.parametrize("raw", LAYOUTS)
def test_the_place_can_be_written_later(raw: bytes) -> None:
    buffer = bytearray(b"before" + raw)
    record.place(buffer, 6, queue_offset=21, physical_offset=22, store_timestamp=23)
    (before,) = decode_records(raw)
    (after,) = decode_records(buffer[6:])
    assert (after.queue_offset, after.physical_offset, after.store_timestamp) == (21, 22, 23)
    after.queue_offset, after.physical_offset, after.store_timestamp = 9, 10, 7
    assert after == before


def test_records_follow_each_other() -> None:
    assert [one.total_size for one in decode_records(b"".join(LAYOUTS))] == [len(raw) for raw in LAYOUTS]
    assert decode_records(b"") == []


@pytest.mark.parametrize("raw", LAYOUTS[:4] + LAYOUTS[-4:])
def test_a_cut_record_is_none(raw: bytes) -> None:
    for size in range(1, len(raw)):
        with pytest.raises(ProtocolError):
            decode_records(raw[:size])
        with pytest.raises(ProtocolError):
            check_at(raw, 0, size)
        with pytest.raises(ProtocolError):
            head_at(raw, 0, size)


def test_a_changed_body_fails_its_checksum_unless_not_asked() -> None:
    raw = REFERENCE.replace(b"hi", b"ho")
    with pytest.raises(ProtocolError, match="checksum"):
        check_at(raw, 0, len(raw))
    assert check_at(raw, 0, len(raw), crc=False) == len(raw)


@pytest.mark.parametrize("wiped", [4, 10, 30])
def test_a_sealed_record_whose_end_was_wiped_does_not_pass_for_an_unsealed_one(wiped: int) -> None:
    """The seal may have been in the lost page with the rest of the properties."""
    properties = b"KEYS\x01k\x02a\x01bbbbbbbbbbbbbbb\x02"
    raw = encode_record(b"t", b"body", properties, 0, 0, 0, 0, HOST, 0, HOST, 0, 0, sealed=True)
    assert check_at(raw, 0, len(raw)) == len(raw)
    raw = raw[:-wiped] + bytes(wiped)
    with pytest.raises(DamagedRecord):
        check_at(raw, 0, len(raw))
    with pytest.raises(DamagedRecord):
        decode_records(raw)


@pytest.mark.parametrize(
    ("at", "field"),
    [
        (0, "00000069"),
        (0, "ffffffff"),
        (0, "7fffffff"),
        (4, "cbd43194"),
        (4, "00000000"),
        (36, "00000010"),
        (84, "ffffffff"),
        (84, "7fffffff"),
        (90, "ff"),
        (92, "ffff"),
    ],
)
def test_sizes_and_magic_that_disagree_are_refused(at: int, field: str) -> None:
    patch = bytes.fromhex(field)
    raw = REFERENCE[:at] + patch + REFERENCE[at + len(patch) :]
    for read in (decode_records, lambda data: check_at(data, 0, len(data)), lambda data: head_at(data, 0, len(data))):
        with pytest.raises(ProtocolError):
            read(raw)


def test_a_blank_rest_is_told_by_its_magic() -> None:
    assert record.magic_at(bytes.fromhex("00000100cbd43194"), 0) == (256, record.BLANK_MAGIC)
    with pytest.raises(ProtocolError):
        record.magic_at(b"1234567", 0)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ProtocolError):
        encoded(topic=b"t" * 32768)
    for change in ({"properties": "x" * 32768}, {"queue_id": 1 << 31}, {"born_port": 1 << 31}, {"store_host": "me"}):
        message = decode_records(REFERENCE)[0]
        for name, value in change.items():
            setattr(message, name, value)
        with pytest.raises(ProtocolError):
            message.encode()


@pytest.mark.parametrize(
    ("ip", "packed"),
    [
        ("10.0.0.1", "0a000001"),
        ("::ffff:10.0.0.1", "0a000001"),
        ("::1", "7f000001"),
        ("fe80::1%eth0", "fe800000000000000000000000000001"),
    ],
)
def test_hosts_are_ipv4_wherever_they_can_be(ip: str, packed: str) -> None:
    assert pack_host(ip, 10911) == bytes.fromhex(packed + "00002a9f")


@pytest.mark.parametrize("ip", ["", "broker-a", "1.2.3", "1.2.3.4.5", ":::", "1.2.3.4\0"])
def test_names_are_not_hosts(ip: str) -> None:
    with pytest.raises(ProtocolError):
        pack_host(ip, 1)


@pytest.mark.parametrize("ip", ["10.0.0.2", "2001:db8::2"])
def test_an_offset_id_says_where_the_message_lies(ip: str) -> None:
    text = record.offset_msg_id(pack_host(ip, 10911), 1 << 40)
    assert record.offset_msg_ids(pack_host(ip, 10911), [1 << 40, 1 << 40]) == f"{text},{text}"
    assert len(text) in (32, 56)
    assert record.parse_offset_msg_id(text) == (ip, 10911, 1 << 40)
    assert record.parse_offset_msg_id(text.lower()) == (ip, 10911, 1 << 40)


@pytest.mark.parametrize("text", ["", "0A", "x" * 32, "0A" * 15, "0A " * 16, "0A" * 20, "٠" * 32])
def test_anything_else_is_no_offset_id(text: str) -> None:
    with pytest.raises(ProtocolError):
        record.parse_offset_msg_id(text)
