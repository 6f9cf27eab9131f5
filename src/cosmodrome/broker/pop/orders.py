"""Orderly pop: what of each queue is out, and when the next may go. Pure apart from its file: time is an argument.

A group gets no more of a queue while something of it is out, unless the same attempt asks again. What was not acked in
time comes again from its place in the queue, so the group's offset is always that of the first message not acked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from cosmodrome import state_file
from cosmodrome.broker.tables import SavedTable
from cosmodrome.clock import Clock
from cosmodrome.errors import LimitReached
from cosmodrome.wire.bodies import OrderInfo, OrderInfosBody
from cosmodrome.wire.pop import NORMAL, order_count_info

FORGOTTEN_AFTER_MS = 24 * 3_600_000


class Orders(SavedTable):
    """`topic@group` → queue id → what was last popped in order."""

    def __init__(self, path: Path, clock: Clock, limit: int = 20_000) -> None:
        super().__init__(path, clock)
        self._limit = limit
        self._count = 0
        self._table: dict[str, dict[int, OrderInfo]] = {}
        stored = state_file.load_expendable(
            path, OrderInfosBody.decode, "messages popped in order may be delivered again before their time"
        )
        if stored is not None:
            self._table.update({key: dict(queues) for key, queues in stored.table.items()})
            self._count = sum(map(len, self._table.values()))

    def blocked_until(self, topic: str, group: str, queue_id: int, attempt_id: str | None, now_ms: int) -> int | None:
        """When the next message may go; None if it may go now."""
        info = self._find(topic, group, queue_id)
        if info is None or (attempt_id is not None and info.attempt_id == attempt_id):
            return None
        return max((time for time in _visible_times(info) if time > now_ms), default=None)

    def popped(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offsets: Sequence[int],
        pop_time_ms: int,
        invisible_ms: int,
        attempt_id: str | None,
    ) -> list[str]:
        """Note what goes out now; what the answer tells about how often it did before."""
        before = self._find(topic, group, queue_id)
        if before is None:
            if self._count >= self._limit:
                raise LimitReached(
                    f"{group} does not pop queue {queue_id} of {topic} in order: {self._count} queues are popped so, "
                    f"and maxPopOrders allows {self._limit}"
                )
            self._count += 1
        info = OrderInfo(tuple(offsets), pop_time_ms, invisible_ms, pop_time_ms, attempt_id)
        if before is not None:
            info.counts = _counts(before, info)
        self._table.setdefault(f"{topic}@{group}", {})[queue_id] = info
        self.changed()
        least = min((info.counts.get(offset, 0) for offset in offsets), default=0)
        counted = [order_count_info(NORMAL, queue_id, count, offset) for offset, count in info.counts.items()]
        return [*counted, order_count_info(NORMAL, queue_id, least)]

    def acked(self, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int) -> int | None:
        """Where the group goes on after an ack; None when that ack is of an older pop and changes nothing.

        KeyError when the message is not among those that are out.
        """
        info = self._find(topic, group, queue_id)
        if info is None:
            return offset + 1
        if info.pop_time_ms != pop_time_ms:
            return None
        if offset not in info.offsets:
            raise KeyError(offset)
        info.acked |= 1 << info.offsets.index(offset)
        self.changed()
        return next(iter(_open_offsets(info)), info.offsets[-1] + 1)

    def visible_at(self, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int, time_ms: int) -> None:
        """The message may come again at another time than it was popped with; an older pop changes nothing."""
        info = self._find(topic, group, queue_id)
        if info is not None and info.pop_time_ms == pop_time_ms and offset in info.offsets:
            info.visible_ms[offset] = time_ms
            self.changed()

    def call_back(self, topic: str, group: str, queue_id: int, now_ms: int) -> None:
        """Nothing of the queue counts as out any more: acks of what is are of an older pop."""
        if self._find(topic, group, queue_id) is not None:
            self._table[f"{topic}@{group}"][queue_id] = OrderInfo((), 0, 0, now_ms)
            self.changed()

    def clock_was_set(self, ms: int) -> None:
        """The date was set by so much: what is out stays out as long as before. Pop times stay, handles have them."""
        for queues in self._table.values():
            for info in queues.values():
                regular_ms = info.pop_time_ms + info.invisible_ms
                for offset in _open_offsets(info):
                    info.visible_ms[offset] = info.visible_ms.get(offset, regular_ms) + ms
                info.popped_at_ms += ms
        if self._table:
            self.changed()

    def clean(self, is_known: Callable[[str, str], bool], now_ms: int) -> None:
        """Forget what nobody popped for long, and what belongs to topics or groups that are gone."""
        for key, queues in list(self._table.items()):
            kept = {
                queue_id: info
                for queue_id, info in queues.items()
                if is_known(*key.split("@", 1)) and now_ms - info.popped_at_ms <= FORGOTTEN_AFTER_MS
            }
            if len(kept) == len(queues):
                continue
            self.changed()
            self._count -= len(queues) - len(kept)
            if kept:
                self._table[key] = kept
            else:
                del self._table[key]

    def encoded(self) -> bytes:
        return OrderInfosBody(self._table).encode(pretty=True)

    def snapshot(self) -> Callable[[], bytes]:
        table = {
            key: {queue_id: info.copy() for queue_id, info in queues.items()} for key, queues in self._table.items()
        }
        return partial(OrderInfosBody(table).encode, pretty=True)

    def _find(self, topic: str, group: str, queue_id: int) -> OrderInfo | None:
        return self._table.get(f"{topic}@{group}", {}).get(queue_id)


def _open_offsets(info: OrderInfo) -> list[int]:
    return [offset for number, offset in enumerate(info.offsets) if not info.acked >> number & 1]


def _visible_times(info: OrderInfo) -> list[int]:
    regular_ms = info.pop_time_ms + info.invisible_ms
    return [info.visible_ms.get(offset, regular_ms) for offset in _open_offsets(info)]


def _counts(before: OrderInfo, info: OrderInfo) -> dict[int, int]:
    """How often each message went out before; asking again within one attempt does not count."""
    if before.attempt_id is not None and before.attempt_id == info.attempt_id:
        return dict(before.counts)
    return {offset: before.counts.get(offset, 0) + 1 for offset in info.offsets if offset in before.offsets}
