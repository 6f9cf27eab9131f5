"""Batch reads: a range of every queue, fixed when the query is planned."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Sequence

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from cosmodrome.model import MessageQueue
from cosmodrome.spark import progress
from cosmodrome.spark.narrowing import Narrowing, narrowed
from cosmodrome.spark.options import SourceOptions
from cosmodrome.spark.pool import connected
from cosmodrome.spark.positions import Positions
from cosmodrome.spark.tasks import TaskReader

log = logging.getLogger(__name__)

Offsets = dict[MessageQueue, int]


class RocketMQReader(TaskReader, DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._narrowing = Narrowing()

    def partitions(self) -> Sequence[InputPartition]:
        with connected(self._options.link) as cluster:
            positions = Positions(cluster, self._options)
            there = positions.queues()
            positions.check_named(there)
            queues = [queue for queue in there if self._narrowing.wants(queue)]
            start, end = self._bounds(positions, queues)
            return self._tasks(*self._within_times(positions, start, end))

    def _bounds(self, positions: Positions, queues: Iterable[MessageQueue]) -> tuple[Offsets, Offsets]:
        """What is asked for, as far as it is there; DataLoss if it is not all there and that matters."""
        start, end = positions.start(queues), positions.end(queues)
        earliest, latest = positions.earliest(queues), positions.latest(queues)
        fail = self._options.fail_on_data_loss
        lost = [
            *progress.check_there(start, earliest, fail=fail),
            *progress.check_forward(start, latest, fail=fail).values(),
            *progress.check_end(end, latest, fail=fail),
        ]
        for loss in lost:
            log.warning("%s", loss)
        narrowing = self._narrowing
        return (
            {queue: narrowing.start(max(offset, earliest[queue])) for queue, offset in start.items()},
            {queue: narrowing.end(min(offset, latest[queue])) for queue, offset in end.items()},
        )

    def _within_times(self, positions: Positions, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        since_ms, before_ms = self._narrowing.stored_from_ms, self._narrowing.stored_before_ms
        if since_ms is not None:
            start = {queue: max(offset, positions.at_time(queue, since_ms)) for queue, offset in start.items()}
        if before_ms is not None:
            end = {queue: min(offset, positions.at_time(queue, before_ms)) for queue, offset in end.items()}
        return start, end


class FilteringReader(RocketMQReader):
    """One that takes filters. Spark fails every query of a reader that can, unless its own setting allows it."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._given = options

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._narrowing, left = narrowed(filters)
        expression, keys = self._narrowing.expression(self._given.expression), self._narrowing.keys or frozenset()
        self._options = dataclasses.replace(self._given, expression=expression, keys=keys)
        return left
