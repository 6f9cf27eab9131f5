"""What was sent, what became of it in each group, and whether all of it is accounted for. Pure: time is an argument."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum

from cosmodrome import TransactionState

_NUMBERS_PER_KIND = 1_000_000


class Sent(StrEnum):
    NORMAL = "normal"
    BATCH = "batch"
    ONEWAY = "one-way"
    DELAYED = "delayed"
    TIMED = "timed"
    TRANSACTION = "transaction"
    ORDERLY = "orderly"


class Recall(StrEnum):
    NOT_ASKED = "not asked"
    UNSURE = "not answered"
    DONE = "done"


class Fate(StrEnum):
    CONSUMED = "consumed"
    RETRYING = "in retry"
    DEAD = "in dead letters"
    DISCARDED = "discarded"
    ROLLED_BACK = "rolled back"
    GIVEN_UP = "undecided and given up"
    RECALLED = "recalled"
    UNACKNOWLEDGED = "neither acknowledged nor there"
    LOST = "LOST"


@dataclass(frozen=True)
class Group:
    """A consumer group: what it wants, and what happens to the messages it cannot handle."""

    name: str
    topics: tuple[str, ...]
    tags: str = "*"
    max_retries: int | None = None  # None: as many as the broker's default allows
    gives_up_soon: bool = False  # at the end of the drain nothing is in retry any more
    discards: bool = False
    members: int = 1

    def wants(self, entry: Entry) -> bool:
        return entry.topic in self.topics and self.tags in ("*", entry.tag)


@dataclass
class Entry:
    """One message."""

    number: int
    sent: Sent
    topic: str
    tag: str
    due_ms: int = 0
    acknowledged: bool = False
    decision: TransactionState = TransactionState.COMMIT
    recall: Recall = Recall.NOT_ASKED
    history: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Places:
    """Where the broker has messages that nobody consumed: their numbers."""

    dead: dict[str, set[int]]
    retrying: dict[str, set[int]]
    given_up: set[int]


@dataclass
class Audit:
    """What became of everything; what is missing may still come, what is wrong stays wrong."""

    fates: Counter[Fate]
    missing: list[str]
    wrong: list[str]

    @property
    def problems(self) -> list[str]:
        return self.wrong + self.missing


class Ledger:
    """Every message by its number, and everything that happened to it."""

    def __init__(self, groups: tuple[Group, ...], start_ms: int) -> None:
        self.groups = groups
        self.entries: dict[int, Entry] = {}
        self.sent: Counter[Sent] = Counter()
        self.life = 0
        self._start_ms = start_ms
        self._consumed: dict[str, Counter[int]] = defaultdict(Counter)
        self._failed: dict[str, Counter[int]] = defaultdict(Counter)
        self._steps: Counter[str] = Counter()  # key → how many of its steps were handled
        self._wrong: list[str] = []

    def enter(self, sent: Sent, topic: str, tag: str, now_ms: int, wait_ms: int = 0) -> Entry:
        self.sent[sent] += 1
        number = (list(Sent).index(sent) + 1) * _NUMBERS_PER_KIND + self.sent[sent]  # whatever else was sent meanwhile
        entry = Entry(number, sent, topic, tag, now_ms + wait_ms)
        self.entries[entry.number] = entry
        self.note(entry.number, now_ms, f"sending ({sent}, due after {wait_ms} ms)")
        return entry

    def acknowledge(self, entry: Entry, now_ms: int, where: object) -> None:
        entry.acknowledged = True
        self.note(entry.number, now_ms, f"acknowledged: {where}")

    def note(self, number: int, now_ms: int, text: str) -> None:
        self.entries[number].history.append(f"{(now_ms - self._start_ms) / 1000:9.3f} s, life {self.life}: {text}")

    def attempt(self, group: str, number: int, now_ms: int) -> int:
        """A handler is called; how often it has failed before."""
        entry, failed = self.entries[number], self._failed[group][number]
        self.note(number, now_ms, f"{group} gets it, after {failed} failures")
        if now_ms < entry.due_ms:
            self.complain(entry, f"came {entry.due_ms - now_ms} ms early")
        return failed

    def consumed(self, group: str, number: int, now_ms: int) -> None:
        self.note(number, now_ms, f"{group} has consumed it")
        self._consumed[group][number] += 1

    def failed(self, group: str, number: int, now_ms: int) -> None:
        self.note(number, now_ms, f"{group} fails")
        self._failed[group][number] += 1

    def step(self, entry: Entry, key: str, step: int) -> None:
        """A message of an orderly key was handled, or given up: the steps of a key follow each other."""
        if step > self._steps[key]:
            if step != self._steps[key] + 1:
                self.complain(entry, f"step {step} of {key} came after step {self._steps[key]}")
            self._steps[key] = step

    @property
    def duplicates(self) -> int:
        return sum(times - 1 for counted in self._consumed.values() for times in counted.values())

    # --- the audit

    def audit(self, places: Places) -> Audit:
        """What became of every message in every group that wants it."""
        found = Audit(Counter(), [], list(self._wrong))
        for group in self.groups:
            for entry in filter(group.wants, self.entries.values()):
                fate = self._fate(entry, group, places)
                found.fates[fate] += 1
                if fate is Fate.LOST:
                    found.missing.append(self._described(entry, f"LOST to {group.name}"))
                elif fate is Fate.RETRYING and group.gives_up_soon:
                    found.missing.append(self._described(entry, f"still in retry for {group.name}"))
                elif (wrong := self._wrongness(entry, group, fate)) is not None:
                    found.wrong.append(self._described(entry, f"{wrong}, in {group.name}"))
        return found

    def _fate(self, entry: Entry, group: Group, places: Places) -> Fate:
        number, name = entry.number, group.name
        states = {
            Fate.CONSUMED: number in self._consumed[name],
            Fate.DEAD: number in places.dead[name],
            Fate.RETRYING: number in places.retrying[name],
            Fate.RECALLED: entry.recall is not Recall.NOT_ASKED,
            Fate.ROLLED_BACK: entry.decision is TransactionState.ROLLBACK,
            Fate.GIVEN_UP: number in places.given_up,
            Fate.DISCARDED: group.discards and self._failed[name][number] > 0,
            Fate.UNACKNOWLEDGED: not entry.acknowledged,
        }
        return next((fate for fate, holds in states.items() if holds), Fate.LOST)

    def _wrongness(self, entry: Entry, group: Group, fate: Fate) -> str | None:
        reached_group = fate in (Fate.CONSUMED, Fate.DEAD, Fate.RETRYING)
        if reached_group and entry.decision is not TransactionState.COMMIT:
            return f"delivered although it was {entry.decision.name}"
        if reached_group and entry.recall is Recall.DONE:
            return "delivered although it was recalled"
        if fate is Fate.DEAD and self._failed[group.name][entry.number] <= (group.max_retries or 0):
            return f"a dead letter after {self._failed[group.name][entry.number]} failures"
        return None

    def complain(self, entry: Entry, what: str) -> None:
        self._wrong.append(self._described(entry, what))

    def _described(self, entry: Entry, what: str) -> str:
        history = "\n    ".join(entry.history)
        return f"message {entry.number} ({entry.sent}, {entry.topic}): {what}\n    {history}"
