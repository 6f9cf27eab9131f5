"""Pulls that wait for a message. Pure: it keeps waiters and says which may go on; waking them is the caller's work.

A pull whose client is gone stays until its time is up, at most some seconds: its answer is then dropped.

Nearly every queue has a handful of pulls, and an arrival looks at all of them. Where there are more than `AT_ONCE`, it
only notes what arrived: `looking` goes through the pulls of such queues in steps. It begins with one pull of every
owner: a consumer that waits like all others need not stand behind the thousands of one that asks for too much.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cosmodrome.net.lane import steps_of

W = TypeVar("W")

AT_ONCE = 100  # pulls of one queue that an arrival looks at
STEP = 1_000  # pulls looked at in one step, in some tenths of a millisecond
TAKEN_STEP = 50  # pulls taken in one step: to serve them takes some milliseconds
BUCKET_MS = 512  # pulls are kept by deadline, so coarsely


@dataclass(slots=True, eq=False)
class HeldPull(Generic[W]):
    """One pull that found nothing. `codes` are the tag hashes it wants; None wants everything."""

    topic: str
    queue_id: int
    offset: int
    codes: frozenset[int] | None
    deadline_ms: int
    waiter: W
    owner: Hashable = None
    rank: int = 0  # how many pulls of its owner waited for the queue before it

    def wants(self, next_offset: int, tags_code: int) -> bool:
        return next_offset > self.offset and (self.codes is None or tags_code in self.codes)


@dataclass(slots=True)
class _Queue(Generic[W]):
    """The pulls of one queue, in the order they came."""

    pulls: dict[HeldPull[W], None] = field(default_factory=dict)
    of_owner: dict[Hashable, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Arrivals:
    """What arrived on a queue since the last look at its pulls."""

    next_offset: int = 0
    codes: set[int] = field(default_factory=set)

    def are_wanted_by(self, pull: HeldPull[W]) -> bool:
        return self.next_offset > pull.offset and (pull.codes is None or not pull.codes.isdisjoint(self.codes))


Key = tuple[str, int]


class LongPolls(Generic[W]):
    """The pulls held by this broker: at most `limit` of them, and `limit_each` for one queue."""

    def __init__(self, limit: int, limit_each: int | None = None) -> None:
        self._limit = limit
        self._limit_each = limit if limit_each is None else limit_each
        self._count = 0
        self._held: dict[Key, _Queue[W]] = {}
        self._by_deadline: dict[int, dict[HeldPull[W], None]] = {}
        self.arrived: dict[Key, _Arrivals] = {}  # for queues with many pulls: `looking` has something to do

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: HeldPull[W]) -> bool:
        """Keep a pull; False when there are too many already, and it must be answered without waiting here."""
        queue = self._held.get((pull.topic, pull.queue_id))
        if self._count >= self._limit or (queue is not None and len(queue.pulls) >= self._limit_each):
            return False
        if queue is None:
            queue = self._held[pull.topic, pull.queue_id] = _Queue()
        pull.rank = queue.of_owner.get(pull.owner, 0)
        queue.of_owner[pull.owner] = pull.rank + 1
        queue.pulls[pull] = None
        self._by_deadline.setdefault(pull.deadline_ms // BUCKET_MS, {})[pull] = None
        self._count += 1
        return True

    def take_arrived(self, topic: str, queue_id: int, next_offset: int, tags_code: int) -> list[HeldPull[W]]:
        """A message arrived, and `next_offset` is the one after it: the pulls that may go on now."""
        queue = self._held.get((topic, queue_id))
        if queue is None:  # nearly every send of a busy broker ends here
            return []
        if len(queue.pulls) <= AT_ONCE:
            return self._take([pull for pull in queue.pulls if pull.wants(next_offset, tags_code)])
        arrivals = self.arrived.setdefault((topic, queue_id), _Arrivals())
        arrivals.next_offset = max(arrivals.next_offset, next_offset)
        arrivals.codes.add(tags_code)
        return []

    def looking(self) -> Iterator[list[HeldPull[W]]]:
        """Look through the pulls of queues where something arrived; each step has those that may go on."""
        while self.arrived:
            key = next(iter(self.arrived))
            arrivals = self.arrived.pop(key)
            if (queue := self._held.get(key)) is None:
                continue
            # Who comes from now on has seen what arrived. Sorting keeps the order of those of the same rank.
            waiting = sorted(queue.pulls, key=lambda pull: pull.rank)
            yield from self._taking(waiting, arrivals.are_wanted_by)

    def take_queue(self, topic: str, queue_id: int) -> list[HeldPull[W]]:
        """Every pull of a queue, whatever it waits for."""
        queue = self._held.get((topic, queue_id))
        return self._take(list(queue.pulls)) if queue is not None else []

    def take_expired(self, now_ms: int) -> list[HeldPull[W]]:
        """The pulls whose time is up."""
        return [pull for step in self.expiring(now_ms) for pull in step]

    def expiring(self, now_ms: int) -> Iterator[list[HeldPull[W]]]:
        """The same in steps."""
        for bucket in sorted(bucket for bucket in self._by_deadline if bucket <= now_ms // BUCKET_MS):
            waiting = sorted(self._by_deadline.get(bucket, ()), key=lambda pull: pull.rank)
            yield from self._taking(waiting, lambda pull: pull.deadline_ms <= now_ms)

    def take_all(self) -> list[HeldPull[W]]:
        return self._take([pull for queue in list(self._held.values()) for pull in queue.pulls])

    def _taking(self, waiting: list[HeldPull[W]], going: Callable[[HeldPull[W]], bool]) -> Iterator[list[HeldPull[W]]]:
        """Take the pulls that are `going`, if they still wait when their step comes."""
        for first in range(0, len(waiting), STEP):
            step = [pull for pull in waiting[first : first + STEP] if going(pull)]
            for pulls in steps_of(step, TAKEN_STEP):
                if taken := self._take(pulls):
                    yield taken
            yield []

    def _take(self, pulls: Sequence[HeldPull[W]]) -> list[HeldPull[W]]:
        """Remove those of `pulls` that are held, and return them."""
        taken = []
        for pull in pulls:
            key = (pull.topic, pull.queue_id)
            queue = self._held.get(key)
            if queue is None or pull not in queue.pulls:
                continue
            taken.append(pull)
            del queue.pulls[pull]
            queue.of_owner[pull.owner] -= 1
            if not queue.of_owner[pull.owner]:
                del queue.of_owner[pull.owner]
            if not queue.pulls:
                del self._held[key]
            bucket = self._by_deadline[pull.deadline_ms // BUCKET_MS]
            del bucket[pull]
            if not bucket:
                del self._by_deadline[pull.deadline_ms // BUCKET_MS]
        self._count -= len(taken)
        return taken
