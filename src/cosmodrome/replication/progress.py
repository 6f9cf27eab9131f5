"""The offsets that replicas have reported, the offset that is safe because enough have it, and its waiters. Pure.

A replica is one connection of a slave:

    joined ──another joins from its host──► doubted ──it reports what was appended since──► joined     any ──► left

A doubted one may be an old connection of the slave that has just come back, and one disk would be counted twice. The
slave can have closed it, but its last reports may still be under way. Only a report of bytes that were sent after the
other joined proves that both are alive.

A waiter is one message whose sender waits for copies:

    asked ──► waiting ──enough replicas reported its end──────► OK
      │          ├─────a replica left, too few are in sync────► SLAVE_NOT_AVAILABLE
      │          └─────its deadline has passed────────────────► FLUSH_SLAVE_TIMEOUT
      └──► OK or SLAVE_NOT_AVAILABLE at once

What must hold: each waiter that waits is given out exactly once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from cosmodrome.release import WaitingLine
from cosmodrome.store.message import Durability

W = TypeVar("W")
Woken = list[tuple[W, Durability]]


@dataclass(slots=True)
class _Replica:
    host: str
    reported: int
    doubted_to: int = -1  # up to this offset, its reports may be those of a slave that has another connection now


class Progress(Generic[W]):
    """The replicas of one log and the waiters for them. `copies` counts the master's own log, too.

    Every method that may wake waiters returns them with their outcomes.
    """

    def __init__(self, copies: int, max_gap_bytes: int, timeout_ms: int, end: int = 0) -> None:
        self._others = copies - 1  # that must have a message before it is safe
        self._max_gap_bytes = max_gap_bytes
        self._timeout_ms = timeout_ms
        self._replicas: dict[Hashable, _Replica] = {}
        self._waiting = WaitingLine[W]()
        self._nearest = -1  # what `_others` replicas have reported, doubted or not; -1: there are fewer
        self.end = end
        self.safe = 0 if self._others else end  # what enough of the replicas that are here now have reported

    @property
    def copies(self) -> int:
        """How many logs must have a message before it is safe, the master's own included."""
        return self._others + 1

    @property
    def in_sync(self) -> int:
        """How many logs are at most the allowed gap behind, the master's own included."""
        least = self.end - self._max_gap_bytes
        return 1 + sum(replica.reported >= least for replica in self._replicas.values())

    @property
    def waiting(self) -> int:
        """How many waiters wait."""
        return len(self._waiting)

    @property
    def deadline_ms(self) -> int | None:
        """When the first of those that wait has waited too long."""
        return self._waiting.deadline_ms

    def reported(self, replica: Hashable) -> int:
        """Return what a replica has, as far as it has reported."""
        return self._replicas[replica].reported

    def is_in_sync(self, replica: Hashable) -> bool:
        """Return whether a replica is at most the allowed gap behind."""
        return self._replicas[replica].reported >= self.end - self._max_gap_bytes

    # --- replicas

    def join(self, replica: Hashable, offset: int, host: str = "") -> Woken[W]:
        """Count a replica that has the log up to `offset`; others of its host are doubted."""
        assert replica not in self._replicas, "a connection joins once"
        if self._others > 1:  # where one is enough, none is counted twice
            for other in self._replicas.values():
                if other.host == host:
                    other.doubted_to = self.end
        self._replicas[replica] = _Replica(host, min(offset, self.end))
        return self._recount()

    def report(self, replica: Hashable, offset: int) -> Woken[W]:
        """Take a replica's report: it takes none back, and clamps it to the end of the log (rocketmq#1155)."""
        known = self._replicas[replica]
        offset = min(offset, self.end)
        if offset <= known.reported:
            return []
        known.reported = offset
        return self._recount()

    def leave(self, replica: Hashable) -> Woken[W]:
        """Forget a replica; wake all waiters if too few are left."""
        if self._replicas.pop(replica, None) is None:
            return []
        woken = self._recount()
        if not self._is_enough(self.end):
            woken += [(waiter, Durability.SLAVE_NOT_AVAILABLE) for waiter in self._waiting.take_all()]
        return woken

    def _recount(self) -> Woken[W]:
        others = self._others
        if not others:
            return []
        replicas = self._replicas.values()
        self._nearest = _largest([replica.reported for replica in replicas], others)
        proven = [replica.reported for replica in replicas if replica.reported > replica.doubted_to]
        self.safe = max(_largest(proven, others), 0)
        return self._wake()

    def _wake(self) -> Woken[W]:
        return [(waiter, Durability.OK) for waiter in self._waiting.take_safe(self.safe)]

    def _is_enough(self, end: int) -> bool:
        return not self._others or (self._nearest >= 0 and end - self._nearest <= self._max_gap_bytes)

    # --- the log and those who wait

    def advance(self, end: int) -> None:
        """Note that the log has grown."""
        if end > self.end:
            self.end = end
            if not self._others:
                self.safe = end

    def outcome(self, end: int) -> Durability | None:
        """Return how safe the log is up to `end`, or None if that must be waited for."""
        self.advance(end)
        if end <= self.safe:
            return Durability.OK
        if not self._is_enough(self.end):
            return Durability.SLAVE_NOT_AVAILABLE
        return None

    def ask(self, waiter: W, end: int, now_ms: int) -> Durability | None:
        """Return how safe the log is up to `end`, or None: then `waiter` will be given out once, with the answer."""
        outcome = self.outcome(end)
        if outcome is None:
            self._waiting.add(waiter, end, now_ms + self._timeout_ms)
        return outcome

    def expire(self, now_ms: int) -> Woken[W]:
        """Wake those whose deadline has come."""
        return [(waiter, Durability.FLUSH_SLAVE_TIMEOUT) for waiter in self._waiting.take_late(now_ms)]


def _largest(offsets: list[int], place: int) -> int:
    """Return the offset at a place, 1 for the largest; -1 if there are fewer."""
    if place > len(offsets):
        return -1
    return max(offsets) if place == 1 else sorted(offsets)[-place]
