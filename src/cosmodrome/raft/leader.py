"""A leader's side: replicate, commit, confirm reads, change members, hand over. It lives as long as the leadership.

What must hold:

- Only an entry of the own term is committed by counting members; it commits all before it (Raft 5.4.2, figure 8). So a
  term begins with an entry without content.
- A read is answered with the commit index as of its arrival, after a majority has answered a heartbeat that was sent
  later, and not before an entry of the own term is committed (Raft 6.4).
- A change of the members waits until the one before it is committed, and an entry of the own term (thesis 4.1).
- A leader that has not heard from a majority for the shortest election time-out stops to lead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from cosmodrome.raft.errors import Busy, ChangeRefused
from cosmodrome.raft.log import last_index_of_term
from cosmodrome.raft.messages import (
    AppendReject,
    AppendRequest,
    AppendResponse,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    ResetRequest,
    TakeLeadership,
)
from cosmodrome.raft.progress import Progress, Sending
from cosmodrome.raft.quorum import Membership
from cosmodrome.raft.state import State


class Leader:
    """One leadership. The core makes it when an election is won, and drops it when it is over."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._followers: dict[str, Progress] = {}
        self._follow_members()
        self._pending: deque[tuple[int, int]] = deque()  # index and size of own entries that are not committed
        self._pending_bytes = 0
        self._round = 0  # of the newest heartbeat
        self._asked: list[object] = []  # reads that wait for the next round
        self._reads: deque[tuple[int, int, object]] = deque()  # round that confirms it, commit index, read
        self._waiting_reads = 0
        self._confirmed: list[tuple[object, int]] = []
        self.transferee: str | None = None
        self._transfer_deadline_ms = 0
        self._heartbeat_ms = state.now_ms  # the first is due at once
        self._quorum_check_ms = state.now_ms + state.options.election_min_ms
        self._preferred_check_ms = state.now_ms + state.options.preferred_check_ms
        self.is_over = False
        self._append([(EntryKind.NOOP, b"")])

    @property
    def deadline_ms(self) -> int:
        deadlines = [self._heartbeat_ms, self._quorum_check_ms]
        if self.transferee is not None:
            deadlines.append(self._transfer_deadline_ms)
        elif self._state.options.preferred_leader:
            deadlines.append(self._preferred_check_ms)
        return min(deadlines)

    def progress(self) -> dict[str, Progress]:
        """Return the followers, for operators and tests; not to be changed."""
        return self._followers

    # --- entries

    def propose(self, data: Sequence[bytes]) -> int:
        """Append entries; return the index of the last. Busy while leadership moves or too much waits."""
        state, options = self._state, self._state.options
        if self.transferee is not None:
            raise Busy(f"{state.id} hands its leadership to {self.transferee}; try again")
        size = sum(map(len, data))
        waiting = state.log.last_index - state.commit
        if waiting + len(data) > options.max_pending_entries:
            raise Busy(f"{waiting} entries wait for a majority of the members; try again later")
        if self._pending_bytes and self._pending_bytes + size > options.max_pending_bytes:
            raise Busy(f"entries of {self._pending_bytes} bytes wait for a majority of the members; try again later")
        return self._append([(EntryKind.NORMAL, one) for one in data])

    def _append(self, contents: Sequence[tuple[EntryKind, bytes]]) -> int:
        state = self._state
        begin = state.log.last_index + 1
        entries = [Entry(index, state.term, *content) for index, content in enumerate(contents, begin)]
        state.append(entries)
        for entry in entries:
            self._pending.append((entry.index, len(entry.data)))
            self._pending_bytes += len(entry.data)
        return entries[-1].index if entries else begin - 1

    # --- commit

    def log_synced(self) -> None:
        """Count the own copy, as far as it is on disk."""
        self._commit_more()

    def _match(self, member: str) -> int:
        return self._state.synced_index if member == self._state.id else self._followers[member].match

    def _commit_more(self) -> None:
        state = self._state
        index = state.members.reached_by_majority(self._match)
        if index <= state.commit or state.log.term_at(index) != state.term:
            return
        state.commit_to(index)
        while self._pending and self._pending[0][0] <= index:
            self._pending_bytes -= self._pending.popleft()[1]
        if state.members_index <= index and not state.is_voter:
            self.flush()  # the others learn that they may go on without this member
            self.is_over = True

    @property
    def has_committed(self) -> bool:
        """Whether an entry of this term is committed, and with it all that earlier leaders committed."""
        return self._state.log.term_at(self._state.commit) == self._state.term

    # --- sending

    def flush(self) -> None:
        """Send what has come up since the last time, in as few messages as possible."""
        if self._asked and self.has_committed:
            self._begin_round()
        for follower, progress in self._followers.items():
            self._send_appends(follower, progress)

    def _send_appends(self, follower: str, progress: Progress) -> None:
        state, log = self._state, self._state.log
        while not progress.is_paused:
            if progress.next < log.first_index:
                progress.sent(progress.next - 1, state.now_ms)
                progress.reset()
                state.send(ResetRequest(state.id, follower, state.term, state.base()))
                return
            has_more = progress.next <= log.last_index
            if not has_more and progress.told_commit >= state.commit and progress.sending is not Sending.PROBE:
                return
            entries = log.read(progress.next, self._batch_bytes(progress)) if has_more else ()
            prev_index = progress.next - 1
            prev_term = log.term_at(prev_index)
            request = AppendRequest(state.id, follower, state.term, prev_index, prev_term, entries, state.commit)
            progress.sent(prev_index + len(entries), state.now_ms)
            progress.told_commit = state.commit
            state.send(request)

    def _batch_bytes(self, progress: Progress) -> int:
        options = self._state.options
        is_far_behind = self._state.log.last_index - progress.next >= options.far_behind_entries
        return options.max_bulk_bytes if is_far_behind else options.max_batch_bytes

    def _begin_round(self) -> None:
        """Send a heartbeat to everybody; its answers confirm the reads that have been asked for."""
        state = self._state
        self._round += 1
        self._heartbeat_ms = state.now_ms + state.options.heartbeat_ms
        if self.has_committed:
            self._reads += [(self._round, state.commit, read) for read in self._asked]
            self._asked = []
        for follower, progress in self._followers.items():
            commit = min(state.commit, progress.match)
            state.send(Heartbeat(state.id, follower, state.term, commit, self._round))
        self._confirm_reads()

    # --- answers

    def on_append_response(self, response: AppendResponse) -> None:
        """Count what a follower holds durably. It cannot hold more than there is (rocketmq#1155)."""
        state, progress = self._state, self._followers.get(response.source)
        if progress is None:
            return
        progress.heard_ms = state.now_ms
        if progress.accepted(min(response.match, state.log.last_index), state.now_ms):
            if response.source in state.members.voters:
                self._commit_more()
            self._continue_transfer()

    def on_append_reject(self, reject: AppendReject) -> None:
        """Go back to where the logs may agree: at most to the hint, and where the terms allow it."""
        state, progress = self._state, self._followers.get(reject.source)
        if progress is None:
            return
        progress.heard_ms = state.now_ms
        hint = last_index_of_term(state.log, reject.hint_index, reject.hint_term)
        if reject.hint_index < state.log.first_index - 1:
            hint = reject.hint_index  # what the follower lacks is gone here: it gets a new log
        progress.rejected(reject.prev_index, hint, state.now_ms)

    def on_heartbeat_response(self, response: HeartbeatResponse) -> None:
        """Note that the follower is there, and send again what it has not answered for long."""
        state, progress = self._state, self._followers.get(response.source)
        if progress is None:
            return
        progress.heard_ms = state.now_ms
        progress.round = max(progress.round, min(response.round, self._round))
        is_late = state.now_ms - progress.answered_ms >= state.options.retry_ms
        if is_late and (progress.match < state.log.last_index or progress.is_paused):
            is_probe = (
                progress.sending is Sending.PROBE
            )  # lost on its way back to where the logs agree: ask there again
            progress.probe(progress.next if is_probe else progress.match + 1)
            progress.answered_ms = state.now_ms
        self._confirm_reads()

    # --- reads

    def read(self, read: object) -> None:
        """Hand out `read` with a commit index when this member is known to have led after it asked."""
        state = self._state
        if self._waiting_reads >= state.options.max_pending_reads:
            raise Busy(f"{self._waiting_reads} reads wait for a majority of the members; try again later")
        self._waiting_reads += 1
        self._asked.append(read)

    def _confirm_reads(self) -> None:
        if not self._reads:
            return
        state = self._state

        def newest_round(member: str) -> int:
            return self._round if member == state.id else self._followers[member].round

        confirmed_round = state.members.reached_by_majority(newest_round)
        while self._reads and self._reads[0][0] <= confirmed_round:
            _, index, read = self._reads.popleft()
            self._confirmed.append((read, index))

    def take_reads(self) -> list[tuple[object, int]]:
        """Return the reads that may be answered from all that is committed up to their index."""
        confirmed, self._confirmed = self._confirmed, []
        self._waiting_reads -= len(confirmed)
        return confirmed

    def unanswered_reads(self) -> list[object]:
        """Return the reads that this leadership leaves unanswered."""
        return [read for _, _, read in self._reads] + self._asked + [read for read, _ in self._confirmed]

    # --- members

    @property
    def is_changing(self) -> bool:
        """Whether a change of the members is under way."""
        return self._state.members_index > self._state.commit

    def change_members(self, members: Membership) -> int:
        """Append a membership that differs by one member; return its index. ChangeRefused when it has to wait."""
        state = self._state
        if self.is_changing:
            raise ChangeRefused(f"the change of the members at index {state.members_index} is not committed yet")
        if not self.has_committed:
            raise ChangeRefused("nothing is committed in this term yet; try again in a moment")
        if self.transferee is not None:
            raise ChangeRefused(f"{state.id} hands its leadership to {self.transferee}; try again afterwards")
        self._check_change(state.members, members)
        index = self._append([(EntryKind.MEMBERS, members.encode())])
        self._follow_members()
        return index

    def _check_change(self, now: Membership, then: Membership) -> None:
        changed = {
            member
            for member in now.all | then.all
            if (member in now.voters, member in now.learners) != (member in then.voters, member in then.learners)
        }
        if len(changed) != 1:
            raise ChangeRefused(f"a change concerns one member at a time, not {sorted(changed)}")
        if not then.voters:
            raise ChangeRefused("a group needs a voter")
        (member,) = changed
        if member in then.voters and not self._is_caught_up(member):
            raise ChangeRefused(f"{member} is not caught up: add it as a learner, and make it a voter later")

    def _follow_members(self) -> None:
        state = self._state
        others = state.members.all - {state.id}
        for gone in self._followers.keys() - others:
            del self._followers[gone]
        for new in sorted(others - self._followers.keys()):
            next_index = state.log.last_index + 1
            self._followers[new] = Progress(next_index, state.options.max_in_flight_messages, state.now_ms)

    def _is_caught_up(self, member: str) -> bool:
        """Return whether a member is there, has nearly all of the log, and takes more."""
        state, progress = self._state, self._followers.get(member)
        if progress is None or progress.sending is not Sending.REPLICATE:  # its disk may be full, for one
            return False
        is_near = state.log.last_index - progress.match <= state.options.caught_up_entries
        return is_near and self._is_heard(progress)

    def _is_heard(self, progress: Progress) -> bool:
        return self._state.now_ms - progress.heard_ms <= self._state.options.election_min_ms

    # --- handing over

    def transfer(self, member: str) -> None:
        """Take no more entries, and let a voter take over as soon as it has the whole log."""
        state = self._state
        if self.transferee == member:
            return
        if self.transferee is not None:
            raise ChangeRefused(f"{state.id} hands its leadership to {self.transferee} already")
        if member == state.id or member not in state.members.voters:
            raise ChangeRefused(f"{member} is not another voter of {sorted(state.members.voters)}")
        if not self._is_caught_up(member):
            raise ChangeRefused(f"{member} is not there, or too far behind to lead")
        self.transferee = member
        self._transfer_deadline_ms = state.now_ms + state.options.transfer_ms
        self._continue_transfer()

    def _continue_transfer(self) -> None:
        state, member = self._state, self.transferee
        if member is None:
            return
        progress = self._followers.get(member)
        if progress is not None and progress.match == state.log.last_index:
            state.send(TakeLeadership(state.id, member, state.term))

    # --- time

    def tick(self) -> None:
        """Do what is due."""
        state, now_ms = self._state, self._state.now_ms
        if now_ms >= self._quorum_check_ms:
            self._quorum_check_ms = now_ms + state.options.heartbeat_ms
            if not self._has_quorum():
                self.is_over = True
                return
        if self.transferee is not None and now_ms >= self._transfer_deadline_ms:
            self.transferee = None
        if now_ms >= self._preferred_check_ms:
            self._preferred_check_ms = now_ms + state.options.preferred_check_ms
            self._prefer()
        if now_ms >= self._heartbeat_ms:
            self._begin_round()

    def _has_quorum(self) -> bool:
        state = self._state
        heard = {follower for follower, progress in self._followers.items() if self._is_heard(progress)}
        return state.members.is_majority(heard | {state.id})

    def _prefer(self) -> None:
        """Hand over to the preferred leader, if it can lead."""
        preferred = self._state.options.preferred_leader
        if preferred in self._state.members.voters - {self._state.id} and self._is_caught_up(preferred):
            self.transfer(preferred) if self.transferee is None else None
