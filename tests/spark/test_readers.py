"""The readers as Spark calls them, against a real broker but without Spark: what must not get lost, exactly."""

from __future__ import annotations

import json
import math
import os
import threading
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from cosmodrome.codes import RequestCode
from cosmodrome.config import KIB
from cosmodrome.errors import ConfigError, ConnectionFailed
from cosmodrome.model import Message, MessageQueue
from cosmodrome.spark import stream as stream_module
from cosmodrome.spark.batch import FilteringReader, RocketMQReader
from cosmodrome.spark.link import Cluster as Link
from cosmodrome.spark.options import LinkOptions, source_options
from cosmodrome.spark.progress import DataLoss
from cosmodrome.spark.schema import table_schema
from cosmodrome.spark.stream import RocketMQStreamReader
from cosmodrome.spark.tasks import TaskReader
from cosmodrome.testing import Cluster
from cosmodrome.wire.bodies import ConsumeStats
from cosmodrome.wire.requests import ConsumeStatsRequest, TopicHeader
from tests.spark.helpers import BROKER, DEADLINE_SECONDS, fill, numbered, send

ALL = ReadAllAvailable()
SMALL_FILES = {
    "mappedFileSizeCommitLog": 64 * KIB,
    "mappedFileSizeConsumeQueue": 200,
    "deleteCommitLogFilesInterval": 0,
    "deleteConsumeQueueFilesInterval": 0,
    "cleanResourceInterval": 50,
    "diskMaxUsedSpaceRatio": 95,
    "flushIntervalCommitLog": 10,
    "flushCommitLogLeastPages": 0,
}


def stream_reader(cluster: Cluster, topic: str, **options: str) -> RocketMQStreamReader:
    given = {"nameServer": cluster.namesrv, "offsetPollIntervalMs": "0", **options}
    if not given.keys() & {"subscribePattern", "assign"}:
        given.setdefault("subscribe", topic)
    made = source_options(given, streaming=True)
    return RocketMQStreamReader(made, table_schema(made.properties, metadata=False))


def batch_reader(cluster: Cluster, topic: str, **options: str) -> RocketMQReader:
    made = source_options({"nameServer": cluster.namesrv, "subscribe": topic, **options}, streaming=False)
    return RocketMQReader(made, table_schema(made.properties, metadata=False))


def read_between(reader: RocketMQStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    return _numbers(reader, reader.partitions(start, end))


def _numbers(reader: TaskReader, partitions: Any) -> list[int]:
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    return sorted(int(body) for batch in batches for body in batch.column("body").to_pylist())


def at(topic: str, *offsets: int) -> dict[str, Any]:
    return {topic: {BROKER: {str(queue_id): offset for queue_id, offset in enumerate(offsets)}}}


def remake(cluster: Cluster, topic: str) -> None:
    ask(cluster, RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic))
    cluster.create_topic(topic, queues=2)


def ask(cluster: Cluster, code: RequestCode, header: Any = None) -> Any:
    link = Link(LinkOptions((cluster.namesrv,)))
    try:
        return link.ask(cluster.brokers[0].address, code, header)
    finally:
        link.close()


def test_where_latest_is_stays_though_it_is_asked_for_twice(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, numbered(0, 3))
    reader = stream_reader(cluster, topic)
    first = reader.initialOffset()
    fill(cluster, topic, numbered(3, 5))
    assert reader.initialOffset() == first == at(topic, 3, 0)


def test_the_first_batch_is_empty_so_that_the_start_is_on_disk(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, numbered(0, 3))
    reader = stream_reader(cluster, topic, startingOffsets="earliest")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) == start
    assert reader.latestOffset(start, ALL) == at(topic, 3, 0)


def test_a_first_batch_that_failed_is_followed_by_its_successor_at_once(cluster: Cluster, topic: str) -> None:
    """Spark repeats it, from a start found anew; a query that is to end with what is there must not end with that."""
    fill(cluster, topic, numbered(0, 3))
    logged = at(topic, 0, 0)
    reader = stream_reader(cluster, topic)
    found_anew = reader.initialOffset()
    assert read_between(reader, found_anew, logged) == []
    assert reader.latestOffset(logged, ALL) == at(topic, 3, 0)
    another = stream_reader(cluster, topic)  # its sink has the batch already, so that it is not read
    another.prepareForTriggerAvailableNow()
    another.initialOffset()
    assert another.latestOffset(logged, ALL) == at(topic, 3, 0)
    assert read_between(reader, logged, at(topic, 3, 0)) == [0, 1, 2]


def test_offsets_that_go_back_end_the_query_or_begin_anew(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, numbered(0, 5))
    reached = at(topic, 5, 0)
    remake(cluster, topic)
    fill(cluster, topic, numbered(100, 102))
    with pytest.raises(DataLoss, match=r"queue 0 of .* ends at 2, but is to be read from 5 on.*failOnDataLoss"):
        stream_reader(cluster, topic).latestOffset(reached, ALL)
    tolerant = stream_reader(cluster, topic, failOnDataLoss="false")
    anew = tolerant.latestOffset(reached, ALL)
    assert (anew, read_between(tolerant, reached, anew)) == (at(topic, 0, 0), [])
    then = tolerant.latestOffset(anew, ALL)
    assert read_between(tolerant, anew, then) == [100, 101]


def test_messages_that_come_while_a_query_starts_are_no_loss(cluster: Cluster, topic: str) -> None:
    """Spark asks where a query ends that takes what is there now, before it asks where it begins."""
    fill(cluster, topic, numbered(0, 3))
    reader = stream_reader(cluster, topic)
    reader.prepareForTriggerAvailableNow()
    fill(cluster, topic, numbered(3, 5))
    start = reader.initialOffset()
    assert start == at(topic, 5, 0)
    assert [reader.latestOffset(start, ALL) for _ in range(2)] == [start, start]


def test_what_was_there_when_a_query_began_is_where_it_ends(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, numbered(0, 3))
    reader = stream_reader(cluster, topic, startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) == start
    assert reader.latestOffset(start, ReadMaxRows(2)) == at(topic, 2, 0)
    fill(cluster, topic, numbered(3, 5))
    assert reader.latestOffset(at(topic, 2, 0), ReadMaxRows(2)) == at(topic, 3, 0)
    assert reader.latestOffset(at(topic, 3, 0), ReadMaxRows(2)) == at(topic, 3, 0)


def test_a_topic_that_is_gone_when_a_query_starts_again_can_be_done_without(cluster: Cluster, topic: str) -> None:
    for ends in (False, True):
        options = {"subscribe": f"{topic},{topic}-gone", "failOnDataLoss": "false"}
        reader, reached = stream_reader(cluster, topic, **options), {**at(topic, 0, 0), **at(f"{topic}-gone", 5)}
        if ends:
            reader.prepareForTriggerAvailableNow()
        assert reader.latestOffset(reached, ALL) == reached


def test_a_topic_with_fewer_queues_ends_a_query_that_has_not_read_them(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, numbered(0, 3), queue_id=1)
    reader = stream_reader(cluster, topic)
    assert reader.latestOffset(at(topic, 0, 1), ALL) == at(topic, 0, 3)
    cluster.create_topic(topic, queues=1)
    with pytest.raises(DataLoss, match=rf"queue 1 of {topic} on {BROKER} cannot be .* messages 1 to 2 of it were not"):
        stream_reader(cluster, topic).latestOffset(at(topic, 0, 1), ALL)
    ending = stream_reader(cluster, topic)
    ending.prepareForTriggerAvailableNow()
    with pytest.raises(DataLoss, match="messages 1 to 2"):
        ending.latestOffset(at(topic, 0, 1), ALL)
    chosen = stream_reader(cluster, topic, assign=json.dumps({topic: {BROKER: [0]}}))
    assert chosen.latestOffset(at(topic, 0, 1), ALL) == at(topic, 0, 1), "the user's own choice"
    for lenient, reached in (("false", 1), ("true", 3)):
        start = at(topic, 0, reached)
        assert stream_reader(cluster, topic, failOnDataLoss=lenient).latestOffset(start, ALL) == start


def test_a_topic_that_is_deleted_ends_a_query_that_found_it(cluster: Cluster, topic: str) -> None:
    other = f"{topic}-gone"
    cluster.create_topic(other, queues=2)
    fill(cluster, other, numbered(0, 5))
    reached = {**at(topic, 0, 0), **at(other, 3, 0)}
    by_pattern = {"subscribePattern": f"{topic}.*"}
    assert stream_reader(cluster, topic, **by_pattern).latestOffset(reached, ALL)[other] == at(other, 5, 0)[other]
    ask(cluster, RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(other))
    link = Link(LinkOptions((cluster.namesrv,)))
    link.ask(cluster.namesrv, RequestCode.DELETE_TOPIC_IN_NAMESRV, TopicHeader(other))
    link.close()
    with pytest.raises(
        DataLoss, match=f"{other} is gone from broker {BROKER}; messages from 3 on in queue 0, 0 on in queue 1 were not"
    ):
        stream_reader(cluster, topic, **by_pattern).latestOffset(reached, ALL)
    lenient = stream_reader(cluster, topic, failOnDataLoss="false", **by_pattern)
    assert lenient.latestOffset(reached, ALL) == reached


def test_the_checkpoint_of_other_topics_is_not_gone_on_with_silently(cluster: Cluster, topic: str) -> None:
    reached = {**at(topic, 0, 0), **at("others", 3)}
    by_pattern: dict[str, str] = {"subscribePattern": f"{topic}.*"}
    for options in ({}, by_pattern):
        with pytest.raises(DataLoss, match="has read others, which is not subscribed to any more"):
            stream_reader(cluster, topic, **options).latestOffset(reached, ALL)
    assert stream_reader(cluster, topic, failOnDataLoss="false").latestOffset(reached, ALL) == reached


def test_offsets_of_a_queue_that_is_not_there_are_refused(cluster: Cluster, topic: str) -> None:
    asked = json.dumps({topic: {"broker-x": {"0": 1}}})
    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(ConfigError, match=f"{option} names queue 0 of {topic} on broker-x, which is not there"):
            batch_reader(cluster, topic, **{option: asked}).partitions()
    with pytest.raises(ConfigError, match="startingOffsets names queue 0"):
        stream_reader(cluster, topic, startingOffsets=asked).initialOffset()
    assert stream_reader(cluster, topic, startingOffsets=asked, failOnDataLoss="false").initialOffset() == at(
        topic, 0, 0
    )


def test_a_topic_that_no_broker_has_is_not_waited_for_long(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosmodrome.spark.positions.NEW_TOPIC_SECONDS", 0)
    patient = {"fetchOffset.numRetries": "1000", "fetchOffset.retryIntervalMs": "60000"}
    with pytest.raises(ConfigError, match=f"the topic {topic}-x does not exist"):
        batch_reader(cluster, f"{topic}-x", **patient).partitions()


def test_only_messages_with_the_keys_of_a_query_are_decoded(cluster: Cluster, topic: str) -> None:
    send(cluster, [Message(topic, b"%d" % number, keys=f"k{number % 3}") for number in range(9)])
    made = source_options({"nameServer": cluster.namesrv, "subscribe": topic, "pushFilters": "true"}, streaming=False)
    reader = FilteringReader(made, table_schema(made.properties, metadata=False))
    for key, numbers in (("k1", [1, 4, 7]), ("k2", [2, 5, 8]), ("k", [])):
        condition = EqualTo(("keys",), key)
        assert list(reader.pushFilters([condition])) == [condition]
        assert _numbers(reader, reader.partitions()) == numbers


def test_filters_of_an_earlier_query_are_forgotten(cluster: Cluster, topic: str) -> None:
    """Spark keeps the reader."""
    send(cluster, [Message(topic, b"%d" % number, tags=f"t{number}") for number in range(3)])
    made = source_options({"nameServer": cluster.namesrv, "subscribe": topic, "pushFilters": "true"}, streaming=False)
    reader = FilteringReader(made, table_schema(made.properties, metadata=False))
    for tag in ("t1", "t2"):
        reader.pushFilters([EqualTo(("tags",), tag)])
        assert _numbers(reader, reader.partitions()) == [int(tag[1])]


def test_the_text_of_offsets_is_stable(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(f"{topic}-b", queues=12)
    reader = stream_reader(cluster, topic, subscribe=f"{topic}-b,{topic}")
    start = reader.initialOffset()
    reader.latestOffset(start, ALL)
    texts = {json.dumps(reader.latestOffset(start, ALL)) for _ in range(5)}
    assert texts == {json.dumps(start)}


def test_queues_that_appear_later_are_read_from_their_first_message_on(cluster: Cluster, topic: str) -> None:
    reader = stream_reader(cluster, topic, subscribePattern=f"{topic}.*")
    start = reader.initialOffset()
    reader.latestOffset(start, ALL)
    other = f"{topic}-later"
    cluster.create_topic(other, queues=1)
    fill(cluster, other, numbered(0, 4))
    fill(cluster, topic, numbered(10, 12))
    joined = reader.latestOffset(start, ALL)
    assert joined == {**at(topic, 2, 0), **at(other, 0)}
    end = reader.latestOffset(joined, ALL)
    assert read_between(reader, start, joined) + read_between(reader, joined, end) == [10, 11, 0, 1, 2, 3]


def test_limits(cluster: Cluster, topic: str) -> None:
    send(cluster, [Message(topic, b"%0100d" % number) for number in range(60)])
    fill(cluster, topic, numbered(60, 62), queue_id=1)
    start = at(topic, 0, 0)
    by_rows = stream_reader(cluster, topic, maxOffsetsPerTrigger="31")
    assert by_rows.getDefaultReadLimit() == ReadMaxRows(31)
    taken = by_rows.latestOffset(start, ReadMaxRows(31))[topic][BROKER]
    assert sum(taken.values()) == 31
    assert taken["1"] >= 1, "a queue with little waiting is not left out"
    by_bytes = stream_reader(cluster, topic, maxBytesPerTrigger="2000")
    assert by_bytes.getDefaultReadLimit() == ReadMaxBytes(2000)
    taken = by_bytes.latestOffset(start, ReadMaxBytes(2000))[topic][BROKER]
    assert sum(taken.values()) == 20
    patient = stream_reader(cluster, topic, minOffsetsPerTrigger="63", maxTriggerDelay="1h")
    assert patient.latestOffset(start, ALL) == start
    fill(cluster, topic, ["62"])
    assert patient.latestOffset(start, ALL) == at(topic, 61, 2)
    hasty = stream_reader(cluster, topic, minOffsetsPerTrigger="99", maxTriggerDelay="0ms")
    assert hasty.latestOffset(start, ALL) == at(topic, 61, 2)


def test_an_idle_query_asks_brokers_seldom(cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    ask_all = Link.ask_all

    def counting(self: Link, requests: Any) -> Any:
        asked.append(requests)
        return ask_all(self, requests)

    reader = stream_reader(cluster, topic, offsetPollIntervalMs="3600000")
    start = reader.initialOffset()
    monkeypatch.setattr(Link, "ask_all", counting)
    for _ in range(100):
        assert reader.latestOffset(start, ALL) == start
    assert len(asked) == 1


def test_progress_is_told_to_the_group(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, numbered(0, 7))
    group = f"{topic}-group"
    reader = stream_reader(cluster, topic, group=group, startingOffsets="earliest")
    reader.latestOffset(at(topic, 4, 0), ALL)
    assert cluster.committed(group, topic) == {MessageQueue(topic, BROKER, 0): 4, MessageQueue(topic, BROKER, 1): 0}
    reply = ask(cluster, RequestCode.GET_CONSUME_STATS, ConsumeStatsRequest(group))
    stats = ConsumeStats.decode(bytes(reply.body)).offsets[MessageQueue(topic, BROKER, 0)]
    assert (stats.broker_offset, stats.consumer_offset) == (7, 4)
    link = Link(LinkOptions((cluster.namesrv,)))
    assert link.route(f"%RETRY%{group}").brokers, "mqadmin finds a group's brokers by this topic"
    link.close()
    reader.commit(at(topic, 7, 0))
    assert cluster.lag(group, topic) == 0


def test_a_group_that_cannot_be_told_ends_nothing(cluster: Cluster, topic: str) -> None:
    reader = stream_reader(cluster, topic, group="told")
    reader.commit(at(topic, 5, 0) | at(f"{topic}-gone", 1))
    assert reader.latestOffset(at(topic, 0, 0), ALL) == at(topic, 0, 0)


@pytest.fixture
def aged(rocketmq: Cluster) -> Cluster:
    """A hundred messages, of which the first ones are deleted."""
    rocketmq.create_topic("orders", queues=1)
    send(rocketmq, [Message("orders", b"%03000d" % number) for number in range(100)])
    store = rocketmq.brokers[0].broker.store
    rocketmq.wait_until(lambda: store.flusher.flushed == store.max_physical_offset)
    files = {each.queue_offset: each.commit_log_offset // (64 * KIB) for each in rocketmq.messages("orders")}
    first = min(offset for offset, number in files.items() if number == max(files.values()))
    for number in set(files.values()) - {files[first]}:
        os.utime(rocketmq.brokers[0].folder / "commitlog" / f"{number * 64 * KIB:020d}", (0, 0))
    ask(rocketmq, RequestCode.DELETE_EXPIRED_COMMITLOG)
    rocketmq.wait_until(lambda: store.min_offset("orders", 0) == first)
    return rocketmq


@pytest.mark.rocketmq(config=SMALL_FILES)
def test_deleted_messages_end_a_read_or_are_passed_by(aged: Cluster) -> None:
    first = aged.brokers[0].broker.store.min_offset("orders", 0)
    asked = json.dumps(at("orders", 1))
    with pytest.raises(DataLoss, match=f"queue 0 of orders on broker-a begins at {first}; {first - 1} messages"):
        batch_reader(aged, "orders", startingOffsets=asked).partitions()
    tolerant = batch_reader(aged, "orders", startingOffsets=asked, failOnDataLoss="false")
    assert _numbers(tolerant, tolerant.partitions()) == list(range(first, 100))
    planned = at("orders", 1), at("orders", 100)  # when the messages were still there
    strict = stream_reader(aged, "orders")
    with pytest.raises(DataLoss, match=r"messages 1 to 99 of queue 0 of orders on broker-a are gone; it has"):
        read_between(strict, *planned)
    assert read_between(stream_reader(aged, "orders", failOnDataLoss="false"), *planned) == list(range(first, 100))


@pytest.mark.rocketmq(brokers=2)
def test_a_stream_goes_on_without_a_broker_that_is_gone(rocketmq: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "ROUTE_INTERVAL_SECONDS", math.inf)  # it knows where they were
    rocketmq.create_topic("orders", queues=1)
    fill(rocketmq, "orders", numbered(0, 3))
    reader = stream_reader(rocketmq, "orders", **{"fetchOffset.numRetries": "1"})
    start = {"orders": {BROKER: {"0": 0}, "broker-b": {"0": 0}}}
    end = {"orders": {BROKER: {"0": 3}, "broker-b": {"0": 0}}}
    assert reader.latestOffset(start, ALL) == end
    rocketmq.stop_broker(1)
    fill(rocketmq, "orders", numbered(3, 4))
    assert reader.latestOffset(end, ALL) == {"orders": {BROKER: {"0": 4}, "broker-b": {"0": 0}}}
    rocketmq.stop_broker(0)
    with pytest.raises(ConnectionFailed):
        reader.latestOffset(end, ALL)


def test_a_broker_that_starts_anew_is_waited_for(rocketmq: Cluster) -> None:
    rocketmq.create_topic("orders", queues=1)
    fill(rocketmq, "orders", numbered(0, 5))
    reader = stream_reader(rocketmq, "orders", **{"fetchOffset.numRetries": "20"})
    end = reader.latestOffset(at("orders", 0), ALL)
    rocketmq.stop_broker()
    back = threading.Timer(0.5, rocketmq.start_broker)
    back.start()
    assert read_between(reader, at("orders", 0), end) == [0, 1, 2, 3, 4]
    back.join(DEADLINE_SECONDS)
    rocketmq.stop_broker()
    back = threading.Timer(0.5, rocketmq.start_broker)
    back.start()
    assert reader.latestOffset(end, ALL) == end
    back.join(DEADLINE_SECONDS)
    fill(rocketmq, "orders", numbered(5, 6))
    assert reader.latestOffset(end, ALL) == at("orders", 6)
