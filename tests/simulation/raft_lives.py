"""Raft groups on clocks, networks and disks that fail, in one thread and from one seed.

The core and the bytes of its storage are the real ones. Everything else is up to the seed: how many members, how bad
the times are, and when what happens. `Checks` looks at every step; after the bad times, the group must get going.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from cosmodrome.raft.core import Raft
from cosmodrome.raft.errors import Refused
from cosmodrome.raft.leader import Leader
from cosmodrome.raft.log import LogFull, MemoryLog
from cosmodrome.raft.messages import Base, EntryKind, HardState, Message, SyncPoint
from cosmodrome.raft.options import RaftOptions
from cosmodrome.raft.quorum import Membership
from cosmodrome.raft.wire_messages import decode, encode
from tests.simulation.raft_checks import Checks, Violation
from tests.simulation.raft_disk import DiskLog, DiskState
from tests.simulation.raft_files import FileLog

BAD_TIMES_MS = 6_000
HEALING_MS = 15_000
RETRY_MS = 100
ACTIONS = ("power", "kill", "partition", "heal", "pause", "full", "slow", "transfer", "members", "compact", "read")
CHECKPOINT_SHARE = 0.3  # of the syncs


@dataclass
class Report:
    """What happened in one life."""

    events: Counter[str]
    messages: int
    healed_ms: int


class Member:
    """One process, its disk and its clock."""

    def __init__(self, world: World, name: str, base: Base) -> None:
        self._world = world
        self.name = name
        self.log = DiskLog(base) if world.file_size is None else FileLog(base, world.file_size)
        self.log.check_append = world.checks.appended
        self.log.check_cut = self._cut
        self.log.check_base = world.checks.based
        self.disk = DiskState()
        self.raft: Raft | None = None
        self.life = 0
        self.paused_to = 0
        self.sync_ms = world.usual_sync_ms
        self._rate = 1000  # how far its clock comes in a second of the world's
        self._offset = 0
        self._timer_at = 0
        self._leading: Leader | None = None
        self._checked = -1
        self._saving: Iterator[None] | None = None
        self._to_save: HardState | None = None
        self._to_sync: SyncPoint | None = None
        self._is_syncing = False
        self._sent: list[tuple[int, int, bytes]] = []  # index, term and body of what clients wait for

    # --- life

    def start(self) -> None:
        world, random = self._world, self._world.random
        self.life += 1
        self._rate = random.choice((1000, 1000, 700, 1400))
        self._offset = random.randrange(10**6)
        self._timer_at = 1 << 60
        self._leading, self._saving, self._to_save, self._to_sync = None, None, None, None
        self._is_syncing = False
        self._sent = []
        committed = self.log.reopen()
        raft = Raft(
            self.name,
            self.log,
            self.disk.open(),
            random=random,
            now_ms=self._now(),
            options=world.options,
        )
        self.raft = raft
        self._checked = raft.commit
        raft.state.commit_to(committed)
        self.pump()

    def die(self, *, by_power: bool) -> None:
        self.raft = None
        self.life += 1
        self.paused_to = 0
        if by_power:
            lost = self.log.cut_power(self._world.random)
            if lost:
                self._world.checks.events[lost] += 1
            self.disk.cut_power(self._world.random)

    def _now(self) -> int:
        return self._offset + self._world.now * self._rate // 1000

    def _later(self, delay: int, call: Callable[..., None], *arguments: object) -> None:
        self._world.at(self._world.now + delay, self._run, self.life, call, arguments)

    def _run(self, life: int, call: Callable[..., None], arguments: tuple[object, ...]) -> None:
        """Do something in this process, unless it died; later, if it is paused."""
        if life != self.life or self.raft is None:
            return
        if self._world.now < self.paused_to:
            self._world.at(self.paused_to, self._run, life, call, arguments)
            return
        self.raft.tick(self._now())
        call(*arguments)
        self.pump()

    def _cut(self, log: MemoryLog, last_index: int) -> None:
        assert self.raft is not None
        self._world.checks.cut(log, last_index, self.raft.term)

    # --- what comes in

    def deliver(self, message: Message) -> None:
        if self.raft is not None:
            self._run(self.life, self.raft.step, (message,))

    def ask(self, call: Callable[[Raft], None]) -> None:
        """Let a client or an operator ask for something."""
        if self.raft is not None and self._world.now >= self.paused_to:
            self.raft.tick(self._now())
            try:
                call(self.raft)
            except (Refused, LogFull) as refusal:
                self._world.checks.events[type(refusal).__name__] += 1
            self.pump()

    def propose(self, bodies: list[bytes]) -> None:
        def call(raft: Raft) -> None:
            last = raft.propose(bodies)
            first = last - len(bodies) + 1
            self._sent += [(index, raft.term, body) for index, body in enumerate(bodies, first)]

        self.ask(call)

    # --- what goes out

    def pump(self) -> None:
        """Do what the core says: the member's shell."""
        raft, world = self.raft, self._world
        assert raft is not None
        ready = raft.ready()
        if raft.leading is not self._leading:
            self._leading = raft.leading
            if raft.leading is not None:
                world.checks.leads(raft)
        if ready.commit > self._checked:
            world.checks.commits(raft, self._checked + 1, ready.commit, world.durable)
            self._checked = ready.commit
        for floor, index in ready.reads:
            assert isinstance(floor, int)
            world.checks.read(floor, index)
        if ready.lost_reads:
            world.checks.events["lost reads"] += len(ready.lost_reads)
        if self._sent:
            self._answer(raft, ready.commit)
        if ready.hard_state is not None:
            self._to_save = ready.hard_state
            if self._saving is None:
                self._save()
        if ready.sync is not None:
            self._to_sync = ready.sync
            if not self._is_syncing:
                self._sync()
        for message in ready.messages:
            world.send(message)
        self._set_timer(raft.deadline_ms)

    def _answer(self, raft: Raft, commit: int) -> None:
        if raft.leading is None or self._sent[0][1] != raft.term:
            self._sent = [sent for sent in self._sent if sent[1] == raft.term and raft.leading is not None]
        while self._sent and self._sent[0][0] <= commit:
            index, _, body = self._sent.pop(0)
            self._world.checks.acknowledge(body, index)

    def _save(self) -> None:
        state, self._to_save = self._to_save, None
        assert state is not None
        self._saving = self.disk.saving(state)
        next(self._saving)
        self._world.maybe_cut_power(self, is_vote=True)
        self._later(self._world.sync_ms(self), self._saved, state)

    def _saved(self, state: HardState) -> None:
        """One of the syncs of a save has ended."""
        assert self._saving is not None
        if next(self._saving, self) is not self:
            self._later(self._world.sync_ms(self), self._saved, state)
            return
        self._saving = None
        assert self.raft is not None
        self.raft.hard_state_synced(state)
        if self._to_save is not None:
            self._save()

    def _sync(self) -> None:
        point, self._to_sync = self._to_sync, None
        self._is_syncing = True
        self._world.maybe_cut_power(self)
        assert point is not None
        self._later(self._world.sync_ms(self), self._synced, point, self.log.begin_sync(point))

    def _synced(self, point: SyncPoint, begun: object) -> None:
        self.log.end_sync(begun)
        self._is_syncing = False
        assert self.raft is not None
        self.raft.synced(point)
        if self._world.file_size is not None and self._world.random.random() < CHECKPOINT_SHARE:
            self.log.checkpoint(self.raft.commit)
        if self._to_sync is not None:
            self._sync()

    def _set_timer(self, deadline_ms: int) -> None:
        at = max(-((self._offset - deadline_ms) * 1000 // self._rate), self._world.now + 1)
        if at < self._timer_at:
            self._timer_at = at
            self._world.at(at, self._run, self.life, self._on_timer, (at,))

    def _on_timer(self, at: int) -> None:
        if at == self._timer_at:
            self._timer_at = 1 << 60


class World:
    """A group, its network, and what befalls it."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(f"raft {seed}")
        self.now = 0
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.messages = 0
        names = [f"n{number}" for number in range(random.choice((1, 2, 3, 3, 3, 3, 4, 5, 5)))]
        self._first_members = names
        spares = [f"n{number}" for number in range(len(names), len(names) + random.choice((0, 0, 1, 2)))]
        self.usual_sync_ms = random.choice((1, 3, 20, 60))
        # Every other group has the real log on a disk of bytes, in files so small that they often end.
        self.file_size = Random(f"files {seed}").choice((700, 1500, 4000)) if seed % 2 else None
        base = Base(-1, 0, Membership.of(names))
        self.checks = Checks(base)
        self.options = self._drawn_options(names)
        self.members = {name: Member(self, name, base) for name in names}
        nobody = Base(-1, 0, Membership.of([]))
        self.members |= {name: Member(self, name, nobody) for name in spares}
        self.durable = {name: member.log.durable for name, member in self.members.items()}
        self._cut: set[tuple[str, str]] = set()
        self._proposed = 0
        # How bad the times are: how likely what is, from nearly never to often.
        self._weights = [random.choice((0.0, 0.3, 1.0, 3.0)) for _ in ACTIONS]
        self._loss = random.choice((0.0, 0.0, 0.05, 0.2))
        self._doubles = random.choice((0.0, 0.05, 0.2))
        self._stray = random.choice((0.0, 0.02, 0.1))  # messages that come very late
        self._cruelty = random.choice((0.0, 0.0, 0.02, 0.1))  # how often the power fails in the midst of a sync
        self._vote_cruelty = random.choice((0.0, 0.1, 0.4))
        self._pace_ms = random.choice((40, 80, 150))
        self._is_bad = True
        for member in self.members.values():
            member.start()

    def _drawn_options(self, names: list[str]) -> RaftOptions:
        random = self.random
        return RaftOptions(
            heartbeat_ms=70,
            election_min_ms=200,
            election_max_ms=random.choice((230, 400)),
            retry_ms=120,
            transfer_ms=150,
            preferred_leader=random.choice(["", "", "", *names]),
            preferred_check_ms=400,
            max_batch_bytes=random.choice((1, 150, 1000)),
            max_bulk_bytes=2000,
            far_behind_entries=12,
            max_in_flight_messages=random.choice((1, 3, 8)),
            max_pending_entries=random.choice((6, 40)),
            caught_up_entries=random.choice((3, 20)),
        )

    # --- time and network

    def at(self, when: int, call: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, call, arguments))

    def run(self, until: int) -> None:
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, call, arguments = heapq.heappop(events)
            call(*arguments)
        self.now = until

    def sync_ms(self, member: Member) -> int:
        return 1 + int(self.random.random() * member.sync_ms)

    def send(self, message: Message) -> None:
        self.messages += 1
        if self.file_size is not None:
            message = decode("g", encode("g", message))
        chance = self.random.random
        if self._cut and (message.source, message.target) in self._cut:
            return
        delay = 1 + int(chance() * 6)
        if self._is_bad:
            if chance() < self._loss:
                return
            if chance() < self._stray:
                delay += int(chance() * 600)
            if chance() < self._doubles:
                self.at(self.now + delay + int(chance() * 60), self._arrive, message)
        self.at(self.now + delay, self._arrive, message)

    def _arrive(self, message: Message) -> None:
        if not self._cut or (message.source, message.target) not in self._cut:
            self.members[message.target].deliver(message)

    # --- clients

    def leaders(self) -> list[Member]:
        return [member for member in self.members.values() if member.raft is not None and member.raft.leading]

    def _propose(self) -> None:
        leaders = self.leaders()
        if leaders:
            count = self.random.choice((1, 1, 3))
            bodies = [b"m%d" % (self._proposed + number) for number in range(count)]
            self._proposed += count
            self.random.choice(leaders).propose(bodies)
        if self.random.random() < 0.3:
            self._read()
        if self._is_bad:
            self.at(self.now + self.random.randint(1, 2 * self._pace_ms), self._propose)

    # --- what befalls the group

    def _befall(self) -> None:
        if not self._is_bad:
            return
        (action,) = self.random.choices(ACTIONS, self._weights) if any(self._weights) else ("read",)
        self.checks.events[action] += 1
        getattr(self, f"_{action}")()
        self.at(self.now + self.random.randint(10, 150), self._befall)

    def _one(self) -> Member:
        """Return a member; leaders have more to go wrong."""
        leaders = self.leaders()
        if leaders and self.random.random() < 0.4:
            return self.random.choice(leaders)
        return self.random.choice(list(self.members.values()))

    def _power(self) -> None:
        victims = [self._one()] if self.random.random() < 0.9 else list(self.members.values())
        for member in victims:
            self._stop(member, by_power=True)

    def maybe_cut_power(self, member: Member, *, is_vote: bool = False) -> None:
        """Let the power fail in the midst of a sync that begins now."""
        if self._is_bad and self.random.random() < (self._vote_cruelty if is_vote else self._cruelty):
            self.at(self.now + self.random.randint(0, member.sync_ms), self._cut_power, member, member.life)

    def _cut_power(self, member: Member, life: int) -> None:
        if self._is_bad and member.life == life:
            self._stop(member, by_power=True)

    def _kill(self) -> None:
        self._stop(self._one(), by_power=False)

    def _stop(self, member: Member, *, by_power: bool) -> None:
        if member.raft is not None:
            self.at(
                self.now + self.random.randint(1, self.random.choice((30, 500))), self._start, member, member.life + 1
            )
        member.die(by_power=by_power)

    def _start(self, member: Member, life: int) -> None:
        if member.raft is None and member.life >= life:
            member.start()

    def _partition(self) -> None:
        names = list(self.members)
        if self.random.random() < 0.3:  # one way, between two
            self._cut.add((self.random.choice(names), self.random.choice(names)))
            return
        side = {self._one().name} if self.random.random() < 0.6 else {n for n in names if self.random.random() < 0.5}
        other = set(names) - side
        self._cut |= {(one, two) for one in side for two in other}
        if self.random.random() < 0.7:
            self._cut |= {(two, one) for one in side for two in other}

    def _heal(self) -> None:
        self._cut.clear()
        for member in self.members.values():
            member.log.is_full, member.sync_ms = False, self.usual_sync_ms

    def _pause(self) -> None:
        member = self._one()
        if member.raft is not None:
            member.paused_to = self.now + self.random.randint(50, 1000)

    def _full(self) -> None:
        member = self._one()
        member.log.is_full = not member.log.is_full

    def _slow(self) -> None:
        self._one().sync_ms = self.random.choice((1, 20, 300))

    def _transfer(self) -> None:
        target = self.random.choice(list(self.members))
        for member in self.leaders():
            member.ask(lambda raft: raft.transfer(target))

    def _members(self) -> None:
        """Ask every leader for a change, also for two at once."""
        for member in self.leaders():
            for _ in range(self.random.choice((1, 1, 2))):
                target = self.random.choice(list(self.members))
                member.ask(lambda raft, target=target: raft.change_members(self._changed(raft.members, target)))  # type: ignore[misc]

    def _changed(self, members: Membership, target: str) -> Membership:
        if target in members.learners:
            return members.with_voter(target)
        if target not in members.voters:
            return members.with_learner(target)
        return members.without(target)

    def _compact(self) -> None:
        member = self._one()
        raft, log = member.raft, member.log
        if raft is not None and log.is_synced:
            last = min(raft.commit, self.checks.last_committed)
            if last >= log.first_index:
                log.compact(self.random.randint(log.first_index, last))

    def _read(self) -> None:
        floor = self.checks.answered
        for member in self.leaders():
            member.ask(lambda raft: raft.read(floor))

    # --- a life

    def live(self) -> None:
        self.at(self.random.randint(0, 400), self._propose)
        self.at(self.random.randint(200, 600), self._befall)
        self.run(BAD_TIMES_MS)

    def heal(self) -> int:
        """End the bad times; return how long it took until all members had the same log again."""
        begin = self.now
        self._is_bad = False
        self._heal()
        for member in self.members.values():
            member.paused_to = 0
            self._start(member, 0)
        goal = b"healed"
        asked_ms = begin - RETRY_MS
        while self.now < begin + HEALING_MS:
            if goal not in self.checks.acknowledged and self.now - asked_ms >= RETRY_MS:
                goal = b"healed %d" % self.now
                asked_ms = self.now
                for member in self.leaders():
                    member.propose([goal])
            self.run(self.now + 10)
            if self._is_whole(goal):
                break
        else:
            raise Violation(f"liveness: after {HEALING_MS} ms without faults: {self._describe()}")
        self.checks.all_kept(member.log for member in self._current())
        return self.now - begin

    def _current(self) -> list[Member]:
        """Return the members as of the last committed change."""
        changes = [entry for entry in self.checks.committed if entry.kind == EntryKind.MEMBERS]
        if changes:
            return [self.members[name] for name in sorted(Membership.decode(changes[-1].data).all)]
        return [self.members[name] for name in self._first_members]

    def _is_whole(self, goal: bytes) -> bool:
        if goal not in self.checks.acknowledged:
            return False
        last = self.checks.last_committed
        return all(member.raft is not None and member.raft.commit == last for member in self._current())

    def _describe(self) -> str:
        return "; ".join(_described(member.raft) for member in self.members.values() if member.raft is not None)


def _described(raft: Raft) -> str:
    log, members = raft.state.log, raft.members
    return (
        f"{raft.id}: {raft.role} term {raft.term} log {log.first_index}-{log.last_index} commit {raft.commit} "
        f"leader {raft.leader} members {sorted(members.voters)} {sorted(members.learners)}"
    )


def live_and_heal(seed: int) -> Report:
    """Live one life; Violation if a promise is broken in it."""
    world = World(seed)
    try:
        world.live()
        healed_ms = world.heal()
    except Violation as violation:
        raise Violation(f"seed {seed} at {world.now} ms: {violation}") from violation
    return Report(world.checks.events, world.messages, healed_ms)
