"""The real entry log on a disk that is simulated: its bytes, and what a power cut makes of them.

A kill leaves every byte. A power cut leaves what was synced; of the rest, each block is old or new. After either the
log is opened again, as a start does, and must be as it was after some change since the last sync, or in the midst of
one that may be made in part.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any, cast

from cosmodrome.mapped_file import MappedFile
from cosmodrome.raft.entry_log import EntryLog, SyncJob
from cosmodrome.raft.log import MemoryLog
from cosmodrome.raft.messages import Base, Entry, SyncPoint
from cosmodrome.raft.quorum import Membership
from tests.simulation.raft_checks import Violation
from tests.simulation.raft_disk import DiskLog

BLOCK_BYTES = 64  # written as a whole, or not at all
INDEX_FILE_BYTES = 40 * 32


class MemoryFile:
    """A file of a log, as `MappedFile`, in memory."""

    def __init__(self, disk: MemoryFiles, start: int, size: int) -> None:
        self._disk = disk
        self.start = start
        self.size = size
        self.position = self.prepared = 0
        self.bytes = bytearray(size)
        self.view = memoryview(self.bytes)
        self.map: object = self
        self.durable = bytes(size)
        self.syncs = 0

    @property
    def end(self) -> int:
        return self.start + self.position

    def write_from(self, position: int) -> None:
        self.position = self.prepared = position

    def prepare(self, end: int, step: int) -> None:
        target = min(-(-end // 200) * 200, self.size)  # small steps, so that the disk is full in the midst of a file
        if self.prepared < target:
            if self._disk.is_full:
                raise OSError(errno.ENOSPC, "the simulated disk is full")
            self.bytes[self.prepared : target] = bytes(target - self.prepared)
            self.prepared = target

    def zero_tail(self) -> int:
        changed = len(self.bytes) - self.position - self.bytes.count(0, self.position)
        self.bytes[self.position :] = bytes(self.size - self.position)
        return changed

    def sync(self) -> None:
        self.durable = bytes(self.bytes)
        self.syncs += 1

    def close(self) -> None:
        """Files stay open: the disk outlives its process."""

    def cut_power(self, random: Random) -> None:
        """Keep what was synced, and of the rest any blocks."""
        if self.durable != self.bytes:
            share = random.choice((0.0, 0.5, 1.0))
            for at in range(0, self.size, BLOCK_BYTES):
                if random.random() >= share:
                    self.bytes[at : at + BLOCK_BYTES] = self.durable[at : at + BLOCK_BYTES]
            self.durable = bytes(self.bytes)


class MemoryFiles:
    """The folder of a log (`EntryFiles`). A name that was made or removed is so for good, as on the real disk."""

    def __init__(self) -> None:
        self.is_full = False
        self._files: dict[str, dict[int, MemoryFile]] = {"data": {}, "index": {}}
        self._small: dict[str, bytes] = {}

    def open_all(self, kind: str, size: int) -> list[MappedFile]:
        return cast(list[MappedFile], [file for _, file in sorted(self._files[kind].items())])

    def create(self, kind: str, start: int, size: int) -> MappedFile:
        if self.is_full:
            raise OSError(errno.ENOSPC, "the simulated disk is full")
        file = self._files[kind][start] = MemoryFile(self, start, size)
        return cast(MappedFile, file)

    def remove(self, kind: str, files: list[MappedFile]) -> None:
        for file in files:
            del self._files[kind][file.start]

    def read(self, name: str) -> bytes | None:
        return self._small.get(name)

    def replace(self, name: str, data: bytes) -> None:
        self._small[name] = data

    def close(self) -> None:
        """Nothing is locked here."""

    def cut_power(self, random: Random) -> None:
        for files in self._files.values():
            for file in files.values():
                file.cut_power(random)


@dataclass
class _Sync:
    """A sync under way: what the files held when it began."""

    written: int
    point: SyncPoint
    images: list[tuple[MemoryFile, bytes, int]]


class FileLog(DiskLog):
    """The real log, with a log in memory beside it that says how it must look."""

    def __init__(self, base: Base, file_size: int) -> None:
        super().__init__(base)
        self.files = MemoryFiles()
        self._file_size = file_size
        self._members = base.members
        self.real = self._opened()

    def _opened(self) -> EntryLog:
        return EntryLog(
            self.files, self._members, file_size=self._file_size, index_file_size=INDEX_FILE_BYTES, now_ms=lambda: 0
        )

    # --- what the core asks

    @property
    def first_index(self) -> int:
        return self.real.first_index

    @property
    def last_index(self) -> int:
        return self.real.last_index

    def term_at(self, index: int) -> int:
        return self.real.term_at(index)

    def read(self, begin: int, max_bytes: int) -> Sequence[Entry]:  # type: ignore[override]
        return self.real.read(begin, max_bytes)

    def memberships(self) -> list[tuple[int, Membership]]:
        return list(self.real.memberships())

    def append(self, entries: Sequence[Entry]) -> None:
        self.files.is_full = self.is_full
        prev_term = self.real.term_at(self.real.last_index)
        self.real.append(entries)
        if entries:
            self.check_append(entries, prev_term)
        plain = list(entries)
        self.entries += plain
        self._write(MemoryLog.append, plain)

    def truncate(self, last_index: int) -> None:
        self.check_cut(self, last_index)
        self.real.truncate(last_index)
        MemoryLog.truncate(cast(MemoryLog, _Model(self)), last_index)
        self._write(MemoryLog.truncate, last_index)

    def reset(self, base: Base) -> None:
        super().reset(base)
        self.real.reset(base)

    def compact(self, index: int) -> None:
        """Drop the oldest file, if all its entries may go."""
        file = self.real.take_first(index)
        if file is not None:
            self.files.remove("data", [file])
            self.entries = self.entries[self.real.base.index - self.base.index :]
            self.base = self.real.base
            self._write(_rebase, self.base)

    # --- the disk

    def begin_sync(self, point: SyncPoint) -> Any:
        job: SyncJob = self.real.begin_sync(point)
        files = cast(list[MemoryFile], job._files)
        return _Sync(self.written, point, [(file, bytes(file.bytes), file.syncs) for file in files])

    def end_sync(self, begun: Any) -> None:
        for file, image, syncs in begun.images:
            if file.syncs == syncs:  # else another sync, which began later, has ended
                file.durable = image
                file.syncs += 1
        self.sync(begun.written)
        self.real.synced(begun.point)

    def checkpoint(self, commit: int) -> None:
        job = self.real.begin_checkpoint(commit)
        if job is not None:
            job.run()

    def reopen(self) -> int:
        """Open the log as a start does; return up to where it is known to be committed."""
        before = self.base, self.entries
        self.files.is_full = False
        self.real = self._opened()
        found = self._found()
        if found != before:
            raise Violation(f"a kill changed the log: it was {before}, and is {found}")
        return self.real.committed_index

    def cut_power(self, random: Random) -> str:
        states = [(self.durable.base, list(self.durable.entries))]
        for write, argument in self._writes:
            write(self.durable, argument)
            states.append((self.durable.base, list(self.durable.entries)))
        self._writes.clear()
        self.files.cut_power(random)
        self.files.is_full = False
        self.real = self._opened()
        found = self._found()
        if found not in states and not any(_is_between(found, *pair) for pair in pairwise(states)):
            raise Violation(f"a power cut made {found} of a log that was one of {states}")
        self.base, self.entries = found
        self.durable.base, self.durable.entries = found[0], list(found[1])
        if found == states[-1]:
            return ""
        return "unsynced writes lost" if found in states else "torn tail"

    def _found(self) -> tuple[Base, list[Entry]]:
        real = self.real
        entries: list[Entry] = []
        while real.first_index + len(entries) <= real.last_index:
            entries += real.read(real.first_index + len(entries), 1 << 20)
        for file in real.files:
            if any(file.view[file.position :]):
                raise Violation(f"bytes are left behind the end of the log, {real.end}")
        return real.base, entries


class _Model:
    """The log in memory alone, for calls that would ask the real one."""

    def __init__(self, log: FileLog) -> None:
        self.base, self.entries = log.base, log.entries

    @property
    def last_index(self) -> int:
        return self.base.index + len(self.entries)


def _rebase(log: MemoryLog, base: Base) -> None:
    log.entries = log.entries[base.index - log.base.index :]
    log.base = base


def _is_between(
    found: tuple[Base, list[Entry]], before: tuple[Base, list[Entry]], after: tuple[Base, list[Entry]]
) -> bool:
    shorter, longer = sorted((before[1], after[1]), key=len)
    is_part = len(shorter) <= len(found[1]) and found[1] == longer[: len(found[1])]
    return found[0] == before[0] == after[0] and is_part
