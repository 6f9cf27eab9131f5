"""The ready pipelines and `cosmodrome sql` on Apache's brokers, each from the file that `pipeline init` writes."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from cosmodrome.blocking import Message, MessageQueue, Producer, PullConsumer, PushConsumer
from cosmodrome.errors import RetryLater
from cosmodrome.model import DLQ_PREFIX, TRACE_TOPIC, ConsumeFrom, Property, ReceivedMessage
from cosmodrome.pipelines import definition
from cosmodrome.pipelines.kinds import KINDS
from cosmodrome.pipelines.outcome import Outcome
from cosmodrome.pipelines.querying import all_topics, asked
from cosmodrome.pipelines.replay import FINISHED
from cosmodrome.pipelines.running import Run, open_session
from cosmodrome.wire import trace
from interop.apache import wait_settled
from interop.java import RUN_TIMEOUT_S, JavaProgram
from interop.lab import APACHE_CLUSTERS, Cluster, Lab
from interop.messages import Load, Seen, index_of, sent_by_java
from interop.our_client import SEND_TIMEOUT_MS, receive_ours, seen_by_us, send_ours
from interop.setup import CLIENT_VERSIONS
from tests.spark.home import QUICK_JAVA

pytestmark = pytest.mark.filterwarnings("ignore")

NEWEST = APACHE_CLUSTERS[-1]
CLIENT_OF = dict(zip(APACHE_CLUSTERS, CLIENT_VERSIONS, strict=True))
TICK_S = 0.01  # longer than the clock of a broker stands still
ADDED_BY_PULLS = (Property.MIN_OFFSET, Property.MAX_OFFSET)
# Parts of the names under which Apache's brokers and clients note what a dead letter has been through.
DEATH_MARKS = ("ORIGIN", "RECONSUME", "RETRY", "DELAY")

Fresh = Callable[[str], str]
RunPipeline = Callable[..., Outcome]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """One for all tests here, with what a pipeline's own session has."""
    settings = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("JDK_JAVA_OPTIONS", QUICK_JAVA)
        made = open_session("interop", "local[2]", settings)
    yield made
    made.stop()


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> RunPipeline:
    """Runs a ready pipeline to the end of what is there; changes are those of `--set`."""

    def ran(kind: str, *changes: str) -> Outcome:
        file = tmp_path / f"{kind}.yaml"
        shutil.copy(KINDS[kind].template, file)
        return Run(definition.load(file, changes), lambda _: None).run(spark)

    return ran


def stored(cluster: Cluster, topic: str) -> list[Seen]:
    """All that a topic has, queue by queue."""
    cluster.settle(topic)
    with PullConsumer("spark-pipelines-readers", cluster.namesrv) as consumer:
        queues = consumer.fetch_subscribe_queues(topic)
        return [seen_by_us(message) for queue in queues for message in messages_of(consumer, queue)]


def messages_of(consumer: PullConsumer, queue: MessageQueue) -> Iterator[ReceivedMessage]:
    offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
    while offset < end:
        pulled = consumer.pull(queue, "*", offset)
        yield from pulled.messages
        assert pulled.next_begin_offset > offset, pulled
        offset = pulled.next_begin_offset


def send(cluster: Cluster, topic: str, bodies: Iterable[Any]) -> None:
    queue = MessageQueue(topic, cluster.broker_name, 0)
    with Producer("spark-pipelines", namesrv=cluster.namesrv) as producer:
        for body in bodies:
            producer.send(Message(topic, json.dumps(body).encode()), queue=queue, timeout_ms=SEND_TIMEOUT_MS)
    cluster.settle(topic)


def table(outcome: Outcome, title: str) -> list[dict[str, Any]]:
    (found,) = (each for each in outcome.tables if each.title.startswith(title))
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def rows(spark: SparkSession, path: Path, where: str = "true") -> list[Row]:
    return spark.read.parquet(str(path)).where(where).collect()


def check_content(load: Load, message: Seen) -> None:
    """What its first sender gave it."""
    index = message.index
    assert (message.body, message.flag) == (load.body(index), load.flag)
    assert (message.tags, message.keys) == (load.tag(index), load.key(index))
    assert load.user_properties(index).items() <= message.properties.items()
    assert message.reconsume_times == 0


# --- messages to files and back


def test_an_archive_goes_on_and_is_replayed(
    spark: SparkSession, lab: Lab, fresh: Fresh, run: RunPipeline, tmp_path: Path
) -> None:
    cluster, load, again = lab.cluster(NEWEST), Load(fresh("topic"), 40), fresh("topic")
    archive = (f"source.nameServer={cluster.namesrv}", f"source.subscribe={load.topic}", "trigger=availableNow")
    send_ours(cluster.namesrv, fresh("group"), load, "selector")
    cluster.settle(load.topic)
    assert run("archive", *archive).numbers["rows"] == 40
    send_ours(cluster.namesrv, fresh("group"), Load(load.topic, 5, first=40), "selector")
    cluster.settle(load.topic)
    assert run("archive", *archive).numbers["rows"] == 5
    messages = stored(cluster, load.topic)
    assert len(messages) == 45
    assert sorted(map(archived, rows(spark, tmp_path / "archive"))) == sorted(map(as_archived, messages))

    files = "source={format: parquet, path: archive, where: tags = 'red' and queueOffset > 0}"
    sink = (f"sink.nameServer={cluster.namesrv}", f"sink.topic={again}")
    wanted = [each for each in messages if each.tags == "red" and each.queue_offset > 0]
    assert run("replay", files, *sink).numbers["messages"] == len(wanted)
    check_replayed(load, wanted, stored(cluster, again))


def archived(row: Row) -> tuple[Any, ...]:
    place = row.topic, row.queueId, row.queueOffset
    return *place, bytes(row.body), row.tags, row.keys, row.flag, tuple(sorted(row.properties.items()))


def as_archived(message: Seen) -> tuple[Any, ...]:
    stored = {name: value for name, value in message.properties.items() if name not in ADDED_BY_PULLS}
    return *message.place, message.body, message.tags, message.keys, message.flag, tuple(sorted(stored.items()))


def check_replayed(load: Load, before: list[Seen], after: list[Seen]) -> None:
    """Each once, and the order of each queue."""
    assert sorted(each.index for each in after) == sorted(each.index for each in before)
    assert not {each.msg_id for each in after} & {each.msg_id for each in before}
    for message in after:
        check_content(load, message)
    for queue_id in {each.queue_id for each in before}:
        sent = [each.index for each in before if each.queue_id == queue_id]
        assert [each.index for each in after if each.index in sent] == sent
        assert len({each.queue_id for each in after if each.index in sent}) == 1


def test_a_time_range_of_a_topic_is_replayed_once(lab: Lab, fresh: Fresh, run: RunPipeline) -> None:
    cluster, load, again = lab.cluster(NEWEST), Load(fresh("topic"), 30), fresh("topic")
    for part in (Load(load.topic, 10, first=first) for first in (0, 10, 20)):
        send_ours(cluster.namesrv, fresh("group"), part, "selector")
        time.sleep(TICK_S)
    messages = stored(cluster, load.topic)
    start_ms, end_ms = (min(each.store_timestamp for each in messages if each.index >= first) for first in (10, 20))
    replay = (
        *(f"source.nameServer={cluster.namesrv}", f"source.subscribe={load.topic}"),
        *(f"source.startingTimestamp={start_ms}", f"source.endingTimestamp={end_ms}"),
        *(f"sink.nameServer={cluster.namesrv}", f"sink.topic={again}", "options.queues=same"),
    )
    assert run("replay", *replay).notes == ()
    assert run("replay", *replay).notes == (FINISHED,)
    wanted, replayed = [each for each in messages if 10 <= each.index < 20], stored(cluster, again)
    check_replayed(load, wanted, replayed)
    assert {(each.index, each.queue_id) for each in replayed} == {(each.index, each.queue_id) for each in wanted}


# --- streaming SQL, and a query


def test_streaming_sql_with_a_join_and_windows(lab: Lab, fresh: Fresh, run: RunPipeline) -> None:
    cluster, orders, payments, totals = lab.cluster(NEWEST), fresh("topic"), fresh("topic"), fresh("topic")
    transform = (
        *(f"sources.orders.nameServer={cluster.namesrv}", f"sources.orders.subscribe={orders}"),
        *(f"sources.payments.nameServer={cluster.namesrv}", f"sources.payments.subscribe={payments}"),
        *(f"sink.nameServer={cluster.namesrv}", f"sink.topic={totals}", "trigger=availableNow"),
    )

    def at(second: int) -> str:
        return f"2026-01-01T10:{second // 60:02}:{second % 60:02}Z"

    def order(number: int, second: int) -> dict[str, Any]:
        return {"id": number, "city": "Köln" if number % 2 else "Ulm", "price": 1.5, "at": at(second)}

    send(cluster, orders, [order(number, number) for number in range(20)])
    send(cluster, payments, [{"orderId": number, "paidAt": at(number + 5)} for number in range(0, 20, 2)])
    run("transform", *transform)
    send(cluster, orders, [order(100, 1_800)])  # so late that the first minute is over
    send(cluster, payments, [{"orderId": 100, "paidAt": at(1_801)}])
    run("transform", *transform)
    (message,) = stored(cluster, totals)
    expected = {"minute": "2026-01-01T10:00:00.000Z", "city": "Ulm", "orders": 10, "total": 15.0}
    assert (message.keys, json.loads(message.body)) == ("Ulm", expected)


@pytest.mark.parametrize("cluster_name", APACHE_CLUSTERS)
def test_a_query(spark: SparkSession, lab: Lab, fresh: Fresh, cluster_name: str) -> None:
    """What `cosmodrome sql` asks; the command itself meets Apache's brokers in test_guarded_brokers."""
    cluster, load = lab.cluster(cluster_name), Load(fresh("topic"), 21)
    send_ours(cluster.namesrv, fresh("group"), load)
    cluster.settle(load.topic)
    options = {"nameServer": cluster.namesrv}
    query = f"select tags, count(*), min(value) from `{load.topic}` group by tags order by tags"
    answer = asked(spark, query, all_topics(options), options)
    assert [tuple(row) for row in answer.collect()] == [("blue", 10, "body-1-"), ("red", 11, "body-0-")]


# --- reports


@pytest.mark.parametrize("cluster_name", APACHE_CLUSTERS)
def test_dead_letters_are_sorted_and_driven_again_once(
    spark: SparkSession, lab: Lab, fresh: Fresh, run: RunPipeline, tmp_path: Path, cluster_name: str
) -> None:
    """A group of Apache's own client gives up; what it gives up comes to its topic again as it was sent."""
    cluster, load, group = lab.cluster(cluster_name), Load(fresh("topic"), 6), fresh("group")
    send_ours(cluster.namesrv, fresh("group"), load)
    give_up(lab, cluster, load, group)
    first = {each.index: each for each in stored(cluster, load.topic)}

    common = (
        *(f"source.nameServer={cluster.namesrv}", f"source.subscribePattern=(%DLQ%|%RETRY%){group}"),
        *(f"sink.nameServer={cluster.namesrv}", "options.where=tags = 'red' and value like 'body-%'"),
    )
    outcome = run("dead-letters", *common, "options.report=report")
    assert (outcome.numbers["deadLetters"], outcome.numbers["toRedrive"]) == (6, 3)
    (known,) = rows(spark, tmp_path / "report" / "groups")
    assert (known.group, known.originalTopic, known.messages, known.mostTries) == (group, load.topic, 6, 2)
    assert {(each["tags"], each["count"]) for each in table(outcome, "by tag")} == {("red", 3), ("blue", 3)}
    assert {each["messageId"] for each in table(outcome, "samples")} <= {each.msg_id for each in first.values()}
    assert [tuple(each.values()) for each in table(outcome, "a re-drive")] == [(group, load.topic, 3)]
    assert len(stored(cluster, load.topic)) == load.count

    for redriven in (3, 0):
        assert run("dead-letters", *common, "options.redrive=true").numbers["redriven"] == redriven
        again = [each for each in stored(cluster, load.topic) if "REDRIVEN_ID" in each.properties]
        assert sorted(each.index for each in again) == [0, 2, 4]
    for message in again:
        check_content(load, message)
        marks = {"REDRIVEN_FROM": f"{DLQ_PREFIX}{group}", "REDRIVEN_ID": first[message.index].msg_id}
        assert {**marks, "REDRIVEN_TIMES": "1"}.items() <= message.properties.items()
        assert not [name for name in message.properties if any(mark in name for mark in DEATH_MARKS)]


def give_up(lab: Lab, cluster: Cluster, load: Load, group: str) -> None:
    """Each message is refused, comes again a second later, is refused again and is a dead letter."""
    words = {"topic": load.topic, "group": group, "fail": True, "maxReconsumeTimes": 1, "retryLevel": 1}
    with lab.start(CLIENT_OF[cluster.name], "Consume", cluster, words) as consumer:
        consumer.wait_messages(2 * load.count)
        letters = f"{DLQ_PREFIX}{group}"
        wait_settled(lambda: len(stored(cluster, letters)) == load.count, f"{letters} lacks letters")


@pytest.mark.parametrize("cluster_name", APACHE_CLUSTERS)
def test_an_audit_finds_duplicates_and_lag(
    spark: SparkSession, lab: Lab, fresh: Fresh, run: RunPipeline, tmp_path: Path, cluster_name: str
) -> None:
    """A group that has consumed everything until then, and one that is in the midst of a queue."""
    cluster, load = lab.cluster(cluster_name), Load(fresh("topic"), 30)
    billing, shipping = fresh("group"), fresh("group")
    send_ours(cluster.namesrv, fresh("group"), load, "selector")
    for _ in range(2):  # under one name: the second time every row is there already
        three = spark.range(3).selectExpr("concat('body-', 100 + id, '-') as body").coalesce(1)
        options = {"nameServer": cluster.namesrv, "topic": load.topic, "jobId": load.topic}
        three.write.format("rocketmq").options(**options).mode("append").save()
    cluster.settle(load.topic)
    receive_ours(cluster.namesrv, billing, load.topic, 36)
    wait_settled(lambda: sum(committed(cluster, billing, load.topic).values()) == 36, f"{billing} has not committed")
    with PullConsumer(shipping, cluster.namesrv) as consumer:
        (queue,) = (each for each in consumer.fetch_subscribe_queues(load.topic) if each.queue_id == 0)
        consumer.update_consume_offset(queue, 5)
        consumer.persist_consume_offset()
    send(cluster, load.topic, range(4))

    outcome = run("audit", f"source.nameServer={cluster.namesrv}", f"source.subscribe={load.topic}")
    expected = {"groups": 2, "produced": 40, "missing": 0, "duplicates": 3, "lag": 4 + 35, "missed": 0}
    assert {name: outcome.numbers[name] for name in expected} == expected
    lag = {(row.group, row.queueId): row for row in rows(spark, tmp_path / "audit" / "lag")}
    assert {group for group, _ in lag} == {billing, shipping}
    assert sum(row.lag for row in lag.values() if row.group == shipping) == 35
    behind = lag[billing, 0]
    assert (behind.lag, behind.maxOffset - behind.committed) == (4, 4)
    assert behind.oldestWaiting is not None
    assert all(row.lag == 0 for (group, queue_id), row in lag.items() if group == billing and queue_id != 0)
    assert lag[shipping, 0].committed == 5
    for group, consumed in ((billing, 36), (shipping, 5)):
        hours = rows(spark, tmp_path / "audit" / "hours", f"`group` = '{group}'")
        assert (sum(row.produced for row in hours), sum(row.consumed for row in hours)) == (40, consumed)
    copies = rows(spark, tmp_path / "audit" / "duplicates")
    assert [row.copies for row in copies] == [2, 2, 2]
    assert "<svg" in (tmp_path / "audit.html").read_text()


def committed(cluster: Cluster, group: str, topic: str) -> dict[int, int]:
    """How far a group is, by queue."""
    with PullConsumer(group, cluster.namesrv) as consumer:
        queues = consumer.fetch_subscribe_queues(topic)
        return {queue.queue_id: consumer.fetch_consume_offset(queue, from_store=True) or 0 for queue in queues}


def test_a_trace_report(spark: SparkSession, lab: Lab, fresh: Fresh, run: RunPipeline, tmp_path: Path) -> None:
    """Java's producer and our consumer write traces; one message is refused once."""
    cluster, load, sender, readers = lab.cluster(NEWEST), Load(fresh("topic"), 8), fresh("group"), fresh("group")
    words = {"namesrv": cluster.namesrv, **load.java_arguments(), "group": sender, "trace": True}
    handled: list[int] = []

    def handler(message: ReceivedMessage) -> None:
        handled.append(index_of(message.body))
        if handled[-1] == 3 and handled.count(3) == 1:
            raise RetryLater(delay_level=1)

    # It stays until all traces are there: Java's clients write them when they like, and lose what is left at their end.
    with JavaProgram(CLIENT_OF[NEWEST], "Produce", words) as producer:
        producer.wait_line('"done"', RUN_TIMEOUT_S)
        ids = {one.msg_id for one in sent_by_java(producer.messages)}
        cluster.settle(load.topic)
        consumer = PushConsumer(readers, cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, trace=True)
        consumer.subscribe(load.topic, "*", handler)
        with consumer:
            wait_settled(lambda: len(handled) >= 9, "a message did not come again")
            # Of each message that it was sent, and of each delivery that it began and ended.
            wait_settled(lambda: traced(cluster, ids) == 8 + 2 * len(handled), "traces are missing")

    outcome = run("trace-report", f"source.nameServer={cluster.namesrv}")
    (sent,) = rows(spark, tmp_path / "trace-report" / "sends", f"topic = '{load.topic}'")
    assert (sent.group, sent.messages, sent.failed, sent.successRate) == (sender, 8, 0, 1.0)
    (consumed,) = rows(spark, tmp_path / "trace-report" / "consumption", f"topic = '{load.topic}'")
    assert (consumed.group, consumed.messages, consumed.deliveries) == (readers, 8, len(handled))
    assert (consumed.failed, consumed.unsuccessful, consumed.lost, consumed.open) == (1, 0, 0, 0)
    assert 0 <= sent.sendP50Ms <= sent.sendMaxMs
    assert 0 <= consumed.waitP50Ms <= consumed.waitMaxMs
    assert int(outcome.numbers["sent"]) >= 8
    assert "<svg" in (tmp_path / "trace-report.html").read_text()


def traced(cluster: Cluster, ids: set[str]) -> int:
    """How many records there are of these messages."""
    records = [record for each in stored(cluster, TRACE_TOPIC) for record in trace.decode(each.body)]
    return sum(record.msg_id in ids for record in records)
