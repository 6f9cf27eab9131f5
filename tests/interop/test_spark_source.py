"""Spark's source on Apache's brokers, which know nothing of it: the readers alone, then a whole Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from cosmodrome.blocking import Message, MessageQueue, Producer
from cosmodrome.codes import RequestCode
from cosmodrome.spark.batch import RocketMQReader
from cosmodrome.spark.link import Cluster as Link
from cosmodrome.spark.options import LinkOptions, PropertiesAs, source_options
from cosmodrome.spark.schema import table_schema
from cosmodrome.spark.stream import RocketMQStreamReader
from cosmodrome.wire.bodies import ConsumeStats
from cosmodrome.wire.requests import ConsumeStatsRequest
from interop.lab import ALL_CLUSTERS, APACHE_CLUSTERS, Cluster, Lab
from interop.our_client import SEND_TIMEOUT_MS
from tests.spark.elsewhere import run

pytestmark = pytest.mark.filterwarnings("ignore")

ALL = ReadAllAvailable()
COUNT = 150
SCHEMA = table_schema(PropertiesAs.MAP, metadata=False)

Fresh = Callable[[str], str]


def send(cluster: Cluster, topic: str, count: int = COUNT) -> list[int]:
    """Numbered bodies, all in queue 0; when each was stored. Those of a batch are stored in one millisecond."""
    queue = MessageQueue(topic, cluster.broker_name, 0)
    messages = [Message(topic, str(n).encode(), tags="even" if n % 2 == 0 else "odd") for n in range(count)]
    with Producer("spark-interop", namesrv=cluster.namesrv) as producer:
        for message in messages[:60]:
            producer.send(message, queue=queue, timeout_ms=SEND_TIMEOUT_MS)
        for begin in range(60, count, 30):
            producer.send_batch(messages[begin : begin + 30], queue=queue, timeout_ms=SEND_TIMEOUT_MS)
    cluster.settle(topic)
    return [round(at.timestamp() * 1000) for at in read(cluster, topic, "storeTimestamp")]


def read(cluster: Cluster, topic: str, column: str, **options: str) -> list[Any]:
    made = source_options({"nameServer": cluster.namesrv, "subscribe": topic, **options}, streaming=False)
    reader = RocketMQReader(made, SCHEMA)
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    return [value for batch in batches for value in batch.column(column).to_pylist()]


def numbers(cluster: Cluster, topic: str, **options: str) -> list[int]:
    return [int(body) for body in read(cluster, topic, "body", **options)]


@pytest.mark.parametrize("cluster_name", ALL_CLUSTERS)
def test_ranges_times_and_tags(lab: Lab, fresh: Fresh, cluster_name: str) -> None:
    cluster, topic = lab.cluster(cluster_name), fresh("topic")
    stored = send(cluster, topic)
    assert numbers(cluster, topic) == list(range(COUNT))
    by_queue = {"startingOffsets": json.dumps({topic: {cluster.broker_name: {"0": 140}}})}
    assert numbers(cluster, topic, **by_queue) == list(range(140, COUNT))
    assert numbers(cluster, topic, subExpression="even") == list(range(0, COUNT, 2))
    lenient = {"startingOffsetsByTimestampStrategy": "latest"}
    for at_ms in (stored[0], stored[30], stored[30] + 1, stored[70], stored[-1], stored[-1] + 1):
        expected = [number for number in range(COUNT) if stored[number] >= at_ms]
        assert numbers(cluster, topic, startingTimestamp=str(at_ms), **lenient) == expected
        assert numbers(cluster, topic, endingTimestamp=str(at_ms)) == [n for n in range(COUNT) if n not in expected]


@pytest.mark.parametrize("cluster_name", ALL_CLUSTERS)
def test_a_stream_tells_its_group(lab: Lab, fresh: Fresh, cluster_name: str) -> None:
    cluster, topic, group = lab.cluster(cluster_name), fresh("topic"), fresh("group")
    send(cluster, topic, 20)
    given = {"nameServer": cluster.namesrv, "subscribe": topic, "group": group, "startingOffsets": "earliest"}
    reader = RocketMQStreamReader(source_options(given, streaming=True), SCHEMA)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) == start
    end = reader.latestOffset(start, ALL)
    assert end[topic][cluster.broker_name]["0"] == 20
    reader.commit(end)
    link = Link(LinkOptions((cluster.namesrv,)))
    reply = link.ask(cluster.broker_address, RequestCode.GET_CONSUME_STATS, ConsumeStatsRequest(group, topic))
    stats = ConsumeStats.decode(bytes(reply.body)).offsets[MessageQueue(topic, cluster.broker_name, 0)]
    assert (stats.consumer_offset, stats.broker_offset) == (20, 20)
    assert link.route(f"%RETRY%{group}").brokers
    link.close()
    reader.stop()


# With 5.3.3 a whole Spark meets in test_guarded_brokers every day.
@pytest.mark.parametrize("cluster_name", [APACHE_CLUSTERS[0], pytest.param(APACHE_CLUSTERS[1], marks=pytest.mark.full)])
def test_a_table_and_a_stream_are_copied_in_spark(lab: Lab, fresh: Fresh, cluster_name: str, tmp_path: Path) -> None:
    cluster, topic = lab.cluster(cluster_name), fresh("topic")
    send(cluster, topic)
    with Producer("spark-interop", namesrv=cluster.namesrv) as producer:
        producer.send(Message(f"{topic}-stream", b"1000"), timeout_ms=SEND_TIMEOUT_MS)  # half messages make no topic
    cluster.settle(f"{topic}-stream")
    seen = run("local[2]", cluster.namesrv, topic, str(tmp_path))
    assert seen["table"] == [*range(COUNT)]
    for copy, more in ((f"{topic}-table", ()), (f"{topic}-stream", (1000,))):
        cluster.settle(copy)
        assert sorted(numbers(cluster, copy)) == [*range(COUNT), *more]
