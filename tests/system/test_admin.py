"""`cosmodrome.admin.Admin` against live brokers: what it reads, and what it says when a broker is away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from cosmodrome import Message, Producer, PullConsumer
from cosmodrome.admin import Admin, BlockingAdmin, BrokerNode, to_json
from cosmodrome.cli.main import main
from cosmodrome.codes import RequestCode
from cosmodrome.errors import InvalidArgument, RouteNotFound
from cosmodrome.model import DataVersion, MessageQueue, TopicConfig
from cosmodrome.wire.bodies import RegisterBrokerBody
from cosmodrome.wire.name_server_requests import RegisterBroker
from tests.system.cluster import Cluster, running_cluster

TOPIC, GROUP = "orders", "billing"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as made:
        yield made


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[Admin]:
    async with Admin(cluster.namesrv) as made:
        yield made


async def filled(cluster: Cluster) -> None:
    """Create the topic, send one message to each queue, and consume the first queue of broker-a."""
    async with Producer(group="orders-app", namesrv=cluster.namesrv) as producer:
        await producer.create_topic(TOPIC, 2)
        for name in ("broker-a", "broker-b"):
            for queue_id in range(2):
                await producer.send(Message(TOPIC, b"1"), queue=MessageQueue(TOPIC, name, queue_id))
    async with PullConsumer(GROUP, cluster.namesrv) as consumer:
        await consumer.fetch_subscribe_queues(TOPIC)
        consumer.update_consume_offset(MessageQueue(TOPIC, "broker-a", 0), 1)


async def test_the_cluster_names_every_broker(cluster: Cluster, admin: Admin) -> None:
    nodes = (await admin.cluster()).brokers
    assert [(node.cluster, node.broker_name, node.broker_id) for node in nodes] == [
        ("DefaultCluster", "broker-a", 0),
        ("DefaultCluster", "broker-b", 0),
    ]
    assert await admin.targets("broker-b") == (nodes[1],)
    assert await admin.targets(nodes[1].address) == (nodes[1],)
    assert await admin.targets(cluster="DefaultCluster") == nodes
    with pytest.raises(InvalidArgument, match="no broker broker-c; the name server knows broker-a, broker-b"):
        await admin.targets("broker-c")
    with pytest.raises(InvalidArgument, match="no cluster C; the name server knows DefaultCluster"):
        await admin.targets(cluster="C")


async def test_topics_are_listed_with_their_routes_configs_and_offsets(cluster: Cluster, admin: Admin) -> None:
    await filled(cluster)
    assert TOPIC in await admin.topic_names()
    assert TOPIC in await admin.topic_names("DefaultCluster")
    assert [queue.broker_name for queue in (await admin.topic_route(TOPIC)).queues] == ["broker-a", "broker-b"]
    configs = await admin.topic_configs()
    assert [(one.node.broker_name, one.config.read_queues) for one in configs.topics if one.config.name == TOPIC] == [
        ("broker-a", 2),
        ("broker-b", 2),
    ]
    status = await admin.topic_status(TOPIC)
    assert [(one.broker_name, one.queue_id, one.min_offset, one.max_offset) for one in status.queues] == [
        (name, queue_id, 0, 1) for name in ("broker-a", "broker-b") for queue_id in range(2)
    ]
    with pytest.raises(RouteNotFound):
        await admin.topic_route("nobody-made-it")


async def test_the_progress_of_a_group_and_of_all(cluster: Cluster, admin: Admin) -> None:
    await filled(cluster)
    progress = await admin.group_progress(GROUP)
    assert [(one.broker_name, one.queue_id, one.lag) for one in progress.queues] == [
        ("broker-a", 0, 0),
        ("broker-a", 1, 1),
    ]
    everything = await admin.all_progress()
    assert [one.group for one in everything.groups] == [GROUP]
    assert everything.groups[0].queues == progress.queues
    assert to_json(everything)["groups"][0]["lag"] == 1
    assert GROUP in {one.config.name for one in (await admin.group_configs()).groups}


async def test_clients_are_listed_once_though_every_broker_sees_them(cluster: Cluster, admin: Admin) -> None:
    async with Producer(group="orders-app", namesrv=cluster.namesrv) as producer:
        await producer.create_topic(TOPIC, 2)
        for name in ("broker-a", "broker-b"):
            await producer.send(Message(TOPIC, b"1"), queue=MessageQueue(TOPIC, name, 0))
        found = await admin.producers("orders-app")
        assert [one.client_id for one in found.clients] == [producer.client_id]
        assert found.clients[0].language == "PYTHON"
        groups = {one.group: one.clients for one in (await admin.all_producers()).groups}
        assert [one.client_id for one in groups["orders-app"]] == [producer.client_id]
    assert (await admin.producers("nobody")).clients == ()
    assert (await admin.consumers("nobody")).clients == ()


async def test_figures_and_settings_come_by_broker(admin: Admin) -> None:
    runtime = await admin.broker_runtime()
    assert [table.node.broker_name for table in runtime.brokers] == ["broker-a", "broker-b"]
    assert all("putTps" in table.values for table in runtime.brokers)
    settings = await admin.broker_config("broker-b")
    assert [table.values["brokerName"] for table in settings.brokers] == ["broker-b"]


async def test_a_broker_that_is_away_is_named_with_the_reason(cluster: Cluster, admin: Admin) -> None:
    away = BrokerNode("DefaultCluster", "broker-z", 0, "127.0.0.1:1")

    async def targets(*_args: object, **_options: object) -> tuple[BrokerNode, ...]:
        return (*(await admin.cluster()).brokers, away)

    admin.targets = targets  # type: ignore[method-assign]
    configs = await admin.topic_configs()
    assert {one.node.broker_name for one in configs.topics} == {"broker-a", "broker-b"}
    (missing,) = configs.unanswered
    assert (missing.broker_name, missing.address) == ("broker-z", "127.0.0.1:1")
    assert "127.0.0.1:1" in missing.reason


async def test_a_verb_prints_what_others_say_and_fails_when_a_broker_is_away(cluster: Cluster, admin: Admin) -> None:
    body = RegisterBrokerBody(DataVersion(1), {"x": TopicConfig("x"), "y": TopicConfig("y")}).encode()
    header = RegisterBroker("broker-z", "127.0.0.1:1", "DefaultCluster", 0)
    (name_server,) = admin._name_servers
    await admin._ask(name_server, RequestCode.REGISTER_BROKER, header, body)
    words = ["admin", "clusterList", "-n", cluster.namesrv, "-o", "json"]
    result = await asyncio.to_thread(CliRunner().invoke, main, words)
    assert result.exit_code == 1
    assert [row["brokerName"] for row in json.loads(result.stdout)] == ["broker-a", "broker-b"]
    assert "no answer from broker-z at 127.0.0.1:1" in result.stderr


def test_the_blocking_face_has_every_method_of_the_async_one() -> None:
    methods = {name for name in dir(Admin) if not name.startswith("_") and name not in ("start", "stop", "running")}
    assert methods <= set(dir(BlockingAdmin))
