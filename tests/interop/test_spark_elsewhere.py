"""Spark in more than one process: executors of their own, and a client that talks to a Spark Connect server."""

from __future__ import annotations

from pathlib import Path

import pytest

from cosmodrome.model import Message, ReceivedMessage
from cosmodrome.testing import Cluster
from cosmodrome.wire.record import SysFlag
from tests.spark.elsewhere import CONNECT, run
from tests.spark.helpers import send

pytestmark = pytest.mark.full

ROWS = 80


def filled(cluster: Cluster, topic: str) -> str:
    """A topic, and three empty ones for its copies."""
    for name in (topic, f"{topic}-table", f"{topic}-stream", f"{topic}-pipeline"):
        cluster.create_topic(name, queues=2)
    messages = [Message(topic, str(number).encode(), keys=f"key-{number}") for number in range(ROWS)]
    send(cluster, messages[:60])
    send(cluster, messages[60:], queue_id=1)
    return topic


def check_copies(cluster: Cluster, topic: str) -> None:
    every = [(number, f"key-{number}") for number in range(ROWS)]
    assert rows(cluster.messages(f"{topic}-table")) == every
    assert rows(written_once(cluster, f"{topic}-stream")) == every


def written_once(cluster: Cluster, topic: str) -> list[ReceivedMessage]:
    """What was a half message and is committed; no half message is left open."""
    messages = cluster.messages(topic)
    assert all(message.sys_flag & SysFlag.COMMIT for message in messages)
    assert len(cluster.brokers[0].broker.transactions) == 0
    return messages


def rows(messages: list[ReceivedMessage]) -> list[tuple[int, str]]:
    return sorted((int(message.body), message.keys) for message in messages)


def test_two_executors_copy_a_table_and_a_stream(rocketmq_session: Cluster, tmp_path: Path) -> None:
    topic = filled(rocketmq_session, "on-executors")
    seen = run("local-cluster[2,1,512]", rocketmq_session.namesrv, topic, str(tmp_path))
    assert seen["tasks"] >= 4
    # The first batch is empty.
    assert seen == {"table": [*range(ROWS)], "tasks": seen["tasks"], "batches": 4, "executors": 2}
    check_copies(rocketmq_session, topic)


def test_a_spark_connect_server_copies_and_takes_commands(rocketmq_session: Cluster, tmp_path: Path) -> None:
    topic = filled(rocketmq_session, "on-connect")
    seen = run(CONNECT, rocketmq_session.namesrv, topic, str(tmp_path))
    assert (seen["table"], seen["batches"]) == ([*range(ROWS)], 4)
    check_copies(rocketmq_session, topic)
    assert seen["sql"] == {"messages": ROWS, "total": sum(range(ROWS))}
    assert (seen["pipeline"]["event"], seen["pipeline"]["rows"]) == ("finished", ROWS)
    even = [(number, f"key-{number}") for number in range(0, ROWS, 2)]
    assert rows(written_once(rocketmq_session, f"{topic}-pipeline")) == even
