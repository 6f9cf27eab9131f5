"""A disk without room, from the first moment of a start on: the store opens, serves, refuses, and goes on later."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cosmodrome import disk
from cosmodrome.clock import SystemClock
from cosmodrome.errors import ServiceNotAvailable
from cosmodrome.store import MessageStore
from cosmodrome.store.index_file import IndexFile, file_size
from cosmodrome.store.lock import AbortMark, Exit
from cosmodrome.store.timer_store import MAX_WINDOW_MS, Timer, TimerStore
from cosmodrome.testing.clock import FakeClock
from cosmodrome.testing.faulty_disk import Fault, FaultyDisk, Kind
from tests.unit.store.kit import SMALL, bodies, crash, kill, message, open_store

CONFIG = dataclasses.replace(SMALL, clean_file_forcibly_enable=False)
NEEDS_ROOM = frozenset({Kind.WRITE, Kind.ALLOCATE, Kind.FOLDER, Kind.RENAME})


def no_room() -> Fault:
    return Fault(0, errno.ENOSPC, lasting=True, kinds=NEEDS_ROOM)


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[FaultyDisk]:
    with FaultyDisk(tmp_path, watch=False) as faulty:
        yield faulty


def close(store: MessageStore) -> None:
    store.close()


def fill(store: MessageStore, count: int = 200) -> list[bytes]:
    """Append so much that every kind of file was rolled."""
    texts = [b"%d" % number + bytes(500) for number in range(count)]
    for number, text in enumerate(texts):
        store.append(message(body=text, UNIQ_KEY=f"u{number}", KEYS="all"))
    return texts


@pytest.mark.parametrize("end", [close, kill, crash])
def test_a_store_opens_without_room(tmp_path: Path, faulty: FaultyDisk, end: Callable[[MessageStore], None]) -> None:
    clock = FakeClock()
    store = open_store(tmp_path / "s", CONFIG, clock)
    texts = fill(store)
    end(store)
    faulty.fault = no_room()
    store = open_store(tmp_path / "s", CONFIG, clock)
    if end is not crash:  # after which the index is built anew, and with it what follows waits
        assert bodies(store) == texts
    with pytest.raises(ServiceNotAvailable, match="No space left"):
        fill(store)
    faulty.fault = None
    assert store.append(message(body=b"after")).queue_offset >= len(texts)
    assert bodies(store)[: len(texts)] == texts
    assert store.refusal is None
    assert len(store.find_by_key("orders", "u7", 10, 0, 2**62)) >= 1
    store.close()
    store = open_store(tmp_path / "s", CONFIG, clock)
    assert bodies(store)[: len(texts)] == texts
    assert bodies(store)[-1] == b"after"
    store.close()


async def test_retention_makes_room_after_a_start_without_any(tmp_path: Path, faulty: FaultyDisk) -> None:
    store = open_store(tmp_path / "s", SMALL)
    fill(store)
    kill(store)
    faulty.fault = no_room()
    store = MessageStore.open(tmp_path / "s", SMALL, SystemClock(), used=lambda _path: 1.0)
    files = len(store._log.files)
    await store.cleaner.clean()
    assert len(store._log.files) < files
    assert store.min_offset("orders", 0) > 0
    assert bodies(store)
    kill(store)


@pytest.mark.parametrize("end", [kill, crash])
def test_lost_queues_wait_for_room_and_nothing_overtakes_them(
    tmp_path: Path, faulty: FaultyDisk, end: Callable[[MessageStore], None]
) -> None:
    """Everything derived is gone, and there is no room to build it: the log has it all."""
    clock = FakeClock()
    store = open_store(tmp_path / "s", CONFIG, clock)
    texts = fill(store)
    end(store)
    for folder in ("consumequeue", "index"):
        for path in sorted((tmp_path / "s" / folder).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    faulty.fault = no_room()
    for _ in range(2):  # it may be killed in that state, too
        store = open_store(tmp_path / "s", CONFIG, clock)
        assert store.refusal is not None
        assert "No space left" in store.refusal
        with pytest.raises(ServiceNotAvailable, match="No space left"):
            store.append(message(body=b"too early"))
        end(store)
    store = open_store(tmp_path / "s", CONFIG, clock)
    faulty.fault = None
    assert store.append(message(body=b"after")).queue_offset == len(texts)
    assert bodies(store) == [*texts, b"after"]
    store.close()
    assert bodies(open_store(tmp_path / "s", CONFIG, clock)) == [*texts, b"after"]


def test_a_full_disk_is_no_broken_one(tmp_path: Path, faulty: FaultyDisk) -> None:
    store = open_store(tmp_path / "s")
    store.append(message())
    kill(store)
    faulty.fault = no_room()
    store = open_store(tmp_path / "s")
    kill(store)
    assert AbortMark(tmp_path / "s" / "abort").last_exit() is Exit.KILLED


def test_a_mark_without_room_stands_for_a_crash(tmp_path: Path, faulty: FaultyDisk) -> None:
    open_store(tmp_path / "s").close()
    faulty.fault = no_room()
    store = open_store(tmp_path / "s")
    kill(store)
    assert AbortMark(tmp_path / "s" / "abort").last_exit() is Exit.CRASH


def test_a_sync_that_finds_no_room_is_a_failure(tmp_path: Path, faulty: FaultyDisk) -> None:
    """Its bytes are lost: it must not pass for a write that was refused, and may be made again."""
    with (tmp_path / "file").open("wb") as file:
        for sync in (disk.sync, disk.sync_data):
            faulty.fault = Fault(0, errno.ENOSPC, kinds=frozenset({Kind.SYNC}))
            with pytest.raises(OSError, match="did not reach the disk: No space left") as raised:
                sync(file.fileno())
            assert raised.value.errno == errno.EIO


def test_a_store_whose_sync_finds_no_room_has_failed(tmp_path: Path, faulty: FaultyDisk) -> None:
    store = open_store(tmp_path / "s")
    store.append(message())
    faulty.fault = Fault(0, errno.ENOSPC, kinds=frozenset({Kind.SYNC}))
    with pytest.raises(OSError, match="did not reach the disk"):
        store.close()
    assert AbortMark(tmp_path / "s" / "abort").last_exit() is Exit.DISK_FAILURE


def test_a_checkpoint_without_room_leaves_the_store_alone(tmp_path: Path, faulty: FaultyDisk) -> None:
    store = open_store(tmp_path / "s")
    store.append(message())
    work = store._take_checkpoint()
    faulty.fault = no_room()
    work()
    assert store.failure is None
    faulty.fault = None
    store.append(message())
    store.close()


def test_a_wheel_without_room_is_filled_from_the_timer_topic(tmp_path: Path, faulty: FaultyDisk) -> None:
    """Units whose slots are missing, and have no room: they are set again, not forgotten."""
    (tmp_path / "config").mkdir()
    now_ms = 1_600_000_000_000
    queue = range(3)

    def opened() -> TimerStore:
        return TimerStore.open(tmp_path, 4096, now_ms, 10_000, queue, lambda _unit: True)

    pending = opened()
    for number in queue:
        assert pending.set(Timer(now_ms + 60_000, number * 100, 100, 7), now_ms, MAX_WINDOW_MS)
        pending.queue_offset += 1
    pending.close()
    (tmp_path / "timerwheel").unlink()
    faulty.fault = no_room()
    pending = opened()
    assert pending.queue_offset == 0
    assert not any(pending.is_known(number * 100) for number in queue)
    faulty.fault = None
    for number in queue:
        assert pending.set(Timer(now_ms + 60_000, number * 100, 100, 7), now_ms, MAX_WINDOW_MS)
    assert pending.count(now_ms + 60_000) == len(queue)
    pending.close()


def test_the_holes_of_an_older_index_are_filled_before_they_are_written(tmp_path: Path, faulty: FaultyDisk) -> None:
    """Apache's brokers make index files that are all hole; writing there on a full disk would end the process."""
    path = tmp_path / "20260101000000000"
    path.touch()
    os.truncate(path, file_size(10_000, 1_000))
    file = IndexFile(path, 10_000, 1_000)
    faulty.fault = no_room()
    with pytest.raises(OSError, match="No space left"):
        file.put(0, [("key", 7)], 1)
    assert file.count == 1
    faulty.fault = None
    file.put(0, [("key", 7)], 1)
    assert path.stat().st_blocks * 512 >= 10_000 * 4
    file.close()


def test_a_new_file_whose_sync_finds_no_room_is_no_loss(tmp_path: Path, faulty: FaultyDisk) -> None:
    """Nothing was in it yet: the store goes on when there is room, as where making the file was refused."""
    store = open_store(tmp_path / "s", CONFIG)
    faulty.fault = Fault(0, errno.ENOSPC, lasting=True, kinds=frozenset({Kind.SYNC}))
    with pytest.raises(ServiceNotAvailable, match="create mapped file failed"):
        fill(store)
    assert store.failure is None
    faulty.fault = None
    fill(store)
    store.close()
