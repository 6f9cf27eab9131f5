"""Streams: where each micro-batch begins and ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from cosmodrome.errors import ConnectionFailed
from cosmodrome.model import MessageQueue
from cosmodrome.spark import progress
from cosmodrome.spark.group import GroupProgress
from cosmodrome.spark.link import Cluster
from cosmodrome.spark.options import SourceOptions
from cosmodrome.spark.positions import Positions
from cosmodrome.spark.progress import MeanSize, Offsets, Patience, Place
from cosmodrome.spark.tasks import TaskReader

log = logging.getLogger(__name__)

# How often name servers are asked for new queues and topics.
ROUTE_INTERVAL_SECONDS = 1.0
NEVER = float("-inf")


class RocketMQStreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver's side of a stream. It lives in one process as long as the query.

    The first micro-batch is empty on purpose: only so are the offsets a query began with in its checkpoint before
    anything was read; else a failure of the first batch would begin anew with the newest messages, and those in between
    would be lost. For the same reason a queue that appears later joins with a batch that reads nothing of it.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._initial: dict[MessageQueue, int] | None = None
        self._is_first = False
        self._ends = False  # with what is there now, which is
        self._target: dict[MessageQueue, int] | None = None
        self._queues: tuple[MessageQueue, ...] = ()
        self._queues_at = NEVER
        self._newest: dict[MessageQueue, int] = {}
        self._newest_at = NEVER
        self._patience = Patience(options.limits.min_offsets, options.limits.max_trigger_delay_ms)
        self._mean = MeanSize()
        self._left_out: dict[MessageQueue, str] = {}
        self._deleted: set[Place] = set()
        self._away: set[str] = set()
        self._cluster: Cluster | None = None
        self._made_positions: Positions | None = None
        self._group: GroupProgress | None = None

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options.link)
        return self._cluster

    def _positions(self) -> Positions:
        if self._made_positions is None:
            self._made_positions = Positions(self._connected(), self._options)
        return self._made_positions

    # --- offsets

    def initialOffset(self) -> dict[str, Any]:
        """Asked for twice; "latest" must not have moved on in between."""
        if self._initial is None:
            positions = self._positions()
            queues = positions.queues()
            positions.check_named(queues)
            self._initial = positions.start(queues)
            self._is_first = True
        return progress.to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Where it ends is found when it is known where it begins: "latest" must not lie behind it."""
        self._ends = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = progress.from_json(start)
        is_first, self._is_first = self._is_first, False
        if is_first and begin == self._initial:  # else an earlier run of the query has its start on disk already
            return start
        newest = self._heads(begin)
        lost = progress.check_forward(begin, newest, fail=self._options.fail_on_data_loss)
        for loss in lost.values():
            log.warning("%s; it is read from its first message on", loss)
        self._tell(begin)
        joining = [queue for queue in newest if queue in lost or queue not in begin]
        known = {queue: offset for queue, offset in newest.items() if queue not in joining}
        end = self._admitted(begin, known, limit)
        first = self._positions().earliest(joining) if joining else {}
        return progress.to_json({**begin, **end, **first})

    def _heads(self, reached: Offsets) -> dict[MessageQueue, int]:
        """The newest offsets, or those of a moment ago: an idle query asks a hundred times a second."""
        if self._target is not None:
            return self._target
        now = time.monotonic()
        if now - self._newest_at >= self._options.offset_poll_interval_ms / 1000:
            positions = self._positions()
            if now - self._queues_at >= ROUTE_INTERVAL_SECONDS:
                self._queues = positions.queues(under_way=True)
                self._note_away({queue.broker_name for queue in self._options.assigned})
                self._check_left_out(reached)
                self._queues_at = time.monotonic()  # it may have taken long
            self._newest, self._newest_at = self._latest(positions, reached), now
            if self._ends:
                self._target = self._newest
        return self._newest

    def _latest(self, positions: Positions, reached: Offsets) -> dict[MessageQueue, int]:
        """Without a broker that is gone, if there are others; its queues come back with it."""
        try:
            return positions.latest(self._queues, reached)
        except ConnectionFailed:
            there = self._connected().brokers()
            kept = tuple(queue for queue in self._queues if queue.broker_name in there)
            if not kept or kept == self._queues:
                raise
            known, self._queues = self._queues, kept
            self._note_away({queue.broker_name for queue in known})
            return positions.latest(kept, reached)

    def _note_away(self, known: set[str]) -> None:
        """Of these brokers, those whose queues are left out."""
        away = known - {queue.broker_name for queue in self._queues}
        if away - self._away:
            log.warning("brokers %s are gone; reading on without", ", ".join(sorted(away)))
        self._away = away

    def _check_left_out(self, reached: Offsets) -> None:
        """A topic that has fewer queues than before may have messages in the others that nobody can read any more. The
        queues of a broker that is away come back with it."""
        if self._options.assigned:  # queues of the user's choice, which may be another than before
            return
        if self._options.fail_on_data_loss:
            progress.check_topics(queue.topic for queue in reached if not self._options.reads(queue.topic))
        there = set(map(_place, self._queues))
        missing = [queue for queue in reached if _place(queue) not in there and self._options.reads(queue.topic)]
        self._check_deleted(reached, {_place(queue): queue for queue in missing})
        gone = {queue for queue in reached if _place(queue) in there}.difference(self._queues)
        newest = self._positions().latest(gone) if gone else {}
        left_out = progress.check_read(reached, newest, fail=self._options.fail_on_data_loss)
        for queue, loss in left_out.items():
            if queue not in self._left_out:
                log.warning("%s", loss)
        self._left_out = left_out

    def _check_deleted(self, reached: Offsets, missing: Mapping[Place, MessageQueue]) -> None:
        """`missing` has one queue of each place that no route names any more."""
        self._deleted.intersection_update(missing)
        unclear = [queue for place, queue in missing.items() if place not in self._deleted]
        found = set(map(_place, self._positions().without_topic(unclear))) if unclear else set()
        for loss in progress.check_deleted(reached, found, fail=self._options.fail_on_data_loss).values():
            log.warning("%s", loss)
        self._deleted |= found

    def _admitted(self, begin: Offsets, newest: Offsets, limit: ReadLimit) -> dict[MessageQueue, int]:
        waiting = {queue: newest[queue] - begin[queue] for queue in newest}
        total = sum(waiting.values())
        if not self._ends and self._patience.must_wait(total, time.monotonic()):
            return {}
        match limit:
            case ReadMaxRows(rows):
                return progress.admitted(begin, newest, rows)
            case ReadMaxBytes(size) if total:
                fullest = max(waiting, key=lambda queue: waiting[queue])
                self._mean.add([len(each.body) for each in self._positions().sample(fullest, begin[fullest])])
                return progress.admitted(begin, newest, self._mean.rows(size))
            case _:
                return progress.admitted(begin, newest, None)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return progress.to_json(self._newest) or None

    # --- reading

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """After a failure of the very first batch, `start` is found anew, and may lie behind `end`: nothing to read."""
        self._is_first = False
        return self._tasks(progress.from_json(start), progress.from_json(end))

    def commit(self, end: dict[str, Any]) -> None:
        self._tell(progress.from_json(end))

    def _tell(self, offsets: Offsets) -> None:
        if not self._options.commits_to_group:
            return
        if self._group is None:
            self._group = GroupProgress(self._connected(), self._options.group)
        self._group.tell(offsets)

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()


def _place(queue: MessageQueue) -> Place:
    return queue.topic, queue.broker_name
