"""When messages are refused for a while: no room to enter them, or a disk that cannot keep up."""

import dataclasses
import errno
from pathlib import Path

import pytest

from cosmodrome.codes import ResponseCode
from cosmodrome.config import FlushDiskType
from cosmodrome.errors import ServiceNotAvailable, SystemBusy
from cosmodrome.mapped_file import MappedFile
from cosmodrome.store import MessageStore
from cosmodrome.testing.clock import FakeClock
from cosmodrome.wire.batch import BatchItem
from tests.unit.store.kit import SMALL, bodies, derived_bytes, kill, message, open_store


def no_room(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def append_until_refused(store: MessageStore, monkeypatch: pytest.MonkeyPatch, what: str) -> int:
    """Let queue or index have no room, and fill what they have; how many messages were taken in, with the last of them
    only in the log."""
    monkeypatch.setattr(what, no_room)
    for number in range(1_000):
        try:
            store.append(message(body=b"%d" % number, UNIQ_KEY=f"u{number}", KEYS="all"))
        except ServiceNotAvailable:
            return number
    raise AssertionError("there was room for everything")


LACKING = ["cosmodrome.store.consume_queue.MappedFile.create", "cosmodrome.store.index_file._create_file"]


@pytest.mark.parametrize("what", LACKING)
def test_a_message_in_the_log_enters_its_queue_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    clock = FakeClock()
    config = dataclasses.replace(SMALL, mapped_file_size_commit_log=1024 * 1024)
    store = open_store(tmp_path / "full", config, clock)
    store.append(message("first"))
    taken = append_until_refused(store, monkeypatch, what)
    with pytest.raises(ServiceNotAvailable, match="No space left"):
        store.append(message("other"))
    with pytest.raises(ServiceNotAvailable, match="No space left"):
        store.append_batch(message("other"), [BatchItem(0, b"x", "")])
    assert len(bodies(store)) == taken - 1
    monkeypatch.undo()
    assert store.append(message(body=b"after")).queue_offset == taken
    expected = [b"%d" % number for number in range(taken)] + [b"after"]
    assert bodies(store) == expected
    assert store.refusal is None
    kill(store)
    twin = open_store(tmp_path / "twin", config, clock)
    twin.append(message("first"))
    for number in range(taken):
        twin.append(message(body=b"%d" % number, UNIQ_KEY=f"u{number}", KEYS="all"))
    twin.append(message(body=b"after"))
    kill(twin)
    assert derived_bytes(tmp_path / "full") == derived_bytes(tmp_path / "twin")


@pytest.mark.parametrize("what", LACKING)
async def test_a_measurement_of_the_disk_tries_again_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    store = open_store(tmp_path, dataclasses.replace(SMALL, mapped_file_size_commit_log=1024 * 1024))
    store.append(message("first"))
    taken = append_until_refused(store, monkeypatch, what)
    monkeypatch.undo()
    await store.cleaner.measure()
    assert len(bodies(store)) == taken


@pytest.mark.parametrize("flush", FlushDiskType)
def test_what_could_not_enter_its_queue_is_there_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: FlushDiskType
) -> None:
    config = dataclasses.replace(SMALL, flush_disk_type=flush)
    store = open_store(tmp_path, config)
    store.append(message(body=b"so that the log has a file"))
    monkeypatch.setattr(LACKING[0], no_room)
    store.append(message("other", body=b"stuck"))
    if store.group_commit:
        store.flusher.flushed = store.max_physical_offset
        store._flushed(store.max_physical_offset, 0)
    with pytest.raises(ServiceNotAvailable, match="No space left"):
        store.append(message("other", body=b"refused"))
    kill(store)
    monkeypatch.undo()
    assert bodies(open_store(tmp_path, config), "other") == [b"stuck"]


def test_a_store_that_lacks_room_to_the_end_is_not_closed_as_if_all_were_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, dataclasses.replace(SMALL, mapped_file_size_commit_log=1024 * 1024))
    store.append(message("first"))
    taken = append_until_refused(store, monkeypatch, LACKING[0])
    with pytest.raises(OSError, match="No space left"):
        store.close()
    monkeypatch.undo()
    assert (tmp_path / "abort").exists()
    store = open_store(tmp_path, dataclasses.replace(SMALL, mapped_file_size_commit_log=1024 * 1024))
    assert len(bodies(store)) == taken


# A disk that cannot keep up


@pytest.fixture
def slow_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MessageStore:
    """Getting room in the log takes as long as the first message's flag says."""
    clock = FakeClock()
    store = open_store(tmp_path, clock=clock)
    prepare = MappedFile.prepare

    def slowly(file: MappedFile, end: int, step: int) -> None:
        if file in store._log.files:
            clock._steady_ms += DELAY_MS[0]
        prepare(file, end, step)

    monkeypatch.setattr(MappedFile, "prepare", slowly)
    return store


DELAY_MS = [0]


@pytest.mark.parametrize(("delay_ms", "busy"), [(1_000, False), (1_001, True)])
def test_a_stalled_append_turns_away_those_who_wait(slow_store: MessageStore, delay_ms: int, busy: bool) -> None:
    stalls: list[bool] = []
    slow_store.on_stall = lambda: stalls.append(slow_store.is_page_cache_busy)
    DELAY_MS[0] = delay_ms
    slow_store.append(message(body=b"slow"))  # itself it is stored
    assert (slow_store.is_page_cache_busy, stalls) == (busy, [True] if busy else [])
    if busy:
        with pytest.raises(SystemBusy, match=r"^\[PC_SYNCHRONIZED\]broker busy, start flow control") as refused:
            slow_store.append(message())
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
        with pytest.raises(SystemBusy):
            slow_store.append_batch(message(), [BatchItem(0, b"x", "")])
        assert slow_store.refusal is None
    slow_store.calm()
    slow_store.append(message(body=b"next"))
    assert bodies(slow_store) == [b"slow", b"next"]


def test_a_stalled_batch_counts_too(slow_store: MessageStore) -> None:
    slow_store.on_stall = lambda: None
    DELAY_MS[0] = 5_000
    slow_store.append_batch(message(), [BatchItem(0, b"x", "")])
    assert slow_store.is_page_cache_busy


def test_where_nobody_answers_requests_nobody_is_turned_away(slow_store: MessageStore) -> None:
    DELAY_MS[0] = 5_000
    slow_store.append(message())
    slow_store.append(message())
