"""What every member keeps, whatever its role, and the messages that may leave.

A promise to another member counts only once it is on disk here. Two rules keep every one of them:

- While a new term or vote is not reported as synced (`hard_state_synced`), no message leaves at all.
- An append is acknowledged, and an own entry counted, only as far as the log is reported as synced (`synced`). Such a
  report is worth nothing if the log was cut in between: what was written again since may not be on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from random import Random

from cosmodrome.errors import ProtocolError
from cosmodrome.raft.log import Log, decoded_members
from cosmodrome.raft.messages import Base, Entry, HardState, Message, SyncPoint
from cosmodrome.raft.options import RaftOptions
from cosmodrome.raft.quorum import Membership


class Role(StrEnum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class State:
    """One member's term, vote, log, members and outgoing messages."""

    def __init__(
        self, member: str, log: Log, hard_state: HardState, options: RaftOptions, random: Random, now_ms: int
    ) -> None:
        self.id = member
        self.log = log
        self.options = options
        self.random = random
        self.now_ms = now_ms
        self.role = Role.FOLLOWER
        self.leader: str | None = None
        # Entries of a term may have reached the disk before the term did. No vote of that term has left then.
        self.term = max(hard_state.term, log.term_at(log.last_index))
        self.vote = hard_state.vote if hard_state.term == self.term else None
        self.commit = log.first_index - 1
        self.memberships = list(log.memberships())  # the one as of the commit index, or before it, comes first
        self.cuts = 0
        # What the log holds may be in the memory of the machine only, left there by a process that was killed.
        self.synced_index = log.first_index - 2
        self._sync_asked: SyncPoint | None = None
        self._hard_state = hard_state  # the one that is on disk
        self._hard_state_asked: HardState | None = hard_state
        self._messages: list[Message] = []
        self._held: list[Message] = []

    # --- members

    @property
    def members(self) -> Membership:
        """The newest membership in the log, committed or not."""
        return self.memberships[-1][1]

    @property
    def members_index(self) -> int:
        """The index of the entry that made it."""
        return self.memberships[-1][0]

    @property
    def is_voter(self) -> bool:
        return self.id in self.members.voters

    @property
    def may_stand(self) -> bool:
        """Whether this member is a voter, or was until a change that may not be committed.

        In the second case it may be the only one that has the change, and all others may need its vote or its entries:
        it has to lead until the change is committed (thesis 4.2.2).
        """
        return any(self.id in members.voters for _, members in self.memberships)

    # --- term, vote and messages

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote)

    @property
    def is_hard_state_synced(self) -> bool:
        return self._hard_state.term == self.term and self._hard_state.vote == self.vote

    def set_term(self, term: int, vote: str | None = None) -> None:
        """Enter a later term."""
        assert term > self.term, "terms only rise"
        self.term, self.vote = term, vote

    def hard_state_synced(self, hard_state: HardState) -> None:
        """Note what is on disk, and let go of the messages that waited for it."""
        self._hard_state = hard_state
        if self.is_hard_state_synced:
            self._messages += self._held
            self._held = []

    def send(self, message: Message) -> None:
        """Send a message as soon as the term and vote it speaks of are on disk."""
        if self.is_hard_state_synced:
            self._messages.append(message)
        else:
            self._held.append(message)

    def take_messages(self) -> list[Message]:
        messages, self._messages = self._messages, []
        return messages

    def take_hard_state(self) -> HardState | None:
        """Return the term and vote if they have to be written, once."""
        if self.is_hard_state_synced or self._hard_state_asked == self.hard_state:
            return None
        self._hard_state_asked = self.hard_state
        return self.hard_state

    # --- the log

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries behind the last. Memberships among them are in effect from here on."""
        members = decoded_members(entries)
        self.log.append(entries)
        self.memberships += members

    def truncate(self, last_index: int) -> None:
        """Cut off what is behind an entry, with the memberships it made; ProtocolError if it is committed."""
        if last_index < self.commit:
            raise ProtocolError(f"{self.id} is asked to cut its log at {last_index}, but {self.commit} is committed")
        self.log.truncate(last_index)
        self.cuts += 1
        self.synced_index = min(self.synced_index, last_index)
        while self.members_index > last_index:
            self.memberships.pop()

    def reset(self, base: Base) -> None:
        """Begin a new log behind `base`, of which everything is committed."""
        self.log.reset(base)
        self.cuts += 1
        self.synced_index = base.index - 1
        self.memberships = [(base.index, base.members)]
        self.commit = base.index

    def take_sync_point(self) -> SyncPoint | None:
        """Return up to where the log has to be synced, once for each place."""
        point = SyncPoint(self.cuts, self.log.last_index)
        if point.index <= self.synced_index or point == self._sync_asked:
            return None
        self._sync_asked = point
        return point

    def synced(self, point: SyncPoint) -> bool:
        """Note that the log is on disk up to a point; return whether that is more than before."""
        if point.cuts != self.cuts or point.index <= self.synced_index:
            return False
        self.synced_index = point.index
        return True

    def commit_to(self, index: int) -> None:
        """Raise the commit index, if it is lower."""
        if index > self.commit:
            assert index <= self.log.last_index, "only what is in the log is committed"
            self.commit = index
            while len(self.memberships) > 1 and self.memberships[1][0] <= index:
                del self.memberships[0]

    def base(self) -> Base:
        """Return what a follower begins with that needs entries which are gone here."""
        return self.log.base
