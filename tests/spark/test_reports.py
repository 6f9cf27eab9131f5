"""Reports over real traces, dead letters and offsets, and what they write."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cosmodrome.errors import ConfigError
from cosmodrome.model import TRACE_TOPIC, Message, ReceivedMessage
from cosmodrome.pipelines import audit, dead_letters, reports
from cosmodrome.pipelines.definition import load
from cosmodrome.pipelines.frames import with_text
from cosmodrome.pipelines.kinds import KINDS
from cosmodrome.pipelines.outcome import Outcome
from cosmodrome.pipelines.running import start
from cosmodrome.spark.options import PropertiesAs
from cosmodrome.spark.schema import table_schema
from cosmodrome.testing import Cluster
from cosmodrome.wire.trace import EndTransaction, Pub, Recall, SubAfter, SubBefore, TracedType, encode
from cosmodrome.wire.trace import Outcome as Ended
from tests.spark.helpers import BROKER, fill, numbered, send

RunPipeline = Callable[..., Outcome]

NASTY = "<script>alert('k')</script>"
HOUR_SECONDS = 3_600


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> RunPipeline:
    """Runs a ready pipeline from its template, all names of servers and folders replaced."""

    def start_it(kind: str, cluster: Cluster, *changes: str) -> Outcome:
        template = tmp_path / f"{kind}.yaml"
        shutil.copy(KINDS[kind].template, template)
        found = start(spark, load(template, [f"source.nameServer={cluster.namesrv}", *changes]))
        assert isinstance(found, Outcome)
        return found

    return start_it


def rows(spark: SparkSession, path: Path) -> list[dict[str, Any]]:
    return [row.asDict() for row in spark.read.parquet(str(path)).collect()]


def table(outcome: Outcome, title: str) -> list[dict[str, Any]]:
    (found,) = (each for each in outcome.tables if each.title.startswith(title))
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


# --- traces


def pub(msg_id: str, at: int, topic: str = "orders", kind: int = TracedType.NORMAL, **more: Any) -> Pub:
    given: dict[str, Any] = {
        "tags": "paid",
        "keys": f"k-{msg_id}",
        "cost_ms": 4,
        "success": True,
        "offset_msg_id": "",
        **more,
    }
    return Pub(
        at,
        "",
        "shop",
        topic,
        msg_id,
        given["tags"],
        given["keys"],
        "127.0.0.1:10911",
        10,
        given["cost_ms"],
        kind,
        given["offset_msg_id"],
        given["success"],
    )


def consumed(
    msg_id: str, at: int, group: str = "billing", cost_ms: int = 5, retry: int = 0
) -> list[SubBefore | SubAfter]:
    request = f"{group}-{msg_id}-{at}"
    return [
        SubBefore(at, "", group, request, msg_id, retry, ""),
        SubAfter(request, msg_id, cost_ms, True, "", Ended.SUCCESS, at + cost_ms, group),
    ]


def test_a_trace_report(spark: SparkSession, rocketmq: Cluster, run: RunPipeline, tmp_path: Path) -> None:
    """Real traces of a producer and a consumer that fails once; and beside them what takes too long to happen here."""
    handled: list[str] = []

    def handler(message: ReceivedMessage) -> None:
        handled.append(message.keys)
        if message.keys == "bad" and handled.count("bad") == 1:
            raise ValueError("not yet")

    rocketmq.create_topic("real", queues=1)
    consumer = rocketmq.push_consumer("readers", trace=True)
    consumer.subscribe("real", "*", handler)
    with consumer:
        with rocketmq.producer("writers", trace=True) as producer:
            for number in range(20):
                producer.send(Message("real", b"%d" % number, keys="bad" if number == 7 else NASTY))
        rocketmq.wait_until_consumed("readers", "real")
        rocketmq.advance_until(lambda: handled.count("bad") == 2, minutes=5)
    with rocketmq.producer("writers", trace=True) as producer:
        producer.send(Message("real", b"too young to be lost"))
    base = 1_700_000_000_000
    made = [
        *(record for n in range(100) for record in (pub(f"A{n}", base + n), *consumed(f"A{n}", base + n + 2 + n))),
        pub("LATE", base + 10, cost_ms=900),
        *consumed("LATE", base + 5_000),
        pub("LOST", base + 20, keys=NASTY),
        pub("OTHER-TAG", base + 20, tags="free"),
        pub("FAILED", base + 20, success=False),
        pub("NOT-YET-SAFE", base + 20, success=False, offset_msg_id="id"),
        pub("DELAYED", base + 20, kind=TracedType.DELAYED),
        pub("ROLLED-BACK", base + 20, kind=TracedType.TRANSACTION_HALF),
        pub("COMMITTED", base + 20, kind=TracedType.TRANSACTION_HALF),
        EndTransaction(base + 50, "", "shop", "orders", "COMMITTED", "paid", "", "", 2, "t", "COMMIT_MESSAGE"),
        pub("RECALLED", base + 20),
        Recall(base + 30, "", "shop", "orders", "RECALLED"),
        pub("BATCH-1,BATCH-2", base + 20),
        *consumed("BATCH-1", base + 25),
        *consumed("BATCH-2", base + 25),
    ]
    # An older client's: it does not say at the end who it was. And what is no trace at all.
    old = "SubBefore|1700000000100|null|old|r9|A1|0|null#SubAfter|r9|A1|7|false|null|2#"
    old = old.replace("|", "\x01").replace("#", "\x02")
    with rocketmq.producer() as producer:
        for body in (encode(made), encode(made[:3]), old.encode(), b"\xff\x00", b"Pub\x01999999999999999999999\x01"):
            producer.send(Message(TRACE_TOPIC, body))

    outcome = run("trace-report", rocketmq, "options.html=page/report.html", "options.slowest=2")

    sends = {row["topic"]: row for row in table(outcome, "sent")}
    assert (sends["real"]["messages"], sends["real"]["failed"], sends["real"]["successRate"]) == (21, 0, 1.0)
    assert (sends["orders"]["messages"], sends["orders"]["failed"]) == (111, 2)
    assert (sends["orders"]["sendP50Ms"], sends["orders"]["sendMaxMs"]) == (4, 900)
    groups = {(row["topic"], row["group"]): row for row in table(outcome, "consumed")}
    real = groups["real", "readers"]
    assert (real["messages"], real["deliveries"], real["failed"], real["unsuccessful"], real["lost"]) == (
        20,
        21,
        1,
        0,
        0,
    )
    billing = groups["orders", "billing"]
    assert (billing["messages"], billing["lost"], billing["successRate"], billing["consumeP50Ms"]) == (103, 3, 1.0, 5)
    assert (billing["waitP50Ms"], billing["waitP99Ms"], billing["waitMaxMs"]) == (49, 99, 4_540)
    old_group = groups["orders", "old"]
    assert (old_group["failed"], old_group["unsuccessful"], old_group["consumeMaxMs"]) == (1, 1, 7)
    lost = rows(spark, tmp_path / "trace-report" / "lost")
    assert {row["msgId"] for row in lost if row["group"] == "billing"} == {"LOST", "NOT-YET-SAFE", "COMMITTED"}
    failed = [
        (row["group"], row["keys"], row["try"], row["reason"], row["succeededLater"])
        for row in table(outcome, "failed deliveries")
    ]
    raised = "the handler raised an exception"
    assert failed == [("readers", "bad", 1, raised, True), ("old", "", 1, raised, False)]
    slowest = [(row["stage"], row["msgId"]) for row in table(outcome, "slowest")]
    assert len(slowest) == 6
    assert {("send", "LATE"), ("wait", "LATE")} <= set(slowest)
    assert outcome.numbers["sent"] == 132
    page = (tmp_path / "page" / "report.html").read_text()
    assert "LOST" in page
    assert raised in page
    assert "<svg" in page
    assert "<script" not in page
    assert "&lt;script&gt;" in page


# --- dead letters


def test_dead_letters_are_sorted_and_driven_again_once(
    spark: SparkSession, rocketmq: Cluster, run: RunPipeline, tmp_path: Path
) -> None:
    def handler(message: ReceivedMessage) -> None:
        raise ValueError("never")

    rocketmq.create_topic("orders", queues=1)
    consumer = rocketmq.push_consumer("billing", max_reconsume_times=1)
    consumer.subscribe("orders", "*", handler)
    with consumer:
        messages = [
            Message(
                "orders", b"order %d" % n, tags="paid" if n % 2 else "free", keys=f"k{n % 3}", properties={"n": str(n)}
            )
            for n in range(6)
        ]
        send(rocketmq, messages)
        rocketmq.advance_until(lambda: len(rocketmq.dead_letters("billing")) == 6, hours=1)

    state = "options.state=state[1]"  # no pattern
    common = (f"sink.nameServer={rocketmq.namesrv}", state, "options.where=tags = 'paid' and value like 'order%'")
    # The pattern matches the retry topic, too: what is there has been tried again, or will be.
    outcome = run(
        "dead-letters", rocketmq, *common, "options.report=report", "source.subscribePattern=(%DLQ%|%RETRY%)billing"
    )
    assert len(rocketmq.messages("%RETRY%billing")) == 6
    assert outcome.numbers == {"deadLetters": 6, "toRedrive": 3}
    (group,) = table(outcome, "dead letters")
    assert (group["group"], group["originalTopic"], group["messages"]) == ("billing", "orders", 6)
    assert (group["mostTries"], group["redrivenBefore"]) == (2, 0)
    assert {(row["tags"], row["count"]) for row in table(outcome, "by tag")} == {("paid", 3), ("free", 3)}
    assert [row["messages"] for row in table(outcome, "keys that")] == [2, 2, 2]
    assert {row["body"] for row in table(outcome, "samples")} <= {f"order {n}" for n in range(6)}
    assert [tuple(row.values()) for row in table(outcome, "a re-drive would")] == [("billing", "orders", 3)]
    assert rows(spark, tmp_path / "report" / "groups")[0]["messages"] == 6
    assert len(rocketmq.messages("orders")) == 6

    def again() -> list[ReceivedMessage]:
        return [message for message in rocketmq.messages("orders") if "REDRIVEN_ID" in message.properties]

    redrive = (*common, "options.redrive=true")
    assert run("dead-letters", rocketmq, *redrive).numbers == {"deadLetters": 6, "redriven": 3}
    assert sorted((message.body, message.tags, message.keys) for message in again()) == [
        (b"order 1", "paid", "k1"),
        (b"order 3", "paid", "k0"),
        (b"order 5", "paid", "k2"),
    ]
    first = min(again(), key=lambda message: message.body)
    assert first.properties["n"] == "1"
    assert (first.properties["REDRIVEN_FROM"], first.properties["REDRIVEN_TIMES"]) == ("%DLQ%billing", "1")
    assert "RETRY_TOPIC" not in first.properties
    assert "DELAY" not in first.properties

    # As if the run had died after sending, before it could note that: the next one ends it and sends nothing twice.
    shutil.rmtree(tmp_path / "state[1]" / "driven")
    assert run("dead-letters", rocketmq, *redrive).numbers == {"deadLetters": 6, "redriven": 0, "earlierRunsEnded": 1}
    assert len(again()) == 3
    assert run("dead-letters", rocketmq, *redrive[:2], "options.redrive=true").numbers["redriven"] == 3
    assert len(again()) == 6
    with pytest.raises(
        ConfigError, match=r"orders has no dead letters; those of the group billing are in %DLQ%billing"
    ):
        run("dead-letters", rocketmq, "source.subscribe=orders", "source.subscribePattern=")
    assign = '{"%RETRY%billing": {"broker-a": [0]}}'
    with pytest.raises(ConfigError, match=r"source\.assign: %RETRY%billing has no dead letters"):
        run("dead-letters", rocketmq, f"source.assign='{assign}'", "source.subscribePattern=")
    with pytest.raises(ConfigError, match=r"options\.where is 'colour = 1'"):
        run("dead-letters", rocketmq, "options.where=colour = 1")


def test_a_letter_of_a_store_that_was_made_anew_is_another(spark: SparkSession) -> None:
    """It may lie at the very offset of one that was driven again before."""
    day = datetime(2026, 1, 1, tzinfo=UTC)
    letter = {"topic": "%DLQ%billing", "commitLogOffset": 0, "storeHost": "10.0.0.1:10911", "properties": {}}
    stored = [{**letter, "storeTimestamp": day + timedelta(milliseconds=ms)} for ms in (0, 1, 0)]
    messages = spark.createDataFrame(stored, table_schema(PropertiesAs.MAP, metadata=True))
    first, later, same = (row.id for row in dead_letters.letters(with_text(messages), 0).collect())
    assert first == same != later


# --- audit


def test_charts_show_every_hour_of_a_table_that_is_too_long_to_keep(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "MAX_KEPT", 3)
    counts = [(f"2026-01-01 {hour:02}:00:00", queue, hour + 1) for hour in range(4) for queue in range(2)]
    table = spark.createDataFrame(counts, "hour string, queueId int, waiting long")
    section = reports.Section("hours", "hours", table.withColumn("hour", table.hour.cast("timestamp")).orderBy("hour"))
    (kept,) = reports.kept([section], None)
    assert len(kept.rows) == 3
    assert [(point.at_ms % 86_400_000 // 3_600_000, point.value) for point in audit._by_hour(kept, "waiting")] == [
        (0, 2),
        (1, 4),
        (2, 6),
        (3, 8),
    ]


def test_an_audit_finds_gaps_duplicates_and_lag(
    spark: SparkSession, rocketmq: Cluster, run: RunPipeline, tmp_path: Path
) -> None:
    rocketmq.create_topic("orders", queues=2)
    rocketmq.advance(seconds=HOUR_SECONDS - rocketmq.clock.now_ms() / 1_000 % HOUR_SECONDS)  # none ends while we write
    fill(rocketmq, "orders", numbered(0, 10), queue_id=0)
    rocketmq.advance(hours=1)
    fill(rocketmq, "orders", numbered(10, 15), queue_id=0)
    # Written twice under one name: the second time every row is there already.
    twice = spark.range(3).selectExpr("cast(id as string) as body", f"'{BROKER}' as brokerName", "1 as queueId")
    for _ in range(2):
        options = {"nameServer": rocketmq.namesrv, "topic": "orders", "jobId": "twice"}
        twice.coalesce(1).write.format("rocketmq").options(**options).mode("append").save()
    offsets = rocketmq.brokers[0].broker.offsets
    offsets.commit("billing", "orders", 0, 12)
    offsets.commit("billing", "orders", 1, 6)
    offsets.commit("shipping", "orders", 0, 4)

    outcome = run("audit", rocketmq)
    assert {
        name: outcome.numbers[name] for name in ("queues", "groups", "produced", "missing", "duplicates", "lag")
    } == {
        "queues": 2,
        "groups": 2,
        "produced": 21,
        "missing": 0,
        "duplicates": 3,
        "lag": 3 + 0 + 11 + 6,
    }
    assert outcome.numbers["missed"] == 0
    lag = {(row["group"], row["queueId"]): row for row in table(outcome, "lag")}
    assert (lag["billing", 0]["committed"], lag["billing", 0]["maxOffset"], lag["billing", 0]["lag"]) == (12, 15, 3)
    assert (lag["billing", 1]["lag"], lag["billing", 1]["oldestWaiting"]) == (0, None)
    assert (lag["shipping", 1]["committed"], lag["shipping", 1]["lag"]) == (0, 6)
    stored = rocketmq.messages("orders")
    assert lag["shipping", 0]["oldestWaiting"] < lag["billing", 0]["oldestWaiting"]
    hours = [(row["produced"], row["consumed"]) for row in table(outcome, "produced and") if row["group"] == "billing"]
    assert sorted(hours) == [(5, 2), (6, 6), (10, 10)]
    copies = rows(spark, tmp_path / "audit" / "duplicates")
    assert {(row["copies"], row["places"]) for row in copies} == {
        (2, f"{BROKER}/1/{n}, {BROKER}/1/{n + 3}") for n in range(3)
    }
    assert "<svg" in (tmp_path / "audit.html").read_text()
    assert len(stored) == 21

    read = spark.read.format("rocketmq").options(nameServer=rocketmq.namesrv, subscribe="orders").load()
    ranges = spark.createDataFrame([("orders", BROKER, 0, 0, 15), ("orders", BROKER, 1, 0, 6)], audit.RANGES)
    left = read.where("NOT (queueId = 0 AND (queueOffset < 2 OR queueOffset IN (5, 6, 14)))")
    gaps = [(row.queueId, row.firstMissing, row.lastMissing) for row in audit.gap_table(left, ranges).collect()]
    assert sorted(gaps) == [(0, 0, 1), (0, 5, 6), (0, 14, 14)]
    with pytest.raises(ConfigError, match="what a filter skips would be a gap"):
        run("audit", rocketmq, "source.subExpression=a")
