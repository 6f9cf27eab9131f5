"""Pulls that wait for a message. Pure: it keeps waiters and says which may go on; waking them is the caller's work.

A pull whose client is gone stays until its time is up, at most some seconds: its answer is then dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

W = TypeVar("W")


@dataclass(slots=True, eq=False)
class HeldPull(Generic[W]):
    """One pull that found nothing. `codes` are the tag hashes it wants; None wants everything."""

    topic: str
    queue_id: int
    offset: int
    codes: frozenset[int] | None
    deadline_ms: int
    waiter: W

    def wants(self, next_offset: int, tags_code: int) -> bool:
        return next_offset > self.offset and (self.codes is None or tags_code in self.codes)


class LongPolls(Generic[W]):
    """The pulls held by this broker, at most `limit` of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._held: dict[tuple[str, int], list[HeldPull[W]]] = {}

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: HeldPull[W]) -> bool:
        """Keep a pull; False when there are too many already, and it must be answered now."""
        if self._count >= self._limit:
            return False
        self._held.setdefault((pull.topic, pull.queue_id), []).append(pull)
        self._count += 1
        return True

    def take_arrived(self, topic: str, queue_id: int, next_offset: int, tags_code: int) -> list[HeldPull[W]]:
        """A message arrived, and `next_offset` is the one after it: the pulls that may go on."""
        key = (topic, queue_id)
        if key not in self._held:  # nearly every send of a busy broker ends here
            return []
        return self._take(key, lambda pull: pull.wants(next_offset, tags_code))

    def take_queue(self, topic: str, queue_id: int) -> list[HeldPull[W]]:
        """Every pull of a queue, whatever it waits for."""
        return self._take((topic, queue_id), lambda _: True) if (topic, queue_id) in self._held else []

    def take_expired(self, now_ms: int) -> list[HeldPull[W]]:
        due: list[HeldPull[W]] = []
        for key in list(self._held):
            due += self._take(key, lambda pull: pull.deadline_ms <= now_ms)
        return due

    def take_all(self) -> list[HeldPull[W]]:
        held, self._held = self._held, {}
        self._count = 0
        return [pull for pulls in held.values() for pull in pulls]

    def _take(self, key: tuple[str, int], going: Callable[[HeldPull[W]], bool]) -> list[HeldPull[W]]:
        taken: list[HeldPull[W]] = []
        left: list[HeldPull[W]] = []
        for pull in self._held[key]:
            (taken if going(pull) else left).append(pull)
        if left:
            self._held[key] = left
        else:
            del self._held[key]
        self._count -= len(taken)
        return taken
