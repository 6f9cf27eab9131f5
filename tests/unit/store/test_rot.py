"""Flipped bits in a store that is open: what is damaged is passed over, what is only derived is rebuilt."""

from __future__ import annotations

import dataclasses
import logging
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmodrome.clock import Clock
from cosmodrome.errors import MessageIllegal
from cosmodrome.store import MessageStore
from cosmodrome.store.commit_log import CommitLog
from cosmodrome.store.consume_queue import ENTRY_SIZE
from cosmodrome.store.message import GetStatus
from cosmodrome.store.rot import MessageDamaged
from cosmodrome.wire.batch import BatchItem
from cosmodrome.wire.java import java_hash
from cosmodrome.wire.properties import find
from cosmodrome.wire.record import RecordHead, decode_records
from tests.unit.store.kit import SMALL, bodies, message, open_store, records

# More than one file of the log, and of the queues.
COUNT = 250
TAGS = ("red", "blue")


def body(number: int) -> bytes:
    return (b"%06d " % number) * 60


def filled(root: Path, clock: Clock | None = None) -> MessageStore:
    """A store with `COUNT` messages in `orders` 0 and others between them, which an earlier process wrote."""
    store = open_store(root, clock=clock)
    for number in range(COUNT):
        store.append(message(body=body(number), TAGS=TAGS[number % 2], KEYS=f"k{number}", UNIQ_KEY=f"u{number}"))
        if number % 3 == 0:
            store.append(message("others", body=b"other"))
    store.close()
    return open_store(root, clock=clock)


def read_all(store: MessageStore, codes: frozenset[int] | None = None, count: int = 32) -> dict[int, bytes]:
    """The bodies of all that a consumer gets, by their offsets; each must be as it was sent."""
    found: dict[int, bytes] = {}
    offset = store.min_offset("orders", 0)
    while offset < store.max_offset("orders", 0):
        result = store.read("orders", 0, offset, count, codes=codes, verify=True)
        assert result.next_offset > offset
        assert result.status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE)
        for record in records(result.views):
            assert (record.topic, record.queue_id, record.body) == ("orders", 0, body(record.queue_offset))
            found[record.queue_offset] = record.body
        offset = result.next_offset
    return found


def entry_path(store: MessageStore, offset: int) -> tuple[Path, int]:
    size = 100 * ENTRY_SIZE
    start = offset * ENTRY_SIZE // size * size
    return store.paths.consume_queue / "orders" / "0" / f"{start:020d}", offset * ENTRY_SIZE - start


def flip_entry(store: MessageStore, offset: int, byte: int, bit: int = 0) -> None:
    path, position = entry_path(store, offset)
    flip(path, position + byte, bit)


def flip(path: Path, position: int, bit: int = 0) -> None:
    """As a disk does it: through the file."""
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


def flip_record(store: MessageStore, offset: int, byte: int, bit: int = 0) -> None:
    entry = store.entry("orders", 0, offset)
    assert entry is not None
    size = 64 * 1024
    start = entry[0] // size * size
    flip(store.paths.commit_log / f"{start:020d}", entry[0] - start + byte, bit)


@pytest.mark.parametrize("offset", [0, 99, 100, 170, COUNT - 1])
@pytest.mark.parametrize("byte", [0, 5, 7, 8, 11])
def test_an_entry_that_leads_nowhere_is_rebuilt(
    tmp_path: Path, offset: int, byte: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(tmp_path)
    before = store.entry("orders", 0, offset)
    flip_entry(store, offset, byte)
    assert len(read_all(store)) == COUNT
    assert store.entry("orders", 0, offset) == before
    assert (store.rot.entries, store.rot.rebuilt, store.rot.records) == (1, 1, 0)
    assert f"queue entry rebuilt from the log: topic=orders queue=0 offset={offset} " in caplog.text
    store.close()


def test_zeroed_entries_are_rebuilt_from_what_lies_between_their_neighbours(tmp_path: Path) -> None:
    store = filled(tmp_path)
    path, position = entry_path(store, 110)
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes(40 * ENTRY_SIZE))
    assert len(read_all(store)) == COUNT
    assert store.rot.rebuilt == 40
    store.close()


@pytest.mark.parametrize("byte", [0, 4, 12, 20, 28])
def test_a_damaged_head_costs_its_own_message_only(tmp_path: Path, byte: int) -> None:
    store = filled(tmp_path)
    for offset in (0, 60, COUNT - 1):
        flip_record(store, offset, byte)
    assert read_all(store).keys() == set(range(COUNT)) - {0, 60, COUNT - 1}
    store.close()


def test_what_this_process_wrote_is_followed_as_soon_as_the_next_file_has_begun(tmp_path: Path) -> None:
    """Until then it is in memory, where disks change nothing."""
    store = open_store(tmp_path)
    store.append(message(body=b"first"))
    flip_record(store, 0, 20)
    assert store.read("orders", 0, 0, 32).count == 1
    while len(store._log.files) == 1:
        store.append(message(body=b"x" * 1_000))
    assert [record.queue_offset for record in records(store.read("orders", 0, 0, 4).views)] == [1, 2, 3, 4]
    store.close()


def test_a_rotten_body_in_an_older_file_is_served_to_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = filled(tmp_path)
    flip_record(store, 5, 200)
    result = store.read("orders", 0, 0, 32)
    assert [record.queue_offset for record in records(result.views)] == [*range(5), *range(6, 33)]
    result = store.read("orders", 0, 5, 1)
    assert (result.status, result.count) == (GetStatus.FOUND, 1)
    assert caplog.text.count("record damaged: place=") == 1, "it is named once, however often it is passed over"
    assert store.rot.records == 1
    store.close()


def test_a_rotten_record_is_neither_shown_nor_copied_nor_found_by_its_key(tmp_path: Path) -> None:
    store = filled(tmp_path)
    flip_record(store, COUNT - 1, 200)
    entry = store.entry("orders", 0, COUNT - 1)
    assert entry is not None
    with pytest.raises(MessageDamaged, match=f"the message at {entry[0]} of the log is damaged"):
        store.record_at(entry[0])
    assert store.find_by_key("orders", f"k{COUNT - 1}", 32, 0, 2**62) == []
    assert len(store.find_by_key("orders", f"k{COUNT - 2}", 32, 0, 2**62)) == 1
    store.close()


def test_a_record_that_is_lost_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = filled(tmp_path)
    flip_record(store, 60, 20)  # its queue offset
    caplog.set_level(logging.ERROR)
    for _ in range(3):
        assert len(read_all(store)) == COUNT - 1
    assert caplog.text.count("queue entry leads to no record") == 1
    assert store.rot.entries == 1
    store.close()


@settings(max_examples=15)
@given(st.integers(0, 2**32))
def test_whatever_is_flipped_no_other_bytes_are_read_and_the_others_are_all_there(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """One record and one entry of another message, any bit of them."""
    store = filled(tmp_path_factory.mktemp("store"))
    random = Random(seed)
    rotten, other = random.sample(range(COUNT), 2)
    entry = store.entry("orders", 0, rotten)
    assert entry is not None
    flip_record(store, rotten, random.randrange(entry[1] - 120), random.randrange(8))
    flip_entry(store, other, random.randrange(12), random.randrange(8))
    found = read_all(store, count=random.choice([1, 7, 32]))
    assert set(range(COUNT)) - found.keys() <= {rotten}
    for code in TAGS:
        wanted = read_all(store, frozenset({java_hash(code)}))
        assert {offset for offset in found if TAGS[offset % 2] == code} == wanted.keys()
    for view in store.read("orders", 0, other, 1, verify=True).views:
        (record,) = records([view])
        assert find(record.properties, "KEYS") == f"k{record.queue_offset}"
    store.close()


@pytest.mark.parametrize(("byte", "bit"), [(0, 6), (5, 6), (11, 6), (8, 7)])
def test_the_last_entries_of_a_queue_are_found_again_in_the_log(
    tmp_path: Path, byte: int, bit: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where nothing else says that they are wrong; the next message must not get the offset of one of them."""
    store = filled(tmp_path)
    places = [entry_path(store, COUNT - number) for number in (1, 2, 30)]
    store.close()
    for path, position in places:
        flip(path, position + byte, bit)
    for name in ("derived.sums", "checkpoint"):
        (tmp_path / name).unlink()
    store = open_store(tmp_path)
    assert len(read_all(store)) == COUNT
    assert store.append(message()).queue_offset == COUNT
    assert "rebuilt from the log" in caplog.text or "built again" in caplog.text
    store.close()


def test_no_log_is_searched_for_the_entries_of_sound_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path).close()
    searched: list[int] = []

    def heads(_: CommitLog, begin: int) -> Iterator[RecordHead]:
        searched.append(begin)
        return iter(())

    monkeypatch.setattr(CommitLog, "heads", heads)
    store = open_store(tmp_path)
    assert len(read_all(store)) == COUNT
    assert not searched
    store.close()


# --- sealed records

SEALING = dataclasses.replace(SMALL, enabled_append_prop_crc=True)


def test_a_sealed_record_ends_with_the_checksum_of_all_before_it(tmp_path: Path) -> None:
    """As Apache writes it: ten digits, the lowest first."""
    store = open_store(tmp_path, SEALING)
    for properties in ("", "A\x01b\x02"):
        appended = store.append(dataclasses.replace(message(), properties=properties))
        view = store.record_at(appended.physical_offset)
        assert view is not None
        record = bytes(view)
        assert record[-20:-11] == b"__CRC32#\x01"
        assert int(record[-11:-1][::-1]) == zlib.crc32(record[:-20]) & 0x7FFFFFFF
        assert record[-1:] == b"\x02"
        assert decode_records(record)[0].properties == properties
    store.close()


def test_a_copy_has_a_seal_of_its_own_only(tmp_path: Path) -> None:
    """Also one whose properties do not end with a separator, as those of some of Apache's versions, and batches."""
    store = open_store(tmp_path, SEALING)
    stale = "A\x01b\x02__CRC32#\x010123456789\x02C\x01d"
    single = dataclasses.replace(message(), properties=stale)
    place = store.append(single).physical_offset
    places = store.append_batch(message(), [BatchItem(0, b"x", stale), BatchItem(0, b"y", "")]).physical_offsets
    found = [decode_records(store.record_at(at) or b"")[0] for at in (place, *places)]
    assert [record.properties for record in found] == ["A\x01b\x02C\x01d\x02"] * 2 + [""]
    store.close()
    store = open_store(tmp_path, SMALL)
    place = store.append(single).physical_offset
    assert decode_records(store.record_at(place) or b"")[0].properties == "A\x01b\x02C\x01d"
    store.close()


def test_properties_that_leave_no_room_for_the_seal_are_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path, dataclasses.replace(SEALING, mapped_file_size_commit_log=1 << 20))
    store.append(dataclasses.replace(message(), properties="A\x01" + "b" * (32_767 - 24) + "\x02"))
    with pytest.raises(MessageIllegal):
        store.append(dataclasses.replace(message(), properties="A\x01" + "b" * (32_767 - 21) + "\x02"))
    assert bodies(store) == [b"body"]
    store.close()


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(0, 7))
def test_no_flipped_bit_of_a_sealed_record_is_read(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    store = open_store(tmp_path_factory.mktemp("store"), SEALING)
    for _ in range(3):
        store.append(message(TAGS="red", KEYS="k"))
    entry = store.entry("orders", 0, 1)
    assert entry is not None
    whole = bytes(store.record_at(entry[0]) or b"")
    flip_record(store, 1, place % entry[1], bit)
    found = records(store.read("orders", 0, 0, 32, verify=True).views)
    assert [record.queue_offset for record in found] in ([0, 2], [0, 1, 2])
    if len(found) == 3:  # only the name of the seal is damaged
        assert found[1] == decode_records(whole)[0]
    store.close()
