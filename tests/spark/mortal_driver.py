"""A driver that writes a stream from topic to topic, with tasks that fail and, if told so, its own sudden death.

Run as a program: its classes travel by value to Spark's other processes. Prints the pid of its JVM first.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkContext, TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.types import StructType

from cosmodrome.spark import session
from cosmodrome.spark.exactly_once import Committer, Decision, Ended, Half, TaskHalves, Verdict
from cosmodrome.spark.ledger import BrokerLedger
from cosmodrome.spark.link import Cluster
from cosmodrome.spark.sink import RocketMQStreamWriter, Written
from cosmodrome.spark.source import RocketMQSource

FAULT = "fault"


def kill_driver() -> None:
    """The JVM that this process works for, and this process: nobody has a chance to tidy up."""
    pid = os.getpid()
    while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


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
        batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
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


class MortalSource(RocketMQSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._fault = self._given.pop(FAULT, "")

    @classmethod
    def name(cls) -> str:
        return "mortal"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return MortalWriter(self._sink_options(schema, streaming=True), self._fault)


def main(namesrv: str, source: str, target: str, checkpoint: str, fault: str) -> None:
    spark = session(
        "mortal",
        "local[2,4]",
        **{"spark.driver.memory": "512m", "spark.log.level": "OFF", "spark.sql.shuffle.partitions": 2},
    )
    gateway = SparkContext._gateway
    assert gateway is not None
    print(gateway.proc.pid, flush=True)
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
