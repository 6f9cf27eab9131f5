"""The log behind the core: what it must do, how two logs are compared, and one in memory.

Log matching is what comparing rests on: if two logs have an entry of the same index and term, they are the same up to
it. Terms never fall along a log, so the place where two logs part is found by halving.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cosmodrome.errors import ProtocolError, StoreError
from cosmodrome.raft.messages import Base, Entry, EntryKind
from cosmodrome.raft.quorum import Membership

HEAD_BYTES = 48  # of an entry, beside its data


class LogFull(StoreError):
    """The log has no room for what was to be appended; it is as it was, and may have room later."""


class Log(Protocol):
    """A log as the core uses it. Its calls write but do not wait for the disk: the member's shell syncs.

    What is written becomes durable in the order of the calls: after a crash a log is as it was after some call, or
    that call took a part of its entries. A truncation is durable before what was appended after it (rocketmq#10666).
    The oldest entries may go at any time, up to the commit index; the term of the last that went stays known.
    """

    @property
    def base(self) -> Base:
        """What stands for the entries before the first."""
        ...

    @property
    def first_index(self) -> int:
        """The index of the oldest entry; `last_index + 1` if there is none."""
        ...

    @property
    def last_index(self) -> int:
        """The index of the newest entry; `first_index - 1` if there is none."""
        ...

    def term_at(self, index: int, /) -> int:
        """Return the term of an entry from `first_index - 1` to `last_index`."""
        ...

    def read(self, begin: int, max_bytes: int, /) -> Sequence[Entry]:
        """Return entries from `begin` on: one, and more as long as they have at most `max_bytes` with their heads."""
        ...

    def append(self, entries: Sequence[Entry], /) -> None:
        """Write entries behind the last; LogFull if there is no room, and then none of them."""
        ...

    def truncate(self, last_index: int, /) -> None:
        """Cut off everything behind an entry."""
        ...

    def reset(self, base: Base, /) -> None:
        """Drop everything and begin behind `base`; either all of this or nothing outlives a crash."""
        ...

    def memberships(self) -> Sequence[tuple[int, Membership]]:
        """Return the members as of the entry before the first, and each entry that changes them, with its index."""
        ...


def has_entry(log: Log, index: int, term: int) -> bool:
    """Return whether the log has an entry, or stands on it."""
    return log.first_index - 1 <= index <= log.last_index and log.term_at(index) == term


def is_up_to_date(log: Log, last_index: int, last_term: int) -> bool:
    """Return whether a log that ends like this has all that ours may have committed (Raft 5.4.1)."""
    return (last_term, last_index) >= (log.term_at(log.last_index), log.last_index)


def check_entries(entries: Sequence[Entry], prev_index: int, prev_term: int, term: int) -> None:
    """ProtocolError unless the entries follow each other and `prev`, with terms that do not fall or pass `term`."""
    for entry in entries:
        prev_index += 1
        if entry.index != prev_index or not prev_term <= entry.term <= term:
            raise ProtocolError(
                f"entry {entry.index} of term {entry.term} does not follow {prev_index - 1}, {prev_term}"
            )
        prev_term = entry.term


def count_known(log: Log, entries: Sequence[Entry]) -> int:
    """Return how many of the entries, from the first on, the log has already."""
    last = log.last_index
    for count, entry in enumerate(entries):
        if entry.index > last or log.term_at(entry.index) != entry.term:
            return count
    return len(entries)


def last_index_of_term(log: Log, index: int, term: int) -> int:
    """Return the last index up to `index` whose term is at most `term`; `first_index - 1` if there is none above."""
    low, high = log.first_index - 1, min(index, log.last_index)
    while low < high:
        middle = (low + high + 1) // 2
        if log.term_at(middle) <= term:
            low = middle
        else:
            high = middle - 1
    return low


def decoded_members(entries: Sequence[Entry]) -> list[tuple[int, Membership]]:
    """Return the memberships among the entries; ProtocolError if one cannot be read."""
    return [(entry.index, Membership.decode(entry.data)) for entry in entries if entry.kind == EntryKind.MEMBERS]


class MemoryLog:
    """A log in memory, for tests and models."""

    def __init__(self, base: Base, entries: Sequence[Entry] = ()) -> None:
        self.base = base
        self.entries = list(entries)

    @property
    def first_index(self) -> int:
        return self.base.index + 1

    @property
    def last_index(self) -> int:
        return self.base.index + len(self.entries)

    def term_at(self, index: int) -> int:
        place = index - self.base.index
        if place == 0:
            return self.base.term
        assert 0 < place <= len(self.entries), f"index {index} is outside of {self.first_index} to {self.last_index}"
        return self.entries[place - 1].term

    def read(self, begin: int, max_bytes: int) -> tuple[Entry, ...]:
        place = begin - self.first_index
        assert 0 <= place < len(self.entries), f"index {begin} is outside of {self.first_index} to {self.last_index}"
        end = place
        for entry in self.entries[place:]:
            max_bytes -= HEAD_BYTES + len(entry.data)
            if max_bytes < 0 and end > place:
                break
            end += 1
        return tuple(self.entries[place:end])

    def append(self, entries: Sequence[Entry]) -> None:
        assert not entries or entries[0].index == self.last_index + 1, "the log has no holes"
        self.entries += entries

    def truncate(self, last_index: int) -> None:
        assert self.base.index <= last_index <= self.last_index
        del self.entries[last_index - self.base.index :]

    def reset(self, base: Base) -> None:
        self.base, self.entries = base, []

    def compact(self, index: int) -> None:
        """Forget the entries up to `index`, which must be committed."""
        assert self.base.index <= index <= self.last_index
        members = [members for at, members in self.memberships() if at <= index][-1]
        base = Base(index, self.term_at(index), members)
        del self.entries[: index - self.base.index]
        self.base = base

    def memberships(self) -> list[tuple[int, Membership]]:
        return [(self.base.index, self.base.members), *decoded_members(self.entries)]
