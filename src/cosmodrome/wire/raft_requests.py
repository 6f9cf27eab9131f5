"""Requests about a broker's Raft group. Codes and fields are our own."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from cosmodrome.errors import ProtocolError
from cosmodrome.wire.header import Header, header


@header
class TransferLeader(Header):
    """TRANSFER_RAFT_LEADER, to the leader: let this member lead."""

    member: str


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """What a leader knows of another member."""

    member: str
    match: int  # the last entry that is durable there
    behind: int  # entries
    heard_ms: int  # ago; -1: never


@dataclass(frozen=True, slots=True)
class RaftStatus:
    """The answer to GET_RAFT_STATUS: a member's place in its group, and how far its log is."""

    group: str
    member: str
    role: str
    term: int
    leader: str  # the member; empty: none is known
    first_index: int
    last_index: int
    commit_index: int
    log_end: int
    voters: tuple[str, ...]
    followers: tuple[FollowerStatus, ...] = ()  # of a leader

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> RaftStatus:
        """Return the status that `encode` wrote; ProtocolError for anything else."""
        try:
            fields = json.loads(data)
            followers = tuple(FollowerStatus(**follower) for follower in fields.pop("followers"))
            return cls(**{**fields, "voters": tuple(fields["voters"])}, followers=followers)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ProtocolError(f"the status of a Raft group cannot be read: {error!r:.200}") from error
