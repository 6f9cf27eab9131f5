"""Byte layouts, pinned: Apache's brokers must be able to open what we write."""

import os
import struct
import zlib
from pathlib import Path

from cosmodrome.config import StoreConfig
from cosmodrome.store import MessageStore
from cosmodrome.testing.clock import FakeClock
from cosmodrome.wire.java import java_hash
from tests.unit.store.kit import BORN, SMALL, STORE, message, open_store

NOW = 1_700_000_000_000
LOG_NAME = "00000000000000000000"


def test_a_record_lies_in_the_log_field_by_field(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(message(body=b"first"))
    appended = store.append(message(queue_id=3, body=b"second", TAGS="paid"))
    data = (tmp_path / "commitlog" / LOG_NAME).read_bytes()[appended.physical_offset :]

    properties = b"TAGS\x01paid\x02"
    size = 91 + len(b"second") + len(b"orders") + len(properties)
    assert appended.size == size
    assert struct.unpack_from(">iIiiiqqi", data) == (
        size, 0xDAA320A7, zlib.crc32(b"second") & 0x7FFFFFFF, 3, 7, 0, appended.physical_offset, 0,
    )  # fmt: skip
    assert struct.unpack_from(">q8sq8siqi", data, 40) == (1_600_000_000_000, BORN, NOW, STORE, 0, 0, 6)
    assert data[88:size] == b"second\x06orders" + struct.pack(">h", len(properties)) + properties
    assert appended.msg_id == "7F00000100002A9F" + f"{appended.physical_offset:016X}"


def test_a_file_without_room_ends_with_a_blank_record(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first = store.append(message(body=b"x" * 40_000))
    second = store.append(message(body=b"y" * 40_000))

    assert second.physical_offset == SMALL.mapped_file_size_commit_log
    data = (tmp_path / "commitlog" / LOG_NAME).read_bytes()
    assert len(data) == SMALL.mapped_file_size_commit_log
    assert struct.unpack_from(">iI", data, first.end) == (len(data) - first.end, 0xCBD43194)
    assert not any(data[first.end + 8 :])
    assert (tmp_path / "commitlog" / "00000000000000065536").exists()


def test_a_record_may_leave_exactly_the_room_of_the_blank(tmp_path: Path) -> None:
    overhead = 91 + len("orders")
    file_size = SMALL.mapped_file_size_commit_log
    store = open_store(tmp_path)
    fits = store.append(message(body=b"x" * (file_size - 8 - overhead)))
    assert (fits.physical_offset, fits.size) == (0, file_size - 8)
    assert store.append(message()).physical_offset == file_size


def test_queue_entries_are_offset_size_and_tag_hash(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    plain = store.append(message(queue_id=2))
    tagged = store.append(message(queue_id=2, TAGS="TagA"))
    data = (tmp_path / "consumequeue" / "orders" / "2" / LOG_NAME).read_bytes()

    assert len(data) == SMALL.mapped_file_size_consume_queue
    assert list(struct.iter_unpack(">qiq", data[:40])) == [
        (plain.physical_offset, plain.size, 0),
        (tagged.physical_offset, tagged.size, 2598919),  # "TagA".hashCode()
    ]
    assert not any(data[40:])


def test_a_negative_tag_hash_is_sign_extended(tmp_path: Path) -> None:
    assert java_hash("polygenelubricants") == -(2**31)
    store = open_store(tmp_path)
    store.append(message(TAGS="polygenelubricants"))
    data = (tmp_path / "consumequeue" / "orders" / "0" / LOG_NAME).read_bytes()
    assert data[12:20] == b"\xff\xff\xff\xff\x80\x00\x00\x00"


def test_a_delayed_message_has_its_due_time_for_a_tag_hash(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for level in ("3", "99", "x"):
        store.append(message("SCHEDULE_TOPIC_XXXX", 2, DELAY=level, TAGS="paid"))
    data = (tmp_path / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2" / LOG_NAME).read_bytes()
    codes = [code for _, _, code in struct.iter_unpack(">qiq", data[:60])]
    assert codes == [NOW + 10_000, NOW + 7_200_000, NOW + 1_000]


def test_an_index_file_is_header_slots_and_chained_entries(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first = store.append(message(UNIQ_KEY="u1", KEYS="k1 k2"))
    second = store.append(message(UNIQ_KEY="u1"))
    store.close()
    (path,) = (tmp_path / "index").iterdir()
    data = path.read_bytes()

    assert len(data) == 40 + SMALL.max_hash_slot_num * 4 + SMALL.max_index_num * 20
    hashes = [abs(java_hash(f"orders#{key}")) for key in ("u1", "k1", "k2")]
    slots = [code % SMALL.max_hash_slot_num for code in hashes]
    assert len(set(slots)) == 3
    assert struct.unpack_from(">qqqqii", data) == (NOW, NOW, first.physical_offset, second.physical_offset, 3, 5)
    assert [struct.unpack_from(">i", data, 40 + slot * 4)[0] for slot in slots] == [4, 2, 3]
    entries = [struct.unpack_from(">iqii", data, 40 + SMALL.max_hash_slot_num * 4 + n * 20) for n in range(1, 5)]
    assert entries == [
        (hashes[0], first.physical_offset, 0, 0),
        (hashes[1], first.physical_offset, 0, 0),
        (hashes[2], first.physical_offset, 0, 0),
        (hashes[0], second.physical_offset, 0, 1),
    ]


def test_files_have_apaches_sizes_and_take_no_space_before_they_are_used(tmp_path: Path) -> None:
    store = MessageStore.open(tmp_path, StoreConfig(), FakeClock())
    store.append(message(UNIQ_KEY="u1"))
    sizes = {path.parent.name: path.stat() for path in tmp_path.rglob("*[0-9]") if path.is_file()}
    assert {name: stat.st_size for name, stat in sizes.items()} == {
        "commitlog": 1_073_741_824, "0": 6_000_000, "index": 420_000_040,
    }  # fmt: skip
    assert sum(stat.st_blocks * 512 for stat in sizes.values()) < 25_000_000
    store.close()


def test_small_files_beside_the_data(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    assert (tmp_path / "lock").read_bytes() == b"lock"
    assert (tmp_path / "abort").read_text().splitlines()[0] == str(os.getpid())
    store.append(message(UNIQ_KEY="u1"))
    store.close()

    assert not (tmp_path / "abort").exists()
    checkpoint = (tmp_path / "checkpoint").read_bytes()
    assert len(checkpoint) == 4096
    assert struct.unpack_from(">qqqqq", checkpoint) == (NOW, NOW, NOW, 0, 0)
