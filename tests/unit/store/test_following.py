"""A store that follows: what it takes from a master, what it refuses, and what it is after a change of roles."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from cosmodrome import state_file
from cosmodrome.config import KIB, FlushDiskType
from cosmodrome.errors import ServiceNotAvailable, StoreError
from cosmodrome.mapped_file import MappedFile
from cosmodrome.store import Durability, LogDiverged, MessageStore
from cosmodrome.testing.clock import FakeClock
from cosmodrome.wire.batch import BatchItem
from cosmodrome.wire.record import BLANK_MAGIC
from tests.unit.store.following import append_any, check_same, flush, follower, log_of, queues_of, ship
from tests.unit.store.kit import SMALL, bodies, crash, kill, message, open_store

FILE = SMALL.mapped_file_size_commit_log
SYNC = replace(SMALL, flush_disk_type=FlushDiskType.SYNC_FLUSH)
HOUR_MS = 3_600_000


COUNT = 60


def filled(root: Path, count: int = COUNT, seed: int = 1) -> MessageStore:
    store, random = open_store(root), Random(seed)
    for number in range(count):
        append_any(store, random, number)
    return store


def ship_bytes(copy: MessageStore, data: bytes, most: int) -> None:
    while (at := copy.max_physical_offset) < len(data):
        copy.append_raw(at, data[at : at + most])
        copy.enter_raw()


@pytest.fixture
def leader(tmp_path: Path) -> MessageStore:
    return filled(tmp_path / "leader")


# --- what a master sends


def test_log_bytes_are_of_one_file_and_below_the_end(leader: MessageStore) -> None:
    end = leader.max_physical_offset
    assert end > 2 * FILE
    assert len(leader.log_bytes(FILE - 10, 100) or b"") == 10
    assert len(leader.log_bytes(FILE, 100) or b"") == 100
    assert len(leader.log_bytes(end - 5, 100) or b"") == 5
    assert leader.log_bytes(end, 100) is None
    assert leader.log_bytes(end + FILE, 100) is None
    assert leader.log_bytes(-1, 100) is None


def test_every_append_is_told(tmp_path: Path) -> None:
    store, ends = open_store(tmp_path), []
    store.on_append = lambda: ends.append(store.max_physical_offset)
    one = store.append(message())
    batch = store.append_batch(message(), [BatchItem(0, b"a", ""), BatchItem(0, b"b", "")])
    assert ends == [one.end, batch.end]


# --- what a follower takes


@pytest.mark.parametrize("config", [SMALL, SYNC])
def test_a_copy_byte_by_byte(tmp_path: Path, config: object) -> None:
    leader = open_store(tmp_path / "leader")
    for number in range(3):
        leader.append(message(body=b"x" * 50, UNIQ_KEY=f"u{number}"))
    copy = follower(tmp_path / "copy", config)  # type: ignore[arg-type]
    ship(leader, copy, leader.max_physical_offset, Random(1), most=1)
    flush(copy)
    check_same(copy, leader, 3)


def test_a_message_is_seen_once_it_is_whole(tmp_path: Path) -> None:
    leader, arrived = open_store(tmp_path / "leader"), []
    first, second = leader.append(message(body=b"1")), leader.append(message(body=b"2"))
    copy = MessageStore.open(
        tmp_path / "copy", SMALL, FakeClock(), lambda *arrival: arrived.append(arrival[:3]), follows=True
    )
    ship(leader, copy, second.end - 1, Random(1))
    assert copy.max_physical_offset == copy.safe_end == second.end - 1
    assert bodies(copy) == [b"1"]
    assert copy.record_at(second.physical_offset) is None
    assert arrived == [("orders", 0, 1)]
    ship(leader, copy, second.end, Random(1))
    assert bodies(copy) == [b"1", b"2"]
    assert arrived == [("orders", 0, 1), ("orders", 0, 2)]
    assert first.end == second.physical_offset


async def test_with_sync_flush_a_copy_promises_what_is_on_disk(tmp_path: Path) -> None:
    leader, told = open_store(tmp_path / "leader"), asyncio.Event()
    end = leader.append(message(body=b"1")).end
    copy = follower(tmp_path / "copy", SYNC)
    copy.on_safe = told.set
    ship(leader, copy, end, Random(1))
    assert copy.safe_end == 0
    assert bodies(copy) == []
    flushing = asyncio.create_task(copy.flusher.run())
    assert await copy.durable(end) is Durability.OK
    await told.wait()
    assert copy.safe_end == end
    assert bodies(copy) == [b"1"]
    copy.flusher.stop()
    await flushing


def test_an_empty_copy_begins_where_its_master_does(tmp_path: Path, leader: MessageStore) -> None:
    """A report of 0 brings the last file only; queues then begin with what is there."""
    copy, begin = follower(tmp_path / "copy"), leader.max_physical_offset // FILE * FILE
    data = leader.log_bytes(begin, 1_000)
    assert data is not None
    copy.append_raw(begin, data)
    assert copy.min_physical_offset == begin
    ship(leader, copy, leader.max_physical_offset, Random(1))
    assert log_of(copy) == log_of(leader, begin)
    behind = {
        queue: kept
        for queue, entries in queues_of(leader).items()
        if (kept := [entry for entry in entries if entry[0] >= begin])
    }
    assert queues_of(copy) == behind
    for topic, queue_id in behind:
        assert copy.max_offset(topic, queue_id) == leader.max_offset(topic, queue_id)
    for leave in (MessageStore.close, kill, crash):
        leave(copy)
        copy = follower(tmp_path / "copy")
        assert copy.min_physical_offset == begin
        assert queues_of(copy) == behind


def test_a_copy_of_everything_is_asked_for_from_1_on(tmp_path: Path, leader: MessageStore) -> None:
    copy = follower(tmp_path / "copy")
    data = leader.log_bytes(1, 500)
    assert data is not None
    copy.append_raw(1, data)
    ship(leader, copy, leader.max_physical_offset, Random(1))
    assert copy.min_physical_offset == 0
    check_same(copy, leader, COUNT)


@pytest.mark.parametrize("begin", [2, FILE - 1, FILE + 2])
def test_a_log_does_not_begin_within_a_file(tmp_path: Path, begin: int) -> None:
    copy = follower(tmp_path / "copy")
    with pytest.raises(LogDiverged, match="mappedFileSizeCommitLog"):
        copy.append_raw(begin, b"x" * 10)
    assert copy.max_physical_offset == 0


@pytest.mark.parametrize(("theirs", "size"), [(64, 96), (64, 128), (96, 64), (128, 64)])
def test_files_of_another_size_are_noticed(tmp_path: Path, theirs: int, size: int) -> None:
    size *= KIB
    leader, random = (
        open_store(tmp_path / "leader", replace(SMALL, mapped_file_size_commit_log=theirs * KIB)),
        Random(1),
    )
    for number in range(COUNT):
        append_any(leader, random, number)
    config = replace(SMALL, mapped_file_size_commit_log=size)
    copy = follower(tmp_path / "copy", config)
    with pytest.raises(LogDiverged, match=f"mappedFileSizeCommitLog, which is {size} here"):
        ship(leader, copy, leader.max_physical_offset, Random(1), most=8 * KIB)
    end = copy.settle()
    copy.close()
    assert follower(tmp_path / "copy", config).max_physical_offset == end


# --- what a follower refuses


def _wrong_offset(record: bytearray) -> None:
    record[35] ^= 1


def _wrong_magic(record: bytearray) -> None:
    record[4] ^= 1


def _wrong_size(record: bytearray) -> None:
    record[3] ^= 1


def _nothing(record: bytearray) -> None:
    record[:] = bytes(len(record))


def _too_small(record: bytearray) -> None:
    record[:4] = (20).to_bytes(4)


def _blank_elsewhere(record: bytearray) -> None:
    record[:8] = (1_000).to_bytes(4) + BLANK_MAGIC.to_bytes(4)


@pytest.mark.parametrize("config", [SMALL, SYNC])
@pytest.mark.parametrize("most", [7, 100, 10_000])
@pytest.mark.parametrize("spoil", [_wrong_offset, _wrong_magic, _wrong_size, _nothing, _too_small, _blank_elsewhere])
def test_what_is_no_record_in_its_place_is_not_taken(
    tmp_path: Path, spoil: Callable[[bytearray], None], most: int, config: object
) -> None:
    """The records before it are, and once the master sends it right, it is taken, too."""
    leader = open_store(tmp_path / "leader")
    ends = [leader.append(message(body=b"%d" % number * 100, UNIQ_KEY=f"u{number}")).end for number in range(4)]
    data = bytearray(log_of(leader))
    record = data[ends[1] : ends[2]]
    spoil(record)
    data[ends[1] : ends[2]] = record
    copy = follower(tmp_path / "copy", config)  # type: ignore[arg-type]
    with pytest.raises(LogDiverged):
        ship_bytes(copy, bytes(data), most)
    with pytest.raises(LogDiverged):  # what follows does not pass for it
        copy.append_raw(ends[2], bytes(data[ends[2] :]))
    assert ends[1] <= copy.max_physical_offset < ends[2]
    assert copy.settle() == ends[1]
    flush(copy)
    assert bodies(copy) == [b"0" * 100, b"1" * 100]
    ship(leader, copy, ends[-1], Random(1))
    flush(copy)
    check_same(copy, leader, 4)


def test_a_damaged_body_is_copied_and_passed_over(tmp_path: Path) -> None:
    """It is the master's record; that its message has rotted is for those who read it."""
    leader = open_store(tmp_path / "leader")
    places = [leader.append(message(body=b"%d" % number * 100)) for number in range(3)]
    data = bytearray(log_of(leader))
    data[places[1].physical_offset + 150] ^= 1
    copy = follower(tmp_path / "copy")
    copy.append_raw(0, bytes(data))
    copy.enter_raw()
    assert log_of(copy) == bytes(data)
    assert copy.max_offset("orders", 0) == 3
    found = copy.read("orders", 0, 0, 10, verify=True)
    assert (found.count, found.next_offset) == (2, 3)


@pytest.mark.parametrize("shift", [-1, 1, 1_000_000])
def test_bytes_for_another_place_are_refused(tmp_path: Path, shift: int) -> None:
    leader, copy = open_store(tmp_path / "leader"), follower(tmp_path / "copy")
    end = leader.append(message()).end
    ship(leader, copy, end, Random(1))
    with pytest.raises(LogDiverged, match=f"this log ends at {end}"):
        copy.append_raw(end + shift, b"x" * 100)
    assert copy.max_physical_offset == end


def test_bytes_do_not_cross_a_file(tmp_path: Path, leader: MessageStore) -> None:
    copy = follower(tmp_path / "copy")
    ship(leader, copy, FILE - 10, Random(1))
    with pytest.raises(LogDiverged, match="mappedFileSizeCommitLog"):
        copy.append_raw(FILE - 10, log_of(leader)[FILE - 10 : FILE + 10])
    ship(leader, copy, leader.max_physical_offset, Random(1))
    check_same(copy, leader, COUNT)


def test_a_follower_takes_no_messages_and_a_leader_no_bytes(tmp_path: Path) -> None:
    copy, leader = follower(tmp_path / "copy"), open_store(tmp_path / "leader")
    with pytest.raises(ServiceNotAvailable, match="slave"):
        copy.append(message())
    with pytest.raises(ServiceNotAvailable, match="slave"):
        copy.append_batch(message(), [BatchItem(0, b"", "")])
    assert copy.refusal is None  # nothing is wrong with it
    with pytest.raises(ServiceNotAvailable):
        leader.append_raw(0, b"x")


def test_a_queue_offset_that_cannot_be_makes_no_fillers(tmp_path: Path) -> None:
    leader = open_store(tmp_path / "leader")
    leader.append(message())
    data = bytearray(log_of(leader))
    data[20:28] = (2**40).to_bytes(8)
    copy = follower(tmp_path / "copy")
    copy.append_raw(0, bytes(data))
    copy.enter_raw()
    assert copy.max_offset("orders", 0) == 0
    assert copy.skipped.count == 1


# --- restarts


@pytest.mark.parametrize("leave", [MessageStore.close, kill, crash])
@pytest.mark.parametrize("config", [SMALL, SYNC])
def test_an_unfinished_record_is_gone_after_a_restart(
    tmp_path: Path, leave: Callable[[MessageStore], None], config: object, leader: MessageStore
) -> None:
    heads = [*leader._log.heads(0)]
    ends = sorted({*(head.physical_offset for head in heads), *(head.physical_offset + head.size for head in heads)})
    for number, missing in enumerate((1, 7, 60, 120)):
        copy = follower(tmp_path / f"copy{number}", config)  # type: ignore[arg-type]
        ship(leader, copy, ends[-1] - missing, Random(1))
        leave(copy)
        copy = follower(tmp_path / f"copy{number}", config)  # type: ignore[arg-type]
        assert copy.max_physical_offset == max(end for end in ends if end <= ends[-1] - missing)
        ship(leader, copy, ends[-1], Random(1))
        flush(copy)
        check_same(copy, leader, COUNT)


def test_a_store_that_apache_left_as_a_slave_opens(tmp_path: Path, leader: MessageStore) -> None:
    """Its log begins at a later file and ends within a record; its queues begin with fillers."""
    copy, begin = follower(tmp_path / "copy"), FILE
    data = leader.log_bytes(begin, 1_000)
    assert data is not None
    copy.append_raw(begin, data)
    ship(leader, copy, leader.max_physical_offset - 30, Random(1))
    kill(copy)
    for ours in ("derived.sums", "checkpoint", "config/logEpochs.json", "config/logEpochs.json.bak"):
        (tmp_path / "copy" / ours).unlink(missing_ok=True)
    (tmp_path / "copy" / "abort").write_text("4711")
    copy = follower(tmp_path / "copy")
    assert copy.min_physical_offset == begin
    assert copy.epochs.list == []
    ship(leader, copy, leader.max_physical_offset, Random(1))
    assert log_of(copy) == log_of(leader, begin)
    for topic, queue_id in queues_of(copy):
        assert copy.max_offset(topic, queue_id) == leader.max_offset(topic, queue_id)


def test_a_copy_that_lost_power_ends_at_the_first_damage(tmp_path: Path) -> None:
    """Its master sends what follows again. A master's own log keeps it: nobody else may have it."""
    leader = open_store(tmp_path / "leader")
    places = [leader.append(message(body=b"%d" % number * 2_000, UNIQ_KEY=f"u{number}")) for number in range(5)]
    copy = follower(tmp_path / "copy")
    ship(leader, copy, places[-1].end, Random(1))
    for store in (leader, copy):
        at = places[2].physical_offset + 1_000
        store._log.files[0].view[at : at + 100] = bytes(100)
        store._abort.set()
        crash(store)
    copy = follower(tmp_path / "copy")
    assert copy.max_physical_offset == places[2].physical_offset
    whole = open_store(tmp_path / "leader")
    assert whole.max_physical_offset == places[-1].end
    assert len(bodies(whole)) == 4


# --- roles


@pytest.mark.parametrize("config", [SMALL, SYNC])
def test_a_promoted_copy_goes_on_behind_the_last_whole_record(tmp_path: Path, config: object) -> None:
    leader = open_store(tmp_path / "leader")
    ends = [leader.append(message(body=b"%d" % number, UNIQ_KEY=f"u{number}")).end for number in range(5)]
    copy = follower(tmp_path / "copy", config)  # type: ignore[arg-type]
    ship(leader, copy, ends[-1] - 1, Random(1))
    copy.lead()
    assert not copy.is_follower
    assert bodies(copy) == [b"0", b"1", b"2", b"3"]
    appended = copy.append(message(body=b"new"))
    assert (appended.physical_offset, appended.queue_offset) == (ends[-2], 4)
    flush(copy)
    assert bodies(copy) == [b"0", b"1", b"2", b"3", b"new"]
    copy.follow()
    with pytest.raises(ServiceNotAvailable, match="slave"):
        copy.append(message())


@pytest.mark.parametrize("change", [MessageStore.follow, MessageStore.lead])
def test_a_change_of_roles_that_cannot_be_noted_does_not_happen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[MessageStore], None]
) -> None:
    store = MessageStore.open(tmp_path, SMALL, FakeClock(), follows=change is MessageStore.lead)
    epochs, was_follower = store.epochs.list, store.is_follower

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(state_file, "save", refuse)
        with pytest.raises(OSError, match="full"):
            change(store)
    assert (store.epochs.list, store.is_follower) == (epochs, was_follower)
    change(store)
    assert store.is_follower != was_follower
    assert len(store.epochs.list) == was_follower  # a leader's epoch that holds nothing is dropped


def test_the_dates_of_a_master_say_nothing_about_our_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its clock is an hour ahead. On another boot, a record of our own from the future would tell of a step."""
    ahead, clock = FakeClock(), FakeClock()
    ahead.step(HOUR_MS)
    leader = open_store(tmp_path / "leader", clock=ahead)
    end = leader.append(message()).end
    copy = follower(tmp_path / "copy", clock=clock)
    ship(leader, copy, end, Random(1))
    now_ms = clock.now_ms()
    copy.close()
    monkeypatch.setattr(FakeClock, "boot_id", "another")
    caplog.set_level(logging.ERROR)
    copy = follower(tmp_path / "copy", clock=clock)
    assert copy.timeline.was_never_set
    copy.lead()
    copy.append(message())
    assert copy.timeline.was_never_set
    copy.close()
    monkeypatch.setattr(FakeClock, "boot_id", "a third")
    copy = open_store(tmp_path / "copy", clock=clock)
    assert copy.timeline.was_never_set
    assert copy.timeline.now_ms() >= now_ms
    assert "clock was set" not in caplog.text


async def test_dates_of_a_master_compare_with_ours_as_they_are_now(tmp_path: Path) -> None:
    leader, clock = open_store(tmp_path / "leader"), FakeClock()
    end = leader.append(message()).end
    copy = follower(tmp_path / "copy", clock=clock)
    ship(leader, copy, end, Random(1))
    clock.step(HOUR_MS)
    copy.timeline.look()
    date_ms = clock.now_ms() + 10_000
    assert copy.timeline.of_record(date_ms, 0) - copy.timeline.now_ms() == 10_000
    copy.lead()
    assert copy.timeline.of_record(date_ms, 0) - copy.timeline.now_ms() == 10_000


# --- cuts


def test_what_is_cut_is_kept_aside(tmp_path: Path, leader: MessageStore) -> None:
    whole = log_of(leader)
    end = next(head.physical_offset for head in leader._log.heads(0) if head.physical_offset > FILE)
    leader.follow()
    leader.truncate_log(end + 1)
    aside = tmp_path / "leader" / "commitlog.bad"
    assert leader.max_physical_offset == end
    assert (aside / f"{end:020d}.bytes").read_bytes() == whole[end : 2 * FILE]
    assert (aside / f"{2 * FILE:020d}").read_bytes()[: len(whole) - 2 * FILE] == whole[2 * FILE : 3 * FILE]
    leader.lead()
    leader.append(message(body=b"x" * 60_000))
    leader.append(message(body=b"x" * 60_000))
    leader.follow()
    leader.truncate_log(end)
    assert len(list(aside.glob(f"{2 * FILE:020d}*"))) == 2, "the second does not replace the first"


def test_a_cut_that_is_not_finished_is_finished_by_the_next_start(
    tmp_path: Path, leader: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a killed process leaves half of it: what is behind the cut would pass for the log."""
    end = next(head.physical_offset for head in leader._log.heads(0) if head.physical_offset > FILE)
    short = follower(tmp_path / "short")
    ship(leader, short, end, Random(1))
    leader.follow()
    monkeypatch.setattr(leader, "_cut", lambda _: None)
    leader.truncate_log(end)
    kill(leader)
    again = open_store(tmp_path / "leader")
    check_same(again, short, COUNT)
    assert again.epochs.cut_to is None


def test_a_log_is_not_cut_before_its_first_byte(tmp_path: Path, leader: MessageStore) -> None:
    copy = follower(tmp_path / "copy")
    data = leader.log_bytes(FILE, 1_000)
    assert data is not None
    copy.append_raw(FILE, data)
    with pytest.raises(StoreError, match="nothing would be left"):
        copy.truncate_log(FILE - 1)
    copy.truncate_log(FILE)
    assert (copy.min_physical_offset, copy.max_physical_offset) == (FILE, FILE)
    ship(leader, copy, leader.max_physical_offset, Random(1))
    assert log_of(copy) == log_of(leader, FILE)


async def test_a_sync_that_was_under_way_says_nothing_of_what_follows_a_cut(tmp_path: Path) -> None:
    one, other, store = open_store(tmp_path / "1"), open_store(tmp_path / "2"), follower(tmp_path / "copy", SYNC)
    end = one.append(message(body=b"1")).end
    other.append(message(body=b"1"))
    longer, longest = one.append(message(body=b"2" * 1_000)).end, other.append(message(body=b"3" * 2_000)).end
    ship(one, store, longer, Random(1))
    sync, cut, loop = store.flusher._sync_files, asyncio.Event(), asyncio.get_running_loop()

    async def change_master() -> None:
        store.truncate_log(end)
        ship(other, store, longest, Random(1))
        cut.set()

    def sync_and_change(files: list[MappedFile], cuts: int) -> None:
        sync(files, cuts)
        if not cut.is_set():
            asyncio.run_coroutine_threadsafe(change_master(), loop).result()
            assert store.safe_end <= end

    store.flusher._sync_files = sync_and_change  # type: ignore[method-assign]
    told: list[int] = []
    store.on_safe = lambda: told.append(store.safe_end)
    flushing = asyncio.create_task(store.flusher.run())
    store.flusher.wake()
    await cut.wait()
    assert await store.durable(longest) is Durability.OK
    assert told == [longest]
    assert bodies(store) == [b"1", b"3" * 2_000]
    store.flusher.stop()
    await flushing
    store.close()
