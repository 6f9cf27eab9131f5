"""Filling topics and looking at what came."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, Protocol

import orjson
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from cosmodrome.model import Message, MessageQueue
from cosmodrome.testing import Cluster

BROKER = "broker-a"
DEADLINE_SECONDS = 240.0  # starting a stream alone takes a busy machine a minute


def fill(cluster: Cluster, topic: str, bodies: Sequence[str], queue_id: int = 0) -> None:
    """One message for each body, into one queue."""
    send(cluster, [Message(topic, body.encode()) for body in bodies], queue_id)


def send(cluster: Cluster, messages: Iterable[Message], queue_id: int = 0) -> None:
    """One by one, so that each may have its own tags and properties."""
    with cluster.producer() as producer:
        for message in messages:
            producer.send(message, queue=MessageQueue(message.topic, BROKER, queue_id))


def numbered(first: int, last: int) -> list[str]:
    """Bodies "first" to "last", the last one not included."""
    return [str(number) for number in range(first, last)]


def bodies(rows: DataFrame | Iterable[Row]) -> list[str]:
    found = rows.select("body").collect() if isinstance(rows, DataFrame) else rows
    return [bytes(row.body).decode() for row in found]


def numbers(rows: DataFrame | Iterable[Row]) -> list[int]:
    """The bodies that `numbered` made, in order of size."""
    return sorted(map(int, bodies(rows)))


def eventually(condition: Callable[[], bool], seconds: float = DEADLINE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            raise TimeoutError(f"not so after {seconds:g} s")
        time.sleep(0.02)


def numbers_of(tables: Mapping[str, DataFrame]) -> dict[str, list[int]]:
    """Of several tables in one job: a job costs more than a table."""
    labelled = [table.select("body", F.lit(name).alias("table")) for name, table in tables.items()]
    rows = reduce(DataFrame.unionAll, labelled).collect()
    return {name: numbers(row for row in rows if row.table == name) for name in tables}


class Read(Protocol):
    def __call__(self, schema: str | None = None, **options: str) -> DataFrame: ...


class Streams:
    """Queries into Parquet with one checkpoint: what is started again goes on where it was."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str], folder: Path) -> None:
        self._spark = spark
        self._options = dict(options)
        self._query: StreamingQuery | None = None
        self.checkpoint = folder / "checkpoint"
        self.output = folder / "output"

    def start(
        self, table: Callable[[DataFrame], DataFrame] = lambda rows: rows, available_now: bool = False, **options: str
    ) -> StreamingQuery:
        given: dict[str, Any] = {**self._options, **options}
        rows = table(self._spark.readStream.format("rocketmq").options(**given).load())
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(self.checkpoint))
        if available_now:
            writer = writer.trigger(availableNow=True)
        self._query = writer.start(str(self.output))
        return self._query

    def run(self, **options: Any) -> StreamingQuery:
        """To the end of what is there now."""
        query = self.start(available_now=True, **options)
        assert query.awaitTermination(int(DEADLINE_SECONDS))
        return query

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()

    def numbers(self) -> list[int]:
        """What has been written so far, by batches that were finished."""
        if not (self.output / "_spark_metadata").exists():
            return []
        return numbers(self._spark.read.schema("body binary").parquet(str(self.output)))

    def batches(self) -> list[dict[str, Any]]:
        """The offsets at the end of each batch, as the checkpoint has them."""
        files = sorted((path for path in (self.checkpoint / "offsets").iterdir() if path.name.isdigit()), key=_number)
        return [orjson.loads(path.read_text().splitlines()[2]) for path in files]


def _number(path: Path) -> int:
    return int(path.name)
