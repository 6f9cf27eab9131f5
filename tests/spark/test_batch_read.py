"""Batch reads of a real broker by a real Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cosmodrome.model import Message, MessageQueue
from cosmodrome.spark import register
from cosmodrome.spark.sessions import OLD_NAME
from cosmodrome.testing import Cluster
from cosmodrome.wire.record import SysFlag
from tests.spark.helpers import BROKER, Read, fill, numbered, numbers, numbers_of, send


def offsets(topic: str, *by_queue: int) -> str:
    return json.dumps({topic: {BROKER: {str(queue_id): offset for queue_id, offset in enumerate(by_queue)}}})


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat()


def test_a_message_has_its_columns(cluster: Cluster, topic: str, read: Read) -> None:
    before_ms = cluster.clock.now_ms()
    message = Message(topic, b"\x00\xff", tags="paid", keys="k1 k2", properties={"colour": "grün"}, flag=7)
    send(cluster, [message, Message(topic, b"plain")], queue_id=1)
    first, second = read().collect()
    assert (first.topic, first.brokerName, first.queueId, first.queueOffset) == (topic, BROKER, 1, 0)
    assert (first["keys"], first.tags, bytes(first.body), first.flag) == ("k1 k2", "paid", b"\x00\xff", 7)
    assert first.properties["colour"] == "grün"
    assert first.properties["TAGS"] == "paid"
    assert (second["keys"], second.tags, second.queueOffset) == (None, None, 1)
    for at in (first.bornTimestamp, first.storeTimestamp):  # Spark gives Python the local time
        assert before_ms <= round(at.timestamp() * 1_000) <= cluster.clock.now_ms()

    more = read(metadataColumns="true", properties="string").first()
    assert more is not None
    (stored, _) = cluster.messages(topic)
    assert (more.msgId, more.commitLogOffset, more.reconsumeTimes) == (stored.msg_id, stored.commit_log_offset, 0)
    assert more.storeHost == cluster.brokers[0].address
    assert "colour\x01grün" in more.properties
    assert "properties" not in read(properties="none").columns


def test_a_schema_is_a_projection(cluster: Cluster, topic: str, read: Read) -> None:
    fill(cluster, topic, ["a"])
    table = read("body binary, queueOffset long, msgId string")
    (row,) = table.collect()
    assert (table.columns, bytes(row.body), row.queueOffset) == (["body", "queueOffset", "msgId"], b"a", 0)
    with pytest.raises(PySparkException, match="there is no column price"):
        read("price long").collect()
    with pytest.raises(PySparkException, match="the column body is string; it must be binary"):
        read("body string").collect()


def test_what_is_wrong_is_refused_when_a_table_or_stream_is_made(spark: SparkSession, read: Read) -> None:
    with pytest.raises(PySparkException, match="failOnDataLoss is 'maybe'"):
        read(failOnDataLoss="maybe")
    with pytest.raises(PySparkException, match="give the option nameServer"):
        spark.readStream.format("rocketmq").option("subscribe", "orders").load()


def test_positions(cluster: Cluster, topic: str, read: Read) -> None:
    fill(cluster, topic, numbered(0, 10), queue_id=0)
    fill(cluster, topic, numbered(100, 105), queue_id=1)
    later_ms = cluster.messages(topic)[-1].store_timestamp + 1
    cluster.advance(hours=1)
    fill(cluster, topic, numbered(10, 13), queue_id=0)
    cluster.brokers[0].broker.offsets.commit("readers", topic, 0, 11)
    by_topic, by_queue = json.dumps({topic: later_ms}), json.dumps({topic: {BROKER: {"0": later_ms, "1": 0}}})
    early = [*range(10), *range(100, 105)]
    found = numbers_of(
        {
            "all": read(),
            "ends": read(startingOffsets="earliest", endingOffsets=offsets(topic, 2, 1)),
            "latest of one": read(startingOffsets=offsets(topic, 8, -1), endingOffsets="latest"),
            "mixed": read(startingOffsets=offsets(topic, -2, 4), endingOffsets=offsets(topic, 1, -1)),
            "latest": read(startingOffsets="latest"),
            "late": read(startingTimestamp=str(later_ms)),  # one of the queues has nothing that young
            "late in ISO 8601": read(startingTimestamp=iso(later_ms)),
            "early by topic": read(endingOffsetsByTimestamp=by_topic),
            "late by queue": read(startingOffsetsByTimestamp=by_queue),
            "end in the future": read(endingTimestamp=str(later_ms + 10**9)),
            "group": read(startingOffsets="group", group="readers"),
        }
    )
    assert found == {
        "all": sorted([*early, 10, 11, 12]),
        "ends": [0, 1, 100],
        "latest of one": [8, 9, 10, 11, 12],
        "mixed": [0, 104],
        "latest": [],
        "late": [10, 11, 12],
        "late in ISO 8601": [10, 11, 12],
        "early by topic": early,
        "late by queue": [10, 11, 12, *range(100, 105)],
        "end in the future": sorted([*early, 10, 11, 12]),
        "group": [11, 12, *range(100, 105)],
    }
    with pytest.raises(PySparkException, match="startingOffsetsByTimestampStrategy=latest"):
        read(startingTimestamp=str(later_ms), startingOffsetsByTimestampStrategy="error").collect()


def test_which_queues(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    other = f"{topic}-other"
    cluster.create_topic(other, queues=1)
    fill(cluster, topic, ["0"], queue_id=0)
    fill(cluster, topic, ["1"], queue_id=1)
    fill(cluster, other, ["2"])

    def of(option: str, value: str) -> DataFrame:
        return spark.read.format("rocketmq").option("nameServer", cluster.namesrv).option(option, value).load()

    found = numbers_of(
        {
            "one": of("topic", topic),
            "two": of("subscribe", f"{topic}, {other}"),
            "pattern": of("subscribePattern", f"{topic}.*"),
            "queue": of("assign", json.dumps({topic: {BROKER: [1]}})),
        }
    )
    assert found == {"one": [0, 1], "two": [0, 1, 2], "pattern": [0, 1, 2], "queue": [1]}
    for option, value, message in (
        ("assign", json.dumps({topic: {BROKER: [7]}}), "queue 7 of .* does not exist"),
        ("subscribe", "nowhere", "the topic nowhere does not exist"),
        ("subscribePatern", "x", "did you mean subscribePattern"),
    ):
        with pytest.raises(PySparkException, match=message):
            of(option, value).collect()


def test_tags_sql_and_compression(cluster: Cluster, topic: str, read: Read) -> None:
    tags = ["a", "b", "c", ""]
    send(cluster, [Message(topic, str(n).encode(), tags=tags[n % 4], properties={"n": str(n)}) for n in range(40)])
    long = "7" * 10_000
    send(cluster, [Message(topic, long.encode(), tags="long")])
    found = numbers_of(
        {
            "tags": read(subExpression="a || c"),
            "sql": read(sql="n >= 35 AND TAGS IS NOT NULL"),
        }
    )
    assert found == {"tags": [n for n in range(40) if n % 2 == 0], "sql": [36, 37, 38]}
    (row,) = read(tags="long", metadataColumns="true").collect()
    assert bytes(row.body).decode() == long
    assert row.sysFlag & SysFlag.COMPRESSED


def test_tasks_and_order(cluster: Cluster, topic: str, read: Read) -> None:
    with cluster.producer() as producer:
        for queue_id in (0, 1):
            messages = [Message(topic, b"%d" % number) for number in range(3_000)]
            for _ in producer.send_batches(messages, MessageQueue(topic, BROKER, queue_id), max_bytes=100_000):
                pass

    def seen(**options: str) -> dict[int, list[tuple[int, int]]]:
        rows = read(**options).select(F.spark_partition_id().alias("task"), "queueId", "queueOffset", "body").collect()
        assert sorted((row.queueId, row.queueOffset) for row in rows) == [(q, n) for q in (0, 1) for n in range(3_000)]
        assert all(int(row.body) == row.queueOffset for row in rows)
        tasks: dict[int, list[tuple[int, int]]] = {}
        for row in rows:
            tasks.setdefault(row.task, []).append((row.queueId, row.queueOffset))
        return tasks

    assert len(seen()) == 1
    split = seen(maxRecordsPerPartition="700", pullBatchSize="64")
    assert len(split) >= 9
    for task in split.values():
        assert len(task) <= 700
        for queue_id in (0, 1):
            in_queue = [offset for queue, offset in task if queue == queue_id]
            assert in_queue == sorted(in_queue)
    assert len(seen(minPartitions="4")) >= 4


def test_messages_that_are_gone(cluster: Cluster, topic: str, read: Read) -> None:
    """A topic made anew ends before the offset that is asked for."""
    fill(cluster, topic, numbered(0, 5))
    with pytest.raises(PySparkException, match=r"ends at 5, but is to be read from 9 on.*failOnDataLoss"):
        read(startingOffsets=offsets(topic, 9, -2)).collect()
    assert numbers(read(startingOffsets=offsets(topic, 9, -2), failOnDataLoss="false")) == []


def test_sql_and_decoding(spark: SparkSession, cluster: Cluster, topic: str, read: Read) -> None:
    orders = [{"id": n, "price": n * 1.5, "city": "Köln" if n % 2 else "Ulm"} for n in range(10)]
    send(cluster, [Message(topic, json.dumps(order).encode(), tags=f"t{order['id'] % 2}") for order in orders])
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING rocketmq "
        f"OPTIONS (nameServer '{cluster.namesrv}', subscribe '{topic}')"
    )
    counted = spark.sql("SELECT tags, count(*) AS n FROM orders GROUP BY tags ORDER BY tags").collect()
    assert [(row.tags, row.n) for row in counted] == [("t0", 5), ("t1", 5)]
    register(spark, "rmq")
    old = spark.read.format(OLD_NAME).option("nameServer", cluster.namesrv).option("topic", topic).load()
    assert old.unionAll(spark.read.format("rmq").options(nameServer=cluster.namesrv, topic=topic).load()).count() == 20
    parsed = read().select(
        F.from_json(F.col("body").cast("string"), "id long, price double, city string").alias("order")
    )
    by_city = parsed.groupBy("order.city").agg(F.sum("order.price").alias("total")).orderBy("city").collect()
    assert [(row.city, row.total) for row in by_city] == [("Köln", 37.5), ("Ulm", 30.0)]


def test_pushed_filters_read_less_and_return_the_same(
    spark: SparkSession, cluster: Cluster, topic: str, read: Read
) -> None:
    tags = ["a", "b", "c"]
    for queue_id in (0, 1):
        send(cluster, [Message(topic, str(n).encode(), tags=tags[n % 3]) for n in range(30)], queue_id)
    cluster.advance(hours=1)
    send(cluster, [Message(topic, str(n).encode()) for n in range(30, 40)])
    newest = cluster.messages(topic)[-1].store_timestamp
    middle = datetime.fromtimestamp(newest / 1000 - 300, UTC).strftime("%Y-%m-%d %H:%M:%S")
    everything = read().select("queueId", "queueOffset", "tags", "storeTimestamp", "topic", "brokerName").collect()
    plain = spark.createDataFrame(everything)
    for condition in (
        "queueId = 1 AND queueOffset BETWEEN 3 AND 7",
        "queueOffset IN (1, 20, 99) AND queueId <=> 0",
        "queueOffset > 38 OR queueId = 0",
        "tags IN ('a', 'c') AND NOT queueOffset = 3",
        f"topic = '{topic}' AND brokerName = '{BROKER}' AND queueOffset >= 35",
        "topic = 'none'",
        f"storeTimestamp >= timestamp'{middle}'",
        f"storeTimestamp < timestamp'{middle}'",
        "tags = 'a' AND queueOffset < 10",
    ):
        pushed = read(pushFilters="true").where(condition)
        columns = ("queueId", "queueOffset", "tags")
        expected = plain.where(condition).select(*columns).collect()
        assert sorted(pushed.select(*columns).collect(), key=lambda row: row[:2]) == sorted(
            expected, key=lambda row: row[:2]
        )
