"""The promise: what `durable` means with each flush, and what happens when the disk fails."""

import asyncio
import dataclasses
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cosmodrome.config import FlushDiskType
from cosmodrome.errors import ServiceNotAvailable
from cosmodrome.mapped_file import MappedFile
from cosmodrome.release import ReleaseGroup
from cosmodrome.store import Durability, GetStatus, MessageStore
from cosmodrome.store.flusher import PAGE_BYTES
from cosmodrome.testing.clock import FakeClock
from cosmodrome.wire.batch import BatchItem
from tests.unit.store.kit import SMALL, bodies, kill, message, open_store

SYNC = dataclasses.replace(SMALL, flush_disk_type=FlushDiskType.SYNC_FLUSH)
EAGER = dataclasses.replace(SMALL, flush_commit_log_least_pages=0)


@asynccontextmanager
async def flushing(store: MessageStore) -> AsyncIterator[None]:
    task = asyncio.create_task(store.flusher.run())
    try:
        yield
    finally:
        store.flusher.stop()
        await task


class Gate:
    """Syncs of the log wait here until they are let through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.syncs = 0
        self.error: OSError | None = None
        self.began = threading.Event()
        self._open = threading.Semaphore(0)
        monkeypatch.setattr(MappedFile, "sync", self._sync)

    def _sync(self) -> None:
        self.syncs += 1
        self.began.set()
        assert self._open.acquire(timeout=10), "nobody let this sync through"
        if self.error is not None:
            raise self.error

    def let_through(self, count: int = 1) -> None:
        self._open.release(count)


async def test_async_flush_promises_nothing_but_gets_it_done(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, EAGER, clock)
    flushed = asyncio.Event()
    store.flusher._on_safe = flushed.set
    async with flushing(store):
        end = store.append(message()).end
        assert await store.durable(end) is Durability.OK
        assert bodies(store) == [b"body"]
        await clock.advance(SMALL.flush_interval_commit_log - 1)
        assert store.flusher.flushed == 0
        await clock.advance(1)
        await flushed.wait()
        assert store.flusher.flushed == end


async def test_async_flush_lets_a_few_pages_wait_for_more(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    flushed = asyncio.Event()
    store.flusher._on_safe = flushed.set
    async with flushing(store):
        store.append(message(body=b"x" * (SMALL.flush_commit_log_least_pages - 1) * PAGE_BYTES))
        await clock.advance(SMALL.flush_commit_log_thorough_interval - SMALL.flush_interval_commit_log)
        assert store.flusher.flushed == 0
        end = store.append(message(body=b"x" * PAGE_BYTES)).end
        await clock.advance(SMALL.flush_interval_commit_log)
        await flushed.wait()
        assert store.flusher.flushed == end


async def test_async_flush_lets_nothing_wait_for_long(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    flushed = asyncio.Event()
    store.flusher._on_safe = flushed.set
    async with flushing(store):
        end = store.append(message()).end
        await clock.advance(SMALL.flush_commit_log_thorough_interval - 1)
        assert store.flusher.flushed == 0
        await clock.advance(1)
        await flushed.wait()
        assert store.flusher.flushed == end


async def test_sync_flush_shows_a_message_only_when_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    arrived: list[int] = []
    store = MessageStore.open(tmp_path, SYNC, FakeClock(), lambda _t, _q, offset, _c: arrived.append(offset))
    async with flushing(store):
        appended = store.append(message(UNIQ_KEY="u"))
        waiting = asyncio.create_task(store.durable(appended.end))
        await asyncio.sleep(0)
        assert (store.max_offset("orders", 0), arrived) == (0, [])
        assert store.read("orders", 0, 0, 1).status is GetStatus.NO_MESSAGE_IN_QUEUE
        assert store.record_at(appended.physical_offset) is None
        assert store.find_by_key("orders", "u", 1, 0, 2**62) == []
        gate.let_through()
        assert await waiting is Durability.OK
        assert (bodies(store), arrived) == ([b"body"], [1])
        assert len(store.find_by_key("orders", "u", 1, 0, 2**62)) == 1


async def test_those_who_wait_share_the_next_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    store = open_store(tmp_path, SYNC)
    async with flushing(store):
        first = asyncio.create_task(store.durable(store.append(message()).end))
        assert await asyncio.to_thread(gate.began.wait, 10)
        others = [asyncio.create_task(store.durable(store.append(message()).end)) for _ in range(20)]
        await asyncio.sleep(0)
        gate.let_through()
        assert await first is Durability.OK
        assert store.max_offset("orders", 0) == 1
        gate.let_through()
        assert set(await asyncio.gather(*others)) == {Durability.OK}
    assert gate.syncs == 2
    assert store.max_offset("orders", 0) == 21


async def test_over_file_ends_every_file_is_synced_and_dispatched(tmp_path: Path) -> None:
    store = open_store(tmp_path, SYNC)
    async with flushing(store):
        for number in range(5):
            store.append(message(body=b"%d" % number + b"x" * 40_000))
        item = BatchItem(0, b"5" * 30_000, "")
        batch = store.append_batch(message(), [item, item])
        assert await store.durable(batch.end) is Durability.OK
    assert [body[:1] for body in bodies(store)] == [b"0", b"1", b"2", b"3", b"4", b"5", b"5"]
    assert not any(file.is_new for file in store._log.files)


async def test_who_need_not_wait_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    store = open_store(tmp_path, SYNC)
    async with flushing(store):
        assert await store.durable(store.append(message()).end, wait=False) is Durability.OK
        assert store.max_offset("orders", 0) == 0
        gate.let_through()
    assert store.max_offset("orders", 0) == 1


async def test_those_who_wait_in_one_turn_need_one_group_and_go_on_outside_of_any_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    store = open_store(tmp_path, SYNC)
    groups: list[ReleaseGroup[Durability]] = []
    done = asyncio.Event()

    def go_on(outcome: Durability) -> None:
        assert (outcome, asyncio.current_task()) == (Durability.OK, None)
        if len(groups) == 20:
            done.set()

    def send() -> None:
        for _ in range(20):
            group = store.durable(store.append(message()).end).send(None)
            assert type(group) is ReleaseGroup
            group.join(go_on)
            groups.append(group)

    async with flushing(store):
        asyncio.get_running_loop().call_soon(send)  # as a connection does
        gate.let_through()
        await done.wait()
    assert len(set(groups)) == 1
    assert store.flusher.waiters == 0


async def test_time_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    store = open_store(tmp_path, dataclasses.replace(SYNC, sync_flush_timeout=5))
    async with flushing(store):
        appended = store.append(message())
        assert await store.durable(appended.end) is Durability.FLUSH_DISK_TIMEOUT
        gate.let_through()
    assert await store.durable(appended.end) is Durability.OK


async def test_each_has_its_own_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    store = open_store(tmp_path, dataclasses.replace(SYNC, sync_flush_timeout=50))
    async with flushing(store):
        first = asyncio.create_task(store.durable(store.append(message()).end))
        assert await asyncio.to_thread(gate.began.wait, 10)
        for _ in range(3):  # each after the deadline of the one before
            assert await store.durable(store.append(message()).end) is Durability.FLUSH_DISK_TIMEOUT
        assert await first is Durability.FLUSH_DISK_TIMEOUT
        assert store.flusher.waiters == 0
        gate.let_through(2)


async def test_after_a_failed_sync_nothing_is_promised_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    store = open_store(tmp_path, SYNC)
    async with flushing(store):
        kept = store.append(message(body=b"kept"))
        gate.let_through()
        await store.durable(kept.end)

        gate.error = OSError(5, "Input/output error")
        lost = store.append(message(body=b"lost"))
        gate.let_through()
        with pytest.raises(ServiceNotAvailable, match="Input/output error"):
            await store.durable(lost.end)
        with pytest.raises(ServiceNotAvailable, match="Input/output error"):
            store.append(message())
        with pytest.raises(ServiceNotAvailable, match="Input/output error"):
            await store.durable(lost.end, wait=False)
        assert bodies(store) == [b"kept"]
    store.close()
    assert (tmp_path / "abort").exists()
    assert gate.syncs == 2


async def test_the_failure_of_a_background_sync_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    gate.error = OSError(5, "Input/output error")
    gate.let_through()
    clock = FakeClock()
    store = open_store(tmp_path, EAGER, clock)
    failed = asyncio.Event()
    refuse = store.flusher._on_failed

    def on_failed(reason: str) -> None:
        refuse(reason)
        failed.set()

    store.flusher._on_failed = on_failed
    async with flushing(store):
        end = store.append(message()).end
        await clock.advance(SMALL.flush_interval_commit_log)
        await failed.wait()
        with pytest.raises(ServiceNotAvailable):
            store.append(message())
        with pytest.raises(ServiceNotAvailable):
            await store.durable(end)
    store.close()
    monkeypatch.undo()
    assert bodies(open_store(tmp_path)) == [b"body"]


async def test_a_stop_flushes_what_is_left(tmp_path: Path) -> None:
    store = open_store(tmp_path, SYNC)
    async with flushing(store):
        end = store.append(message()).end
    assert store.flusher.flushed == end
    assert bodies(store) == [b"body"]


def test_closing_without_a_flusher_shows_and_keeps_everything(tmp_path: Path) -> None:
    store = open_store(tmp_path, SYNC)
    for number in range(3):
        assert store.append(message(body=b"%d" % number)).queue_offset == number
    store.close()
    assert bodies(open_store(tmp_path, SYNC)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("config", [SMALL, SYNC])
def test_what_was_appended_but_not_flushed_survives_a_kill(tmp_path: Path, config: object) -> None:
    store = open_store(tmp_path, config)  # type: ignore[arg-type]
    for number in range(100):
        store.append(message(queue_id=number % 2, body=b"%d" % number + b"x" * 2_000))
    kill(store)
    store = open_store(tmp_path, config)  # type: ignore[arg-type]
    assert store.max_offset("orders", 0) == store.max_offset("orders", 1) == 50


async def test_the_checkpoint_follows_once_a_minute(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, EAGER, clock)
    flushed, saved = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    save = store._checkpoint.save

    def announce() -> None:
        save()
        loop.call_soon_threadsafe(saved.set)

    store._checkpoint.save = announce  # type: ignore[method-assign]
    store.flusher._on_safe = flushed.set
    async with flushing(store):
        stored = store.append(message()).store_timestamp
        await clock.advance(SMALL.flush_interval_commit_log)
        await flushed.wait()
        assert not (tmp_path / "checkpoint").exists()
        await clock.advance(SMALL.flush_consume_queue_thorough_interval)
        await saved.wait()
    assert struct.unpack_from(">qq", (tmp_path / "checkpoint").read_bytes()) == (stored, stored)


async def test_nobody_waits_for_a_slow_checkpoint(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, SYNC, clock)
    began, finish = threading.Event(), threading.Event()
    save = store._checkpoint.save

    def slow() -> None:
        began.set()
        assert finish.wait(10)
        save()

    store._checkpoint.save = slow  # type: ignore[method-assign]
    async with flushing(store):
        await clock.advance(SYNC.flush_consume_queue_thorough_interval)
        assert await store.durable(store.append(message()).end) is Durability.OK
        assert await asyncio.to_thread(began.wait, 10)
        assert await store.durable(store.append(message()).end) is Durability.OK
        assert bodies(store) == [b"body", b"body"]
        finish.set()
    assert (tmp_path / "checkpoint").exists()
