"""Faults for the Raft core, one for each hazard: patches of the real classes. `raft_faults` says what catches them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cosmodrome.raft import election, follower, storage
from cosmodrome.raft.core import Raft
from cosmodrome.raft.election import Election
from cosmodrome.raft.follower import Follower
from cosmodrome.raft.leader import Leader
from cosmodrome.raft.log import Log, is_up_to_date
from cosmodrome.raft.messages import (
    AppendRequest,
    AppendResponse,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    Message,
    ResetRequest,
    SyncPoint,
    TakeLeadership,
    VoteRequest,
    VoteResponse,
)
from cosmodrome.raft.progress import Progress
from cosmodrome.raft.quorum import Membership
from cosmodrome.raft.state import State

Patch = pytest.MonkeyPatch


def vote_not_synced(patch: Patch) -> None:
    """Answers leave before term and vote are on disk."""
    patch.setattr(State, "send", lambda self, message: self._messages.append(message))


def two_votes_in_a_term(patch: Patch) -> None:
    """A member votes for whoever asks."""

    def on_vote_request(self: Election, request: VoteRequest) -> None:
        state = self._state
        is_granted = is_up_to_date(state.log, request.last_index, request.last_term)
        state.vote = request.source if is_granted else state.vote
        state.send(VoteResponse(state.id, request.source, state.term, is_granted, False))

    patch.setattr(Election, "on_vote_request", on_vote_request)


def vote_for_a_shorter_log(patch: Patch) -> None:
    """A vote asks for no log."""
    patch.setattr(election, "is_up_to_date", lambda log, last_index, last_term: True)


def vote_by_length_only(patch: Patch) -> None:
    """The longer log wins, whatever its last term."""
    patch.setattr(election, "is_up_to_date", lambda log, last_index, last_term: last_index >= log.last_index)


def sync_of_an_earlier_vote(patch: Patch) -> None:
    """The sync of an earlier term or vote lets go of answers that speak of a later one."""

    def hard_state_synced(self: State, hard_state: HardState) -> None:
        HARD_STATE_SYNCED(self, self.hard_state)

    patch.setattr(State, "hard_state_synced", hard_state_synced)


HARD_STATE_SYNCED = State.hard_state_synced


def old_term_by_counting(patch: Patch) -> None:
    """Entries of earlier terms are committed by counting (figure 8)."""

    def commit_more(self: Leader) -> None:
        state = self._state
        index = state.members.reached_by_majority(self._match)
        if index > state.commit:
            state.commit_to(index)

    patch.setattr(Leader, "_commit_more", commit_more)


def overtaken_append_cuts(patch: Patch) -> None:
    """An append cuts off whatever follows its entries."""

    def take(self: Follower, request: AppendRequest) -> None:
        if request.prev_index < self._state.log.last_index:
            self._state.truncate(request.prev_index)
        self._state.append(request.entries)

    patch.setattr(Follower, "_take", take)


def committed_is_cut(patch: Patch) -> None:
    """An old append is compared, and cuts, below the commit index; the log follows whatever it is told."""

    def truncate(self: State, last_index: int) -> None:
        self.commit = min(self.commit, last_index)
        TRUNCATE(self, last_index)

    patch.setattr(State, "truncate", truncate)
    patch.setattr(Follower, "on_append", _append_without_looking_at_commit)
    patch.setattr(follower, "count_known", lambda log, entries: 0)


TRUNCATE = State.truncate


def _append_without_looking_at_commit(self: Follower, request: AppendRequest) -> None:
    commit, self._state.commit = self._state.commit, self._state.log.first_index - 1
    try:
        ON_APPEND(self, request)
    finally:
        self._state.commit = max(self._state.commit, min(commit, self._state.log.last_index))


ON_APPEND = Follower.on_append


def commit_beyond_match(patch: Patch) -> None:
    """A follower commits what it has behind the entries that were compared."""

    def on_append(self: Follower, request: AppendRequest) -> None:
        ON_APPEND(self, request)
        self._state.commit_to(min(request.commit, self._state.log.last_index))

    patch.setattr(Follower, "on_append", on_append)


def heartbeat_tells_all(patch: Patch) -> None:
    """A heartbeat names the commit index, also to who has not acknowledged that much."""

    def send(self: State, message: Message) -> None:
        SEND(self, message._replace(commit=self.commit) if isinstance(message, Heartbeat) else message)

    patch.setattr(State, "send", send)


SEND = State.send


def no_pre_vote(patch: Patch) -> None:
    """Who hears nothing raises the term at once."""

    def stand(self: Election, *, is_pre: bool, is_transfer: bool = False) -> None:
        STAND(self, is_pre=False, is_transfer=is_transfer)

    patch.setattr(Election, "stand", stand)


STAND = Election.stand


def voters_forget_their_leader(patch: Patch) -> None:
    """Who hears its leader takes part in another's election all the same."""
    patch.setattr(Election, "has_leader", False)


def stale_leader_reads(patch: Patch) -> None:
    """A leader answers reads without asking whether it still leads."""

    def read(self: Leader, token: object) -> None:
        self._waiting_reads += 1
        self._confirmed.append((token, self._state.commit))

    patch.setattr(Leader, "read", read)


def read_before_own_commit(patch: Patch) -> None:
    """A new leader answers reads before it knows what earlier ones committed."""
    patch.setattr(Leader, "has_committed", True)


def read_confirmed_by_the_past(patch: Patch) -> None:
    """A heartbeat that was sent before the read confirms it."""

    def begin_round(self: Leader) -> None:
        begun = len(self._reads)
        BEGIN_ROUND(self)
        for place in range(begun, len(self._reads)):
            self._reads[place] = (self._round - 1, *self._reads[place][1:])

    patch.setattr(Leader, "_begin_round", begin_round)


BEGIN_ROUND = Leader._begin_round


def late_answer_confirms(patch: Patch) -> None:
    """Any answer confirms the newest round."""

    def on_heartbeat_response(self: Leader, response: HeartbeatResponse) -> None:
        ON_HEARTBEAT_RESPONSE(self, response._replace(round=self._round))

    patch.setattr(Leader, "on_heartbeat_response", on_heartbeat_response)


ON_HEARTBEAT_RESPONSE = Leader.on_heartbeat_response


def follower_acks_before_sync(patch: Patch) -> None:
    """A follower acknowledges what is not on its disk."""

    def acknowledge(self: Follower, leader: str, index: int) -> None:
        state = self._state
        state.send(AppendResponse(state.id, leader, state.term, index))

    patch.setattr(Follower, "_acknowledge", acknowledge)


def leader_counts_before_sync(patch: Patch) -> None:
    """A leader counts its own copy before it is on disk."""

    def match(self: Leader, member: str) -> int:
        state = self._state
        return state.log.last_index if member == state.id else self._followers[member].match

    patch.setattr(Leader, "_match", match)


def sync_of_what_was_cut(patch: Patch) -> None:
    """A sync that began before a cut counts for what was written after it."""

    def synced(self: State, point: SyncPoint) -> bool:
        return SYNCED(self, SyncPoint(self.cuts, min(point.index, self.log.last_index)))

    patch.setattr(State, "synced", synced)


SYNCED = State.synced


def killed_means_synced(patch: Patch) -> None:
    """After a restart all that can be read is taken for synced."""

    def start(self: State, *arguments: Any) -> None:
        INIT(self, *arguments)
        self.synced_index = self.log.last_index

    patch.setattr(State, "__init__", start)


INIT = State.__init__


def wrong_prev_check(patch: Patch) -> None:
    """A follower looks whether it has an entry of that index, of whatever term."""

    def has_entry(log: Log, index: int, term: int) -> bool:
        return log.first_index - 1 <= index <= log.last_index

    patch.setattr(follower, "has_entry", has_entry)


def match_of_an_earlier_term(patch: Patch) -> None:
    """What agreed with an earlier leader is acknowledged to the next."""

    def acknowledge(self: Follower, leader: str, index: int) -> None:
        self._matched_term = self._state.term
        ACKNOWLEDGE(self, leader, index)

    patch.setattr(Follower, "_acknowledge", acknowledge)


ACKNOWLEDGE = Follower._acknowledge


def old_leader_is_obeyed(patch: Patch) -> None:
    """Appends of a term that is over are taken."""

    def step(self: Raft, message: Message) -> None:
        if isinstance(message, AppendRequest) and message.term < self.term and self.leading is None:
            self.state.leader = None
            message = message._replace(term=self.term)
        STEP(self, message)

    patch.setattr(Raft, "step", step)


STEP = Raft.step


def two_changes_at_a_time(patch: Patch) -> None:
    """A change of the members does not wait for the one before it."""
    patch.setattr(Leader, "is_changing", False)


def two_members_in_a_change(patch: Patch) -> None:
    """One change may replace any number of members."""
    patch.setattr(Leader, "_check_change", lambda self, now, then: None)


def change_before_own_commit(patch: Patch) -> None:
    """A leader changes the members before an entry of its term is committed."""
    patch.setattr(Leader, "has_committed", True)
    patch.setattr(Leader, "read", lambda self, token: None)  # the reads are another fault's


def cut_change_stays(patch: Patch) -> None:
    """A change of the members that was cut off stays in effect."""

    def truncate(self: State, last_index: int) -> None:
        before = list(self.memberships)
        TRUNCATE(self, last_index)
        self.memberships = before

    patch.setattr(State, "truncate", truncate)


def removed_only_voter_waits(patch: Patch) -> None:
    """Who is removed by a change that only it has does not stand, and everybody waits for it."""
    patch.setattr(State, "may_stand", State.is_voter)


def removed_leader_goes_on(patch: Patch) -> None:
    """A leader that is no member any more goes on."""

    def commit_more(self: Leader) -> None:
        COMMIT_MORE(self)
        self.is_over = False

    patch.setattr(Leader, "_commit_more", commit_more)


COMMIT_MORE = Leader._commit_more


def quorum_too_small(patch: Patch) -> None:
    """Half of the members is enough."""
    patch.setattr(Membership, "quorum", property(lambda self: max((len(self.voters) + 1) // 2, 1)))


def learners_count(patch: Patch) -> None:
    """A learner's copy is counted as a voter's."""

    def reached(self: Membership, value_of: Callable[[str], int]) -> int:
        return sorted(map(value_of, self.all), reverse=True)[self.quorum - 1]

    patch.setattr(Membership, "reached_by_majority", reached)


def removed_leader_counts_itself(patch: Patch) -> None:
    """A leader counts its own copy, voter or not."""

    def commit_more(self: Leader) -> None:
        state = self._state
        copies = sorted(map(self._match, state.members.voters | {state.id}), reverse=True)
        index = copies[state.members.quorum - 1]
        if index > state.commit and state.log.term_at(index) == state.term:
            state.commit_to(index)
        COMMIT_MORE(self)

    patch.setattr(Leader, "_commit_more", commit_more)


def new_log_for_who_has_it(patch: Patch) -> None:
    """A follower begins a new log although it has what comes behind the base."""

    def on_reset(self: Follower, request: ResetRequest) -> None:
        if request.base.index > self._state.commit:
            self._state.reset(request.base)
        self._acknowledge(request.source, self._state.commit)

    patch.setattr(Follower, "on_reset", on_reset)


def late_reset_is_obeyed(patch: Patch) -> None:
    """A request to begin a new log is obeyed also when it is overtaken by appends."""

    def on_reset(self: Follower, request: ResetRequest) -> None:
        self._state.reset(request.base)
        self._acknowledge(request.source, self._state.commit)

    patch.setattr(Follower, "on_reset", on_reset)


def no_check_quorum(patch: Patch) -> None:
    """A leader that hears nobody goes on."""
    patch.setattr(Leader, "_has_quorum", lambda self: True)


def no_noop(patch: Patch) -> None:
    """A term begins without an entry of its own."""

    def append(self: Leader, contents: Sequence[tuple[EntryKind, bytes]]) -> int:
        return APPEND(self, [content for content in contents if content[0] != EntryKind.NOOP])

    patch.setattr(Leader, "_append", append)


APPEND = Leader._append


def lost_append_is_not_repeated(patch: Patch) -> None:
    """A leader waits for the answer to what was lost."""

    def on_heartbeat_response(self: Leader, response: HeartbeatResponse) -> None:
        for progress in self._followers.values():
            progress.answered_ms = self._state.now_ms
        ON_HEARTBEAT_RESPONSE(self, response)

    patch.setattr(Leader, "on_heartbeat_response", on_heartbeat_response)


def no_way_back(patch: Patch) -> None:
    """After a rejection the same append is sent again."""

    def rejected(self: Progress, prev_index: int, hint_index: int, now_ms: int) -> None:
        self.probe(self.next)

    patch.setattr(Progress, "rejected", rejected)


def equal_time_outs(patch: Patch) -> None:
    """All members stand at the same moment, again and again."""

    def wait(self: Election) -> None:
        self.deadline_ms = self._state.now_ms + self._state.options.election_min_ms

    patch.setattr(Election, "wait", wait)


def transfer_to_who_is_behind(patch: Patch) -> None:
    """Leadership is handed to a member before it has the whole log."""

    def continue_transfer(self: Leader) -> None:
        state = self._state
        if self.transferee is not None:
            state.send(TakeLeadership(state.id, self.transferee, state.term))

    patch.setattr(Leader, "_continue_transfer", continue_transfer)


def entries_during_a_transfer(patch: Patch) -> None:
    """A leader takes entries while it hands over, so the other never catches up."""

    def propose(self: Leader, data: Sequence[bytes]) -> int:
        return self._append([(EntryKind.NORMAL, one) for one in data])

    patch.setattr(Leader, "propose", propose)


def torn_vote_is_read(patch: Patch) -> None:
    """A copy of term and vote is taken without its checksum."""

    def decode(data: bytes) -> tuple[int, HardState] | None:
        if len(data) < storage._HEAD.size:
            return None
        _, sequence, term, _, size = storage._HEAD.unpack_from(data)
        vote = data[storage._HEAD.size : storage._HEAD.size + size]
        return sequence, HardState(term, vote.decode(errors="replace") or None)

    patch.setattr(storage, "decode", decode)


def one_copy_of_the_vote(patch: Patch) -> None:
    """Term and vote are kept in one copy, written in its place."""
    patch.setattr(storage, "COPY_PLACES", (0, 0))


def lost_vote_is_none(patch: Patch) -> None:
    """A file of term and vote that cannot be read is taken for a new one."""
    patch.setattr(storage, "newest", lambda image: NEWEST(image) or (0, HardState()))


NEWEST = storage.newest
