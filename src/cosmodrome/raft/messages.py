"""What Raft members keep and tell each other.

Indexes count as DLedger's do: the first entry of a group has index 0, and -1 stands for "before the first".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from cosmodrome.raft.quorum import Membership


class EntryKind(IntEnum):
    """What an entry is; the numbers are those of DLedger's magic."""

    NORMAL = 1
    NOOP = 2
    MEMBERS = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """One place of the log."""

    index: int
    term: int
    kind: EntryKind
    data: bytes


@dataclass(frozen=True, slots=True)
class Base:
    """What stands for all entries that a log no longer has: the last of them, and the members as of it.

    `place` is where in the files the next entry begins; it is the same at all members.
    """

    index: int
    term: int
    members: Membership
    place: int = 0


class HardState(NamedTuple):
    """What a member must not forget. Of one member these only ever rise: a term gets at most one vote."""

    term: int = 0
    vote: str | None = None


@dataclass(frozen=True, slots=True)
class SyncPoint:
    """A part of the log to be synced. `cuts` tells it from the same part before the log was cut and written again."""

    cuts: int
    index: int


class VoteRequest(NamedTuple):
    """A candidate asks for a vote in `term`; with `is_pre` it asks only whether it would get one."""

    source: str
    target: str
    term: int
    last_index: int
    last_term: int
    is_pre: bool
    is_transfer: bool  # the leader itself asked for this election


class VoteResponse(NamedTuple):
    """The answer; `term` is the request's if granted, else the voter's."""

    source: str
    target: str
    term: int
    is_granted: bool
    is_pre: bool


class AppendRequest(NamedTuple):
    """Entries that follow the entry `prev`, which the follower must have; none only tell the commit index."""

    source: str
    target: str
    term: int
    prev_index: int
    prev_term: int
    entries: Sequence[Entry]
    commit: int


class AppendResponse(NamedTuple):
    """The follower's log is the leader's up to `match`, durably."""

    source: str
    target: str
    term: int
    match: int


class AppendReject(NamedTuple):
    """The follower does not have the entry `prev`; its log may be the leader's up to `hint`, and no further."""

    source: str
    target: str
    term: int
    prev_index: int
    hint_index: int
    hint_term: int


class Heartbeat(NamedTuple):
    """The leader is there. Its `round` comes back; `commit` is no more than what the follower has acknowledged."""

    source: str
    target: str
    term: int
    commit: int
    round: int


class HeartbeatResponse(NamedTuple):
    source: str
    target: str
    term: int
    round: int


class ResetRequest(NamedTuple):
    """The leader no longer has the entries that come next: begin a new log behind `base`."""

    source: str
    target: str
    term: int
    base: Base


class TakeLeadership(NamedTuple):
    """The leader asks a follower that has the whole log to stand for election at once."""

    source: str
    target: str
    term: int


class StaleTerm(NamedTuple):
    """The answer to whoever leads, or asks for votes, in a term that is over."""

    source: str
    target: str
    term: int


FromLeader = AppendRequest | Heartbeat | ResetRequest | TakeLeadership
ToLeader = AppendResponse | AppendReject | HeartbeatResponse
Message = FromLeader | ToLeader | VoteRequest | VoteResponse | StaleTerm
