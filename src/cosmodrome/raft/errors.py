"""Refusals of a Raft group: the caller may try again, elsewhere or later."""

from __future__ import annotations

from cosmodrome.errors import CosmodromeError


class Refused(CosmodromeError):
    """The group does not take what was asked; nothing has changed."""


class NotLeader(Refused):
    """This member does not lead; `leader` names the one that does, as far as known."""

    def __init__(self, member: str, leader: str | None) -> None:
        known = f"ask {leader}, which leads" if leader else "no leader is known; try again after an election"
        super().__init__(f"{member} does not lead its group: {known}")
        self.leader = leader


class Busy(Refused):
    """Too much waits for a majority, or leadership is about to move; try again later."""


class ChangeRefused(Refused):
    """A change of the members, or a transfer, that cannot be made now, or at all."""
