"""Which brokers to leave alone for a while, by how long they took to answer. Pure.

    a send took, ms             50    100     550    1,000     2,000     3,000    15,000
    no other for so long, ms     0      0  30,000   60,000   120,000   180,000   600,000

A failed send counts as one that took 30 s. A producer's options may set other levels.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass

LATENCY_MS = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
AVOIDED_MS = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
FAILURE_COUNTS_AS_MS = 30_000


def avoided_ms(latency_ms: float, latencies: Sequence[int] = LATENCY_MS, avoided: Sequence[int] = AVOIDED_MS) -> int:
    """How long a broker that took so long is avoided."""
    level = bisect_right(latencies, latency_ms)
    return avoided[level - 1] if level else 0


@dataclass(slots=True)
class _Seen:
    latency_ms: float
    avoided_until_ms: int


class Faults:
    """What was seen of each broker in its last send. One never seen is available."""

    def __init__(self, latencies: Sequence[int] = LATENCY_MS, avoided: Sequence[int] = AVOIDED_MS) -> None:
        self._latencies = latencies
        self._avoided = avoided
        self._seen: dict[str, _Seen] = {}
        self._picks = 0

    def note(self, broker_name: str, latency_ms: float, now_ms: int, *, failed: bool = False) -> None:
        counted_ms = FAILURE_COUNTS_AS_MS if failed else latency_ms
        until_ms = now_ms + avoided_ms(counted_ms, self._latencies, self._avoided)
        self._seen[broker_name] = _Seen(latency_ms, until_ms)

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        seen = self._seen.get(broker_name)
        return seen is None or now_ms >= seen.avoided_until_ms

    def pick_one_at_least(self, now_ms: int, brokers: Collection[str]) -> str | None:
        """Return one of the better half of these brokers, in turn, when none is good; None if none was seen.

        The available, the quick and the soon available are the better ones.
        """
        ranked = sorted(self._seen.keys() & brokers, key=lambda name: self._rank(name, now_ms))
        if not ranked:
            return None
        self._picks += 1
        return ranked[self._picks % max(len(ranked) // 2, 1)]

    def _rank(self, broker_name: str, now_ms: int) -> tuple[bool, float, int]:
        seen = self._seen[broker_name]
        return now_ms < seen.avoided_until_ms, seen.latency_ms, seen.avoided_until_ms
