"""From the commit log into queues and index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

from cosmodrome.model import Property
from cosmodrome.store.consume_queue import ConsumeQueue, ConsumeQueues, is_topic
from cosmodrome.store.index_file import Index
from cosmodrome.wire.java import java_hash
from cosmodrome.wire.properties import find
from cosmodrome.wire.record import RecordHead, SysFlag

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DELAYS_MS = tuple(int(level[:-1]) * _UNIT_MS[level[-1]] for level in DELAY_LEVELS.split())
_UNKNOWN_DELAY_MS = 1_000

_CACHED_TAGS = 4096

_TRANSACTION = SysFlag.TRANSACTION_MASK
_ROLLBACK = SysFlag.ROLLBACK
_QUEUED = (0, SysFlag.COMMIT)  # the transaction states that have a place in a queue

Arrival = Callable[[str, int, int, int], None]  # topic, queue id, next offset, tags code


class Dispatcher:
    """Enters each record into its queue and its keys into the index, in the order of the log.

    The same steps serve a message just appended and a record found by a scan, so both give the same bytes. Entering
    a record twice changes nothing. `end` is how far the log is dispatched; `timestamp` is its last record's.
    """

    def __init__(self, queues: ConsumeQueues, index: Index | None) -> None:
        self._queues = queues
        self._index = index
        self.on_arrival: Arrival | None = None
        self.end = 0
        self.timestamp = 0

    def dispatch(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        physical_offset: int,
        size: int,
        sys_flag: int,
        store_timestamp: int,
        properties: str,
    ) -> None:
        """Enter one record."""
        self._enter(queue, queue_offset, physical_offset, size, sys_flag & _TRANSACTION, store_timestamp, properties)
        self._finish(physical_offset + size, store_timestamp)

    def dispatch_batch(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        bounds: Sequence[int],
        sys_flag: int,
        store_timestamp: int,
        properties: Iterable[str],
    ) -> None:
        """Enter records that lie side by side, from `queue_offset` on; record i is [bounds[i], bounds[i + 1])."""
        transaction = sys_flag & _TRANSACTION
        for (begin, end), raw in zip(pairwise(bounds), properties, strict=True):
            self._enter(queue, queue_offset, begin, end - begin, transaction, store_timestamp, raw)
            queue_offset += 1
        self._finish(bounds[-1], store_timestamp)

    def _enter(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        physical_offset: int,
        size: int,
        transaction: int,
        store_timestamp: int,
        properties: str,
    ) -> None:
        """Into the index and the queue. A half message of old kind (PREPARED) is in no queue, a ROLLBACK nowhere."""
        topic = queue.topic
        index = self._index
        if index is not None and transaction != _ROLLBACK and physical_offset >= index.indexed:
            unique = find(properties, "UNIQ_KEY")
            keys = [unique] if unique is not None else []
            named = find(properties, "KEYS")
            if named is not None:
                keys += filter(None, named.split(" "))
            if keys:
                index.put(topic, keys, physical_offset, store_timestamp)
        if transaction not in _QUEUED:
            return
        tags = find(properties, "TAGS")
        tags_code = _tag_hash(tags) if tags is not None else 0
        if topic == SCHEDULE_TOPIC:
            tags_code = _due_time(properties, store_timestamp, tags_code)
        queue.put(queue_offset, physical_offset, size, tags_code)
        if self.on_arrival is not None:
            self.on_arrival(topic, queue.queue_id, queue_offset + 1, tags_code)

    def _finish(self, end: int, store_timestamp: int) -> None:
        if self._index is not None:
            self._index.save_header()
        self.end = end
        self.timestamp = store_timestamp

    def dispatch_record(self, head: RecordHead) -> None:
        """Enter a record that a scan found. One whose topic or queue could never be a folder is left out."""
        queue = self._queues.find(head.topic, head.queue_id)
        if queue is None:
            if head.queue_id < 0 or not is_topic(head.topic):
                return
            queue = self._queues.queue(head.topic, head.queue_id)
        self.dispatch(
            queue,
            head.queue_offset,
            head.physical_offset,
            head.size,
            head.sys_flag,
            head.store_timestamp,
            head.properties,
        )


_tag_hash = lru_cache(maxsize=_CACHED_TAGS)(java_hash)


def _due_time(properties: str, store_timestamp: int, tags_code: int) -> int:
    """What the queue entry of a delayed message says instead of its tag: when it is due."""
    level = find(properties, Property.DELAY)
    return tags_code if level is None else store_timestamp + _delay_ms(level)


def _delay_ms(level: str) -> int:
    number = int(level) if level.isascii() and level.isdigit() else 0
    return _DELAYS_MS[min(number, len(_DELAYS_MS)) - 1] if number > 0 else _UNKNOWN_DELAY_MS
