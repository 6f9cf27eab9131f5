"""The friendly verbs, as an operator types them, on a live cluster in the test's process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cosmodrome.testing
from cosmodrome import ConsumeFrom, Message
from cosmodrome.cli.main import main
from cosmodrome.errors import RetryLater
from cosmodrome.testing.cluster import Cluster

FIRST = ConsumeFrom.FIRST_OFFSET


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cosmodrome.testing.cluster(brokers=2) as running:
        running.create_topic("orders", queues=2)
        with running.producer() as producer:
            for number in range(12):
                producer.send(Message("orders", b"%d" % number, keys=f"k{number}"))
        consumer = running.push_consumer("billing", consume_from=FIRST)
        consumer.subscribe("orders", "*", lambda message: None)
        with consumer:
            running.wait_until_consumed("billing", "orders")
        with running.producer() as producer:
            for number in range(5):
                producer.send(Message("orders", b"later %d" % number))
        yield running


def typed(cluster: Cluster, *words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(main, [*words, "-n", cluster.namesrv])
    assert done.exit_code == code, done.output
    return done


def listed(cluster: Cluster, *words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(typed(cluster, *words, "-o", "json").stdout)
    return rows


def test_topics_are_listed_and_described(cluster: Cluster) -> None:
    (row,) = listed(cluster, "topics", "list", "^ord", "--stats")
    assert row | {"lastMessage": ""} == {
        "topic": "orders",
        "brokers": ["broker-a", "broker-b"],
        "readQueues": 4,
        "writeQueues": 4,
        "perm": "rw",
        "messages": 17,
        "lastMessage": "",
        "order": False,
        "attributes": {},
    }
    queues = listed(cluster, "topics", "describe", "orders")
    assert sum(queue["messages"] for queue in queues) == 17
    assert {(queue["broker"], queue["queue"]) for queue in queues} == {
        ("broker-a", 0),
        ("broker-a", 1),
        ("broker-b", 0),
        ("broker-b", 1),
    }
    assert [row["topic"] for row in listed(cluster, "topics")] == ["orders"]
    assert "TBW102" in typed(cluster, "topics", "--system").stdout


def test_a_topic_is_created_altered_and_deleted(cluster: Cluster) -> None:
    assert (
        "topic made with 3 queues is on broker-a, broker-b"
        in typed(cluster, "topics", "create", "made", "--queues", "3").stdout
    )
    planned = typed(cluster, "topics", "alter", "made", "--queues", "5", "--perm", "r").stdout
    assert "would change made on broker-a: queues 3 -> 5, perm rw -> r; nothing is done without --yes" in planned
    assert [row["readQueues"] for row in listed(cluster, "topics", "list", "^made$")] == [6]
    typed(cluster, "topics", "alter", "made", "--queues", "5", "--yes")
    assert [row["readQueues"] for row in listed(cluster, "topics", "list", "^made$")] == [10]
    assert "would delete topic made with 0 messages" in typed(cluster, "topics", "delete", "made").stdout
    assert listed(cluster, "topics", "list", "^made$")
    typed(cluster, "topics", "delete", "made", "--yes")
    assert listed(cluster, "topics", "list", "^made$") == []


def test_groups_are_listed_with_their_lag_and_described(cluster: Cluster) -> None:
    (row,) = listed(cluster, "groups", "list", "billing")
    assert (row["lag"], row["topics"], row["members"]) == (5, 1, 0)
    assert row["lagSeconds"] >= 0
    assert listed(cluster, "groups", "--behind", "5") == []
    done = typed(cluster, "groups", "describe", "billing", "--topic", "orders", "-o", "json")
    assert sum(queue["lag"] for queue in json.loads(done.stdout)) == 5
    assert done.stderr == "no member is connected\n"
    assert "no broker knows the group nobody" in typed(cluster, "groups", "describe", "nobody", code=1).stderr


def test_a_group_is_created_altered_and_deleted(cluster: Cluster) -> None:
    typed(cluster, "groups", "create", "shipping", "--retries", "3")
    assert [row["retries"] for row in listed(cluster, "groups", "list", "shipping")] == [3]
    assert (
        "would change shipping on broker-a: retries 3 -> 3, enabled True -> False"
        in typed(cluster, "groups", "alter", "shipping", "--disable").stdout
    )
    typed(cluster, "groups", "alter", "shipping", "--disable", "--yes")
    assert [(row["retries"], row["enabled"]) for row in listed(cluster, "groups", "list", "shipping")] == [(3, False)]
    typed(cluster, "groups", "alter", "shipping", "--enable", "--yes")
    assert (
        "would delete group shipping: 0 members are connected" in typed(cluster, "groups", "delete", "shipping").stdout
    )
    typed(cluster, "groups", "delete", "shipping", "--yes")
    assert listed(cluster, "groups", "list", "shipping") == []


def test_brokers_and_clients(cluster: Cluster) -> None:
    rows = listed(cluster, "brokers")
    assert [(row["broker"], row["id"], row["role"]) for row in rows] == [
        ("broker-a", 0, "ASYNC_MASTER"),
        ("broker-b", 0, "ASYNC_MASTER"),
    ]
    (row,) = listed(cluster, "brokers", "describe", "broker-a", "--match", "^brokerName$")
    assert (row["kind"], row["value"]) == ("setting", "broker-a")
    consumer = cluster.push_consumer("watching")
    consumer.subscribe("orders", "*", lambda message: None)
    with consumer, cluster.producer("selling") as producer:
        producer.send(Message("orders", b"x"))
        found = {(row["kind"], row["group"]) for row in listed(cluster, "clients", "list", "watching|selling")}
    assert found == {("consumer", "watching"), ("producer", "selling")}


def test_a_broker_that_does_not_answer_is_named_with_exit_code_1() -> None:
    with cosmodrome.testing.cluster(brokers=2) as cluster:
        cluster.create_topic("orders", queues=1)

        async def hang() -> None:
            cluster.brokers[1].broker.processors = {}  # every request is refused, as by another program

        cluster._thread.run(hang)
        done = typed(cluster, "topics", code=1)
        assert "orders" in done.stdout
        assert "no answer from broker-b" in done.stderr


def test_dead_letters_are_listed_read_resent_and_exported(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_topic("paid", queues=1)
    is_mended = False
    handled: list[bytes] = []

    def handle(message: Any) -> None:
        if not is_mended:
            raise RetryLater("card declined", delay_level=-1)
        handled.append(message.body)

    with cluster.producer() as producer:
        for number in range(2):
            producer.send(Message("paid", b"%d" % number, keys=f"order-{number}"))
    consumer = cluster.push_consumer("cards", consume_from=FIRST)
    consumer.subscribe("paid", "*", handle)
    with consumer:
        cluster.wait_until(lambda: len(cluster.dead_letters("cards")) == 2)
        assert [(row["group"], row["messages"]) for row in listed(cluster, "dlq")] == [("cards", 2)]
        cluster.wait_until(lambda: len(listed(cluster, "dlq", "read", "cards")) == 2)  # the topic is routed by then
        letters = listed(cluster, "dlq", "read", "cards")
        assert {(row["topic"], row["keys"], row["body"]) for row in letters} == {
            ("paid", "order-0", "0"),
            ("paid", "order-1", "1"),
        }
        planned = listed(cluster, "dlq", "resend", "cards", "--key", "order-1")
        assert [row["outcome"] for row in planned] == ["would resend"]
        is_mended = True
        sent = listed(cluster, "dlq", "resend", "cards", "--key", "order-1", "--yes")
        assert [(row["outcome"], row["topic"]) for row in sent] == [("resent", "paid")]
        cluster.advance(seconds=5)
        cluster.wait_until(lambda: handled == [b"1"])
    file = tmp_path / "letters.jsonl"
    assert "2 dead letters are in" in typed(cluster, "dlq", "export", "cards", str(file)).stdout
    assert {json.loads(line)["body"] for line in file.read_text().splitlines()} == {"0", "1"}


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "list"),
        ("topics", "describe"),
        ("groups", "list"),
        ("groups", "describe"),
        ("groups", "reset"),
        ("brokers", "list"),
        ("brokers", "describe"),
        ("clients", "list"),
        ("dlq", "list"),
        ("dlq", "read"),
        ("dlq", "resend"),
        ("doctor",),
        ("explain",),
        ("context", "list"),
        ("config", "lint"),
    ],
)
def test_each_list_prints_its_schema_without_asking_anybody(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, [*words, "--format", "help"])
    assert (done.exit_code, done.output.startswith("Each ")) == (0, True), done.output


@pytest.mark.parametrize("verb", ["topics", "groups", "dlq", "clients"])
def test_a_wrong_pattern_is_a_usage_error(verb: str) -> None:
    done = CliRunner().invoke(main, [verb, "list", "("])
    assert (done.exit_code, "is no regular expression" in done.output) == (2, True)
