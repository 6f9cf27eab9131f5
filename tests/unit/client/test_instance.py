"""A client as its brokers see it."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import os
import re

import pytest

from cosmodrome.client.instance import HEARTBEAT_MIN_DISTANCE_MS, Instance, client_id, local_ip
from cosmodrome.client.lifecycle import cancelled
from cosmodrome.codes import RequestCode
from cosmodrome.config import ClientConfig
from cosmodrome.errors import BrokerError, CallTimeout, ClientError, ConnectionFailed
from cosmodrome.net.connection import Connection
from cosmodrome.testing import FakeClock
from cosmodrome.wire.bodies import HeartbeatData
from cosmodrome.wire.command import Command
from tests.unit.client.fake_cluster import FakeCluster, fake_cluster


def test_the_default_instance_gets_a_name_of_its_own() -> None:
    assert re.fullmatch(rf"10\.0\.0\.1@{os.getpid()}#\d+", client_id("10.0.0.1", ClientConfig()))


def test_a_name_and_a_unit_that_were_given_are_kept() -> None:
    config = ClientConfig(instance_name="blue", unit_name="u1")
    assert client_id("10.0.0.1", config) == "10.0.0.1@blue@u1"


def test_a_role_is_one_clients_alone_until_that_is_gone() -> None:
    config = ClientConfig(namesrv="127.0.0.1:9876", instance_name="green")
    first, second = (Instance(config, FakeClock(), HeartbeatData) for _ in range(2))
    first.claim("producer group g")
    first.claim("producer group g")
    second.claim("producer group h")
    with pytest.raises(ClientError, match=r"producer group g: another one with the client id .*@green"):
        second.claim("producer group g")
    del first  # as when its event loop ended before it was stopped
    gc.collect()
    second.claim("producer group g")


def test_a_role_may_not_stand_beside_others() -> None:
    config = ClientConfig(namesrv="127.0.0.1:9876", instance_name="red")
    first, second = (Instance(config, FakeClock(), HeartbeatData) for _ in range(2))
    stranger = Instance(ClientConfig(namesrv="127.0.0.1:9876", instance_name="pink"), FakeClock(), HeartbeatData)
    first.claim("producer group g", not_beside="answers")
    first.claim("answers", not_beside="producer group")
    with pytest.raises(ClientError, match=r"producer group h beside answers: another one with the client id .*@red"):
        second.claim("producer group h", not_beside="answers")
    stranger.claim("producer group h", not_beside="answers")
    del first
    gc.collect()
    second.claim("producer group h", not_beside="answers")


def test_the_local_address_is_an_ipv4_address() -> None:
    assert ipaddress.ip_address(local_ip()).version == 4


def instance_of(cluster: FakeCluster, clock: FakeClock) -> Instance:
    return Instance(ClientConfig(namesrv=cluster.namesrv), clock, HeartbeatData)


async def until_beats(cluster: FakeCluster, clock: FakeClock, count: int) -> None:
    beats = asyncio.create_task(cluster.broker.asked.wait_for(RequestCode.HEART_BEAT, count))
    while not beats.done():
        await clock.advance(HEARTBEAT_MIN_DISTANCE_MS)
        await asyncio.sleep(0.001)
    await beats


async def test_a_heartbeat_that_failed_is_repeated_within_a_second() -> None:
    clock = FakeClock()
    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers[RequestCode.HEART_BEAT] = lambda command: command.reply(1, remark="starting")
        instance = instance_of(cluster, clock)
        instance.start()
        await instance.routes.topic("T")
        began_ms = clock.now_ms()
        await until_beats(cluster, clock, 5)
        assert clock.now_ms() - began_ms < 30_000
        await instance.stop()


async def test_a_broker_that_drops_every_connection_is_not_called_without_a_pause() -> None:
    clock = FakeClock()
    async with fake_cluster(T=1) as cluster:

        def drop(_command: Command) -> None:
            for connection in list(cluster.broker.connections):
                connection.abort()

        cluster.broker.answers[RequestCode.HEART_BEAT] = drop
        instance = instance_of(cluster, clock)
        instance.start()
        await instance.routes.topic("T")
        await cluster.broker.asked.wait_for(RequestCode.HEART_BEAT)
        for _ in range(20):
            await asyncio.sleep(0.001)  # time enough for many, but the clock stands still
        assert cluster.broker.asked.count(RequestCode.HEART_BEAT) == 1
        await until_beats(cluster, clock, 2)
        await instance.stop()


async def test_what_brokers_ask_is_answered_by_its_handler_and_errors_stay_polite() -> None:
    async with fake_cluster(T=1) as cluster:
        instance = instance_of(cluster, FakeClock())

        async def greet(_connection: Connection, command: Command) -> Command:
            return command.reply(remark="hello")

        async def fail(_connection: Connection, _command: Command) -> Command:
            raise RuntimeError("secret")

        instance.handlers[307] = greet
        instance.handlers[309] = fail
        instance.start()
        await instance.routes.topic("T")
        await instance.heartbeat()
        (connection,) = cluster.broker.connections
        assert (await connection.call(Command.request(307), 1_000)).remark == "hello"
        failed = await connection.call(Command.request(309), 1_000)
        assert (failed.code, "secret" in (failed.remark or "")) == (1, False)
        await instance.stop()


async def test_goodbye_is_said_when_heartbeats_are_answered() -> None:
    """Whoever waits for the heartbeat may be cancelled: a broker with threads may handle it last all the same."""
    async with fake_cluster(T=1) as cluster:
        instance = instance_of(cluster, FakeClock())
        cluster.broker.answers[RequestCode.HEART_BEAT] = lambda _: None
        await instance.routes.topic("T")
        beating = asyncio.create_task(instance.heartbeat())
        (heartbeat,) = await cluster.broker.asked.wait_for(RequestCode.HEART_BEAT)
        await cancelled([beating])
        stopping = asyncio.create_task(instance.stop(producer_group="g"))
        await asyncio.wait([stopping], timeout=0.1)
        assert cluster.broker.asked.count(RequestCode.UNREGISTER_CLIENT) == 0
        (connection,) = cluster.broker.connections
        connection.send(heartbeat.reply())
        await stopping
        assert cluster.broker.asked.count(RequestCode.UNREGISTER_CLIENT) == 1


async def test_a_broker_is_told_of_the_client_once_until_its_connection_is_lost() -> None:
    async with fake_cluster("a", "b", T=1) as cluster:
        instance = instance_of(cluster, FakeClock())
        await instance.routes.topic("T")

        async def announced(name: str) -> int:
            await instance.announced(instance.master(name), 5_000)
            return cluster.named(name).asked.count(RequestCode.HEART_BEAT)

        assert [await announced("a") for _ in range(3)] == [1, 1, 1]
        assert cluster.named("b").asked.count(RequestCode.HEART_BEAT) == 0
        await announced("b")
        for connection in list(cluster.named("a").connections):
            connection.abort()
        async with asyncio.timeout(30):
            while instance.master("a") in instance.caller.connected():  # noqa: ASYNC110  # nothing tells
                await asyncio.sleep(0.001)
        assert (await announced("a"), await announced("b")) == (2, 1)
        await instance.stop()


async def test_a_broker_that_cannot_be_told_is_an_error_in_time() -> None:
    async with fake_cluster(T=1) as cluster:
        instance = instance_of(cluster, FakeClock())
        await instance.routes.topic("T")
        cluster.broker.silent = True
        with pytest.raises(CallTimeout, match="did not answer"):
            await instance.announced(instance.master("broker-a"), 50)
        cluster.broker.silent = False
        await instance.stop()


async def test_a_refusal_and_a_broker_nobody_knows_are_errors_that_say_so() -> None:
    async with fake_cluster(T=1) as cluster:
        instance = instance_of(cluster, FakeClock())
        await instance.routes.topic("T")
        with pytest.raises(BrokerError, match="answered 3"):
            await instance.ask(instance.master("broker-a"), Command.request(9_999))
        assert instance.member("broker-a") == instance.master("broker-a")
        for find in (instance.master, instance.member):
            with pytest.raises(ConnectionFailed, match="nowhere"):
                find("nowhere")
        await instance.stop()
