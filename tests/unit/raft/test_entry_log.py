"""The log in DLedger's files, against a log in memory, through kills, power cuts, full disks and rot."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from cosmodrome.errors import ProtocolError, StoreError
from cosmodrome.raft.entries import EVENT_TOPIC, HEAD, EntryRun, entry_at
from cosmodrome.raft.entry_files import DiskFiles, LogState
from cosmodrome.raft.entry_log import EntryLog, EntryTooLarge
from cosmodrome.raft.log import HEAD_BYTES, LogFull, MemoryLog
from cosmodrome.raft.messages import Base, Entry, EntryKind, SyncPoint
from cosmodrome.raft.quorum import Membership
from cosmodrome.testing.faulty_disk import Fault, FaultyDisk, Kind
from cosmodrome.wire import record

ABC = Membership.of("abc")
NEW = Base(-1, 0, ABC)
FILE_BYTES = 1000
INDEX_BYTES = 10 * 32
LogOf = tuple[Base, tuple[Entry, ...]]


def opened(folder: Path, file_size: int = FILE_BYTES) -> EntryLog:
    files = DiskFiles(folder)
    try:
        return EntryLog(files, ABC, file_size=file_size, index_file_size=INDEX_BYTES, now_ms=lambda: 1_700_000_000_000)
    except BaseException:
        files.close()
        raise


def sync(log: EntryLog) -> None:
    point = SyncPoint(log.cuts, log.last_index)
    log.begin_sync(point).run()
    log.synced(point)


def checkpoint(log: EntryLog, commit: int) -> None:
    job = log.begin_checkpoint(commit)
    if job is not None:
        job.run()


def messages(begin: int, term: int, *data: bytes) -> list[Entry]:
    return [Entry(index, term, EntryKind.NORMAL, one) for index, one in enumerate(data, begin)]


def noop(index: int, term: int) -> Entry:
    return Entry(index, term, EntryKind.NOOP, b"")


class Pair:
    """A log on disk and one in memory, which must look the same to the core."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = Random(f"entry log {seed}")
        self.log = opened(folder)
        self.model = MemoryLog(NEW)
        self.term = 1
        self.commit = -1
        self.states = [self.state()]  # after each change
        self.synced = 0  # the state that no crash may take back
        self._written = 0

    def state(self) -> LogOf:
        return self.model.base, tuple(self.model.entries)

    def step(self) -> None:
        actions: list[Callable[[], None]] = [self.append] * 6 + [self.sync] * 3
        actions += [self.truncate, self.checkpoint, self.compact, self.kill]
        if self.random.random() < 0.1:
            actions = [self.reset]
        self.random.choice(actions)()

    def changed(self) -> None:
        self.states.append(self.state())

    def append(self) -> None:
        random = self.random
        self.term += random.random() < 0.3
        entries = []
        for index in range(self.model.last_index + 1, self.model.last_index + 1 + random.randint(1, 4)):
            self._written += 1
            kind = random.choices(tuple(EntryKind), (8, 1, 1))[0]
            data = b"%d " % self._written * random.choice((0, 1, 30, 150))
            if kind is EntryKind.MEMBERS:
                data = Membership.of(random.choice(("abc", "abcd", "ab"))).encode()
            entries.append(Entry(index, self.term, kind, b"" if kind is EntryKind.NOOP else data))
        self.log.append(entries)
        self.model.append(entries)
        self.changed()

    def sync(self) -> None:
        sync(self.log)
        self.synced = len(self.states) - 1
        if self.random.random() < 0.5:
            self.commit = self.random.randint(max(self.commit, self.model.base.index), self.model.last_index)

    def truncate(self) -> None:
        last = self.random.randint(max(self.commit, self.model.base.index), self.model.last_index)
        self.log.truncate(last)
        self.model.truncate(last)
        self.term += 1
        self.changed()

    def checkpoint(self) -> None:
        checkpoint(self.log, self.commit)

    def compact(self) -> None:
        file = self.log.take_first(self.commit)
        if file is not None:
            file.delete()
            self.model.compact(self.log.base.index)
            self.model.base = self.log.base  # the model knows no places
            self.changed()

    def kill(self) -> None:
        self.log.close()
        self.log = opened(self.folder)

    def reset(self) -> None:
        index = self.model.last_index + self.random.randint(1, 30)
        place = (self.log.end // FILE_BYTES + self.random.randint(0, 3)) * FILE_BYTES
        base = Base(index, self.term, Membership.of("abcd"), place)
        self.log.reset(base)
        self.model.reset(base)
        self.commit = index
        self.changed()

    def check(self) -> None:
        log, model = self.log, self.model
        assert (log.base, log.last_index) == (model.base, model.last_index)
        assert list(log.memberships()) == model.memberships()
        for index in range(log.base.index, log.last_index + 1):
            assert log.term_at(index) == model.term_at(index)
        if log.last_index >= log.first_index:
            begin = self.random.randint(log.first_index, log.last_index)
            max_bytes = self.random.choice((0, 100, 500, 10_000))
            found = log.read(begin, max_bytes)
            assert len(found) == 1 or sum(HEAD_BYTES + len(one.data) for one in found) <= max_bytes
            assert tuple(found) == tuple(model.entries[begin - model.first_index :][: len(found)])
            place = log.begin_of(begin)
            assert log.index_at(place) == begin == log.index_at(log.end_of(begin) - 1)
        assert all_entries(log) == model.entries
        self.check_files()

    def check_files(self) -> None:
        for number, file in enumerate(self.log.files):
            is_last = number == len(self.log.files) - 1
            assert file.position == (self.log.end - file.start if is_last else FILE_BYTES)
            assert not any(file.view[file.position :])


def all_entries(log: EntryLog) -> list[Entry]:
    found: list[Entry] = []
    index = log.first_index
    while index <= log.last_index:
        run = log.read(index, 1 << 20)
        found += run
        index += len(run)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_a_log_on_disk_is_the_log_in_memory(tmp_path: Path, seed: int) -> None:
    pair = Pair(tmp_path / "log", seed)
    for _ in range(60):
        pair.step()
        pair.check()
    pair.log.close()


def is_between(found: LogOf, before: LogOf, after: LogOf) -> bool:
    """Return whether a change was made, not made, or made in part, as far as a change may be."""
    if found in (before, after):
        return True
    shorter, longer = sorted((before[1], after[1]), key=len)
    is_part = len(shorter) <= len(found[1]) <= len(longer) and found[1] == longer[: len(found[1])]
    return found[0] == before[0] == after[0] and is_part


@pytest.mark.parametrize("seed", range(12))
def test_no_moment_of_a_power_cut_loses_what_was_synced(tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "disk" / "log"
    folder.parent.mkdir()
    with FaultyDisk(folder.parent) as disk:
        pair = Pair(folder, seed)
        marks = []
        for _ in range(25):
            marks.append((len(disk.moments), len(pair.states) - 1, pair.synced, pair.commit))
            pair.step()
            disk.mark("memory")
        pair.log.close()
        moments = list(disk.moments)
    random = Random(seed)
    first = marks[0][0]
    for number in sorted(random.sample(range(first, len(moments)), 40)):
        at = max(place for place, mark in enumerate(marks) if mark[0] <= number)
        _, written, synced, _ = marks[at]
        end = marks[at + 1][1] if at + 1 < len(marks) else len(pair.states) - 1
        target = tmp_path / f"{number}"
        target.mkdir()
        moments[number].materialise(target, random)
        log = opened(target / "log")
        found = log.base, tuple(all_entries(log))
        changes = pair.states[synced : max(end, written) + 1]
        assert found in changes or any(is_between(found, before, after) for before, after in pairwise(changes)), (
            f"moment {number} {moments[number].label}: {found}"
        )
        assert not any(any(file.view[file.position :]) for file in log.files)
        log.close()


def test_a_cut_entry_does_not_come_back_behind_one_of_the_same_size(tmp_path: Path) -> None:
    """rocketmq#10666: an entry that was cut off must not follow what replaced the one before it."""
    folder = tmp_path / "disk" / "log"
    folder.parent.mkdir()
    with FaultyDisk(folder.parent) as disk:
        log = opened(folder)
        log.append([noop(0, 1), *messages(1, 3, b"old 1", b"old 2")])
        sync(log)
        log.truncate(0)
        log.append(messages(1, 2, b"new 1"))  # replicated by a leader of term 4: an entry of an earlier term
        disk.mark("new")
        moment = disk.moments[-1]
        log.close()
    for seed in range(40):
        target = tmp_path / f"{seed}"
        target.mkdir()
        moment.materialise(target, Random(seed))
        found = opened(target / "log")
        assert all_entries(found) in ([noop(0, 1)], [noop(0, 1), *messages(1, 2, b"new 1")])
        found.close()


def test_places_are_told_before_the_bodies_are_made(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([noop(0, 1)])
    bodies = [bytes(size) for size in (10, 400, 300, 500, 0)]
    places = log.places([len(body) for body in bodies])
    log.append(messages(1, 1, *bodies))
    assert [log.begin_of(index) for index in range(1, 6)] == places
    assert len({place // FILE_BYTES for place in places}) == 2
    for place, body in zip(places, bodies, strict=True):
        file = log.files[place // FILE_BYTES]
        at = place - file.start
        assert HEAD.unpack_from(file.view, at)[4] == place
        assert file.view[at + HEAD_BYTES : at + HEAD_BYTES + len(body)] == body
    log.close()


def test_a_follower_writes_the_bytes_of_its_leader(tmp_path: Path) -> None:
    leader, follower = opened(tmp_path / "a"), opened(tmp_path / "b")
    random = Random(5)
    for index in range(0, 60, 2):
        leader.append([noop(index, index + 1), *messages(index + 1, index + 1, bytes(random.randint(0, 300)))])
    index = 0
    while index <= leader.last_index:
        run = leader.read(index, random.choice((0, 300, 2000)))
        assert isinstance(run, EntryRun)
        received = EntryRun.parse(memoryview(bytes(run.raw)))
        known = random.randint(0, len(received) - 1) if index else 0
        follower.append(received[:known])
        follower.append(received[known:])
        index += len(run)
    sync(leader)
    sync(follower)
    for kind in ("data", "index"):
        ours, theirs = (sorted((tmp_path / name / kind).iterdir()) for name in "ab")
        assert [path.name for path in ours] == [path.name for path in theirs]
        assert [path.read_bytes() for path in ours] == [path.read_bytes() for path in theirs]
    leader.close()
    follower.close()


def test_members_with_other_file_sizes_refuse_each_other(tmp_path: Path) -> None:
    leader, follower = opened(tmp_path / "a"), opened(tmp_path / "b", 1200)
    leader.append(messages(0, 1, bytes(800), bytes(200)))
    for index in range(2):
        run = EntryRun.parse(memoryview(bytes(leader.read(index, 0).raw)))  # type: ignore[attr-defined]
        if index == 0:
            follower.append(run)
            continue
        with pytest.raises(ProtocolError, match="same mappedFileSizeCommitLog"):
            follower.append(run)
    with pytest.raises(ProtocolError, match="same mappedFileSizeCommitLog"):
        follower.reset(Base(5, 1, ABC, 2000))
    assert follower.last_index == 0
    leader.close()
    follower.close()


def test_every_body_is_a_record_and_a_term_begins_with_one_that_no_queue_takes(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append([noop(0, 1), Entry(1, 1, EntryKind.MEMBERS, ABC.encode())])
    for index in range(2):
        place = log.begin_of(index)
        magic, size, *_ = struct.unpack_from(">ii", log.files[0].view, place)
        head = record.head_at(log.files[0].view, place + HEAD_BYTES, place + size)
        assert (magic, head.size, head.topic) == (1, size - HEAD_BYTES, EVENT_TOPIC)
        assert head.physical_offset == place + HEAD_BYTES
        assert head.sys_flag & record.SysFlag.TRANSACTION_MASK == record.SysFlag.ROLLBACK
    assert all_entries(log)[1].data == ABC.encode()
    log.close()


@pytest.mark.parametrize("number", range(6))
def test_a_full_disk_refuses_entries_and_takes_them_later(tmp_path: Path, number: int) -> None:
    with FaultyDisk(tmp_path, watch=False) as disk:
        log = opened(tmp_path / "log")
        log.append(messages(0, 1, bytes(600)))
        before = all_entries(log)
        disk.fault = Fault(number, errno.ENOSPC, kinds=frozenset({Kind.CREATE, Kind.WRITE, Kind.RESIZE}))
        entries = messages(1, 1, *[bytes(600)] * 3)
        with pytest.raises(LogFull):
            log.append(entries)
        assert all_entries(log) == before
        disk.fault = None
        log.append(entries)
        assert all_entries(log) == before + entries
        log.close()
        again = opened(tmp_path / "log")
        assert all_entries(again) == before + entries
        again.close()


def test_on_a_full_disk_the_oldest_file_can_still_go(tmp_path: Path) -> None:
    with FaultyDisk(tmp_path, watch=False) as disk:
        log = opened(tmp_path / "log")
        for index in range(4):
            log.append(messages(index, 1, bytes(600)))
        sync(log)
        disk.fault = Fault(0, errno.ENOSPC, kinds=frozenset({Kind.WRITE}))
        file = log.take_first(3)
        assert file is not None
        file.delete()
        assert log.first_index == 1
        assert disk.fault.has_struck
        log.close()
        again = opened(tmp_path / "log")
        assert (again.first_index, again.last_index) == (1, 3)
        again.close()


def test_a_disk_that_fails_is_no_full_disk(tmp_path: Path) -> None:
    with FaultyDisk(tmp_path, watch=False) as disk:
        log = opened(tmp_path / "log")
        disk.fault = Fault(0, errno.EIO, kinds=frozenset({Kind.WRITE}))
        with pytest.raises(OSError, match="Input/output") as caught:
            log.append([noop(0, 1)])
        assert not isinstance(caught.value, LogFull)
        disk.fault = None
        log.append([noop(0, 1)])
        disk.fault = Fault(0, errno.ENOSPC, kinds=frozenset({Kind.SYNC}))
        with pytest.raises(OSError, match="did not reach the disk"):
            sync(log)
        log.close()


def test_an_entry_that_fits_no_file_is_refused(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(EntryTooLarge, match="does not fit into a file of 1000"):
        log.append(messages(0, 1, bytes(FILE_BYTES - HEAD_BYTES - 7)))
    log.append(messages(0, 1, bytes(FILE_BYTES - HEAD_BYTES - 8)))
    assert log.end == FILE_BYTES - 8
    log.close()


def test_what_is_committed_is_never_cut_off(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(messages(0, 1, b"a", b"b", b"c"))
    sync(log)
    checkpoint(log, 1)
    assert (tmp_path / "checkpoint").read_bytes() == b"endIndex=2\ncommittedIndex=1\n"
    with pytest.raises(StoreError, match="but 1 was committed"):
        log.truncate(0)
    log.close()
    log = opened(tmp_path)
    assert log.committed_index == 1
    with pytest.raises(StoreError, match="but 1 was committed"):
        log.truncate(0)
    log.close()


def test_a_checkpoint_speaks_only_of_what_is_synced(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(messages(0, 1, b"a", b"b"))
    sync(log)
    log.append(messages(2, 1, b"c"))
    checkpoint(log, 2)
    assert LogState.decode((tmp_path / "log-state").read_bytes()).synced == 1
    assert log.committed_index == 1
    log.close()


def test_a_checkpoint_of_a_log_that_was_cut_meanwhile_is_not_written(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(messages(0, 1, b"a", b"b"))
    sync(log)
    job = log.begin_checkpoint(-1)
    log.truncate(0)
    log.append(messages(1, 2, b"c"))
    assert job is not None
    job.run()
    assert LogState.decode((tmp_path / "log-state").read_bytes()).synced < 1
    log.close()


def test_a_log_that_was_cut_below_its_checkpoint_opens_as_it_was_cut(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(messages(0, 1, b"a", b"b", b"c"))
    sync(log)
    checkpoint(log, 0)
    log.truncate(0)
    log.close()
    log = opened(tmp_path)
    assert all_entries(log) == messages(0, 1, b"a")
    log.close()


@pytest.mark.parametrize("lost", ["data", "tail", "log-state"])
def test_a_log_that_lost_what_was_on_disk_does_not_open(tmp_path: Path, lost: str) -> None:
    log = opened(tmp_path)
    for index in range(8):
        log.append(messages(index, 1, bytes(300)))
    sync(log)
    checkpoint(log, 3)
    log.close()
    data = sorted((tmp_path / "data").iterdir())
    if lost == "data":
        for path in data:
            path.unlink()
    elif lost == "tail":
        data[-1].write_bytes(bytes(FILE_BYTES))
    else:
        state = tmp_path / "log-state"
        state.write_bytes(state.read_bytes().replace(b'"synced": 7', b'"synced": 6'))
    with pytest.raises(StoreError, match=r"add it again with an empty folder|files are missing"):
        opened(tmp_path)


def test_a_lost_index_is_made_again(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for index in range(30):
        log.append(messages(index, 1 + index // 7, bytes(100)))
    sync(log)
    checkpoint(log, 20)
    entries, last = all_entries(log), log.begin_of(29)
    log.close()
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    log = opened(tmp_path)
    assert all_entries(log) == entries
    assert (log.begin_of(29), log.committed_index) == (last, 20)
    log.close()


def test_a_start_looks_only_at_what_came_after_the_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = opened(tmp_path)
    log.append(messages(0, 1, *[b"m"] * 20))
    sync(log)
    checkpoint(log, 5)
    log.append(messages(20, 1, *[b"m"] * 3))
    log.close()
    with caplog.at_level("INFO"):
        log = opened(tmp_path)
    assert "last=22 term=1 scanned=3" in caplog.text
    log.close()


def test_rot_behind_the_checkpoint_ends_the_log_there(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(messages(0, 1, b"kept", b"rotten", b"behind"))
    place = log.begin_of(1) + HEAD_BYTES + 2
    log.files[0].view[place] ^= 4
    log.close()
    log = opened(tmp_path)
    assert all_entries(log) == messages(0, 1, b"kept")
    assert not any(log.files[0].view[log.end :])
    log.close()


def test_two_processes_do_not_share_a_log(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(StoreError, match="in use by another broker"):
        DiskFiles(tmp_path)
    log.close()


def test_random_bytes_are_entries_or_refused() -> None:
    random = Random(3)
    for _ in range(2_000):
        data = bytearray(random.randbytes(random.randint(0, 120)))
        if random.random() < 0.7 and len(data) >= HEAD_BYTES:
            size = random.choice((len(data), 48, 60))
            HEAD.pack_into(data, 0, 1, size, 5, 2, 0, random.choice((0, 2, 3, 9)), 0, 0, size - HEAD_BYTES)
        try:
            EntryRun.parse(memoryview(bytes(data)))
            entry_at(memoryview(bytes(data)), 0)
        except ProtocolError:
            pass
