"""Writes of a real Spark to a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from cosmodrome.spark import session
from cosmodrome.testing import Cluster
from tests.bounded import in_time
from tests.spark.helpers import DEADLINE_SECONDS, eventually, fill, numbered, numbers

ROWS = 3_000


def test_a_table_is_written(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    table = spark.range(0, ROWS, numPartitions=3).select(
        F.col("id").cast("string").alias("body"),
        F.concat(F.lit("key-"), "id").alias("keys"),
        F.when(F.col("id") % 2 == 0, "even").alias("tags"),
        F.create_map(F.lit("n"), F.col("id").cast("string")).alias("properties"),
        F.lit(topic).alias("topic"),
    )
    table.write.format("rocketmq").mode("append").option("nameServer", cluster.namesrv).save()
    read = spark.read.format("rocketmq").option("nameServer", cluster.namesrv).option("subscribe", topic).load()
    assert numbers(read) == list(range(ROWS))
    sums = read.select(
        F.sum(F.col("properties")["n"]),
        F.count("tags"),
        F.count_distinct(F.col("properties")["SPARK_ID"]),
        F.sum((F.concat(F.lit("key-"), F.col("body").cast("string")) == F.col("keys")).cast("int")),
    )
    assert tuple(sums.first() or ()) == (ROWS * (ROWS - 1) // 2, ROWS // 2, ROWS, ROWS)


def test_any_thread_can_write_that_asks_for_the_session(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    def write() -> None:
        table = session("tests", "local[2]").range(1).select(F.lit("1").alias("body"), F.lit(None).alias("tags"))
        table.write.format("rocketmq").mode("append").options(nameServer=cluster.namesrv, topic=topic).save()

    in_time(write, DEADLINE_SECONDS)
    assert [(message.body, message.tags) for message in cluster.messages(topic)] == [(b"1", "")]


def test_exactly_once_in_a_batch(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    table = spark.range(0, ROWS, numPartitions=2).select(F.col("id").cast("string").alias("body"))
    for _ in range(2):  # the repetition of a job adds nothing
        (
            table.write.format("rocketmq")
            .mode("append")
            .options(nameServer=cluster.namesrv, topic=topic, exactlyOnce="true", jobId=topic)
            .save()
        )
        assert sorted(int(message.body) for message in cluster.messages(topic)) == list(range(ROWS))
    assert len(cluster.brokers[0].broker.transactions) == 0


def test_bad_writes_fail_before_anything_is_sent(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    table = spark.range(5).select(F.col("id").cast("string").alias("body"))

    def refused(rows: DataFrame, because: str, mode: str = "append", **options: str) -> None:
        given = {"nameServer": cluster.namesrv, "topic": topic} | options
        with pytest.raises(PySparkException, match=because):
            rows.write.format("rocketmq").mode(mode).options(**given).save()

    refused(table, "cannot be overwritten", mode="overwrite")
    refused(table, "exactlyOnce=true needs the option jobId", exactlyOnce="true")
    refused(table, "topik is unknown; did you mean topic", topik="x")
    refused(table.withColumn("price", F.lit(1)), "no column price in a write")
    refused(table.withColumn("tag", F.lit("x")), "no column tag in a write; did you mean tags")
    refused(table.withColumn("tags", F.lit(1)), "column tags is int; it must be string")
    refused(table.select(F.col("body").alias("value")), "no column value")
    refused(table.withColumn("queueId", F.lit(1)), "brokerName and queueId belong together")
    assert cluster.messages(topic) == []


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for at in range(0, batch.num_rows, 50):
            time.sleep(0.05)
            yield batch.slice(at, 50)


def test_a_stream_is_written_once_though_stopped_and_though_its_broker_restarts(
    spark: SparkSession, rocketmq: Cluster, tmp_path: Path
) -> None:
    rocketmq.create_topic("rows", queues=2)
    rocketmq.create_topic("copies", queues=3)
    fill(rocketmq, "rows", numbered(0, ROWS // 2), queue_id=0)
    fill(rocketmq, "rows", numbered(ROWS // 2, ROWS), queue_id=1)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")

    def started() -> StreamingQuery:
        rows = (
            spark.readStream.format("rocketmq")
            .options(nameServer=rocketmq.namesrv, subscribe="rows", startingOffsets="earliest")
            .options(maxOffsetsPerTrigger=str(ROWS // 3), minPartitions="2")
            .load()
            .select("body", "keys")
        )
        return (
            rows.mapInArrow(slowly, rows.schema)
            .writeStream.format("rocketmq")
            .options(nameServer=rocketmq.namesrv, topic="copies", exactlyOnce="true", checkpointLocation=str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )

    def open_halves() -> int:
        return len(rocketmq.brokers[0].broker.transactions)

    def are_open(count: int) -> bool:
        return open_halves() >= count

    def copies() -> list[int]:
        return sorted(int(message.body) for message in rocketmq.messages("copies"))

    try:
        for trouble in (StreamingQuery.stop, lambda _: rocketmq.restart_broker()):
            left = open_halves()  # of tasks that were stopped
            query = started()
            eventually(partial(are_open, left + 100))
            trouble(query)
            assert query.awaitTermination(int(DEADLINE_SECONDS))
            assert len(copies()) == len(set(copies()))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert copies() == list(range(ROWS))
