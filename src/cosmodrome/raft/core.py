"""One member of a Raft group: it gets messages and the time, and says what is to be done.

    raft.tick(now_ms)              the time, before anything else; `deadline_ms` says when it must come again
    raft.step(message)             a message of another member
    raft.propose([data, …])        entries, at the leader
    raft.read(token)               ask from when on a read at the leader is safe
    raft.ready()                   what is to be done

    ready.hard_state               write and sync it, then call hard_state_synced(it)
    ready.sync                     sync the log, then call synced(it)
    ready.messages                 send them; none speaks of what is not on disk
    ready.commit                   entries up to here are committed: apply them, answer their senders
    ready.reads, ready.lost_reads  reads that may be answered once that much is applied; reads to be refused

The roles and what moves between them:

    follower ──► pre-candidate ──► candidate ──► leader        `election`
        ▲             │                │            │
        └─────────────┴── later term ──┴────────────┘ also: no majority answers; not a voter any more

The core does no I/O and asks no clock; time, chance and the log are passed in. It is used from one thread. After an
exception other than `Refused`, `ProtocolError` and `LogFull` the member must stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from cosmodrome.errors import ProtocolError
from cosmodrome.raft.election import Election
from cosmodrome.raft.errors import ChangeRefused, NotLeader
from cosmodrome.raft.follower import Follower
from cosmodrome.raft.leader import Leader
from cosmodrome.raft.log import Log, LogFull
from cosmodrome.raft.messages import (
    AppendReject,
    AppendRequest,
    AppendResponse,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    Message,
    ResetRequest,
    StaleTerm,
    SyncPoint,
    TakeLeadership,
    VoteRequest,
    VoteResponse,
)
from cosmodrome.raft.options import RaftOptions
from cosmodrome.raft.quorum import Membership
from cosmodrome.raft.state import Role, State

_FROM_LEADER = (AppendRequest, Heartbeat, ResetRequest, TakeLeadership)


@dataclass(frozen=True, slots=True)
class Ready:
    """What a member has to do now."""

    messages: list[Message]
    hard_state: HardState | None
    sync: SyncPoint | None
    commit: int
    reads: list[tuple[object, int]]
    lost_reads: list[object]


class Raft:
    """A member's whole state machine; see the module."""

    def __init__(
        self,
        member: str,
        log: Log,
        hard_state: HardState,
        *,
        random: Random,
        now_ms: int,
        options: RaftOptions | None = None,
    ) -> None:
        self.state = State(member, log, hard_state, options or RaftOptions(), random, now_ms)
        self._election = Election(self.state)
        self._follower = Follower(self.state)
        self._leader: Leader | None = None
        self._lost_reads: list[object] = []
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            AppendRequest: self._follower.on_append,
            Heartbeat: self._follower.on_heartbeat,
            ResetRequest: self._follower.on_reset,
            TakeLeadership: self._take_leadership,
            AppendResponse: self._on_append_response,
            AppendReject: self._on_append_reject,
            HeartbeatResponse: self._on_heartbeat_response,
            VoteRequest: self._election.on_vote_request,
            VoteResponse: self._on_vote_response,
        }

    # --- what others may know

    @property
    def id(self) -> str:
        return self.state.id

    @property
    def role(self) -> Role:
        return self.state.role

    @property
    def term(self) -> int:
        return self.state.term

    @property
    def leader(self) -> str | None:
        """The member that leads, as far as known."""
        return self.state.leader

    @property
    def commit(self) -> int:
        return self.state.commit

    @property
    def members(self) -> Membership:
        return self.state.members

    @property
    def leading(self) -> Leader | None:
        """The leadership, while this member has it."""
        return self._leader

    @property
    def deadline_ms(self) -> int:
        """When `tick` has something to do."""
        return self._election.deadline_ms if self._leader is None else self._leader.deadline_ms

    # --- what comes in

    def tick(self, now_ms: int) -> None:
        """Note the time, which never goes back, and do what is due."""
        state = self.state
        assert now_ms >= state.now_ms, "a steady clock does not go back"
        state.now_ms = now_ms
        if now_ms < self.deadline_ms:
            return
        if self._leader is not None:
            self._leader.tick()
            self._maybe_resign()
        elif state.may_stand:
            self._stand(is_pre=True)
        else:
            state.leader = None
            self._election.wait()

    def step(self, message: Message) -> None:
        """Take a message of another member; ProtocolError if no correct member sends it."""
        state = self.state
        if message.target != state.id or message.source == state.id:
            raise ProtocolError(f"{state.id} got a message from {message.source} to {message.target}")
        if isinstance(message, VoteRequest) and message.is_pre:
            self._election.on_pre_vote_request(message)
            return
        if isinstance(message, VoteResponse) and message.is_pre and message.is_granted:
            self._on_vote_response(message)  # it speaks of a term that nobody has entered yet
            return
        if message.term < state.term:
            if isinstance(message, (*_FROM_LEADER, VoteRequest)):
                state.send(StaleTerm(state.id, message.source, state.term))
            return
        if message.term > state.term:
            if isinstance(message, VoteRequest) and self._election.would_disturb(message):
                return
            self._follow(message.term)
        if isinstance(message, _FROM_LEADER):
            self._follow_leader(message.source)
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(message)

    def propose(self, data: Sequence[bytes]) -> int:
        """Append entries; return the index of the last. Not committed yet, and maybe never.

        They are committed when `commit` reaches their index while this member leads in the same term. NotLeader and
        Busy, and LogFull without room: then nothing was appended.
        """
        return self._leadership().propose(data)

    def read(self, token: object) -> None:
        """Ask from when on a read is safe: `ready` brings the token back, with an index or as lost."""
        self._leadership().read(token)

    def change_members(self, members: Membership) -> int:
        """Append a membership that differs by one member; return its index. ChangeRefused when it has to wait."""
        return self._leadership().change_members(members)

    def transfer(self, member: str) -> None:
        """Hand the leadership to a voter. Until it is done, or given up after a time-out, entries are refused."""
        self._leadership().transfer(member)

    def campaign(self) -> None:
        """Stand for election at once, as if the leader had fallen silent."""
        if not self.state.may_stand:
            raise ChangeRefused(f"{self.id} is not a voter, so it cannot lead")
        if self._leader is None:
            self._stand(is_pre=True)

    def hard_state_synced(self, hard_state: HardState) -> None:
        """Note that term and vote are on disk."""
        self.state.hard_state_synced(hard_state)
        if self.state.is_hard_state_synced:
            self._election.own_vote_synced()
            self._maybe_win()

    def synced(self, point: SyncPoint) -> None:
        """Note that the log is on disk up to a point."""
        if not self.state.synced(point):
            return
        if self._leader is not None:
            self._leader.log_synced()
            self._maybe_resign()
        else:
            self._follower.log_synced()

    # --- what goes out

    def ready(self) -> Ready:
        """Return what is to be done, once."""
        state, leader = self.state, self._leader
        reads: list[tuple[object, int]] = []
        if leader is not None:
            leader.flush()
            reads = leader.take_reads()
        lost_reads, self._lost_reads = self._lost_reads, []
        hard_state = state.take_hard_state()
        return Ready(state.take_messages(), hard_state, state.take_sync_point(), state.commit, reads, lost_reads)

    # --- changes of the role

    def _leadership(self) -> Leader:
        if self._leader is None:
            raise NotLeader(self.id, self.leader)
        return self._leader

    def _follow(self, term: int) -> None:
        """Become a follower, in a later term or in this one."""
        state = self.state
        if self._leader is not None:
            self._lost_reads += self._leader.unanswered_reads()
            self._leader = None
            self._election.wait()  # nobody else's timer starts again: who cannot win must not hold up who can
        state.role = Role.FOLLOWER
        if term > state.term:
            state.set_term(term)
        state.leader = None

    def _follow_leader(self, leader: str) -> None:
        """Follow whoever leads in this term."""
        state = self.state
        if state.role is Role.LEADER or state.leader not in (None, leader):
            raise ProtocolError(f"{leader} and {state.leader} both lead in term {state.term}")
        if state.role is not Role.FOLLOWER:
            self._follow(state.term)
        state.leader = leader
        self._election.heard_leader()

    def _stand(self, *, is_pre: bool, is_transfer: bool = False) -> None:
        self._election.stand(is_pre=is_pre, is_transfer=is_transfer)
        self._maybe_win()

    def _maybe_win(self) -> None:
        if not self._election.has_won:
            return
        if self.role is Role.PRE_CANDIDATE:
            self._stand(is_pre=False)
            return
        state = self.state
        state.role, state.leader = Role.LEADER, state.id
        try:
            self._leader = Leader(state)
        except LogFull:
            self._follow(state.term)  # another has room

    def _maybe_resign(self) -> None:
        if self._leader is not None and self._leader.is_over:
            self._follow(self.state.term)

    def _take_leadership(self, _request: TakeLeadership) -> None:
        if self.state.may_stand:
            self._stand(is_pre=False, is_transfer=True)

    # --- answers

    def _on_vote_response(self, response: VoteResponse) -> None:
        self._election.on_vote_response(response)
        self._maybe_win()

    def _on_append_response(self, response: AppendResponse) -> None:
        if self._leader is not None:
            self._leader.on_append_response(response)
            self._maybe_resign()

    def _on_append_reject(self, reject: AppendReject) -> None:
        if self._leader is not None:
            self._leader.on_append_reject(reject)

    def _on_heartbeat_response(self, response: HeartbeatResponse) -> None:
        if self._leader is not None:
            self._leader.on_heartbeat_response(response)
