"""A member of a Raft group at work: the core, its log and its vote on disk, the clock, and a way to the others.

    proposals, messages, time ──► core ──ready──► messages leave · vote saved · log synced · commits and roles reported

Everything happens on the event loop but for the waits for the disk, which have threads. Inputs of one turn of the loop
are answered together: one message to each follower and one fdatasync for all of them, at the same time. While a sync
is under way the next one gathers.

A disk that fails ends the member (`run` raises): what is on disk is not known then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any

from cosmodrome import disk
from cosmodrome.errors import ProtocolError, StoreError
from cosmodrome.raft.core import Raft, Ready
from cosmodrome.raft.entry_log import EntryLog
from cosmodrome.raft.errors import NotLeader, Refused
from cosmodrome.raft.log import LogFull
from cosmodrome.raft.messages import HardState, Message, SyncPoint
from cosmodrome.raft.options import RaftOptions
from cosmodrome.raft.quorum import Membership
from cosmodrome.raft.state import Role
from cosmodrome.raft.storage import HardStateFile

log = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 3.0
_QUIET_SECONDS = 10.0  # between two warnings of the same kind


class LeadershipLost(Refused):
    """The leadership ended before an entry was committed: it may be committed later, or never."""


@dataclass(frozen=True, slots=True)
class RoleChange:
    """What a member is from now on."""

    role: Role
    term: int
    leader: str | None


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """A follower, as its leader sees it."""

    id: str
    match: int
    next: int
    sending: str
    heard_ms_ago: int


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A member, for operators."""

    id: str
    role: Role
    term: int
    leader: str | None
    first_index: int
    last_index: int
    commit: int
    synced: int
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    transferee: str | None
    followers: tuple[FollowerStatus, ...]  # at the leader only


class Node:
    """One member. `on_role` and `on_commit` may be set until `run` begins; they must not fail."""

    def __init__(
        self,
        member: str,
        entry_log: EntryLog,
        hard_state: HardStateFile,
        *,
        send: Callable[[Message], None],
        options: RaftOptions | None = None,
        random: Random | None = None,
    ) -> None:
        self.id = member
        self.log = entry_log
        self.on_commit: Callable[[int], None] = lambda index: None
        self.on_role: Callable[[RoleChange], None] = lambda change: None
        self._hard_state = hard_state
        self._send = send
        self._options = options or RaftOptions()
        self._random = random or Random()
        self._raft: Raft | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = ThreadPoolExecutor(3, thread_name_prefix=f"raft {member}")
        self._done: asyncio.Future[None] | None = None
        self._is_stopped = False
        self._reported = RoleChange(Role.FOLLOWER, -1, None)
        self._commit = entry_log.base.index
        self._is_pump_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._to_sync: SyncPoint | None = None
        self._to_save: HardState | None = None
        self._syncing: asyncio.Future[None] | None = None
        self._saving: asyncio.Future[None] | None = None
        self._waiting: deque[tuple[int, int, asyncio.Future[None]]] = deque()
        self._role_waiters: list[asyncio.Future[None]] = []
        self._warned_at: dict[str, float] = {}

    # --- life

    async def run(self) -> None:
        """Take part in the group until `stop`; raise when the disk fails."""
        if self._is_stopped:
            return
        loop = self._loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        raft = Raft(
            self.id,
            self.log,
            self._hard_state.hard_state,
            random=self._random,
            now_ms=self._now_ms(),
            options=self._options,
        )
        raft.state.commit_to(self.log.committed_index)
        self._raft = raft
        self._pump()
        checkpoints = loop.create_task(self._write_checkpoints())
        try:
            await self._done
        finally:
            self._raft = None
            checkpoints.cancel()
            await asyncio.gather(checkpoints, return_exceptions=True)
            await self._end(raft)

    async def _end(self, raft: Raft) -> None:
        """Answer everybody who waits, and let the disk have what is left."""
        if self._timer is not None:
            self._timer.cancel()
        for _, _, waiter in self._waiting:
            _refuse(waiter, LeadershipLost(f"{self.id} stops; an entry may be committed later, or never"))
        self._waiting.clear()
        for token in raft.leading.unanswered_reads() if raft.leading is not None else ():
            _refuse(token, NotLeader(self.id, None))
        for role_waiter in self._role_waiters:
            _resolve(role_waiter, None)
        under_way = [job for job in (self._syncing, self._saving) if job is not None]
        await asyncio.gather(*under_way, return_exceptions=True)
        assert self._done is not None
        if self._done.cancelled() or self._done.exception() is None:
            point = SyncPoint(self.log.cuts, self.log.last_index)
            await self._in_thread(self.log.begin_sync(point).run)
            self.log.synced(point)
            await self._checkpoint(raft.commit)
        self._threads.shutdown(wait=False)
        log.info("Raft member stopped: member=%s term=%d commit=%d", self.id, raft.term, raft.commit)

    def stop(self) -> None:
        """End `run`, also one that has not begun."""
        self._is_stopped = True
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: BaseException) -> None:
        if self._done is not None and not self._done.done():
            log.error("Raft member fails: member=%s error=%r", self.id, error)
            self._raft = None
            self._done.set_exception(error)

    # --- what others may know

    @property
    def role(self) -> Role:
        return self._reported.role

    @property
    def term(self) -> int:
        return max(self._reported.term, 0)

    @property
    def leader(self) -> str | None:
        return self._reported.leader

    @property
    def commit(self) -> int:
        """Entries up to here are committed, as reported to `on_commit`."""
        return self._commit

    @property
    def members(self) -> Membership:
        """The members as of the newest entry of the log."""
        return self.log.memberships()[-1][1]

    def status(self) -> NodeStatus:
        """Return what an operator wants to know."""
        raft, members = self._raft, self.members
        followers: tuple[FollowerStatus, ...] = ()
        transferee = None
        if raft is not None and raft.leading is not None:
            now_ms, transferee = self._now_ms(), raft.leading.transferee
            followers = tuple(
                FollowerStatus(id_, one.match, one.next, one.sending.value, now_ms - one.heard_ms)
                for id_, one in sorted(raft.leading.progress().items())
            )
        return NodeStatus(
            self.id,
            self.role,
            self.term,
            self.leader,
            self.log.first_index,
            self.log.last_index,
            self._commit,
            raft.state.synced_index if raft is not None else self.log.base.index,
            tuple(sorted(members.voters)),
            tuple(sorted(members.learners)),
            transferee,
            followers,
        )

    # --- what it is asked

    def propose(self, bodies: Sequence[bytes]) -> int:
        """Append entries and return the index of the last; they are committed when `on_commit` says so, if ever.

        NotLeader, Busy, EntryTooLarge, and LogFull without room: then nothing was appended.
        """
        index: int = self._ask(lambda raft: raft.propose(bodies))
        return index

    def wait(self, index: int) -> asyncio.Future[None]:
        """Return a future: done when the entry that was proposed at this index is committed, else LeadershipLost."""
        assert self._loop is not None, "the node runs"
        waiter: asyncio.Future[None] = self._loop.create_future()
        if self._raft is None or index > self.log.last_index:
            waiter.set_exception(LeadershipLost(f"{self.id} does not run, or has no entry {index}"))
        elif index <= self._commit:
            waiter.set_result(None)
        else:
            self._waiting.append((index, self.log.term_at(index), waiter))
        return waiter

    async def read_barrier(self) -> int:
        """Return an index: what is applied up to there holds all that anybody has seen before. NotLeader, Busy."""
        assert self._loop is not None, "the node runs"
        token: asyncio.Future[int] = self._loop.create_future()
        self._ask(lambda raft: raft.read(token))
        return await token

    async def transfer(self, member: str) -> None:
        """Hand the leadership to a member and return when it leads; ChangeRefused, NotLeader, TimeoutError."""
        self._ask(lambda raft: raft.transfer(member))
        async with asyncio.timeout(3 * self._options.transfer_ms / 1000):
            while self.leader != member and self._raft is not None:
                await self._role_changed()

    async def change_members(self, members: Membership) -> None:
        """Change one member and return when that is committed; ChangeRefused, NotLeader, LeadershipLost."""
        await self.wait(self._ask(lambda raft: raft.change_members(members)))

    async def wait_for_leader(self) -> str:
        """Return the leader of the group, once one is known."""
        while self.leader is None and self._raft is not None:
            await self._role_changed()
        if self.leader is None:
            raise NotLeader(self.id, None)
        return self.leader

    async def _role_changed(self) -> None:
        assert self._loop is not None, "the node runs"
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._role_waiters.append(waiter)
        await waiter

    def receive(self, message: Message) -> None:
        """Take a message of another member; what no correct member sends is dropped, and logged now and then."""
        if self._raft is None:
            return
        try:
            self._ask(lambda raft: raft.step(message))
        except ProtocolError as error:
            self._warn(
                "message", "Raft message dropped: from=%s kind=%s %s", message.source, type(message).__name__, error
            )

    def _ask(self, call: Callable[[Raft], Any]) -> Any:
        raft = self._raft
        if raft is None:
            raise NotLeader(self.id, None)
        try:
            raft.tick(self._now_ms())  # a process that slept may not lead any more
            return call(raft)
        except (Refused, ProtocolError, LogFull):
            raise
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._pump_soon()

    # --- the core's wishes

    def _pump_soon(self) -> None:
        if not self._is_pump_due and self._loop is not None:
            self._is_pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Do what the core says."""
        self._is_pump_due = False
        raft = self._raft
        if raft is None:
            return
        try:
            raft.tick(self._now_ms())
            ready = raft.ready()
            for message in ready.messages:
                self._send(message)
            if ready.hard_state is not None:
                self._to_save = ready.hard_state
                self._maybe_save()
            if ready.sync is not None:
                self._to_sync = ready.sync
                self._maybe_sync()
            self._report(raft, ready)
            self._set_timer(raft.deadline_ms)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise

    def _report(self, raft: Raft, ready: Ready) -> None:
        change = RoleChange(raft.role, raft.term, raft.leader)
        if change != self._reported:
            self._reported = change
            log.info("Raft role: member=%s role=%s term=%d leader=%s", self.id, *_words(change))
            self.on_role(change)
            waiters, self._role_waiters = self._role_waiters, []
            for waiter in waiters:
                _resolve(waiter, None)
        if ready.commit > self._commit:
            self._commit = ready.commit
            self.on_commit(ready.commit)
        if self._waiting:
            self._answer(raft)
        for token, index in ready.reads:
            _resolve(token, index)
        for token in ready.lost_reads:
            _refuse(token, NotLeader(self.id, raft.leader))

    def _answer(self, raft: Raft) -> None:
        """Tell those who wait for an entry that it is committed, or that this member cannot know any more."""
        waiting, commit, entry_log = self._waiting, self._commit, self.log
        is_over = raft.leading is None or waiting[0][1] != raft.term
        while waiting and (is_over or waiting[0][0] <= commit):
            index, term, waiter = waiting.popleft()
            if entry_log.base.index < index <= commit and entry_log.term_at(index) == term:
                _resolve(waiter, None)
            else:
                text = f"{self.id} lost the leadership of term {term}: entry {index} may be committed later, or never"
                _refuse(waiter, LeadershipLost(text))

    def _set_timer(self, deadline_ms: int) -> None:
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:  # it goes off, finds nothing to do, and is set again
                return
            self._timer.cancel()
        assert self._loop is not None
        self._timer_ms = deadline_ms
        self._timer = self._loop.call_at(deadline_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    def _now_ms(self) -> int:
        assert self._loop is not None
        return int(self._loop.time() * 1000)

    # --- the disk

    def _maybe_sync(self) -> None:
        if self._syncing is None and self._to_sync is not None:
            point, self._to_sync = self._to_sync, None
            self._syncing = self._in_thread(self.log.begin_sync(point).run)
            self._syncing.add_done_callback(lambda done: self._synced(point, done))

    def _synced(self, point: SyncPoint, done: asyncio.Future[None]) -> None:
        self._syncing = None
        if not self._is_done(done):
            return
        self.log.synced(point)
        if self._raft is not None:
            self._ask(lambda raft: raft.synced(point))
            self._maybe_sync()

    def _maybe_save(self) -> None:
        if self._saving is None and self._to_save is not None:
            state, self._to_save = self._to_save, None
            self._saving = self._in_thread(lambda: self._hard_state.save(state))
            self._saving.add_done_callback(lambda done: self._saved(state, done))

    def _saved(self, state: HardState, done: asyncio.Future[None]) -> None:
        self._saving = None
        if not self._is_done(done):
            return
        if self._raft is not None:
            self._ask(lambda raft: raft.hard_state_synced(state))
            self._maybe_save()

    def _is_done(self, job: asyncio.Future[None]) -> bool:
        if job.cancelled():
            return False
        if (error := job.exception()) is not None:
            self._fail(error)
            return False
        return True

    def _in_thread(self, call: Callable[[], None]) -> asyncio.Future[None]:
        assert self._loop is not None
        return self._loop.run_in_executor(self._threads, call)

    async def _write_checkpoints(self) -> None:
        try:
            while True:
                await asyncio.sleep(CHECKPOINT_SECONDS)
                await self._checkpoint(self._commit)
        except (OSError, StoreError) as error:
            self._fail(error)

    async def _checkpoint(self, commit: int) -> None:
        job = self.log.begin_checkpoint(commit)
        if job is None:
            return
        try:
            await self._in_thread(job.run)
        except OSError as error:
            if error.errno not in disk.NO_ROOM:
                raise
            self._warn("checkpoint", "Raft checkpoint not written, the disk is full: member=%s", self.id)

    def _warn(self, kind: str, text: str, *arguments: object) -> None:
        assert self._loop is not None
        now = self._loop.time()
        if now - self._warned_at.get(kind, -_QUIET_SECONDS) >= _QUIET_SECONDS:
            self._warned_at[kind] = now
            log.warning(text, *arguments)


def _words(change: RoleChange) -> tuple[str, int, str]:
    return change.role.value, change.term, change.leader or "none"


def _resolve(waiter: Any, value: object) -> None:
    if not waiter.done():
        waiter.set_result(value)


def _refuse(waiter: Any, error: Exception) -> None:
    if not waiter.done():
        waiter.set_exception(error)
