"""What is deleted and when: the decision alone, then carried out on a store."""

import asyncio
import dataclasses
import errno
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.config import StoreConfig
from cosmodrome.errors import ConfigError, ServiceNotAvailable
from cosmodrome.store import GetStatus, MessageStore
from cosmodrome.store.cleaner import FIRST_DELETION_MS, disk_used
from cosmodrome.store.retention import HOUR_MS, MANUAL_ROUNDS, NOTHING, LogFile, Retention
from cosmodrome.testing.clock import FakeClock
from tests.unit.store.kit import SMALL, bodies, crash, kill, message, open_store, records

PATIENCE_SECONDS = 30
EMPTY, FILLING, NEARLY_FULL, FULL = 0.10, 0.80, 0.87, 0.95
FILE = SMALL.mapped_file_size_commit_log
# No pauses between two deletions: the clock of these tests stands still.
CONFIG = dataclasses.replace(SMALL, delete_commit_log_files_interval=0, delete_consume_queue_files_interval=0)


def at_hour(hour: int) -> int:
    """Some day at this hour, local time."""
    return int(time.mktime((2024, 6, 5, hour, 30, 0, 0, 0, -1))) * 1000


DAY, NIGHT = at_hour(12), at_hour(4)


def aged(now_ms: int, *hours: float) -> list[LogFile]:
    return [LogFile(number * FILE, int(now_ms - age * HOUR_MS)) for number, age in enumerate(hours)]


# The decision


def test_expired_files_go_in_the_hour_set_for_it() -> None:
    retention = Retention(StoreConfig())
    assert retention.decide(aged(DAY, 100, 72, 71), EMPTY, DAY) == NOTHING
    files = aged(NIGHT, 100, 72, 71)
    assert retention.decide(files, EMPTY, NIGHT).delete == tuple(files[:2])


def test_several_hours_may_be_set() -> None:
    retention = Retention(StoreConfig(delete_when="04; 12;"))
    assert retention.decide(aged(DAY, 100), EMPTY, DAY).delete
    assert not retention.decide(aged(at_hour(5), 100), EMPTY, at_hour(5)).delete


def test_a_filling_disk_brings_expired_files_forward_but_no_others() -> None:
    retention = Retention(StoreConfig())
    files = aged(DAY, 100, 1)
    assert retention.decide(files, FILLING, DAY).delete == (files[0],)
    assert retention.decide(files[1:], FILLING, DAY) == NOTHING


def test_a_nearly_full_disk_costs_the_oldest_file_one_at_a_time() -> None:
    files = aged(DAY, 2, 1)
    verdict = Retention(StoreConfig()).decide(files, NEARLY_FULL, DAY)
    assert (verdict.delete, verdict.again) == ((files[0],), True)
    assert Retention(StoreConfig(clean_file_forcibly_enable=False)).decide(files, FULL, DAY) == NOTHING


def test_expired_files_go_before_unexpired_ones() -> None:
    files = aged(DAY, 100, 90, 1)
    assert Retention(StoreConfig()).decide(files, NEARLY_FULL, DAY).delete == tuple(files[:2])


def test_a_file_behind_one_that_stays_stays_too() -> None:
    assert Retention(StoreConfig()).decide(aged(NIGHT, 1, 100), EMPTY, NIGHT) == NOTHING


def test_a_request_deletes_at_any_hour_for_a_while() -> None:
    retention = Retention(StoreConfig())
    retention.delete_soon()
    verdicts = [retention.decide(aged(DAY, 100), EMPTY, DAY) for _ in range(MANUAL_ROUNDS + 1)]
    assert [bool(verdict.delete) for verdict in verdicts] == [True] * MANUAL_ROUNDS + [False]


def test_one_round_deletes_only_so_many() -> None:
    retention = Retention(StoreConfig(delete_file_batch_max=3))
    assert len(retention.decide(aged(NIGHT, *[100] * 9), EMPTY, NIGHT).delete) == 3


@pytest.mark.parametrize(("percent", "used", "full"), [(90, 0.90, False), (90, 0.91, True), (99, 0.91, True)])
def test_a_full_disk_takes_no_more(percent: int, used: float, full: bool) -> None:
    assert Retention(StoreConfig(disk_space_warning_level_ratio=percent)).is_full(used) is full


@given(
    st.lists(st.integers(0, 200 * HOUR_MS), max_size=20),
    st.floats(0, 1),
    st.integers(0, 23),
    st.integers(1, 100),
    st.booleans(),
)
def test_what_goes_is_always_the_oldest_and_never_young_without_need(
    ages: list[int], used: float, hour: int, reserved: int, asked: bool
) -> None:
    now_ms = at_hour(hour)
    retention = Retention(StoreConfig(file_reserved_time=reserved))
    if asked:
        retention.delete_soon()
    files = [LogFile(number * FILE, now_ms - age) for number, age in enumerate(ages)]
    verdict = retention.decide(files, used, now_ms)
    assert verdict.delete == tuple(files[: len(verdict.delete)])
    young = [file for file in verdict.delete if now_ms - file.modified_ms < reserved * HOUR_MS]
    assert len(young) <= (1 if used > 0.85 else 0)
    assert not verdict.delete or asked or used > 0.75 or hour == 4


@pytest.mark.parametrize("hours", ["", ";", "24", "4 5", "-1", "four"])
def test_hours_that_are_none_are_refused(hours: str) -> None:
    with pytest.raises(ConfigError, match="deleteWhen"):
        StoreConfig(delete_when=hours)


def test_the_disk_is_measured_as_df_does(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    assert 0 <= disk_used(tmp_path) <= 1
    assert disk_used(tmp_path) >= (disk.f_blocks - disk.f_bfree) / disk.f_blocks


# Carried out


class Disk:
    """How full the test says the disk is."""

    def __init__(self, used: float = EMPTY) -> None:
        self.used = used

    def __call__(self, _path: Path) -> float:
        return self.used


def filled_store(
    root: Path, files: int, disk: Disk | None = None, config: StoreConfig = CONFIG, clock: FakeClock | None = None
) -> MessageStore:
    """A store whose log has so many files, one message in each, all of them older than a month and synced."""
    store = MessageStore.open(root, config, clock or FakeClock(DAY), None, disk or Disk())
    append_files(store, files)
    return store


def append_files(store: MessageStore, files: int) -> None:
    first = store.max_offset("orders", 0)
    for number in range(first, first + files):
        store.append(message(body=b"%d" % number + b"x" * 40_000, UNIQ_KEY=f"u{number}"))
    settle(store)
    for file in store._log.files:
        set_age(file.path, 30 * 24)


def settle(store: MessageStore) -> None:
    """As the flusher does when it comes round."""
    for file in store._log.files:
        file.sync()
    store.flusher.flushed = store.max_physical_offset


def set_age(path: Path, hours: float, now_ms: int = DAY) -> None:
    seconds = (now_ms - hours * HOUR_MS) / 1000
    os.utime(path, (seconds, seconds))


def log_files(root: Path) -> list[int]:
    return sorted(int(path.name) // FILE for path in (root / "commitlog").iterdir())


async def clean(store: MessageStore, *, asked: bool = True) -> None:
    if asked:
        store.cleaner.retention.delete_soon()
    await store.cleaner.clean()


def numbers(store: MessageStore) -> list[int]:
    return [int(body.rstrip(b"x")) for body in bodies(store)]


async def test_expired_files_go_and_the_queue_begins_later(tmp_path: Path) -> None:
    store = filled_store(tmp_path, 5)
    set_age(store._log.files[3].path, 1)
    await clean(store)
    assert log_files(tmp_path) == [3, 4]
    assert (store.min_offset("orders", 0), store.max_offset("orders", 0)) == (3, 5)
    assert store.min_physical_offset == 3 * FILE
    assert numbers(store) == [3, 4]
    assert store.read("orders", 0, 0, 32).status is GetStatus.OFFSET_TOO_SMALL
    assert store.read("orders", 0, 0, 32).next_offset == 3
    assert store.record_at(0) is None
    assert store.find_by_key("orders", "u0", 1, 0, 2**62) == []


async def test_the_last_file_stays_however_old_and_full_the_disk_is(tmp_path: Path) -> None:
    store = filled_store(tmp_path, 3, Disk(FULL))
    await clean(store)
    assert log_files(tmp_path) == [2]
    await clean(store)
    assert log_files(tmp_path) == [2]
    assert numbers(store) == [2]


async def test_nothing_goes_at_another_hour_unasked(tmp_path: Path) -> None:
    store = filled_store(tmp_path, 3)
    await clean(store, asked=False)
    assert log_files(tmp_path) == [0, 1, 2]


async def test_force_ends_as_soon_as_there_is_room(tmp_path: Path) -> None:
    class Draining(Disk):
        def __call__(self, path: Path) -> float:
            return 0.80 + 0.02 * len(log_files(tmp_path))

    store = filled_store(tmp_path, 4, Draining())
    for file in store._log.files:
        set_age(file.path, 1)
    await clean(store, asked=False)
    assert log_files(tmp_path) == [2, 3]


async def test_what_is_not_synced_yet_does_not_go(tmp_path: Path) -> None:
    store = filled_store(tmp_path, 4)
    store.flusher.flushed = 2 * FILE + 10
    await clean(store)
    assert log_files(tmp_path) == [2, 3]


async def test_what_a_reader_holds_stays_readable(tmp_path: Path) -> None:
    store = filled_store(tmp_path, 3)
    held = store.read("orders", 0, 0, 1).views
    await clean(store)
    assert log_files(tmp_path) == [2]
    assert records(held)[0].body == b"0" + b"x" * 40_000


async def test_files_are_deleted_off_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled_store(tmp_path, 3)
    threads: list[threading.Thread] = []
    unlink = os.unlink

    def noting(path: str) -> None:
        threads.append(threading.current_thread())
        unlink(path)

    monkeypatch.setattr("os.unlink", noting)
    await clean(store)
    assert log_files(tmp_path) == [2]
    assert len(threads) == 2
    assert threading.main_thread() not in threads


async def test_queue_and_index_files_follow(tmp_path: Path) -> None:
    store = MessageStore.open(tmp_path, CONFIG, FakeClock(DAY), None, Disk())
    for number in range(350):  # four files of the queue, nine of the index
        store.append(message(body=b"%d" % number + b"x" * 500, UNIQ_KEY=f"u{number}"))
    settle(store)
    for file in store._log.files[:-1]:
        set_age(file.path, 100)
    index_files = len(list((tmp_path / "index").iterdir()))
    await clean(store)
    first = store.min_offset("orders", 0)
    assert first > 100
    assert numbers(store) == list(range(first, 350))
    assert min(int(path.name) for path in (tmp_path / "consumequeue/orders/0").iterdir()) == first // 100 * 2_000
    assert len(list((tmp_path / "index").iterdir())) < index_files
    assert len(store.find_by_key("orders", "u349", 1, 0, 2**62)) == 1
    store.close()
    store = open_store(tmp_path, CONFIG)
    assert numbers(store) == list(range(first, 350))


async def test_files_of_queues_nobody_asked_for_since_the_start_go_too(tmp_path: Path) -> None:
    store = MessageStore.open(tmp_path, CONFIG, FakeClock(DAY), None, Disk())
    for _ in range(250):
        store.append(message("quiet", body=b"x" * 500))
    store.append(message("loud"))
    store.close()
    store = MessageStore.open(tmp_path, CONFIG, FakeClock(DAY), None, Disk())
    for _ in range(2):
        store.append(message("loud", body=b"x" * 65_000))
    settle(store)
    for file in store._log.files[:-1]:
        set_age(file.path, 100)
    await clean(store)
    assert [path.name for path in (tmp_path / "consumequeue/quiet/0").iterdir()] == [f"{4_000:020d}"]
    assert (store.min_offset("quiet", 0), store.max_offset("quiet", 0)) == (250, 250)


@pytest.mark.parametrize("leave", [MessageStore.close, kill, crash])
async def test_a_queue_that_lost_every_message_goes_on_where_it_was(
    tmp_path: Path, leave: Callable[[MessageStore], None]
) -> None:
    store = filled_store(tmp_path, 3)
    for _ in range(3):
        store.append(message("other", body=b"x" * 40_000))
    settle(store)
    for file in store._log.files[:-1]:
        set_age(file.path, 100)
    await clean(store)
    assert (store.min_offset("orders", 0), store.max_offset("orders", 0)) == (3, 3)
    assert store.read("orders", 0, 3, 1).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert store.read("orders", 0, 1, 1).status is GetStatus.OFFSET_TOO_SMALL
    leave(store)
    store = open_store(tmp_path, CONFIG)
    assert (store.min_offset("orders", 0), store.max_offset("orders", 0)) == (3, 3)
    assert store.append(message()).queue_offset == 3


class Killed(Exception):
    pass


@pytest.mark.parametrize("leave", [kill, crash])
@pytest.mark.parametrize("survivors", range(8))
async def test_a_store_killed_between_two_deletions_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survivors: int, leave: Callable[[MessageStore], None]
) -> None:
    """Killed before the n-th file is gone, of the log, of a queue or of the index."""
    store = MessageStore.open(tmp_path, CONFIG, FakeClock(DAY), None, Disk())
    for number in range(350):
        store.append(message(body=b"%d" % number + b"x" * 500, UNIQ_KEY=f"u{number}"))
    settle(store)
    for file in store._log.files[:-1]:
        set_age(file.path, 100)
    unlink, deleted = os.unlink, [0]

    def die(path: str) -> None:
        if deleted[0] == survivors:
            raise Killed
        deleted[0] += 1
        unlink(path)

    monkeypatch.setattr("os.unlink", die)
    with pytest.raises(Killed):
        await clean(store)
    monkeypatch.undo()
    leave(store)
    store = open_store(tmp_path, CONFIG)
    first = store.min_offset("orders", 0)
    assert numbers(store) == list(range(first, 350))
    assert store.append(message(body=b"350")).queue_offset == 350
    assert numbers(store)[-1] == 350


async def test_a_file_that_cannot_be_deleted_is_tried_again_and_none_behind_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(DAY)
    store = filled_store(tmp_path, 4, clock=clock)

    def refuse(_path: str) -> None:
        raise OSError(errno.EBUSY, "busy")

    monkeypatch.setattr("os.unlink", refuse)
    await clean(store)
    assert log_files(tmp_path) == [0, 1, 2, 3]
    assert "trying again" in caplog.text
    monkeypatch.undo()
    await clean(store)
    assert log_files(tmp_path) == [0, 1, 2, 3]
    clock._steady_ms += CONFIG.redelete_hanged_file_interval
    await clean(store)
    assert log_files(tmp_path) == [3]
    assert numbers(store) == [3]


async def test_a_full_disk_refuses_messages_serves_readers_and_recovers(tmp_path: Path) -> None:
    disk = Disk(FULL)
    store = filled_store(tmp_path, 2, disk, dataclasses.replace(CONFIG, clean_file_forcibly_enable=False))
    await store.cleaner.measure()
    with pytest.raises(ServiceNotAvailable, match=r"the broker's disk is full \[CL:  0.95 CQ:  0.95 INDEX:  0.95\]"):
        store.append(message())
    assert store.refusal is not None
    assert numbers(store) == [0, 1]
    disk.used = FILLING
    await store.cleaner.measure()
    assert store.refusal is None
    assert store.append(message(body=b"2")).queue_offset == 2
    disk.used = FULL
    await store.cleaner.measure()
    store.close()
    assert not (tmp_path / "abort").exists()


async def test_a_disk_that_cannot_be_measured_is_not_taken_for_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_path: Path) -> float:
        raise OSError(errno.EIO, "Input/output error")

    store = MessageStore.open(tmp_path, CONFIG, FakeClock(DAY), None, fail)
    await store.cleaner.measure()
    store.append(message())
    assert "cannot tell how full the disk is" in caplog.text


# The service


@asynccontextmanager
async def cleaning(store: MessageStore) -> AsyncIterator[None]:
    task = asyncio.create_task(store.cleaner.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(holds: Callable[[], bool], clock: FakeClock, step_ms: int = 0) -> None:
    """Threads need real time: look again and again, and let the clock run meanwhile."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():
            await clock.advance(step_ms)
            await asyncio.sleep(0.001)


async def test_the_service_watches_the_disk_at_once_and_deletes_after_a_minute(tmp_path: Path) -> None:
    clock, disk = FakeClock(NIGHT), Disk(FULL)
    store = filled_store(tmp_path, 3, disk, clock=clock)
    started = clock.now_ms()
    async with cleaning(store):
        await until(lambda: store.refusal is not None, clock)
        assert log_files(tmp_path) == [0, 1, 2]
        disk.used = EMPTY
        await until(lambda: log_files(tmp_path) == [2], clock, 1_000)
        assert clock.now_ms() - started >= FIRST_DELETION_MS
        assert store.refusal is None


async def test_the_service_deletes_at_once_when_asked(tmp_path: Path) -> None:
    clock = FakeClock(DAY)
    store = filled_store(tmp_path, 3, clock=clock)
    async with cleaning(store):
        await clock.advance(1)
        store.cleaner.delete_soon()
        await until(lambda: log_files(tmp_path) == [2], clock)
        assert clock.now_ms() == DAY + 1


async def test_deletions_keep_their_distance(tmp_path: Path) -> None:
    clock = FakeClock(DAY)
    store = filled_store(tmp_path, 4, config=SMALL, clock=clock)
    cleaned = asyncio.create_task(clean(store))
    await until(lambda: log_files(tmp_path) == [1, 2, 3], clock)
    await clock.advance(SMALL.delete_commit_log_files_interval - 1)
    assert log_files(tmp_path) == [1, 2, 3]
    await until(cleaned.done, clock, 1)
    assert log_files(tmp_path) == [3]
    assert clock.now_ms() >= DAY + 3 * SMALL.delete_commit_log_files_interval
