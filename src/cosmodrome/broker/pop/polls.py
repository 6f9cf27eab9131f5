"""Pops that wait for a message. Pure: it keeps waiters and says which may go on; waking them is the caller's work.

One message wakes one pop of each group, not all of them: the others would find nothing. Where more than `AT_ONCE`
groups and queues wait for a topic, an arrival is only noted: `looking` goes through them in steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

W = TypeVar("W")

ANY_QUEUE = -1
AT_ONCE = 50  # who waits for a topic that an arrival looks at
STEP = 50  # of who waits, looked at in one step, and pops taken in one
LOOKED_AT_STEP = 1_000  # pops looked at in one step whose time is not up


class PollKey(NamedTuple):
    """What a pop waits for; the queue may be any."""

    topic: str
    group: str
    queue_id: int


@dataclass(slots=True, eq=False)
class HeldPop(Generic[W]):
    """One pop that found nothing. `codes` are the tag hashes it wants; None wants everything."""

    key: PollKey
    retry_topics: tuple[str, ...]
    codes: frozenset[int] | None
    wake_ms: int
    waiter: W


class PopPolls(Generic[W]):
    """The pops held by this broker: at most `limit` of them, and `limit_each` for the same queues of a group."""

    def __init__(self, limit: int, limit_each: int) -> None:
        self._limit = limit
        self._limit_each = limit_each
        self._count = 0
        self._held: dict[PollKey, dict[HeldPop[W], None]] = {}
        self.topics: dict[str, dict[PollKey, None]] = {}  # topic, or retry topic → who waits for its messages
        self._arrived: dict[str, dict[tuple[int, int], None]] = {}  # topic → queue ids and tags of what arrived
        self.closed = False

    def __len__(self) -> int:
        return self._count

    @property
    def must_look(self) -> bool:
        """Something arrived for a topic that many wait for: `looking` has something to do."""
        return bool(self._arrived)

    def count(self, key: PollKey) -> int:
        return len(self._held.get(key, ()))

    def hold(self, pop: HeldPop[W]) -> bool:
        """Keep a pop; False when too many wait already."""
        if self.closed or self._count >= self._limit or self.count(pop.key) >= self._limit_each:
            return False
        self._held.setdefault(pop.key, {})[pop] = None
        for topic in (pop.key.topic, *pop.retry_topics):
            self.topics.setdefault(topic, {})[pop.key] = None
        self._count += 1
        return True

    def take_arrived(self, topic: str, queue_id: int, tags_code: int) -> list[HeldPop[W]]:
        """A message arrived: the pops that may go on now."""
        keys = self.topics.get(topic, {})
        if len(keys) > AT_ONCE:
            self._arrived.setdefault(topic, {})[queue_id, tags_code] = None
            return []
        going = [pop for key in keys if (pop := self._first(key, topic, [(queue_id, tags_code)])) is not None]
        return self._take(going)

    def looking(self) -> Iterator[list[HeldPop[W]]]:
        """Look who waits for the topics where something arrived; each step has the pops that may go on."""
        while self._arrived:
            topic = next(iter(self._arrived))
            arrived = list(self._arrived.pop(topic))
            keys = list(self.topics.get(topic, ()))
            for first in range(0, len(keys), STEP):
                step = (self._first(key, topic, arrived) for key in keys[first : first + STEP])
                yield self._take([pop for pop in step if pop is not None])

    def take_next(self, key: PollKey) -> list[HeldPop[W]]:
        """There is more for whoever waits for this; the first of them may go on."""
        first = next(iter(self._held.get(key, ())), None)
        return self._take([first]) if first is not None else []

    def take_expired(self, now_ms: int) -> list[HeldPop[W]]:
        """The pops whose time is up."""
        return [pop for step in self.expiring(now_ms) for pop in step]

    def expiring(self, now_ms: int) -> Iterator[list[HeldPop[W]]]:
        """The same in steps."""
        due: list[HeldPop[W]] = []
        looked_at = 0
        for key in list(self._held):
            pops = self._held.get(key, {})
            looked_at += len(pops)
            due += [pop for pop in pops if pop.wake_ms <= now_ms]
            while len(due) >= STEP:
                yield self._take(due[:STEP])
                del due[:STEP]
                looked_at = 0
            if looked_at >= LOOKED_AT_STEP:
                yield []
                looked_at = 0
        yield self._take(due)

    def close(self) -> list[HeldPop[W]]:
        """From now on nobody waits; all who did may go on."""
        self.closed = True
        return self.take_all()

    def take_all(self) -> list[HeldPop[W]]:
        """All who wait may go on; others may wait after them."""
        return self._take([pop for pops in self._held.values() for pop in pops])

    def _first(self, key: PollKey, topic: str, arrived: list[tuple[int, int]]) -> HeldPop[W] | None:
        """The first pop of `key` that wants any of the messages of `topic` that arrived."""
        is_any = key.topic != topic or key.queue_id == ANY_QUEUE
        tags = {tags_code for queue_id, tags_code in arrived if is_any or key.queue_id == queue_id}
        if not tags:
            return None
        pops = self._held.get(key, ())
        return next((pop for pop in pops if pop.codes is None or not pop.codes.isdisjoint(tags)), None)

    def _take(self, pops: Iterable[HeldPop[W]]) -> list[HeldPop[W]]:
        """Remove those of `pops` that are held, and return them."""
        taken = []
        for pop in pops:
            held = self._held.get(pop.key)
            if held is None or pop not in held:
                continue
            taken.append(pop)
            del held[pop]
            if not held:
                del self._held[pop.key]
                for topic in (pop.key.topic, *pop.retry_topics):
                    self._forget(topic, pop.key)
        self._count -= len(taken)
        return taken

    def _forget(self, topic: str, key: PollKey) -> None:
        if (keys := self.topics.get(topic)) is not None:
            keys.pop(key, None)
            if not keys:
                del self.topics[topic]
