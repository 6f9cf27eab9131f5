"""What Spark itself allows: a source of ready-made Arrow batches and a sink that only counts, with the columns of ours.

Whatever a source in Python does, it cannot be quicker than the one that does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from cosmodrome.config import MIB
from cosmodrome.spark.decoding import STRINGS, TIME
from cosmodrome.spark.options import PropertiesAs
from cosmodrome.spark.schema import table_schema

NAME = "ceiling"
BATCH_ROWS = 10_000
BATCH_BYTES = 8 * MIB
PROPERTIES = {"UNIQ_KEY": "7F0000012A1318B4AAC2000000000000", "WAIT": "true", "TAGS": "TagA", "KEYS": "order-4711"}


def ready_batch(body_bytes: int) -> pa.RecordBatch:
    """As many rows as our reader puts into a batch, with what the benchmark's messages have in each column."""
    count = min(BATCH_ROWS, BATCH_BYTES // body_bytes)
    names, values = (pa.array([*part] * count, pa.string()) for part in (PROPERTIES.keys(), PROPERTIES.values()))
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * len(PROPERTIES))
    times = pa.array(np.full(count, 1_700_000_000_000_000), pa.int64()).cast(TIME)
    columns = {
        "topic": pa.repeat("bench-spark", count),
        "brokerName": pa.repeat("bench-broker", count),
        "queueId": pa.array(np.zeros(count, np.int32)),
        "queueOffset": pa.array(np.arange(count, dtype=np.int64)),
        "keys": pa.repeat(PROPERTIES["KEYS"], count),
        "tags": pa.repeat(PROPERTIES["TAGS"], count),
        "properties": pa.MapArray.from_arrays(offsets, names, values).cast(STRINGS),
        "body": pa.array([b"x" * body_bytes] * count, pa.binary()),
        "flag": pa.array(np.zeros(count, np.int32)),
        "bornTimestamp": times,
        "storeTimestamp": times,
    }
    return pa.RecordBatch.from_pydict(columns)


@dataclass(frozen=True, slots=True)
class Share(InputPartition):
    rows: int


class Ready:
    """What both readers do: the same batch over and over."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._rows, self._tasks = int(options["rows"]), int(options["tasks"])
        self._body_bytes = int(options["bodyBytes"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Share):
            return
        batch, left = ready_batch(self._body_bytes), partition.rows
        while left > 0:
            yield batch.slice(0, min(left, len(batch)))
            left -= len(batch)

    def _shares(self, rows: int) -> Sequence[Share]:
        bounds = [rows * task // self._tasks for task in range(self._tasks + 1)]
        return [Share(end - begin) for begin, end in pairwise(bounds) if end > begin]


class CeilingReader(Ready, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return self._shares(self._rows)


class CeilingStream(Ready, DataSourceStreamReader):
    """Everything in one micro-batch."""

    def initialOffset(self) -> dict[str, int]:
        return {"row": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"row": self._rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self._shares(end["row"] - start["row"])


class CountingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        sum(len(batch) for batch in iterator)
        return WriterCommitMessage()


class Ceiling(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return table_schema(PropertiesAs.MAP, metadata=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return CeilingReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return CeilingStream(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return CountingWriter()
