"""All that can happen to a small Raft group within bounds, one after the other: the real core, every order of events.

A state is three members, their disks and the messages under way. From each state every event that is possible leads to
another: a member stands, a message arrives (or, by never arriving, is lost), an entry is proposed, a log is synced, a
member dies with what it had not synced and starts again. `Checks` looks at each. There is no time: a member may stand
at any moment, without a pre-vote, which allows more than the real one. Term and vote are synced before an event is
over. Heartbeats, refusals and appends without entries are left out, as if they were lost.

Members that begin alike are alike, so that the first to stand is always `a`.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from cosmodrome.raft.core import Raft
from cosmodrome.raft.log import MemoryLog
from cosmodrome.raft.messages import (
    AppendRequest,
    Base,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    Message,
    StaleTerm,
    VoteResponse,
)
from cosmodrome.raft.options import RaftOptions
from cosmodrome.raft.quorum import Membership
from tests.simulation.raft_checks import Checks
from tests.simulation.raft_disk import DiskLog

NAMES = ("a", "b", "c")
_OPTIONS = RaftOptions(max_batch_bytes=1, max_in_flight_messages=2)


@dataclass(frozen=True)
class Bounds:
    """How much may happen."""

    terms: int = 3
    entries: int = 0  # proposed, beside those that begin a term
    crashes: int = 0
    is_sync_slow: bool = False  # a sync of the log is an event of its own
    states: int = 200_000  # looked at, at most
    logs: tuple[tuple[int, ...], ...] = ((), (), ())  # the terms of the entries that the members begin with


class _NoChance(Random):
    """Time-outs do not matter here, and a generator's state would only make states larger."""

    def __init__(self) -> None:
        pass

    def __reduce__(self) -> Any:
        return _NoChance, ()

    def randint(self, a: int, b: int) -> int:
        return a


class Model:
    """One state."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        base = Base(-1, 0, Membership.of(NAMES))
        self.checks = Checks(base)
        self.members: dict[str, Raft] = {}
        self.logs: dict[str, DiskLog] = {}
        self.wire: list[Message] = []
        self.proposed = self.crashed = 0
        self.hard_states = dict.fromkeys(NAMES, HardState())
        self._commits = dict.fromkeys(NAMES, -1)
        self._led = dict.fromkeys(NAMES, 0)
        for name in NAMES:
            log = self.logs[name] = DiskLog(base)
            log.check_append, log.check_base = self.checks.appended, self.checks.based
            log.check_cut = partial(self._cut, name)
        self._term = max((0, *(term for terms in bounds.logs for term in terms)))
        for name, terms in zip(NAMES, bounds.logs, strict=True):
            self.hard_states[name] = HardState(self._term)
            log = self.logs[name]
            log.append([Entry(index, term, EntryKind.NORMAL, b"old %d" % index) for index, term in enumerate(terms)])
            log.sync(log.written)
            self._start(name)

    def _start(self, name: str) -> None:
        self.members[name] = Raft(
            name, self.logs[name], self.hard_states[name], random=_NoChance(), now_ms=0, options=_OPTIONS
        )
        self._commits[name] = -1
        self._pump(name)

    def _cut(self, name: str, log: MemoryLog, last_index: int) -> None:
        self.checks.cut(log, last_index, self.members[name].term)

    def _pump(self, name: str) -> None:
        raft, checks = self.members[name], self.checks
        while True:
            ready = raft.ready()
            if raft.leading is not None and self._led[name] != raft.term:
                self._led[name] = raft.term
                checks.leads(raft)
            if ready.commit > self._commits[name]:
                durable = {name: log.durable for name, log in self.logs.items()}
                checks.commits(raft, self._commits[name] + 1, ready.commit, durable)
                self._commits[name] = ready.commit
            for message in ready.messages:
                if _matters(message):
                    self.wire.append(message)
            if ready.hard_state is not None:
                self.hard_states[name] = ready.hard_state
                raft.hard_state_synced(ready.hard_state)
            elif not self.bounds.is_sync_slow and not self.logs[name].is_synced:
                self._sync(name)
            elif not ready.messages:
                break
        # What comes from an earlier term is refused, as if it were lost.
        self.wire = [message for message in self.wire if message.term >= self.members[message.target].term]

    def _sync(self, name: str) -> None:
        log, raft = self.logs[name], self.members[name]
        log.sync(log.written)
        point = raft.state.take_sync_point() or raft.state._sync_asked
        if point is not None:
            raft.synced(point)

    # --- events

    def events(self) -> Iterator[tuple[str, Any]]:
        """Yield what can happen next."""
        bounds = self.bounds
        names = NAMES[:1] if self.members["a"].term == self._term and not any(bounds.logs) else NAMES
        for name in names:
            raft = self.members[name]
            if raft.leading is None and raft.term < bounds.terms:
                yield "stand", name
            if raft.leading is not None and self.proposed < bounds.entries:
                yield "propose", name
            if self.crashed < bounds.crashes:
                yield "crash", name
            if bounds.is_sync_slow and not self.logs[name].is_synced:
                yield "sync", name
        seen = set()
        for place, message in enumerate(self.wire):
            if message not in seen:
                seen.add(message)
                yield "arrive", place

    def happen(self, event: tuple[str, Any]) -> None:
        """Let an event happen; Violation if it breaks a promise."""
        kind, what = event
        if kind == "arrive":
            message = self.wire.pop(what)
            name = message.target
            self.members[name]._election._heard_ms = None  # however long that was ago
            self.members[name].step(message)
        else:
            name = what
            raft = self.members[name]
            if kind == "stand":
                raft._stand(is_pre=False)
            elif kind == "propose":
                self.proposed += 1
                raft.propose([b"%d" % self.proposed])
            elif kind == "sync":
                self._sync(name)
            elif kind == "crash":
                self.crashed += 1
                self.logs[name].cut_power(_LoseAll())
                self._start(name)
        self._pump(name)

    def key(self) -> int:
        """Return what tells this state from others."""
        members = tuple(_key(self.members[name], self.logs[name]) for name in NAMES)
        committed = tuple((entry.term, entry.data) for entry in self.checks.committed)
        leaders = tuple(sorted(self.checks._leaders.items()))
        wire = tuple(sorted(map(repr, self.wire)))
        return hash((members, committed, leaders, wire, self.proposed, self.crashed))


def _matters(message: Message) -> bool:
    """Return whether the arrival of a message can make a difference that no other event makes."""
    if isinstance(message, AppendRequest):
        return bool(message.entries)
    if isinstance(message, VoteResponse):
        return message.is_granted
    return not isinstance(message, Heartbeat | StaleTerm)


class _LoseAll(Random):
    """What was not synced is lost."""

    def randint(self, a: int, b: int) -> int:
        return a


def _key(raft: Raft, log: DiskLog) -> tuple[Any, ...]:
    state, leading = raft.state, raft.leading
    progress: tuple[Any, ...] = ()
    if leading is not None:
        progress = tuple(
            (p.match, p.next, p.sending, p.is_probing, tuple(p._in_flight)) for p in leading.progress().values()
        )
    return (
        *(state.role, state.term, state.vote, state.leader, state.commit, state.synced_index),
        tuple((entry.term, entry.data) for entry in log.entries),
        tuple(entry.term for entry in log.durable.entries),
        (raft._follower._matched_term, raft._follower._matched, raft._follower._owed_to),
        tuple(sorted(raft._election._votes)),
        progress,
    )


@dataclass
class Explored:
    """What an exploration has seen. `is_complete`: all that can happen within the bounds."""

    states: int
    events: int
    deepest: int
    is_complete: bool


def explore(bounds: Bounds, tell: Callable[[str], None] = lambda line: None) -> Explored:
    """Look at every state within bounds, the nearest first; Violation at the first that breaks a promise."""
    first = Model(bounds)
    seen = {first.key()}
    waiting = deque([(pickle.dumps(first), 0)])
    events = deepest = 0
    while waiting:
        if len(seen) >= bounds.states:
            return Explored(len(seen), events, deepest, False)
        image, depth = waiting.popleft()
        deepest = max(deepest, depth)
        for event in list(pickle.loads(image).events()):
            model = pickle.loads(image)
            model.happen(event)
            events += 1
            key = model.key()
            if key not in seen:
                seen.add(key)
                waiting.append((pickle.dumps(model), depth + 1))
                if len(seen) % 50_000 == 0:
                    tell(f"{len(seen)} states, {events} events, {depth + 1} deep, {len(waiting)} to go on from")
    return Explored(len(seen), events, deepest, True)
