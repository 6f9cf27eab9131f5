"""What tasks and the driver of a write do, on real brokers and without Spark around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from cosmodrome.client.queue_choice import select_by_hash
from cosmodrome.codes import ResponseCode
from cosmodrome.errors import BrokerError, ConfigError, IllegalOperation, InvalidMessage, RouteNotFound, SendFailed
from cosmodrome.model import CHECK_MAX_TIME_TOPIC, Message, MessageQueue
from cosmodrome.spark import ledger as ledger_module
from cosmodrome.spark.exactly_once import TaskHalves, Verdict
from cosmodrome.spark.ledger import BrokerLedger
from cosmodrome.spark.link import Cluster as Link
from cosmodrome.spark.pulling import pull_request
from cosmodrome.spark.sink import RocketMQWriter, Written
from cosmodrome.spark.sink_options import SinkOptions, sink_options
from cosmodrome.testing import Cluster
from cosmodrome.testing import cluster as make_cluster
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import EndTransaction
from tests.spark.helpers import BROKER
from tests.spark.mortal import die_in_commit

STRINGS = pa.map_(pa.string(), pa.string())
TIME = pa.timestamp("us", tz="UTC")


def options(cluster: Cluster, **more: str) -> SinkOptions:
    return sink_options({"nameServer": cluster.namesrv, **more}, streaming=False)


def once(cluster: Cluster, topic: str, job: str, **more: str) -> SinkOptions:
    return options(cluster, topic=topic, exactlyOnce="true", jobId=job, **more)


def rows(**columns: Any) -> pa.RecordBatch:
    types = {"properties": STRINGS, "deliverAt": TIME, "body": pa.binary()}
    return pa.record_batch({name: pa.array(values, types.get(name)) for name, values in columns.items()})


def numbered(count: int) -> pa.RecordBatch:
    return rows(body=[b"%d" % number for number in range(count)])


def write(given: SinkOptions, *batches: pa.RecordBatch) -> Written:
    return RocketMQWriter(given).write(iter(batches))


def bodies(cluster: Cluster, topic: str) -> list[int]:
    return sorted(int(message.body) for message in cluster.messages(topic))


def test_a_row_becomes_a_message(cluster: Cluster, topic: str) -> None:
    batch = rows(
        body=[b"a", b"b", b"c", b"d"],
        keys=["k1 k2", None, "", "k3"],
        tags=["paid", "", None, "späť"],
        properties=[[("colour", "red"), ("empty", "")], None, [], [("größe", "9"), ("colour", "blue")]],
        flag=pa.array([7, None, 0, -1], pa.int32()),
    )
    assert write(options(cluster, topic=topic, jobId="once"), batch).rows == 4
    found = {message.body: message for message in cluster.messages(topic)}
    first, last = found[b"a"], found[b"d"]
    assert (first.keys, first.tags, first.flag) == ("k1 k2", "paid", 7)
    assert (first.properties["colour"], first.properties["SPARK_ID"]) == ("red", "job:once:0:0")
    assert "empty" not in first.properties
    assert (last.keys, last.tags, last.flag, last.properties["größe"]) == ("k3", "späť", -1, "9")
    assert found[b"b"].keys == found[b"c"].tags == ""
    write(options(cluster, topic=topic, jobId="once"), batch)
    assert Counter(Counter(message.msg_id for message in cluster.messages(topic)).values()) == {2: 4}
    write(options(cluster, topic=topic, idempotentKeys="false"), batch)
    assert "SPARK_ID" not in cluster.messages(topic)[-1].properties


def test_where_rows_go(cluster: Cluster, topic: str) -> None:
    queues = [MessageQueue(topic, BROKER, number) for number in (0, 1)]
    keys = ["ann", "bob", "cid", "dot", "eve"] * 400
    write(options(cluster), rows(topic=[topic] * 2000, shardingKey=keys, body=[b"%d" % n for n in range(2000)]))
    found = cluster.messages(topic)
    assert len(found) == 2000
    for message in found:
        assert message.queue == select_by_hash(queues, Message(topic, b"-"), keys[int(message.body)])
    for queue in queues:  # and in order
        numbers = [int(message.body) for message in found if message.queue == queue]
        assert numbers == sorted(numbers)

    other = f"{topic}-made-by-writing"
    write(options(cluster, topic=other), rows(topic=["ignored"], body=[b"x"]))
    assert [message.body for message in cluster.messages(other)] == [b"x"]
    placed = rows(
        body=[b"y"] * 3,
        brokerName=[BROKER, BROKER, None],
        queueId=pa.array([1, 1, None], pa.int32()),
        topic=[topic] * 3,
    )
    write(options(cluster), placed)
    assert sum(message.queue.queue_id == 1 for message in cluster.messages(topic)[-3:]) >= 2
    with pytest.raises(InvalidMessage, match=r"queue 9 of topic .* does not exist"):
        write(options(cluster, topic=topic), rows(body=[b"z"], brokerName=[BROKER], queueId=[9]))


def test_rows_to_be_delivered_later(rocketmq: Cluster) -> None:
    rocketmq.create_topic("later")
    soon = datetime.fromtimestamp(rocketmq.clock.now_ms() / 1000, UTC) + timedelta(minutes=30)
    levels = pa.array([None, 3, None], pa.int32())
    write(
        options(rocketmq, topic="later"), rows(body=[b"0", b"1", b"2"], delayLevel=levels, deliverAt=[None, None, soon])
    )
    assert bodies(rocketmq, "later") == [0]
    rocketmq.advance_until(lambda: bodies(rocketmq, "later") == [0, 1], minutes=10)
    rocketmq.advance_until(lambda: bodies(rocketmq, "later") == [0, 1, 2], minutes=60)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"body": [b"ok", None]}, "body has nothing in row 1"),
        ({"body": [b"ok", b""]}, "body has nothing in row 1"),
        ({"body": [b"ok"], "tags": ["a\x02b"]}, r"must not contain the characters \\x01"),
        ({"body": [b"ok"], "properties": [[("KEYS", "1")]]}, "'KEYS' in row 0 .* reservedProperties to drop"),
        ({"body": [b"ok"], "properties": [[("a", "b" * 40_000)]]}, "row 0 of the task: .* at most 32767"),
        ({"body": [b"x" * (4 * 2**20 + 1)]}, "at most 4194304 are allowed"),
        ({"body": [b"ok"], "delayLevel": [-1]}, "delayLevel has a number below 0"),
        ({"body": [b"ok"], "delayLevel": [1], "deliverAt": [datetime.now(UTC)]}, "both a delayLevel and a time"),
        ({"body": [b"ok"], "topic": [None]}, "a row has no topic"),
        ({"body": [b"ok"], "topic": ["a b"]}, "'a b' is illegal"),
    ],
)
def test_rows_that_cannot_be_messages(cluster: Cluster, topic: str, columns: dict[str, Any], problem: str) -> None:
    given = options(cluster) if "topic" in columns else options(cluster, topic=topic)
    with pytest.raises(InvalidMessage, match=problem):
        write(given, rows(**columns))
    assert cluster.messages(topic) == []


def test_names_that_are_rocketmqs_own_can_be_dropped(cluster: Cluster, topic: str) -> None:
    properties = [[("KEYS", "1"), ("UNIQ_KEY", "X"), ("mine", "yes"), ("SPARK_ID", "old")]]
    write(options(cluster, topic=topic, reservedProperties="drop"), rows(body=[b"a"], properties=properties))
    (message,) = cluster.messages(topic)
    assert (message.keys, message.properties["mine"], message.msg_id == "X") == ("", "yes", False)


def test_a_broker_that_comes_back_gets_the_rest(rocketmq: Cluster) -> None:
    """Killed and stopped while a task writes: every row is there, some of them perhaps twice, under one id each."""
    rocketmq.create_topic("rows", queues=3)

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(12):
            yield rows(body=[b"%d" % n for n in range(number * 1000, number * 1000 + 1000)])
            if number in (3, 7):
                rocketmq.kill_broker()
                rocketmq.start_broker()

    given = options(rocketmq, topic="rows", batchBytes="10000", sendRetryIntervalMs="20", jobId="rows")
    assert RocketMQWriter(given).write(batches()).rows == 12_000
    by_id = {message.msg_id: int(message.body) for message in rocketmq.messages("rows")}
    assert sorted(by_id.values()) == list(range(12_000))


def test_no_broker_at_all(rocketmq: Cluster) -> None:
    rocketmq.create_topic("rows")
    given = options(rocketmq, topic="rows", sendRetries="2", sendRetryIntervalMs="10")

    def batches() -> Iterator[pa.RecordBatch]:
        yield numbered(5)
        rocketmq.stop_broker()
        yield numbered(5)

    with pytest.raises((SendFailed, RouteNotFound), match="rows"):
        RocketMQWriter(given).write(batches())


def test_two_brokers_share_the_rows_and_one_stands_in_for_the_other() -> None:
    with make_cluster(2) as cluster:
        cluster.create_topic("rows", queues=2)

        def batches() -> Iterator[pa.RecordBatch]:
            for number in range(10):
                yield rows(body=[b"%d" % n for n in range(number * 1000, number * 1000 + 1000)])
                if number == 5:
                    cluster.stop_broker(1)

        given = options(cluster, topic="rows", batchBytes="10000", sendRetryIntervalMs="20")
        RocketMQWriter(given).write(batches())
        cluster.start_broker(1)
        found = cluster.messages("rows")
        assert {int(message.body) for message in found} == set(range(10_000))
        assert len({message.queue for message in found}) == 4


# --- exactly once


def test_rows_are_seen_once_they_are_committed(cluster: Cluster, topic: str) -> None:
    given = once(cluster, topic, f"{topic}-1")
    writer = RocketMQWriter(given)
    written = writer.write(iter([numbered(50)]))
    assert (written.rows, cluster.messages(topic)) == (50, [])
    writer.commit([written])
    assert bodies(cluster, topic) == list(range(50))
    writer.commit([written])  # Spark does not; it would do no harm
    repeated = RocketMQWriter(given)
    repeated.commit([repeated.write(iter([numbered(50)]))])
    assert bodies(cluster, topic) == list(range(50))
    assert len(cluster.brokers[0].broker.transactions) == 0
    aborted = RocketMQWriter(once(cluster, topic, f"{topic}-2"))
    aborted.abort([aborted.write(iter([numbered(5)])), None])
    assert len(cluster.brokers[0].broker.transactions) == 0
    assert len(cluster.messages(topic)) == 50


def test_rows_of_a_sharding_key_are_seen_in_order(cluster: Cluster, topic: str) -> None:
    writer = RocketMQWriter(once(cluster, topic, topic))
    batch = rows(body=[b"%d" % number for number in range(600)], shardingKey=["ann", "bob", "eve"] * 200)
    writer.commit([writer.write(iter([batch]))])
    for queue_id in (0, 1):
        found = [int(message.body) for message in cluster.messages(topic) if message.queue.queue_id == queue_id]
        assert found == sorted(found)
    assert bodies(cluster, topic) == list(range(600))


def test_a_failed_task_rolls_back(cluster: Cluster, topic: str) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield numbered(100)
        raise ValueError("the rows cannot be computed")

    with pytest.raises(ValueError, match="cannot be computed"):
        RocketMQWriter(once(cluster, topic, topic, maxInFlight="4")).write(batches())
    assert len(cluster.brokers[0].broker.transactions) <= 4  # of those that were under way nobody knows


@pytest.mark.parametrize("dies_after", [0, 37])
@pytest.mark.parametrize("trouble", ["none", "broker killed", "given up", "rolled back"])
def test_a_driver_dies_in_mid_commit(
    rocketmq: Cluster, monkeypatch: pytest.MonkeyPatch, dies_after: int, trouble: str
) -> None:
    monkeypatch.setattr(ledger_module, "PART_BYTES", 100)  # markers in several parts
    rocketmq.create_topic("rows", queues=3)
    given = once(rocketmq, "rows", "job", sendRetryIntervalMs="20")
    first = write(given, numbered(100))
    die_in_commit(given, [first], dies_after)
    seen = [message.offset_msg_id for message in rocketmq.messages("rows")]
    assert len(seen) == dies_after
    if trouble == "broker killed":
        rocketmq.kill_broker()
        rocketmq.start_broker()
    if trouble == "given up":
        rocketmq.advance_until(lambda: len(rocketmq.messages(CHECK_MAX_TIME_TOPIC)) == 100 - dies_after)
    if trouble == "rolled back":
        ended = BrokerLedger(Link(given.link), given, may_create=False).end(first.task().halves(), Verdict.ROLLBACK)
        assert len(ended.refused) == dies_after
    again = RocketMQWriter(given)
    die_in_commit(given, [again.write(iter([numbered(100)]))], dies_after=0)  # and again, before it did anything
    again.commit([again.write(iter([numbered(100)]))])
    assert bodies(rocketmq, "rows") == list(range(100))
    assert [message.offset_msg_id for message in rocketmq.messages("rows")][:dies_after] == seen


def forget_keys(cluster: Cluster) -> None:
    """As Apache's brokers do when they are killed; their queues they still know."""
    index = cluster.brokers[0].broker.store._index
    assert index is not None
    index.drop_all()


@pytest.mark.parametrize("dies_after", [37, 99])
def test_a_decision_stands_though_its_key_is_forgotten(
    rocketmq: Cluster, monkeypatch: pytest.MonkeyPatch, dies_after: int
) -> None:
    monkeypatch.setattr(ledger_module, "PART_BYTES", 100)
    rocketmq.create_topic("rows", queues=3)
    for job in ("before", "job"):
        given = once(rocketmq, "rows", job)
        die_in_commit(given, [write(given, numbered(100))], dies_after if job == "job" else 0)
    seen = [message.offset_msg_id for message in rocketmq.messages("rows")]
    forget_keys(rocketmq)
    for _ in range(2):
        again = RocketMQWriter(given)
        again.commit([again.write(iter([numbered(100)]))])
        assert bodies(rocketmq, "rows") == list(range(100))
    assert [message.offset_msg_id for message in rocketmq.messages("rows")][:dies_after] == seen


def test_a_stream_looks_for_markers_from_that_of_its_last_batch_on(
    rocketmq: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulls: list[int] = []

    def noted(queue: MessageQueue, offset: int, *more: Any) -> Command:
        pulls.append(offset)
        return pull_request(queue, offset, *more)

    monkeypatch.setattr(ledger_module, "pull_request", noted)
    link = Link(options(rocketmq).link)
    ledger = BrokerLedger(link, once(rocketmq, "rows", "-"), may_create=True)
    for batch in range(40):
        scope = f"query:{batch}"
        assert ledger.decision(scope) is None
        assert ledger.decide(scope, f"run-{batch}", [TaskHalves(scope, 0, ())]).run == f"run-{batch}"
    assert pulls == [0, *range(39)]  # one each
    forget_keys(rocketmq)
    found = [ledger.decision(f"query:{batch}") for batch in (0, 20, 39, 40)]
    assert [each and each.run for each in found] == ["run-0", "run-20", "run-39", None]
    assert ledger.decision("job:40") is None
    link.close()


def test_who_may_not_read_the_queue_of_markers_finds_them_by_key(
    rocketmq: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_ledger: BrokerLedger, _queue: MessageQueue, _offset: int, _wanted: Any) -> Command:
        raise BrokerError(refusal, "no permission of broker", "broker")

    monkeypatch.setattr(BrokerLedger, "_pulled", refuse)
    rocketmq.create_topic("rows")
    refusal = ResponseCode.NO_PERMISSION
    given = once(rocketmq, "rows", "job")
    for _ in range(2):
        writer = RocketMQWriter(given)
        writer.commit([writer.write(iter([numbered(10)]))])
    assert bodies(rocketmq, "rows") == list(range(10))
    refusal = ResponseCode.TOPIC_NOT_EXIST
    other = RocketMQWriter(once(rocketmq, "rows", "other"))
    with pytest.raises(BrokerError):
        other.commit([other.write(iter([numbered(10)]))])


def test_the_producer_group_may_change_in_mid_commit(rocketmq: Cluster) -> None:
    rocketmq.create_topic("rows", queues=3)
    first = once(rocketmq, "rows", "job", producerGroup="ORDERS", sendRetries="2", sendRetryIntervalMs="10")
    die_in_commit(first, [write(first, numbered(50))], dies_after=20)
    renamed = RocketMQWriter(replace(first, group="BILLING"))
    renamed.commit([renamed.write(iter([numbered(50)]))])
    assert bodies(rocketmq, "rows") == list(range(50))
    assert len(rocketmq.brokers[0].broker.transactions) == 0


def test_a_half_message_that_is_refused_for_its_age_is_ended_all_the_same(
    rocketmq: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache 5 does so with those that have the property CHECK_IMMUNITY_TIME_IN_SECONDS."""
    transactions = rocketmq.brokers[0].broker.transactions
    end = transactions.end

    async def end_if_asked(request: EndTransaction) -> None:
        if not request.from_transaction_check:
            raise IllegalOperation("")
        await end(request)

    monkeypatch.setattr(transactions, "end", end_if_asked)
    rocketmq.create_topic("rows", queues=3)
    writer = RocketMQWriter(once(rocketmq, "rows", "job"))
    batch = rows(body=[b"%d" % number for number in range(50)], shardingKey=["ann", "bob"] * 25)
    writer.commit([writer.write(iter([batch]))])
    assert bodies(rocketmq, "rows") == list(range(50))
    for queue_id in range(3):
        found = [int(message.body) for message in rocketmq.messages("rows") if message.queue.queue_id == queue_id]
        assert found == sorted(found)
    writer.abort([write(once(rocketmq, "rows", "other"), numbered(5)), None])
    assert len(transactions) == 0


def test_where_markers_live() -> None:
    with make_cluster(2) as cluster:
        cluster.create_topic("rows")
        second = cluster.brokers[1].broker.config.broker_name
        given = once(cluster, "rows", "1", commitBroker=second, commitTopic="MARKERS")
        writer = RocketMQWriter(given)
        writer.commit([writer.write(iter([numbered(20)]))])
        assert {message.queue.broker_name for message in cluster.messages("MARKERS")} == {second}
        found_again = RocketMQWriter(replace(given, commit_broker="", job_id="2"))
        found_again.commit([found_again.write(iter([numbered(20)]))])
        assert {message.queue.broker_name for message in cluster.messages("MARKERS")} == {second}
        assert bodies(cluster, "rows") == sorted([*range(20)] * 2)
        assert len({message.queue.broker_name for message in cluster.messages("rows")}) == 2

        cluster.create_topic("EVERYWHERE")
        nowhere = RocketMQWriter(once(cluster, "rows", "3", commitTopic="EVERYWHERE"))
        with pytest.raises(ConfigError, match=r"on the brokers .* commitBroker"):
            nowhere.commit([nowhere.write(iter([numbered(1)]))])
        unknown = RocketMQWriter(once(cluster, "rows", "4", commitBroker="nobody"))
        with pytest.raises(ConfigError, match="commitBroker is 'nobody'"):
            unknown.commit([unknown.write(iter([numbered(1)]))])
        link = Link(given.link)
        missing = replace(given, commit_topic="GONE", commit_broker="", send_retries=1)
        with pytest.raises(ConfigError, match=r"GONE.* has no route"):
            BrokerLedger(link, missing, may_create=False).decision("job:5")
        link.close()
