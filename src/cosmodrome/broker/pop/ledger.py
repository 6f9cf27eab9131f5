"""What was popped and not yet decided, as one queue of the revive topic tells it. Pure: records and the time in.

Into the queue come checkpoints, each when its invisible time is nearly over, and acks. An ack usually comes behind its
checkpoint; one that was late, on a broker that was busy, may come before it. Decisions are made in the order of the
queue, so that one number says what is decided: after a clean stop nothing is decided twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cosmodrome.numbers import MAX_LONG
from cosmodrome.wire.bodies import Ack, CheckPoint

# An ack made in time may need a moment more than the timer wheel to get into the queue.
GRACE_MS = 1_000

Key = tuple[str, str, int, int, int, str]


@dataclass(slots=True, eq=False)
class Popped:
    """A checkpoint, and which of its messages need not come again."""

    place: int
    point: CheckPoint
    latest_ms: int  # it is due by then, whatever it says
    shift_ms: int = 0  # how far the date it has in it is ahead of the timeline
    settled: set[int] = field(default_factory=set)

    @property
    def due_ms(self) -> int:
        return min(self.point.revive_ms - self.shift_ms, self.latest_ms) + GRACE_MS

    @property
    def open_offsets(self) -> list[int]:
        return [offset for offset in self.point.offsets if offset not in self.settled]


@dataclass(slots=True, eq=False)
class _EarlyAck:
    """An ack without a checkpoint: either that comes soon, or it was decided before the ack came."""

    place: int
    key: Key
    due_ms: int


class ReviveLedger:
    """One revive queue, read from `next_offset` on."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self._line: deque[Popped | _EarlyAck] = deque()
        self._popped: dict[Key, Popped] = {}
        self._early: dict[Key, set[int]] = {}

    @property
    def done(self) -> int:
        """Everything up to this place is decided; -1 if nothing is."""
        return (self._line[0].place if self._line else self.next_offset) - 1

    def __len__(self) -> int:
        return len(self._line)

    # --- what the queue brings, in its order

    def checkpoint(self, point: CheckPoint, latest_ms: int = MAX_LONG, shift_ms: int = 0) -> None:
        """It is decided by `latest_ms` at the latest: those behind it wait for that."""
        key = _key(point)
        if key not in self._popped:  # else it is the same again: a crash may repeat it
            popped = Popped(self.next_offset, point, latest_ms, shift_ms, self._early.pop(key, set()))
            self._popped[key] = popped
            self._line.append(popped)
        self.next_offset += 1

    def ack(self, ack: Ack, revive_ms: int) -> None:
        """`revive_ms` is when its checkpoint is due."""
        key = _key(ack)
        popped = self._popped.get(key)
        if popped is not None:
            popped.settled.update(ack.offsets)
        else:
            self._early.setdefault(key, set()).update(ack.offsets)
            self._line.append(_EarlyAck(self.next_offset, key, revive_ms + GRACE_MS))
        self.next_offset += 1

    def skip_to(self, offset: int) -> None:
        """There is nothing to learn before `offset`."""
        self.next_offset = max(self.next_offset, offset)

    # --- decisions

    def first_due(self, read_ms: int) -> Popped | None:
        """The next checkpoint to decide, when everything that was due before `read_ms` is in the ledger."""
        while self._line and self._line[0].due_ms <= read_ms:
            first = self._line[0]
            if isinstance(first, Popped):
                return first
            self._early.pop(first.key, None)
            self._line.popleft()
        return None

    def decided(self, popped: Popped) -> None:
        """Its open messages have been put again."""
        first = self._line.popleft()
        assert first is popped, "decisions are made in the order of the queue"
        del self._popped[_key(popped.point)]


class AcksOfActing:
    """The acks that a slave has found in its master's timer wheel while it acts as it."""

    def __init__(self, is_all_known: Callable[[], bool]) -> None:
        self.is_all_known = is_all_known
        self._acked: dict[Key, set[int]] = {}

    def add(self, ack: Ack) -> None:
        self._acked.setdefault(_key(ack), set()).update(ack.offsets)

    def of(self, point: CheckPoint) -> set[int]:
        """Return the offsets of a checkpoint that were acked."""
        return self._acked.get(_key(point), set())


def _key(item: CheckPoint | Ack) -> Key:
    return (item.topic, item.group, item.queue_id, item.start_offset, item.pop_time_ms, item.broker_name)
