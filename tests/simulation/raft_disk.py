"""The disk of one simulated Raft member: it knows what a kill leaves and what a power cut may take.

A kill takes nothing: what was written is there at the next start, still not synced. A power cut takes what was not
synced, from some write on; of that write a part may remain. Term and vote are the bytes that `raft.storage` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from cosmodrome.raft import storage
from cosmodrome.raft.log import LogFull, MemoryLog
from cosmodrome.raft.messages import Base, Entry, HardState, SyncPoint


class DiskLog(MemoryLog):
    """A log whose writes are on disk only after a sync."""

    def __init__(self, base: Base) -> None:
        super().__init__(base)
        self.durable = MemoryLog(base)
        self.is_full = False
        self._writes: list[tuple[Callable[..., None], object]] = []  # not synced yet, oldest first
        self._written = 0  # writes there ever were
        self.check_append: Callable[[Sequence[Entry], int], None] = lambda entries, prev_term: None
        self.check_cut: Callable[[MemoryLog, int], None] = lambda log, last_index: None
        self.check_base: Callable[[Base], None] = lambda base: None

    def append(self, entries: Sequence[Entry]) -> None:
        if self.is_full:
            raise LogFull("the simulated disk is full; try again later")
        self.check_append(entries, self.term_at(self.last_index))
        super().append(entries)
        self._write(MemoryLog.append, entries)

    def truncate(self, last_index: int) -> None:
        self.check_cut(self, last_index)
        super().truncate(last_index)
        self._write(MemoryLog.truncate, last_index)

    def reset(self, base: Base) -> None:
        self.check_base(base)
        self.check_cut(self, base.index)
        super().reset(base)
        self._write(MemoryLog.reset, base)

    def compact(self, index: int) -> None:
        super().compact(index)
        self._write(MemoryLog.compact, index)

    def _write(self, write: Callable[..., None], argument: object) -> None:
        self._writes.append((write, argument))
        self._written += 1

    @property
    def written(self) -> int:
        """How many writes there were; a sync that begins now covers them."""
        return self._written

    @property
    def is_synced(self) -> bool:
        return not self._writes

    def sync(self, written: int) -> None:
        """Put the oldest writes on disk."""
        count = written - (self._written - len(self._writes))
        for write, argument in self._writes[: max(count, 0)]:
            write(self.durable, argument)
        del self._writes[: max(count, 0)]

    def begin_sync(self, point: SyncPoint) -> Any:
        """Begin a sync, and return what `end_sync` needs to know of it."""
        return self.written

    def end_sync(self, begun: Any) -> None:
        self.sync(begun)

    def checkpoint(self, commit: int) -> None:
        """Note how far the log is on disk."""

    def reopen(self) -> int:
        """Open the log as a start does; return up to where it is known to be committed."""
        return self.base.index

    def cut_power(self, random: Random) -> str:
        """Lose what was not synced, or a part of it."""
        kept = random.randint(0, len(self._writes))
        lost = self._writes[kept:]
        self.sync(self._written - len(lost))
        torn = ""
        if lost and lost[0][0] is MemoryLog.append:
            entries = lost[0][1]
            assert isinstance(entries, Sequence)
            part = entries[: random.randint(0, len(entries))]
            torn = "torn tail" if part else ""
            self.durable.append(part)
        self._writes.clear()
        self.base, self.entries = self.durable.base, list(self.durable.entries)
        return torn or ("unsynced writes lost" if lost else "")


class DiskState:
    """The file of term and vote, in the bytes of `raft.storage`."""

    def __init__(self) -> None:
        self._durable = b""
        self._image = b""
        self._sequence = 0
        self.hard_state = HardState()  # as the file says that is on disk for sure

    def saving(self, hard_state: HardState) -> Iterator[None]:
        """Save a state; each step ends when a sync has."""
        for place, copy in storage.writes(self._sequence + 1, hard_state):
            image = bytearray(self._image.ljust(place + len(copy), b"\0"))
            image[place : place + len(copy)] = copy
            self._image = bytes(image)
            yield
            self._durable = self._image
        self._sequence += 1
        self.hard_state = hard_state

    def open(self) -> HardState:
        """Read and write again what is there, as a start does."""
        found = storage.newest(self._image)
        assert found is not None or len(self._image) <= storage.COPY_PLACES[1], "no copy of the vote outlived this"
        self._sequence, state = found or (0, HardState())
        for _ in self.saving(state):
            pass
        return state

    def cut_power(self, random: Random) -> None:
        """Lose the write that was not synced, or a part of it."""
        if self._image != self._durable:
            size = max(len(self._image), len(self._durable))
            new, old = self._image.ljust(size, b"\0"), self._durable.ljust(size, b"\0")
            place = random.randint(0, size)
            self._image = random.choice(
                (self._durable, self._image, new[:place] + old[place:], old[:place] + new[place:])
            )
            self._durable = self._image
