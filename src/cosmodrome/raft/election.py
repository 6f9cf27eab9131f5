"""Elections: when to stand, whom to vote for, and what wins.

    follower ──silence──► pre-candidate ──a majority would vote──► candidate ──a majority voted──► leader
        ▲                      │ silence: asks again                    │ silence: back to pre-candidate
        └── a leader, or a later term ─────────────────────────────────┘

A pre-candidate changes no term, so a member that returns from a partition disturbs no leader. For the same reason a
member that has heard from its leader within the shortest time-out takes no part in another's election, unless the
leader itself asked for it (thesis 4.2.3, 6.4, 9.6).
"""

from __future__ import annotations

from cosmodrome.raft.log import is_up_to_date
from cosmodrome.raft.messages import StaleTerm, VoteRequest, VoteResponse
from cosmodrome.raft.state import Role, State


class Election:
    """One member's election timer, and its votes while it stands."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._votes: set[str] = set()  # those that granted what is being asked
        self._heard_ms: int | None = None  # when the leader was last heard
        self.deadline_ms = 0
        self.wait()

    def wait(self) -> None:
        """Start the timer again, with another time-out."""
        options = self._state.options
        timeout_ms = self._state.random.randint(options.election_min_ms, options.election_max_ms)
        self.deadline_ms = self._state.now_ms + timeout_ms

    def heard_leader(self) -> None:
        """Note that the leader is there."""
        self._heard_ms = self._state.now_ms
        self.wait()

    @property
    def has_leader(self) -> bool:
        """Whether a leader was heard, or is led, so lately that another election would only disturb."""
        state = self._state
        if state.role is Role.LEADER:
            return True
        if state.leader is None or self._heard_ms is None:
            return False
        return state.now_ms - self._heard_ms < state.options.election_min_ms

    # --- standing

    def stand(self, *, is_pre: bool, is_transfer: bool = False) -> None:
        """Ask all voters, and vote for oneself."""
        state = self._state
        assert state.may_stand, "only voters stand"
        state.leader = None
        if is_pre:
            state.role, term = Role.PRE_CANDIDATE, state.term + 1
        else:
            state.set_term(state.term + 1, vote=state.id)
            state.role, term = Role.CANDIDATE, state.term
        self._votes = {state.id} if is_pre else set()  # a real vote counts once it is on disk
        self.wait()
        last_index = state.log.last_index
        last_term = state.log.term_at(last_index)
        for voter in sorted(state.members.voters - {state.id}):
            state.send(VoteRequest(state.id, voter, term, last_index, last_term, is_pre, is_transfer))

    def own_vote_synced(self) -> None:
        """Count the own vote, which is on disk now."""
        if self._state.role is Role.CANDIDATE and self._state.vote == self._state.id:
            self._votes.add(self._state.id)

    def on_vote_response(self, response: VoteResponse) -> None:
        """Count a granted vote, if it answers what is being asked now."""
        state = self._state
        asked = (Role.PRE_CANDIDATE, state.term + 1) if response.is_pre else (Role.CANDIDATE, state.term)
        if response.is_granted and (state.role, response.term) == asked:
            self._votes.add(response.source)

    @property
    def has_won(self) -> bool:
        """Whether a majority of the voters has granted what is being asked."""
        if self._state.role not in (Role.PRE_CANDIDATE, Role.CANDIDATE):
            return False
        return self._state.members.is_majority(self._votes)

    # --- voting

    def would_disturb(self, request: VoteRequest) -> bool:
        """Return whether a request comes from one that has merely lost sight of the leader."""
        return self.has_leader and not request.is_transfer

    def on_pre_vote_request(self, request: VoteRequest) -> None:
        """Say whether this member would vote; nothing changes here."""
        state = self._state
        if request.term < state.term:
            state.send(StaleTerm(state.id, request.source, state.term))
            return
        is_granted = (
            request.term > state.term
            and not self.would_disturb(request)
            and is_up_to_date(state.log, request.last_index, request.last_term)
        )
        term = request.term if is_granted else state.term
        state.send(VoteResponse(state.id, request.source, term, is_granted, is_pre=True))

    def on_vote_request(self, request: VoteRequest) -> None:
        """Give the one vote of this term, or refuse it. The answer leaves once the vote is on disk."""
        state = self._state
        is_free = state.vote == request.source or (state.vote is None and state.leader is None)
        is_granted = is_free and is_up_to_date(state.log, request.last_index, request.last_term)
        if is_granted and state.vote is None:
            state.vote = request.source
            self.wait()
        state.send(VoteResponse(state.id, request.source, state.term, is_granted, is_pre=False))
