"""The log's next file: made ahead, made in place, or not to be had."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cosmodrome.errors import ServiceNotAvailable
from cosmodrome.mapped_file import MappedFile
from cosmodrome.store import MessageStore, commit_log
from cosmodrome.store.preallocation import RETRY_MS
from cosmodrome.store.verification import verify
from cosmodrome.testing.clock import FakeClock
from tests.unit.store.kit import SMALL, bodies, crash, kill, message, open_store

PATIENCE_SECONDS = 30
FILE = SMALL.mapped_file_size_commit_log
LARGE = b"x" * 40_000  # one to a file


def log_files(root: Path) -> list[int]:
    return sorted(int(path.name) // FILE for path in (root / "commitlog").iterdir())


@asynccontextmanager
async def preallocating(store: MessageStore) -> AsyncIterator[None]:
    task = asyncio.create_task(store.preallocator.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110  # what a thread has done is no event
            await asyncio.sleep(0.001)


class Creations:
    """Who makes files, and whether they can."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[threading.Thread] = []
        self.error: OSError | None = None
        create = MappedFile.create.__func__  # type: ignore[attr-defined]

        def creating(cls: type[MappedFile], /, *args: object, **options: object) -> MappedFile:
            self.threads.append(threading.current_thread())
            if self.error is not None:
                raise self.error
            made: MappedFile = create(cls, *args, **options)
            return made

        monkeypatch.setattr(MappedFile, "create", classmethod(creating))


async def test_one_file_is_ready_ahead_and_going_on_to_it_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    store.append(message(body=LARGE))
    creations = Creations(monkeypatch)
    async with preallocating(store):
        await until(lambda: log_files(tmp_path) == [0, 1])
        await until(lambda: store._log._next is not None)
        store.append(message(body=LARGE))
        assert log_files(tmp_path) == [0, 1]
        await until(lambda: log_files(tmp_path) == [0, 1, 2])
    assert threading.main_thread() not in creations.threads
    assert bodies(store) == [LARGE, LARGE]


async def test_an_empty_log_has_nothing_ahead(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    async with preallocating(store):
        await until(lambda: not store.preallocator._wanted.is_set())
    assert log_files(tmp_path) == []


def test_without_a_file_ahead_an_append_makes_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for _ in range(3):
        store.append(message(body=LARGE))
    assert (log_files(tmp_path), bodies(store)) == ([0, 1, 2], [LARGE] * 3)


async def test_an_append_waits_for_a_file_that_is_being_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    store.append(message(body=LARGE))
    began = threading.Event()
    ftruncate = os.ftruncate

    def slow(fd: int, size: int) -> None:
        began.set()
        threading.Event().wait(0.05)
        ftruncate(fd, size)

    monkeypatch.setattr("os.ftruncate", slow)
    async with preallocating(store):
        await asyncio.to_thread(began.wait, PATIENCE_SECONDS)
        store.append(message(body=LARGE))
    assert bodies(store) == [LARGE, LARGE]


def test_an_append_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    store.append(message(body=LARGE))
    monkeypatch.setattr(commit_log, "MAX_ROLL_SECONDS", 0.01)
    with store._log._making, pytest.raises(ServiceNotAvailable, match="create mapped file failed"):
        store.append(message(body=LARGE))
    store.append(message(body=LARGE))
    assert bodies(store) == [LARGE, LARGE]


async def test_no_room_ahead_leaves_the_current_file_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    store.append(message(body=LARGE))
    creations = Creations(monkeypatch)
    creations.error = OSError(errno.ENOSPC, "No space left on device")
    async with preallocating(store):
        for tries in range(1, 4):
            await until(lambda tries=tries: len(creations.threads) == tries and clock.sleepers == 1)  # type: ignore[misc]
            await clock.advance(RETRY_MS)
        assert caplog.text.count("has no next file yet") == 1
        store.append(message(body=b"small"))
        with pytest.raises(ServiceNotAvailable, match=r"create mapped file failed.*No space left"):
            store.append(message(body=LARGE))
        store.append(message(body=b"small again"))
        creations.error = None
        store.append(message(body=LARGE))
        await until(lambda: clock.sleepers == 1 or store._log._next is not None)
        await clock.advance(RETRY_MS)
        await until(lambda: store._log._next is not None)
    assert bodies(store) == [LARGE, b"small", b"small again", LARGE]
    assert log_files(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("call", ["ftruncate", "open"])
def test_half_a_file_is_not_left_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    store = open_store(tmp_path)
    store.append(message(body=LARGE))

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(f"os.{call}", fail)
    with pytest.raises(ServiceNotAvailable, match="No space left"):
        store.append(message(body=LARGE))
    monkeypatch.undo()
    assert log_files(tmp_path) == [0]
    store.append(message(body=LARGE))
    assert bodies(store) == [LARGE, LARGE]


def test_a_broken_disk_is_not_taken_for_a_full_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    store.append(message(body=LARGE))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.ftruncate", fail)
    with pytest.raises(ServiceNotAvailable, match="Input/output error"):
        store.append(message(body=LARGE))
    monkeypatch.undo()
    with pytest.raises(ServiceNotAvailable, match="Input/output error"):
        store.append(message())


def test_a_clean_exit_leaves_no_file_ahead(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(message(body=LARGE))
    store._log.make_next()
    assert log_files(tmp_path) == [0, 1]
    store.close()
    assert log_files(tmp_path) == [0]
    store._log.make_next()
    assert log_files(tmp_path) == [0]


@pytest.mark.parametrize("leave", [kill, crash])
def test_a_file_ahead_is_no_part_of_the_log_after_a_crash(
    tmp_path: Path, leave: Callable[[MessageStore], None]
) -> None:
    store = open_store(tmp_path)
    store.append(message(body=LARGE))
    store._log.make_next()
    leave(store)
    assert verify(tmp_path).is_sound
    store = open_store(tmp_path)
    assert (log_files(tmp_path), bodies(store)) == ([0], [LARGE])
    store._log.make_next()
    store.append(message(body=LARGE))
    store._log.make_next()
    leave(store)
    assert bodies(open_store(tmp_path)) == [LARGE, LARGE]
