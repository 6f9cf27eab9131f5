"""Starting, and going on, with and without a cluster that answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cosmodrome import LitePullConsumer, PushConsumer, blocking
from cosmodrome.client.lite_pull_consumer import CUT_OFF_MS
from cosmodrome.client.reach import START_TIMEOUT_MS
from cosmodrome.codes import RequestCode
from cosmodrome.errors import ClientError, ConnectionFailed
from cosmodrome.net.server import Server
from cosmodrome.testing import FakeClock
from tests.bounded import in_thread
from tests.unit.client.fake_cluster import PATIENCE_SECONDS, FakeCluster, fake_cluster, quick
from tests.unit.client.test_push_consumer import Inbox, consumer_of, turn, until

HEART_BEAT = RequestCode.HEART_BEAT


@asynccontextmanager
async def cluster_to_be() -> AsyncIterator[FakeCluster]:
    """A cluster whose name server does not run yet; `start` begins it at the address that it has already."""
    cluster = FakeCluster(["broker-a"], {"T": 1})
    await cluster.start()
    await cluster._server.close()
    host, _, port = cluster.namesrv.partition(":")
    cluster._server = Server(cluster._handle, host, int(port))
    try:
        yield cluster
    finally:
        await cluster.close()


def push(namesrv: str, **options: Any) -> PushConsumer:
    consumer = PushConsumer("g", config=quick(namesrv), **options)
    consumer.subscribe("T", "*", print)
    return consumer


def lite(namesrv: str, **options: Any) -> LitePullConsumer:
    consumer = LitePullConsumer("g", config=quick(namesrv), **options)
    consumer.subscribe("T")
    return consumer


Make = Callable[..., PushConsumer | LitePullConsumer]
both = pytest.mark.parametrize("make", [push, lite])


async def passing(clock: FakeClock, task: asyncio.Task[Any], step_ms: int = 1_000) -> None:
    """Let the clock run until the task has ended, however it does."""

    async def step() -> None:
        await clock.advance(step_ms)
        await turn()

    await until(task.done, step)


# --- the start


@both
async def test_a_start_that_reaches_no_name_server_fails_in_time_and_says_what_to_do(make: Make) -> None:
    clock = FakeClock()
    async with cluster_to_be() as dead:
        starting = asyncio.create_task(make(dead.namesrv, clock=clock).start())
        began_ms = clock.now_ms()
        await passing(clock, starting)
        with pytest.raises(ConnectionFailed) as failed:
            await starting
        assert START_TIMEOUT_MS <= clock.now_ms() - began_ms <= START_TIMEOUT_MS + 2_000
    assert str(failed.value).startswith(f"{dead.namesrv}: no name server answered within 10000 ms (")
    assert "require_connection=False" in str(failed.value)


@both
async def test_a_name_server_that_takes_connections_and_says_nothing_is_no_answer(make: Make) -> None:
    async def silence(*_: object) -> None:
        await asyncio.Event().wait()

    hung = Server(silence, "127.0.0.1", 0)
    await hung.start()
    with pytest.raises(ConnectionFailed, match="within 50 ms"):
        await make(hung.address, start_timeout_ms=50).start()
    await hung.close()


@both
async def test_a_name_server_that_comes_in_time_is_waited_for(make: Make) -> None:
    clock = FakeClock()
    async with cluster_to_be() as cluster:
        consumer = make(cluster.namesrv, clock=clock, start_timeout_ms=10**9)
        starting = asyncio.create_task(consumer.start())
        await until(lambda: clock.sleepers > 0, turn)
        await cluster._server.start()
        await passing(clock, starting)
        await starting
        assert consumer.assigned_queues
        await consumer.stop()


@both
async def test_a_consumer_that_requires_no_connection_starts_and_is_ready_later(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    async with cluster_to_be() as cluster, make(cluster.namesrv, clock=clock, require_connection=False) as consumer:
        assert "consumer starts without a connection: group=g reason=" in caplog.text
        assert not consumer.healthy
        waiting = asyncio.create_task(consumer.ready(timeout_ms=100))
        await passing(clock, waiting, 50)
        with pytest.raises(
            ClientError, match=f"group g is not ready after 100 ms: no answer from name server {cluster.namesrv}"
        ):
            await waiting
        await cluster._server.start()
        ready = asyncio.create_task(consumer.ready(timeout_ms=10**9))
        await passing(clock, ready)
        await ready
        assert consumer.healthy
        assert consumer.assigned_queues
    assert not consumer.healthy


async def test_a_topic_that_does_not_exist_yet_keeps_no_consumer_from_starting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, inbox = FakeClock(), Inbox()
    async with fake_cluster() as cluster, consumer_of(cluster, inbox, clock=clock) as consumer:
        assert caplog.text.count("topic does not exist, waiting for it: group=g topic=T") == 1
        assert consumer.healthy
        waiting = asyncio.create_task(consumer.ready(timeout_ms=100))
        await passing(clock, waiting, 50)
        with pytest.raises(ClientError, match="no name server knows topic T"):
            await waiting
        cluster.topics["T"] = 1
        ready = asyncio.create_task(consumer.ready(timeout_ms=10**9))
        await passing(clock, ready)
        await ready
        await cluster.broker.append("T", 0, b"x")
        await inbox.wait_for(1)


@both
async def test_a_broker_that_says_nothing_is_named(make: Make) -> None:
    clock = FakeClock()
    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers[HEART_BEAT] = lambda command: command.reply(1, remark="not now")
        async with make(cluster.namesrv, clock=clock) as consumer:
            assert not consumer.healthy
            waiting = asyncio.create_task(consumer.ready(timeout_ms=100))
            await passing(clock, waiting, 50)
            with pytest.raises(ClientError, match="no answer from broker broker-a"):
                await waiting
            del cluster.broker.answers[HEART_BEAT]
            ready = asyncio.create_task(consumer.ready(timeout_ms=10**9))
            await passing(clock, ready)
            await ready
            assert consumer.healthy


async def test_a_broker_that_is_lost_is_noticed() -> None:
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, print) as consumer:
        assert consumer.healthy
        await cluster.broker.close()
        await until(lambda: not consumer.healthy, turn)


# --- going on


async def test_a_poll_says_that_nothing_answers_instead_of_nothing_came() -> None:
    clock = FakeClock()
    async with fake_cluster(T=1) as cluster, lite(cluster.namesrv, clock=clock) as consumer:
        empty = asyncio.create_task(consumer.poll(3 * CUT_OFF_MS))
        await passing(clock, empty)
        assert await empty == [], "the cluster answers, and there are no messages"
        await cluster.broker.close()
        await until(lambda: not consumer.healthy, turn)
        short = asyncio.create_task(consumer.poll(CUT_OFF_MS // 2))
        await passing(clock, short)
        assert await short == [], "it may come back"
        cut_off = asyncio.create_task(consumer.poll(CUT_OFF_MS))
        await passing(clock, cut_off)
        with pytest.raises(ConnectionFailed, match=r"broker broker-a: no answer for .* group g gets no messages"):
            await cut_off


async def test_a_poll_of_a_consumer_that_requires_no_connection_stays_patient() -> None:
    clock = FakeClock()
    async with cluster_to_be() as dead, lite(dead.namesrv, clock=clock, require_connection=False) as consumer:
        polling = asyncio.create_task(consumer.poll(3 * CUT_OFF_MS))
        await passing(clock, polling)
        assert await polling == []


# --- without await


async def test_blocking_consumers_say_the_same() -> None:
    def use(namesrv: str, dead: str) -> None:
        unreachable = blocking.PushConsumer("g", dead, start_timeout_ms=1)
        unreachable.subscribe("T", "*", print)
        with pytest.raises(ConnectionFailed, match="within 1 ms"):
            unreachable.start()
        with pytest.raises(ClientError, match="no subscription"):
            blocking.PushConsumer("g", namesrv).start()
        patient = blocking.LitePullConsumer("g", namesrv)
        patient.subscribe("T")
        with patient:
            patient.ready(PATIENCE_SECONDS * 1_000)
            assert patient.healthy

    async with cluster_to_be() as dead, fake_cluster(T=1) as cluster:
        await in_thread(use, cluster.namesrv, dead.namesrv)


# --- one subscription per topic


@both
async def test_a_second_subscription_to_a_topic_replaces_the_first_only_on_purpose(make: Make) -> None:
    consumer = make("127.0.0.1:1")
    more = ["*"] if isinstance(consumer, LitePullConsumer) else ["*", print]
    with pytest.raises(ClientError, match=r"T is subscribed to already; .* replace=True"):
        consumer.subscribe("T", *more)
    consumer.subscribe("T", *more, replace=True)
    consumer.unsubscribe("T")
    consumer.subscribe("T", *more)
