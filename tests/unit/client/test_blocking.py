"""The blocking face: the same client, for threads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import cosmodrome
from cosmodrome import blocking
from cosmodrome.blocking import Message, Producer, PushConsumer
from cosmodrome.errors import ClientError, InvalidMessage
from cosmodrome.model import MessageQueue, ReceivedMessage
from tests.unit.client.fake_cluster import PATIENCE_SECONDS, FakeCluster, fake_cluster


async def test_every_way_of_sending() -> None:
    def use(namesrv: str) -> None:
        with Producer(group="g", namesrv=namesrv) as producer:
            queue = MessageQueue("T", "broker-a", 1)
            assert producer.publish_queues("T")[1] == queue
            assert producer.send(Message("T", b"a"), queue).queue == queue
            assert (
                producer.send(Message("T", b"b"), selector=lambda queues, message, arg: queues[arg], arg=1).queue
                == queue
            )
            assert producer.send_batch([Message("T", b"c"), Message("T", b"d")], queue).queue == queue
            producer.send_oneway(Message("T", b"e"), queue)
            with pytest.raises(InvalidMessage):
                producer.send(Message("T", b""))
        with pytest.raises(ClientError, match="stopped"):
            producer.send(Message("T", b"x"))

    async with fake_cluster(T=2) as cluster:
        await asyncio.to_thread(use, cluster.namesrv)
        assert [one.body for one in cluster.broker.queues["T", 1]] == [b"a", b"b", b"c", b"d", b"e"]


async def test_threads_may_share_a_producer() -> None:
    def use(namesrv: str) -> None:
        with Producer("g", namesrv) as producer, ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda number: producer.send(Message("T", b"%d" % number)), range(200)))

    async with fake_cluster(T=1) as cluster:
        await asyncio.to_thread(use, cluster.namesrv)
        assert {one.body for one in cluster.broker.queues["T", 0]} == {b"%d" % number for number in range(200)}


async def test_a_handler_may_send_what_it_received_onward() -> None:
    def use(cluster: FakeCluster, loop: asyncio.AbstractEventLoop) -> None:
        passed_on, producer = threading.Event(), Producer("g", cluster.namesrv)

        def pass_on(message: ReceivedMessage) -> None:
            producer.send(Message("U", message.body))
            passed_on.set()

        consumer = PushConsumer("c", cluster.namesrv)
        consumer.subscribe("T", "*", pass_on)
        with producer, consumer:
            assert consumer.assigned_queues == [MessageQueue("T", "broker-a", 0)]
            asyncio.run_coroutine_threadsafe(cluster.broker.append("T", 0, b"x"), loop).result(PATIENCE_SECONDS)
            assert passed_on.wait(PATIENCE_SECONDS)

    async with fake_cluster(T=1, U=1) as cluster:
        await asyncio.to_thread(use, cluster, asyncio.get_running_loop())
        assert [one.body for one in cluster.broker.queues["U", 0]] == [b"x"]
        assert cluster.broker.offsets["c", "T", 0] == 1


async def test_a_blocking_call_on_the_clients_own_loop_is_refused_instead_of_hanging() -> None:
    refusals: list[str] = []

    def use(cluster: FakeCluster, loop: asyncio.AbstractEventLoop) -> None:
        refused, producer = threading.Event(), Producer("g", cluster.namesrv)

        async def handler(message: ReceivedMessage) -> None:
            try:
                producer.send(Message("T", b"y"))
            except RuntimeError as error:
                refusals.append(str(error))
                refused.set()

        consumer = PushConsumer("c", cluster.namesrv)
        consumer.subscribe("T", "*", handler)
        with producer, consumer:
            asyncio.run_coroutine_threadsafe(cluster.broker.append("T", 0, b"x"), loop).result(PATIENCE_SECONDS)
            assert refused.wait(PATIENCE_SECONDS)

    async with fake_cluster(T=1) as cluster:
        await asyncio.to_thread(use, cluster, asyncio.get_running_loop())
    assert "would wait for itself" in refusals[0]


def test_a_client_made_before_a_fork_says_so_and_one_made_after_works() -> None:
    script = """
        import os
        from cosmodrome.blocking import Producer
        before = Producer("g", "127.0.0.1:9")
        before.start()
        if os.fork() == 0:
            try:
                before.stop()
            except RuntimeError as error:
                print(error, flush=True)
            with Producer("g", "127.0.0.1:9"):
                print("made after: fine", flush=True)
            os._exit(0)
        os.wait()
        before.stop()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    refusal, after = done.stdout.splitlines()
    assert "create it after the fork" in refusal
    assert after == "made after: fine"


def test_the_names_are_the_same() -> None:
    assert set(blocking.__all__) <= set(cosmodrome.__all__)
    for name in ("Producer", "PushConsumer"):
        methods = {method for method in dir(getattr(cosmodrome, name)) if not method.startswith("_")} - {"running"}
        assert methods == {method for method in dir(getattr(blocking, name)) if not method.startswith("_")}
