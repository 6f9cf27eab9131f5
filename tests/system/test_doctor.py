"""`cosmodrome doctor` on live clusters: each finding is caused for real, and a sound cluster has none."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from click.testing import CliRunner

import cosmodrome.testing
from cosmodrome import AclHook, Message, TransactionProducer, TransactionState
from cosmodrome.admin.doctor import Diagnosis, Severity, Sure, diagnose
from cosmodrome.admin.door import Admin
from cosmodrome.broker.broker import Broker
from cosmodrome.cli.main import main
from cosmodrome.client.process_queue import CacheLimits
from cosmodrome.codes import RequestCode
from cosmodrome.config import BrokerConfig, BrokerRole, ReplicationConfig, SecurityConfig
from cosmodrome.errors import RetryLater
from cosmodrome.model import CHECK_MAX_TIME_TOPIC, ConsumeFrom, MessageQueue
from cosmodrome.net.caller import Caller
from cosmodrome.testing.cluster import AsyncCluster
from cosmodrome.testing.daemons import SMALL_STORE, running, running_broker, running_name_server
from cosmodrome.wire.bodies import LockBatch
from cosmodrome.wire.command import Command
from cosmodrome.wire.name_server_requests import DeleteTopicInNameServer

FIRST = ConsumeFrom.FIRST_OFFSET
PATIENCE_SECONDS = 30


async def diagnosis(namesrv: str, *, sample_seconds: float = 0) -> Diagnosis:
    async with Admin(namesrv) as admin:
        return await admin.diagnose(sample_seconds=sample_seconds)


async def found(namesrv: str, *, sample_seconds: float = 0) -> dict[str, str]:
    """Return the names of the findings and their subjects."""
    return {one.name: one.subject for one in (await diagnosis(namesrv, sample_seconds=sample_seconds)).findings}


async def until_found(namesrv: str, name: str) -> str:
    """Look until there is such a finding; return its subject."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while name not in (names := await found(namesrv)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return names[name]


async def send(cluster: AsyncCluster, topic: str, count: int) -> None:
    async with cluster.producer() as producer:
        for number in range(count):
            await producer.send(Message(topic, b"number %d" % number))


async def commit(cluster: AsyncCluster, group: str, topic: str, **options: object) -> None:
    """Let a group consume what there is, and leave."""
    seen: list[bytes] = []
    consumer = cluster.push_consumer(group, consume_from=FIRST, **options)
    consumer.subscribe(topic, "*", lambda message: seen.append(message.body))
    async with consumer:
        await cluster.wait_until_consumed(group, topic)


def test_a_sound_cluster_has_no_findings_and_exit_code_0() -> None:
    with cosmodrome.testing.cluster(brokers=2) as cluster:
        with cluster.producer() as producer:
            producer.send(Message("orders", b"1"))
        done = CliRunner().invoke(main, ["doctor", "--sample", "0", "-n", cluster.namesrv])
        assert (done.exit_code, done.output.startswith("all is well: 2 brokers, ")) == (0, True), done.output
        as_json = CliRunner().invoke(main, ["doctor", "--sample", "0", "-o", "json", "-n", cluster.namesrv])
        assert json.loads(as_json.output) == []


def test_a_finding_says_what_it_means_and_what_mends_it_with_exit_code_1() -> None:
    with cosmodrome.testing.cluster() as cluster:
        with cluster.producer() as producer:
            producer.send(Message("orders", b"1"))
        consumer = cluster.push_consumer("billing", consume_from=FIRST)
        consumer.subscribe("orders", "*", lambda message: None)
        with consumer:
            cluster.wait_until_consumed("billing", "orders")
        with cluster.producer() as producer:
            for _ in range(5):
                producer.send(Message("orders", b"2"))
        done = CliRunner().invoke(main, ["doctor", "--sample", "0", "-n", cluster.namesrv])
        assert done.exit_code == 1
        assert "WARNING group-without-members: group billing (certain)\n  5 messages wait for it" in done.output
        assert "To mend: start a consumer of the group" in done.output
        rows = json.loads(CliRunner().invoke(main, ["doctor", "-o", "json", "-n", cluster.namesrv]).output)
        assert [row["name"] for row in rows] == ["group-without-members"]
        assert set(rows[0]) == {"severity", "name", "subject", "sure", "seen", "means", "mend"}
        other = CliRunner().invoke(main, ["doctor", "--only", "no-route", "--sample", "0", "-n", cluster.namesrv])
        assert (other.exit_code, other.output.startswith("all is well")) == (0, True)


async def test_topics_without_a_route() -> None:
    async with cosmodrome.testing.cluster(auto_create_topics=False) as cluster:
        await cluster.create_topic("orders")
        await cluster.create_topic("lost")
        caller = Caller()
        request = Command.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicInNameServer("lost"))
        await caller.call(cluster.namesrv, request, 3_000)
        await caller.close()
        assert (await found(cluster.namesrv))["no-route"] == "topic lost"
        consumer = cluster.push_consumer("billing")
        consumer.subscribe("orders", "*", lambda message: None)
        consumer.subscribe("missing", "*", lambda message: None)
        async with consumer:
            await cluster.advance(seconds=10)
            subjects = {one.subject for one in (await diagnosis(cluster.namesrv)).findings if one.name == "no-route"}
        assert subjects == {"topic missing"}, "the broker has registered the other again"


async def test_a_broker_that_does_not_answer_and_one_behind_nat(tmp_path: Path) -> None:
    async with running_name_server() as name_server:
        config = BrokerConfig(broker_name="broker-a", broker_ip1="127.0.0.77")
        async with running_broker(tmp_path / "a", name_server.address, config):
            one = next(one for one in (await diagnosis(name_server.address)).findings if one.name == "behind-nat")
            assert (one.severity, one.sure) == (Severity.ERROR, Sure.CERTAIN)
            assert "127.0.0.77" in one.subject
            assert "brokerIP1=127.0.0.1" in one.mend
        assert (await found(name_server.address))["no-brokers"] == "cluster"
        config = BrokerConfig(broker_name="broker-b", broker_ip1="127.0.0.77", bind_address="127.0.0.5")
        async with running_broker(tmp_path / "b", name_server.address, config):
            findings = (await diagnosis(name_server.address)).findings
            one = next(one for one in findings if one.subject.startswith("broker"))
            assert one.name == "broker-unreachable"
            assert "nobody elsewhere reaches it" in one.means


async def test_a_name_server_that_does_not_answer() -> None:
    async with cosmodrome.testing.cluster() as cluster:
        names = await found(f"{cluster.namesrv};127.0.0.1:1")
        assert names == {"name-server-silent": "name server 127.0.0.1:1"}


async def test_two_masters_of_one_name(tmp_path: Path) -> None:
    async with running_name_server() as one, running_name_server() as other:
        config = BrokerConfig(broker_name="broker-a")
        async with (
            running_broker(tmp_path / "1", one.address, config),
            running_broker(tmp_path / "2", other.address, config),
        ):
            assert (await found(f"{one.address};{other.address}"))["two-masters"] == "broker broker-a"


async def test_a_clock_that_is_ahead() -> None:
    async with cosmodrome.testing.cluster() as cluster:
        assert "clock-skew" not in await found(cluster.namesrv)
        await cluster.advance(minutes=10)
        one = next(one for one in (await diagnosis(cluster.namesrv)).findings if one.name == "clock-skew")
        assert "ahead of the one here" in one.seen


@asynccontextmanager
async def with_disk(folder: Path, used: float) -> AsyncIterator[str]:
    """A broker on a disk that is used so far; yields the name server."""
    async with running_name_server() as name_server:
        config = BrokerConfig(broker_name="broker-a", namesrv_addr=name_server.address, listen_port=0)
        store = dataclasses.replace(SMALL_STORE, store_path_root_dir=str(folder))
        broker = Broker(config, store, used=lambda _path: used)
        await broker.start()
        async with running(broker.run):
            yield name_server.address


async def test_a_disk_near_its_limits_and_one_that_is_full(tmp_path: Path) -> None:
    async with with_disk(tmp_path / "near", 0.72) as namesrv:
        assert (await found(namesrv))["disk-near-limit"] == "broker broker-a"
    async with with_disk(tmp_path / "full", 0.93) as namesrv:
        assert (await found(namesrv))["disk-full"] == "broker broker-a"


async def test_a_sync_master_without_a_slave(tmp_path: Path) -> None:
    replication = ReplicationConfig(broker_role=BrokerRole.SYNC_MASTER, ha_listen_port=0)
    async with (
        running_name_server() as name_server,
        running_broker(tmp_path, name_server.address, replication=replication),
    ):
        assert (await found(name_server.address))["sync-master-without-slave"] == "broker broker-a"


async def test_acl_on_one_of_two_brokers_and_a_broker_that_refuses(tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text("accounts:\n- accessKey: operator\n  secretKey: hunter2-of-all\n  admin: true\n")
    accounts.chmod(0o600)
    security = SecurityConfig(
        acl_enable=True,
        acl_file=str(accounts),
        inner_client_authentication_credentials='{"accessKey": "operator", "secretKey": "hunter2-of-all"}',
    )
    async with running_name_server() as name_server, running_broker(tmp_path / "open", name_server.address):
        config = BrokerConfig(broker_name="broker-b", namesrv_addr=name_server.address, listen_port=0)
        store = dataclasses.replace(SMALL_STORE, store_path_root_dir=str(tmp_path / "closed"))
        replication = ReplicationConfig(ha_listen_port=0)
        broker = Broker(config, store, replication=replication, security=security)
        await broker.start()
        async with running(broker.run):
            assert (await found(name_server.address))["broker-refuses"].startswith("broker broker-b")
            async with Admin(name_server.address, rpc_hooks=[AclHook("operator", "hunter2-of-all")]) as admin:
                findings = (await admin.diagnose(sample_seconds=0)).findings
    one = next(one for one in findings if one.name == "acl-half-enabled")
    assert one.seen == "aclEnable is true on broker broker-b and not on broker broker-a."


async def test_members_that_subscribe_to_different_things_and_more_members_than_queues() -> None:
    async with cosmodrome.testing.cluster() as cluster:
        await cluster.create_topic("orders", queues=1)
        await cluster.create_topic("refunds", queues=1)
        await send(cluster, "orders", 1)
        await commit(cluster, "billing", "orders")
        one, other = cluster.push_consumer("billing"), cluster.push_consumer("billing")
        one.subscribe("orders", "*", lambda message: None)
        other.subscribe("refunds", "*", lambda message: None)
        async with one, other:
            await cluster.advance(seconds=2)
            names = await found(cluster.namesrv)
        assert names["inconsistent-subscriptions"] == "group billing"
        same = [cluster.push_consumer("billing") for _ in range(2)]
        for member in same:
            member.subscribe("orders", "*", lambda message: None)
        async with same[0], same[1]:
            await cluster.advance(seconds=2)
            names = await found(cluster.namesrv)
        assert names == {"more-members-than-queues": "group billing"}


async def test_a_group_that_falls_back_and_a_queue_that_is_held() -> None:
    go_on = asyncio.Event()

    async def hang(_message: object) -> None:
        await go_on.wait()

    async with cosmodrome.testing.cluster() as cluster:
        await cluster.create_topic("orders", queues=1)
        await send(cluster, "orders", 1)
        await commit(cluster, "billing", "orders")
        consumer = cluster.push_consumer("billing", limits=CacheLimits(max_messages=10), pull_batch=5)
        consumer.subscribe("orders", "*", hang)
        async with consumer:
            await send(cluster, "orders", 60)
            await until_found(cluster.namesrv, "queue-held")
            async with Admin(cluster.namesrv) as admin:
                look = asyncio.create_task(admin.facts(sample_seconds=1.0))
                await asyncio.sleep(0.3)
                await send(cluster, "orders", 60)
                names = {one.name: one for one in diagnose(await look).findings}
            go_on.set()
        assert names["lag-growing"].subject == "group billing"
        assert names["queue-held"].sure is Sure.CERTAIN


async def test_an_orderly_lock_that_another_client_keeps() -> None:
    async with cosmodrome.testing.cluster() as cluster:
        await cluster.create_topic("orders", queues=1)
        await send(cluster, "orders", 1)
        await commit(cluster, "billing", "orders", orderly=True)
        await send(cluster, "orders", 5)
        caller = Caller()
        body = LockBatch("billing", "gone", (MessageQueue("orders", "broker-a", 0),)).encode()
        await caller.call(cluster.brokers[0].address, Command.request(RequestCode.LOCK_BATCH_MQ, body=body), 3_000)
        await caller.close()
        consumer = cluster.push_consumer("billing", orderly=True)
        consumer.subscribe("orders", "*", lambda message: None)
        async with consumer:
            assert await until_found(cluster.namesrv, "orderly-lock-stuck") == "group billing"


async def test_dead_letters_and_transactions_that_never_end() -> None:
    async with cosmodrome.testing.cluster(config={"transactionTimeOut": 1_000}) as cluster:

        def refuse(_message: object) -> None:
            raise RetryLater("no", delay_level=-1)

        await send(cluster, "orders", 1)
        consumer = cluster.push_consumer("billing", consume_from=FIRST)
        consumer.subscribe("orders", "*", refuse)
        async with consumer:
            await until_found(cluster.namesrv, "dead-letters")
        producer = cluster.client(TransactionProducer, "payments", check=lambda message: TransactionState.UNKNOWN)
        async with producer:
            await producer.send_in_transaction(Message("orders", b"half"), lambda message: TransactionState.UNKNOWN)
            await cluster.advance(hours=1)
        assert await cluster.messages(CHECK_MAX_TIME_TOPIC)
        names = await found(cluster.namesrv)
        assert names["dead-letters"] == "group billing"
        assert names["transactions-never-ended"] == f"topic {CHECK_MAX_TIME_TOPIC}"


async def test_a_store_whose_bytes_changed(tmp_path: Path) -> None:
    async with cosmodrome.testing.cluster(data_dir=tmp_path) as cluster:
        async with cluster.producer() as producer:
            await producer.send(Message("orders", b"number 1", delay_level=3))
        assert "store-not-sound" not in await found(cluster.namesrv)
        path = cluster.brokers[0].broker.store.paths.commit_log / f"{0:020d}"
        with path.open("r+b") as file:
            file.seek(path.read_bytes().index(b"number 1"))
            file.write(b"n")
            file.write(b"U")
        await cluster.advance(seconds=11)
        assert await until_found(cluster.namesrv, "store-not-sound") == "broker broker-a"
