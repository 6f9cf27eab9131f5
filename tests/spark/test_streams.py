"""Streams of a real broker through a real Spark: nothing lost, nothing twice, whatever fails in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cosmodrome.codes import RequestCode
from cosmodrome.model import MessageQueue
from cosmodrome.spark import lag, lag_listener
from cosmodrome.spark.link import Cluster as Link
from cosmodrome.spark.options import LinkOptions
from cosmodrome.testing import Cluster
from cosmodrome.wire.requests import TopicHeader
from tests.spark.helpers import BROKER, DEADLINE_SECONDS, Streams, eventually, fill, numbered


def failing(rows: DataFrame) -> DataFrame:
    """Fails with the first row."""
    return rows.withColumn("body", F.raise_error(F.lit("as the test wants it")).cast("binary"))


def test_a_stream_goes_on_where_it_was(cluster: Cluster, topic: str, stream: Streams) -> None:
    fill(cluster, topic, numbered(0, 10))
    fill(cluster, topic, numbered(10, 12), queue_id=1)
    options = {"startingOffsets": "earliest", "group": "stream-readers", "maxOffsetsPerTrigger": "5"}
    stream.run(**options)
    assert stream.numbers() == list(range(12))
    ends = [sum(batch[topic][BROKER].values()) for batch in stream.batches()]
    assert ends == [0, 5, 10, 12]
    fill(cluster, topic, numbered(12, 20))
    query = stream.run(**options)
    assert stream.numbers() == list(range(20))
    assert lag(query.lastProgress) == {topic: 0}
    committed = {MessageQueue(topic, BROKER, 0): 18, MessageQueue(topic, BROKER, 1): 2}
    assert cluster.committed("stream-readers", topic) == committed


def test_a_first_batch_that_fails_loses_nothing(cluster: Cluster, topic: str, stream: Streams) -> None:
    """The query begins with the newest messages; after its failure, these are others."""
    query = stream.start(table=failing)
    eventually(lambda: (stream.checkpoint / "commits" / "0").exists())
    fill(cluster, topic, numbered(0, 10))
    with pytest.raises(StreamingQueryException, match="as the test wants it"):
        query.awaitTermination(int(DEADLINE_SECONDS))
    fill(cluster, topic, numbered(10, 15))
    stream.run()
    assert stream.numbers() == list(range(15))


def test_a_crash_in_the_first_batch_loses_nothing(cluster: Cluster, topic: str, stream: Streams) -> None:
    stream.run()
    for left in (stream.checkpoint / "commits").glob("*0*"):  # as if the driver had died before it was written
        left.unlink()
    fill(cluster, topic, numbered(0, 10))
    stream.run()
    assert stream.numbers() == list(range(10))


def test_a_topic_made_anew_ends_a_stream_or_is_read_anew(cluster: Cluster, topic: str, stream: Streams) -> None:
    fill(cluster, topic, numbered(0, 5))
    stream.run(startingOffsets="earliest")
    link = Link(LinkOptions((cluster.namesrv,)))
    link.ask(cluster.brokers[0].address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic))
    link.close()
    cluster.create_topic(topic, queues=2)
    fill(cluster, topic, numbered(100, 103))
    with pytest.raises(StreamingQueryException, match="ends at 3, but is to be read from 5 on"):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert stream.numbers() == [0, 1, 2, 3, 4, 100, 101, 102]


def test_a_running_stream_outlives_its_broker_and_finds_new_topics(
    spark: SparkSession, rocketmq: Cluster, tmp_path: Path
) -> None:
    rocketmq.create_topic("orders-a", queues=1)
    fill(rocketmq, "orders-a", numbered(0, 3))
    options = {"nameServer": rocketmq.namesrv, "subscribePattern": "orders-.*", "startingOffsets": "earliest"}
    stream, shown = Streams(spark, options, tmp_path), list[str]()
    listener = lag_listener(shown.append)
    spark.streams.addListener(listener)
    try:
        query = stream.start()
        eventually(lambda: stream.numbers() == [0, 1, 2])
        rocketmq.restart_broker()
        fill(rocketmq, "orders-a", numbered(3, 6))
        eventually(lambda: stream.numbers() == list(range(6)))
        rocketmq.create_topic("orders-b", queues=1)
        fill(rocketmq, "orders-b", numbered(10, 12))
        eventually(lambda: stream.numbers() == [*range(6), 10, 11])
        done = len(stream.batches())
        eventually(lambda: query.status["message"] == "Waiting for data to arrive")
        assert len(stream.batches()) == done, "an idle query makes no batches"
        eventually(lambda: any("3 rows" in line and "behind: orders-a 0" in line for line in shown))
    finally:
        stream.stop()
        spark.streams.removeListener(listener)
