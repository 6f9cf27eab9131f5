"""Pops that wait for a message. Pure: it keeps waiters and says which may go on; waking them is the caller's work.

One message wakes one pop of each group, not all of them: the others would find nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

W = TypeVar("W")

ANY_QUEUE = -1


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
        self._held: dict[PollKey, list[HeldPop[W]]] = {}
        self.topics: dict[str, dict[PollKey, None]] = {}  # topic, or retry topic → who waits for its messages
        self.closed = False

    def __len__(self) -> int:
        return self._count

    def count(self, key: PollKey) -> int:
        return len(self._held.get(key, ()))

    def hold(self, pop: HeldPop[W]) -> bool:
        """Keep a pop; False when too many wait already."""
        if self.closed or self._count >= self._limit or self.count(pop.key) >= self._limit_each:
            return False
        self._held.setdefault(pop.key, []).append(pop)
        for topic in (pop.key.topic, *pop.retry_topics):
            self.topics.setdefault(topic, {})[pop.key] = None
        self._count += 1
        return True

    def take_arrived(self, topic: str, queue_id: int, tags_code: int) -> list[HeldPop[W]]:
        """A message arrived: the pops that may go on."""
        keys = [
            key for key in self.topics.get(topic, ()) if key.topic != topic or key.queue_id in (ANY_QUEUE, queue_id)
        ]
        return [pop for key in keys for pop in self._take_first(key, tags_code)]

    def take_next(self, key: PollKey) -> list[HeldPop[W]]:
        """There is more for whoever waits for this; the first of them may go on."""
        first = self._held[key][0] if key in self._held else None
        return self._take(key, lambda pop: pop is first) if first is not None else []

    def take_expired(self, now_ms: int) -> list[HeldPop[W]]:
        return [pop for key in list(self._held) for pop in self._take(key, lambda pop: pop.wake_ms <= now_ms)]

    def close(self) -> list[HeldPop[W]]:
        """From now on nobody waits; all who did may go on."""
        self.closed = True
        return [pop for key in list(self._held) for pop in self._take(key, lambda _pop: True)]

    def _take_first(self, key: PollKey, tags_code: int) -> list[HeldPop[W]]:
        wanting = (pop for pop in self._held[key] if pop.codes is None or tags_code in pop.codes)
        first = next(wanting, None)
        return self._take(key, lambda pop: pop is first) if first is not None else []

    def _take(self, key: PollKey, going: Callable[[HeldPop[W]], bool]) -> list[HeldPop[W]]:
        taken: list[HeldPop[W]] = []
        left: list[HeldPop[W]] = []
        for pop in self._held[key]:
            (taken if going(pop) else left).append(pop)
        self._held[key] = left
        self._count -= len(taken)
        if not left:
            del self._held[key]
            for topic in {name for pop in taken for name in (key.topic, *pop.retry_topics)}:
                self.topics[topic].pop(key, None)
                if not self.topics[topic]:
                    del self.topics[topic]
        return taken
