"""Our Spark source and sink at work on our broker, each beside the ceiling that Spark sets in the same run."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import spark_ceiling
from benchmarks.load import Load, LoadError
from benchmarks.spark_ceiling import PROPERTIES
from benchmarks.targets import Target
from benchmarks.workloads import BATCH, BATCH_TAPE, QUEUES, Workload, make_batch, verify_batch
from cosmodrome import Message
from cosmodrome.blocking import Producer
from cosmodrome.spark import session

CHECKPOINT_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
PLAIN_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
UNIX_SOCKET = "spark.python.unix.domain.socket.enabled"
ORDINARY_PULL = 32  # what a broker gives a consumer in one pull, and ours whoever does not ask for bulk
BATCH_DEADLINE_S = 30.0

READ, READ_ORDINARY, STREAM, WRITE = "batch read", "batch read, ordinary pulls", "streaming read", "batch write"


@dataclass(frozen=True, slots=True)
class SparkEffort:
    rows: dict[int, int]  # by size of the body
    rounds: int
    warm_ups: int  # rounds before those that count
    pokes: int


FULL = SparkEffort({100: 1_600_000, 1_024: 640_000}, rounds=3, warm_ups=1, pokes=20)
SMOKE = SparkEffort({100: 2_048}, rounds=1, warm_ups=0, pokes=1)


@dataclass(frozen=True, slots=True)
class SparkFigure:
    """The best rounds of one way through Spark: ours, and what does nothing but hand over rows."""

    title: str
    body_bytes: int
    rows_per_second: float
    ceiling_rows_per_second: float

    @property
    def mb_per_second(self) -> float:
        return self.rows_per_second * self.body_bytes / 1e6

    @property
    def share(self) -> float:
        return self.rows_per_second / self.ceiling_rows_per_second

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.title,
            "body_bytes": self.body_bytes,
            "rows_per_second": self.rows_per_second,
            "mb_per_second": self.mb_per_second,
            "ceiling_rows_per_second": self.ceiling_rows_per_second,
        }


@dataclass(frozen=True, slots=True)
class Latency:
    """Medians over single messages: how long their micro-batch took, and from send to its end."""

    title: str
    batch_ms: float
    since_sent_ms: float


@dataclass(frozen=True, slots=True)
class SparkResult:
    figures: tuple[SparkFigure, ...]
    latencies: tuple[Latency, ...]


def measure_spark(target: Target, home: Path, effort: SparkEffort, tell: Callable[[str], None]) -> SparkResult:
    figures: list[SparkFigure] = []
    latencies: list[Latency] = []
    # So that Spark's processes need not find the benchmarks.
    cloudpickle.register_pickle_by_value(spark_ceiling)  # type: ignore[no-untyped-call]
    for body_bytes, rows in effort.rows.items():
        _fill(target, _topic(body_bytes), body_bytes, rows)
    with _session({}) as spark:
        for body_bytes in effort.rows:
            for figure in _Throughput(spark, target, home, body_bytes, effort).measure():
                tell(f"{figure.title}, {body_bytes} B: {figure.rows_per_second:,.0f} rows/s, {figure.share:.0%}")
                figures.append(figure)
        latencies.append(_latency("tuned", spark, target, home, effort.pokes))
    with _session({UNIX_SOCKET: "false"}) as spark:
        latencies.append(_latency("default", spark, target, home, effort.pokes))
    return SparkResult(tuple(figures), tuple(latencies))


def _topic(body_bytes: int) -> str:
    return f"bench-spark-{body_bytes}"


def _fill(target: Target, topic: str, body_bytes: int, rows: int) -> None:
    more = {"KEYS": PROPERTIES["KEYS"]}
    fill = Workload(
        topic, topic, QUEUES, 1, BATCH, make_batch(b"x" * body_bytes, more), verify_batch, tape_length=BATCH_TAPE
    )
    target.create_topic(topic, QUEUES)
    for tape in fill.tapes(QUEUES, topic):
        with Load(target.address, [tape], 1, fill.verify) as load:
            load.run(requests=rows // QUEUES // BATCH)
    target.wait_stored(topic, QUEUES, rows)


@contextmanager
def _session(settings: dict[str, str]) -> Iterator[SparkSession]:
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "OFF",
        "spark.driver.memory": "2g",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        **settings,
    }
    spark = session("bench", f"local[{_cores()}]", **conf)
    try:
        spark.dataSource.register(spark_ceiling.Ceiling)
        yield spark
    finally:
        spark.stop()


def _cores() -> int:
    return len(os.sched_getaffinity(0))


# --- rows a second


class _Throughput:
    """All ways for one size of body, in turn, so that a slow minute of the machine hits ours and the ceiling alike."""

    def __init__(self, spark: SparkSession, target: Target, home: Path, body_bytes: int, effort: SparkEffort) -> None:
        self._spark = spark
        self._home = home
        self._body_bytes = body_bytes
        self._rows = effort.rows[body_bytes]
        self._rounds, self._warm_ups = effort.rounds, effort.warm_ups
        self._target = target
        self._ours = {"nameServer": target.namesrv, "subscribe": _topic(body_bytes), "startingOffsets": "earliest"}
        self._ceiling = {"rows": str(self._rows), "bodyBytes": str(body_bytes), "tasks": str(_cores())}
        self._checkpoints = itertools.count()

    def measure(self) -> Iterator[SparkFigure]:
        ordinary = self._ours | {"pullBatchSize": str(ORDINARY_PULL)}
        reads = {
            READ: lambda: self._read("rocketmq", self._ours),
            READ_ORDINARY: lambda: self._read("rocketmq", ordinary),
            "": lambda: self._read(spark_ceiling.NAME, self._ceiling),
        }
        yield from self._compared(reads)
        streams = {
            STREAM: lambda: self._stream("rocketmq", self._ours),
            "": lambda: self._stream(spark_ceiling.NAME, self._ceiling),
        }
        yield from self._compared(streams)
        self._target.create_topic(f"{_topic(self._body_bytes)}-written", QUEUES)
        writes = {WRITE: self._write, "": self._count}
        yield from self._compared(writes)

    def _compared(self, ways: dict[str, Callable[[], float]]) -> Iterator[SparkFigure]:
        """The best rate of each way beside that of the ceiling, which has no title."""
        seconds: dict[str, list[float]] = {title: [] for title in ways}
        for _, (title, way) in itertools.product(range(self._warm_ups + self._rounds), ways.items()):
            seconds[title].append(way())
        rates = {title: self._rows / min(times[self._warm_ups :]) for title, times in seconds.items()}
        for title in filter(None, ways):
            yield SparkFigure(title, self._body_bytes, rates[title], rates[""])

    def _read(self, source: str, options: dict[str, str]) -> float:
        table = self._spark.read.format(source).options(**options).load()
        return _seconds(lambda: table.write.format("noop").mode("overwrite").save())

    def _stream(self, source: str, options: dict[str, str]) -> float:
        """The time of the micro-batches with rows: starting a query is no matter of rows."""
        table = self._spark.readStream.format(source).options(**options).load()
        query = _start(table, self._home / f"stream-{self._body_bytes}-{next(self._checkpoints)}", available_now=True)
        query.awaitTermination()
        batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
        if sum(batch["numInputRows"] for batch in batches) != self._rows:
            raise LoadError(f"{source} did not stream {self._rows} rows, but {batches}")
        return float(sum(batch["durationMs"]["triggerExecution"] for batch in batches)) / 1000

    def _write(self) -> float:
        options = {"nameServer": self._target.namesrv, "topic": f"{_topic(self._body_bytes)}-written"}
        return _seconds(lambda: self._made().write.format("rocketmq").options(**options).mode("append").save())

    def _count(self) -> float:
        return _seconds(lambda: self._made().write.format(spark_ceiling.NAME).mode("append").save())

    def _made(self) -> DataFrame:
        """Rows that cost Spark next to nothing."""
        body = F.lit("x" * self._body_bytes).cast("binary")
        key = F.concat(F.lit("order-"), F.col("id").cast("string"))
        rows = self._spark.range(0, self._rows, 1, _cores())
        return rows.select(body.alias("body"), F.lit("TagA").alias("tags"), key.alias("keys"))


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _start(table: DataFrame, checkpoint: Path, *, available_now: bool) -> StreamingQuery:
    writer = table.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if available_now else writer).start()


# --- latency


def _latency(title: str, spark: SparkSession, target: Target, home: Path, pokes: int) -> Latency:
    """One message at a time into one queue, each when the one before has been through."""
    topic = f"bench-spark-latency-{title}"
    target.create_topic(topic, 1)
    if title == "tuned":
        spark.conf.set(CHECKPOINT_MANAGER, PLAIN_FILES)
    options = {"nameServer": target.namesrv, "subscribe": topic, "startingOffsets": "earliest"}
    query = _start(spark.readStream.format("rocketmq").options(**options).load(), home / topic, available_now=False)
    batches: list[tuple[float, float]] = []
    try:
        with Producer("bench-latency", target.namesrv) as producer:
            for poke in range(pokes + 1):
                producer.send(Message(topic, b"poke"))
                sent_at = time.time()
                batches.append(_poked(query, poke + 1, sent_at))
    finally:
        query.stop()
    taken, since_sent = zip(*batches[1:], strict=True)  # the first one starts Spark's processes
    return Latency(title, statistics.median(taken), statistics.median(since_sent))


def _poked(query: StreamingQuery, rows: int, sent_at: float) -> tuple[float, float]:
    """Milliseconds of the micro-batch that brings the row, and from its send to the batch's end."""
    deadline = time.monotonic() + BATCH_DEADLINE_S
    while time.monotonic() < deadline:
        batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
        if sum(batch["numInputRows"] for batch in batches) >= rows:
            last = batches[-1]
            taken_ms = float(last["durationMs"]["triggerExecution"])
            began_at = datetime.fromisoformat(last["timestamp"]).timestamp()
            return taken_ms, (began_at - sent_at) * 1000 + taken_ms
        time.sleep(0.02)
    raise LoadError(f"a message was not in a micro-batch after {BATCH_DEADLINE_S:g} s: {query.lastProgress}")
