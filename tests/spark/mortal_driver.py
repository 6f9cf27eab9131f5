"""A driver that writes a stream from topic to topic, and meets with a fault:

    (none)            of each batch, a task fails at first
    BATCH/COMMITS     so it does, and the driver dies in that batch, after so many commits
    executors:FOLDER  two executors in processes of their own, whose tasks wait in mid-write until one is killed

Run as a program: its classes travel by value to Spark's other processes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.types import StructType

from cosmodrome.spark import session
from cosmodrome.spark.exactly_once import Committer, Decision, Ended, Half, TaskHalves, Verdict
from cosmodrome.spark.ledger import BrokerLedger
from cosmodrome.spark.link import Cluster
from cosmodrome.spark.sink import RocketMQStreamWriter, Written
from cosmodrome.spark.source import RocketMQSource

FAULT = "fault"
EXECUTORS = "executors:"
HELD_BATCH = 1  # the first one with rows
HELD_SECONDS = 240


def jvm() -> int:
    """The process that this one works for: the driver or an executor."""
    pid = os.getpid()
    while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def kill_driver() -> None:
    """And this process: nobody has a chance to tidy up."""
    os.kill(jvm(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def batch_id() -> int:
    context = TaskContext.get()
    assert context is not None
    return int(context.getLocalProperty("streaming.sql.batchId") or 0)


class MortalLedger(BrokerLedger):
    """Dies in the batch `batch`, after so many commits; 0: after the marker, and before the first of them."""

    def __init__(self, cluster: Cluster, options: Any, *, may_create: bool, batch: str, dies_after: int) -> None:
        super().__init__(cluster, options, may_create=may_create)
        self._batch = batch
        self._dies_after = dies_after
        self._is_due = False

    def decide(self, scope: str, run: str, tasks: Sequence[TaskHalves]) -> Decision:
        self._is_due = scope.endswith(f":{self._batch}")
        return super().decide(scope, run, tasks)

    def end(self, halves: Sequence[Half], verdict: Verdict) -> Ended:
        if self._is_due and verdict is Verdict.COMMIT:
            super().end(halves[: self._dies_after], verdict)
            kill_driver()
        return super().end(halves, verdict)


class MortalWriter(RocketMQStreamWriter):
    """Of each batch, the first attempt of one task fails after it has sent rows: by an error, or with its process."""

    def __init__(self, options: Any, fault: str) -> None:
        super().__init__(options)
        self._fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None
        batch = batch_id()
        if context.attemptNumber() > 0 or context.partitionId() != batch % 2:
            return super().write(iterator)
        return super().write(self._failing(iterator, by_exit=batch % 3 == 0))

    def _failing(self, iterator: Iterator[pa.RecordBatch], *, by_exit: bool) -> Iterator[pa.RecordBatch]:
        for batch in iterator:
            yield batch.slice(0, batch.num_rows // 2)
            if by_exit:
                os._exit(1)
            raise RuntimeError("the task fails for the first time")

    def _committer(self, cluster: Cluster, *, may_create: bool) -> Committer:
        batch, _, dies_after = self._fault.partition("/")
        if not dies_after:
            return super()._committer(cluster, may_create=may_create)
        ledger = MortalLedger(cluster, self._options, may_create=may_create, batch=batch, dies_after=int(dies_after))
        return Committer(ledger, tries=self._options.send_retries)


class HeldWriter(RocketMQStreamWriter):
    """In one batch, each task waits when half of its rows are sent, until task 0 begins anew. So task 0 waits for the
    death of its executor, and the other task keeps the other executor busy: what begins anew does so on a third one.

    `FOLDER/TASK-LIFE` names the executor of each life of a task. Lives are not Spark's attempts: an attempt that failed
    before it came here, as its process was late on a busy machine, is none.
    """

    def __init__(self, options: Any, folder: Path) -> None:
        super().__init__(options)
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        if batch_id() != HELD_BATCH:
            return super().write(iterator)
        return super().write(self._held(iterator) if self._begun() == 0 else iterator)

    def _begun(self) -> int:
        """Which life of its task this is."""
        context = TaskContext.get()
        assert context is not None
        life = len(list(self._folder.glob(f"{context.partitionId()}-*")))
        (self._folder / f"{context.partitionId()}-{life}").write_text(str(jvm()))
        return life

    def _held(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in iterator:
            yield batch.slice(0, batch.num_rows // 2)
            self._wait()
            yield batch.slice(batch.num_rows // 2)

    def _wait(self) -> None:
        deadline = time.monotonic() + HELD_SECONDS
        while not (self._folder / "0-1").exists():
            if time.monotonic() >= deadline:
                raise TimeoutError("no executor was killed, or none came in its place")
            time.sleep(0.02)


class MortalSource(RocketMQSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._fault = self._given.pop(FAULT, "")

    @classmethod
    def name(cls) -> str:
        return "mortal"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        options = self._sink_options(schema, streaming=True)
        if self._fault.startswith(EXECUTORS):
            return HeldWriter(options, Path(self._fault.removeprefix(EXECUTORS)))
        return MortalWriter(options, self._fault)


def started(fault: str) -> SparkSession:
    settings = {"spark.driver.memory": "512m", "spark.log.level": "OFF", "spark.sql.shuffle.partitions": "2"}
    if not fault.startswith(EXECUTORS):
        return session("mortal", "local[2,4]", **settings)
    settings["spark.executor.memory"] = "512m"
    # Nothing begins before both executors are there, so that each has one of two tasks.
    settings["spark.scheduler.minRegisteredResourcesRatio"] = "1.0"
    settings["spark.scheduler.maxRegisteredResourcesWaitingTime"] = f"{HELD_SECONDS}s"
    return session("mortal", "local-cluster[2,1,512]", **settings)


def main(namesrv: str, source: str, target: str, checkpoint: str, fault: str) -> None:
    spark = started(fault)
    spark.dataSource.register(MortalSource)
    rows = (
        spark.readStream.format("rocketmq")
        .option("nameServer", namesrv)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "200")
        .option("minPartitions", "2")
        .load()
    )
    query = (
        rows.select("body", "keys")
        .writeStream.format("mortal")
        .option("nameServer", namesrv)
        .option("topic", target)
        .option("exactlyOnce", "true")
        .option(FAULT, fault)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
