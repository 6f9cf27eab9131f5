"""What both readers do in a task: everything a task needs travels with it, pickled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from cosmodrome.spark import planning
from cosmodrome.spark.options import SourceOptions
from cosmodrome.spark.planning import Range
from cosmodrome.spark.pool import connected
from cosmodrome.spark.progress import Offsets
from cosmodrome.spark.reading import RangeReader
from cosmodrome.spark.schema import BatchMaker


@dataclass(frozen=True, slots=True)
class Task(InputPartition):
    """What one task reads."""

    ranges: tuple[Range, ...]


class TaskReader:
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Task):  # where there is nothing to read, Spark makes a task of its own
            return
        with connected(self._options.link) as cluster:
            yield from RangeReader(cluster, self._options, BatchMaker(self._schema)).batches(partition.ranges)

    def _tasks(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        found = planning.tasks(planning.ranges(start, end), self._options.slicing)
        return [Task(ranges) for ranges in found]
