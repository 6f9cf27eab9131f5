"""The members of a group, and what a majority of them has.

A membership takes effect at a member as soon as its entry is in that member's log, and stops to when the entry is cut
off again (Raft thesis 4.1). Two memberships that differ by one voter have a member in common in any two majorities;
this is why only one change may be under way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cosmodrome.errors import ProtocolError

NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Membership:
    """Voters elect and commit; learners only receive the log."""

    voters: frozenset[str]
    learners: frozenset[str] = NOBODY

    @classmethod
    def of(cls, voters: Iterable[str], learners: Iterable[str] = ()) -> Membership:
        """Return a membership of these ids; ProtocolError if one is both voter and learner, or empty."""
        members = cls(frozenset(voters), frozenset(learners))
        if members.voters & members.learners or "" in members.all:
            raise ProtocolError(f"members {members}: each needs an id, and is either a voter or a learner")
        return members

    @property
    def all(self) -> frozenset[str]:
        return self.voters | self.learners

    @property
    def quorum(self) -> int:
        """How many voters are a majority."""
        return len(self.voters) // 2 + 1

    def is_majority(self, ids: Iterable[str]) -> bool:
        """Return whether these ids hold a majority of the voters; learners and strangers do not count."""
        return bool(self.voters) and len(self.voters.intersection(ids)) >= self.quorum

    def reached_by_majority(self, value_of: Callable[[str], int]) -> int:
        """Return the largest number that a majority of the voters has reached."""
        values = sorted(map(value_of, self.voters), reverse=True)
        return values[self.quorum - 1]

    def with_learner(self, member: str) -> Membership:
        return Membership.of(self.voters, self.learners | {member})

    def with_voter(self, member: str) -> Membership:
        return Membership.of(self.voters | {member}, self.learners - {member})

    def without(self, member: str) -> Membership:
        return Membership.of(self.voters - {member}, self.learners - {member})

    def encode(self) -> bytes:
        return json.dumps({"voters": sorted(self.voters), "learners": sorted(self.learners)}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Membership:
        """Return the membership that `encode` wrote; ProtocolError for anything else."""
        try:
            fields = json.loads(data)
            lists = [fields["voters"], fields["learners"]]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ProtocolError(f"a membership of {len(data)} bytes cannot be read: {error!r}") from error
        if not all(isinstance(ids, list) and all(isinstance(id_, str) for id_ in ids) for ids in lists):
            raise ProtocolError("a membership names its voters and learners by text")
        return cls.of(*lists)
