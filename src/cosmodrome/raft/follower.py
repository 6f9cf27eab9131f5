"""A follower's side of replication: compare, cut, append, acknowledge.

An append says which entry comes before its own. Only a follower that has that entry takes them. It cuts its log where
an entry of the leader differs from its own, and nowhere else: an append that was overtaken by a later one must not take
back what the later one brought. `_matched` is how far the log is known to be the leader's; it acknowledges the part of
that which is on disk.
"""

from __future__ import annotations

from cosmodrome.errors import ProtocolError
from cosmodrome.raft.log import LogFull, check_entries, count_known, decoded_members, has_entry, last_index_of_term
from cosmodrome.raft.messages import (
    AppendReject,
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    ResetRequest,
)
from cosmodrome.raft.state import State


class Follower:
    """A member's dealings with its leader."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._matched_term = -1
        self._matched = -1  # up to here the log is known to be that of the leader of `_matched_term`
        self._owed_to: str | None = None  # a leader that waits for an acknowledgement until the log is synced

    def on_append(self, request: AppendRequest) -> None:
        """Take entries, or say where to look for the place at which the logs agree."""
        state, log = self._state, self._state.log
        check_entries(request.entries, request.prev_index, request.prev_term, request.term)
        decoded_members(request.entries)  # what cannot be read is refused before anything changes
        if request.prev_index < state.commit:  # an old one: all leaders have what is committed
            self._acknowledge(request.source, state.commit)
            return
        if not has_entry(log, request.prev_index, request.prev_term):
            hint = last_index_of_term(log, request.prev_index, request.prev_term)
            answer = AppendReject(state.id, request.source, state.term, request.prev_index, hint, log.term_at(hint))
            state.send(answer)
            return
        try:
            self._take(request)
        except LogFull:
            return  # no answer: the leader tries again
        last_index = request.prev_index + len(request.entries)
        # What is behind the last of these entries may differ from what the leader has there.
        state.commit_to(min(request.commit, last_index))
        self._acknowledge(request.source, last_index)

    def _take(self, request: AppendRequest) -> None:
        state = self._state
        entries = request.entries[count_known(state.log, request.entries) :]
        if entries:
            if entries[0].index <= state.log.last_index:
                state.truncate(entries[0].index - 1)
            state.append(entries)

    def _acknowledge(self, leader: str, index: int) -> None:
        state = self._state
        if self._matched_term != state.term:
            self._matched_term, self._matched = state.term, -1
        self._matched = max(self._matched, index)
        self._owed_to = leader
        if state.synced_index >= self._matched:
            self.log_synced()

    def log_synced(self) -> None:
        """Acknowledge what is now on disk, if the leader of this term waits for it."""
        state = self._state
        if self._owed_to is not None and self._matched_term == state.term:
            match = min(self._matched, state.synced_index)
            state.send(AppendResponse(state.id, self._owed_to, state.term, match))
            if match == self._matched:
                self._owed_to = None

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Answer, and learn what is committed: the leader names no more of it than was acknowledged here."""
        state = self._state
        state.commit_to(min(heartbeat.commit, state.log.last_index))
        state.send(HeartbeatResponse(state.id, heartbeat.source, state.term, heartbeat.round))

    def on_reset(self, request: ResetRequest) -> None:
        """Begin a new log, unless this one has the entry it would begin behind: what follows it may be acknowledged."""
        state, base = self._state, request.base
        if base.term > request.term:
            raise ProtocolError(f"a log of term {base.term} was sent in term {request.term}")
        if base.index > state.commit:
            if has_entry(state.log, base.index, base.term):
                state.commit_to(base.index)
            else:
                state.reset(base)
        self._acknowledge(request.source, state.commit)
