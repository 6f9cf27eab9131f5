"""Saving a table: many changes share a write, and who was told "saved" was told the truth."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome import state_file
from cosmodrome.broker.tables import SavedTable
from cosmodrome.errors import ServiceNotAvailable
from cosmodrome.testing import FakeClock


class Numbers(SavedTable):
    """The smallest table."""

    def __init__(self, path: Path, clock: FakeClock) -> None:
        super().__init__(path, clock)
        self.numbers: list[int] = []

    def add(self, number: int) -> None:
        self.numbers.append(number)
        self.changed()

    def encoded(self) -> bytes:
        return repr(self.numbers).encode()


class SlowDisk:
    """Stands in for `state_file.save`: a write lasts until it is let through, and may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = state_file.save
        self._loop = asyncio.get_running_loop()
        self._through = threading.Semaphore(0)
        self.started: asyncio.Queue[bytes] = asyncio.Queue()
        self.writing = 0
        self.most_writing = 0
        self.error: OSError | None = None
        monkeypatch.setattr(state_file, "save", self._save)

    def let_through(self, writes: int = 1) -> None:
        for _ in range(writes):
            self._through.release()

    def _save(self, path: Path, data: bytes) -> None:
        self.writing += 1
        self.most_writing = max(self.writing, self.most_writing)
        self._loop.call_soon_threadsafe(self.started.put_nowait, data)
        let = self._through.acquire(timeout=10)
        self.writing -= 1
        assert let, "nobody let this write through"
        if self.error is not None:
            raise self.error
        self._real(path, data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "numbers.json"


@pytest.fixture
def table(path: Path) -> Numbers:
    return Numbers(path, FakeClock())


def on_disk(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


Saves = Callable[[int], list[asyncio.Task[None]]]


@pytest.fixture
def saves(table: Numbers) -> Saves:
    """Starts so many `saved()`, each in its own task and each after a change of its own."""

    def start(count: int) -> list[asyncio.Task[None]]:
        tasks = []
        for _ in range(count):
            table.add(len(table.numbers))
            tasks.append(asyncio.create_task(table.saved()))
        return tasks

    return start


async def test_saved_returns_when_the_change_is_on_disk(table: Numbers, path: Path) -> None:
    table.add(1)
    assert table.unsaved
    await table.saved()
    assert not table.unsaved
    assert on_disk(path) == b"[1]"


async def test_without_a_change_nothing_is_written(table: Numbers, path: Path) -> None:
    await table.saved()
    assert on_disk(path) is None


async def test_every_change_moves_the_version(path: Path) -> None:
    clock = FakeClock(now_ms=1_000)
    table = Numbers(path, clock)
    table.add(1)
    await clock.advance(500)
    table.add(2)
    assert (table.data_version.counter, table.data_version.timestamp) == (2, 1_500)


async def test_changes_made_during_a_write_share_the_next_one(
    table: Numbers, path: Path, saves: Saves, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    first = saves(1)
    assert await disk.started.get() == b"[0]"
    others = saves(50)
    await asyncio.sleep(0)
    disk.let_through()
    await asyncio.gather(*first)
    assert not any(task.done() for task in others), "their changes are not on disk yet"
    assert await disk.started.get() == repr(list(range(51))).encode()
    disk.let_through()
    await asyncio.gather(*others)
    assert disk.started.empty()
    assert on_disk(path) == repr(list(range(51))).encode()


async def test_a_failing_disk_is_a_refusal_and_the_next_try_writes_all(
    table: Numbers, path: Path, saves: Saves, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    disk.error = OSError(28, "No space left on device")
    disk.let_through(10)
    for failed in await asyncio.gather(*saves(3), return_exceptions=True):
        assert isinstance(failed, ServiceNotAvailable)
        assert "numbers.json" in str(failed)
    assert table.unsaved
    assert on_disk(path) is None
    disk.error = None
    disk.let_through(10)
    await table.saved()
    assert on_disk(path) == b"[0, 1, 2]"


async def test_those_who_give_up_do_not_spoil_the_file(
    table: Numbers, path: Path, saves: Saves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write in a thread goes on when its task is cancelled; no other may start beside it."""
    disk = SlowDisk(monkeypatch)
    (given_up,) = saves(1)
    await disk.started.get()
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    (other,) = saves(1)
    await asyncio.sleep(0)
    disk.let_through(2)
    await other
    assert disk.most_writing == 1
    assert on_disk(path) == b"[0, 1]"


async def test_a_failure_that_nobody_waits_for_is_forgotten(
    table: Numbers, saves: Saves, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    disk.error = OSError("gone")
    (given_up,) = saves(1)
    await disk.started.get()
    given_up.cancel()
    await asyncio.sleep(0)
    disk.let_through(2)
    with pytest.raises(ServiceNotAvailable):
        await table.saved()
    assert table.unsaved
