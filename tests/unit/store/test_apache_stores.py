"""What Apache's brokers leave in a store, and Cosmodrome's do not, is no damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cosmodrome.clock import SystemClock
from cosmodrome.config import KIB
from cosmodrome.store.consume_queue import ENTRY
from cosmodrome.store.derived import SUMS
from cosmodrome.store.findings import Area
from cosmodrome.store.index_shape import IndexShape
from cosmodrome.store.inspection import inspect
from cosmodrome.store.repair import plan_repair, repair
from cosmodrome.store.verification import Verification, verify
from tests.unit.store.damage import (
    QUEUE_FILE,
    Spoil,
    entry,
    fill,
    folder_state,
    overwrite,
    set_entry,
    stopped_store,
)
from tests.unit.store.kit import SMALL, bodies, crash, derived_bytes, message, open_store

SCHEDULE_FILE = Path("consumequeue") / "SCHEDULE_TOPIC_XXXX" / "2" / f"{0:020d}"


def assert_sound(root: Path) -> Verification:
    found = verify(root)
    assert found.problems == []
    return found


def put(root: Path, name: str, data: bytes = b"?") -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def unknown_files(root: Path) -> None:
    for name in (
        "abort.bak",
        "consumequeue_ext/orders/0/00000000000000000000",
        "compaction/position-checkpoint",
        "compaction/compactionLog/orders/0/00000000000000000000",
        "config/broadcastOffset.json",
        "config/brokerIdentity",
        "config/topics.json.tmp",
        "config/metadata/CURRENT",
    ):
        put(root, name)


def log_files_made_ahead(root: Path) -> None:
    """Apache makes the next two files before it needs them, and may have written zeros to them."""
    last = max(int(path.name) for path in (root / "commitlog").iterdir())
    for number in (1, 2):
        put(root, f"commitlog/{last + number * 64 * KIB:020d}", bytes(64 * KIB))


def every_entry_counted_as_a_slot(root: Path) -> None:
    """Old brokers counted so."""
    for path in (root / "index").iterdir():
        next_entry = int.from_bytes(path.read_bytes()[36:40])
        overwrite(path, 32, (next_entry - 1).to_bytes(4))


def filter_elsewhere(root: Path) -> None:
    place, size, _ = entry(root, 7)
    set_entry(root, 7, (place, size, -(2**31) - 8))


def other_delay_levels(root: Path) -> None:
    data = (root / SCHEDULE_FILE).read_bytes()
    place, size, due = ENTRY.unpack_from(data)
    overwrite(root / SCHEDULE_FILE, 0, ENTRY.pack(place, size, due + 12_345))


def newest_index_lost(root: Path) -> None:
    """Apache drops unsynced index files after a crash and begins the next where its queues ended."""
    sorted((root / "index").iterdir())[1].unlink()


QUIRKS: dict[str, Spoil] = {
    "unknown files": unknown_files,
    "log files made ahead": log_files_made_ahead,
    "every entry counted as a slot": every_entry_counted_as_a_slot,
    "filter elsewhere": filter_elsewhere,
    "other delay levels": other_delay_levels,
    "newest index lost": newest_index_lost,
    "folder in the log": lambda root: (root / "commitlog" / "lost+found").mkdir(),
}


@pytest.mark.parametrize("quirk", QUIRKS)
def test_a_quirk_is_no_damage(tmp_path: Path, quirk: str) -> None:
    stopped_store(tmp_path)
    (tmp_path / SUMS).unlink()  # Apache's brokers write none, and change what ours speaks of
    before = inspect(tmp_path)
    QUIRKS[quirk](tmp_path)
    assert_sound(tmp_path)
    assert plan_repair(tmp_path).steps == []
    after = inspect(tmp_path)
    assert (after.topics, after.log.end) == (before.topics, before.log.end)


def test_an_index_is_known_by_what_it_holds(tmp_path: Path) -> None:
    """Full files whose slots are mostly used, and whose last message has several keys, fit only one shape."""
    for slots, entries in ((300, 900), (11, 100), (1_000, 300)):
        root = tmp_path / str(slots)
        store = open_store(root, replace(SMALL, max_hash_slot_num=slots, max_index_num=entries))
        fill(store, 800)
        store.close()
        assert assert_sound(root).index_shape == IndexShape(slots, entries)


def test_an_index_file_of_another_size_is_damage_though_it_is_empty(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    put(tmp_path, "index/20990101000000000", bytes(30))
    assert [problem.what for problem in verify(tmp_path).problems] == ["it has 30 bytes, the others have 1040"]
    assert repair(tmp_path, SystemClock()).problems == []


def test_queues_in_rocksdb_are_not_looked_at(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    (tmp_path / "consumequeue").rename(tmp_path / "gone")
    for name in ("CURRENT", "LOCK", "MANIFEST-000005", "000010.sst"):
        put(tmp_path, f"consumequeue/{name}")
    assert assert_sound(tmp_path).notes == [
        "not looked at, and brokers do not either: gone",
        "the queues are kept in RocksDB, and were not looked at",
    ]
    assert inspect(tmp_path).topics == []


def test_batch_queues_are_not_looked_at(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    (tmp_path / "batchconsumequeue").mkdir()
    (tmp_path / "consumequeue" / "orders").rename(tmp_path / "batchconsumequeue" / "orders")
    assert assert_sound(tmp_path).notes == ["the queues of 1 topic are batch queues, and were not looked at"]


def with_a_light_queue(root: Path) -> None:
    """Its entries point to messages of another topic."""
    put(root, "consumequeue/%LMQ%phone/0/00000000000000000000", (root / QUEUE_FILE).read_bytes())


def test_light_queues_are_not_looked_at(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    with_a_light_queue(tmp_path)
    (note,) = assert_sound(tmp_path).notes
    assert note == "1 queue of light topics (%LMQ%…) not looked at"


def test_a_repair_keeps_light_queues_aside(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    with_a_light_queue(tmp_path)
    steps = plan_repair(tmp_path, rebuild=True).steps
    assert "leave out 1 queue of light topics (%LMQ%…): only Apache fills them" in steps
    assert repair(tmp_path, SystemClock()).problems == []
    assert (tmp_path / "consumequeue.bad" / "%LMQ%phone" / "0").is_dir()
    assert not (tmp_path / "consumequeue" / "%LMQ%phone").exists()


def test_what_brokers_pass_over_is_a_note(tmp_path: Path) -> None:
    stopped_store(tmp_path)
    put(tmp_path, "consumequeue/.DS_Store")
    put(tmp_path, "consumequeue/orders/notes.txt")
    (note,) = assert_sound(tmp_path).notes
    assert note.endswith("consumequeue/.DS_Store, consumequeue/orders/notes.txt")
    open_store(tmp_path).close()


def behind(root: Path) -> None:
    """The queues and the index lack the last messages, as when a broker dies before it dispatched them."""
    store = open_store(root)
    fill(store)
    before = derived_bytes(root)
    names = sorted(path.name for path in (root / "index").iterdir())
    for number in range(5):
        store.append(message(body=b"late %d" % number, KEYS=f"late{number}"))
    store.append(message("new", 1))
    crash(store)
    for path in [*(root / "consumequeue").rglob("0*[0-9]"), *(root / "index").iterdir()]:
        key = f"index/{names.index(path.name)}" if path.name in names else str(path.relative_to(root))
        if key in before:
            path.write_bytes(before[key])
        elif path.is_file():
            path.unlink()


def test_what_a_dead_broker_had_not_dispatched_waits_for_the_next(tmp_path: Path) -> None:
    behind(tmp_path)
    state = folder_state(tmp_path)
    found = assert_sound(tmp_path)
    assert any("not in the queues yet: 6 records from" in note for note in found.notes)
    assert folder_state(tmp_path) == state
    store = open_store(tmp_path)
    assert bodies(store)[-5:] == [b"late %d" % number for number in range(5)]
    store.close()
    assert assert_sound(tmp_path).notes == []


def test_a_broker_that_left_in_order_has_dispatched_everything(tmp_path: Path) -> None:
    behind(tmp_path)
    (tmp_path / "abort").unlink()
    found = verify(tmp_path)
    assert found.counts[Area.QUEUES] == 2  # five messages in a row, and one
    assert "it lacks 5 keys of the log's records" in str([problem.what for problem in found.problems])


def test_a_dead_brokers_store_without_queues_waits_for_the_next_start(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store)
    served = bodies(store)
    crash(store)
    (tmp_path / "consumequeue").rename(tmp_path / "gone")
    assert_sound(tmp_path)
    assert bodies(open_store(tmp_path)) == served
