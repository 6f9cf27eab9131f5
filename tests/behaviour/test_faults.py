"""Brokers that hang, die and come back."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

from cosmodrome import ClientConfig, Message, Producer, ProducerOptions, SendContext
from cosmodrome.errors import SendFailed
from interop.ours import CosmodromeBroker
from tests.behaviour.clusters import BROKER_NAME, Cluster
from tests.behaviour.support import PATIENCE_S, SEND_TIMEOUT_MS, Inbox, bodies, consumer, fresh, until

HUNG = "broker-hung"
TRY_MS = 3_000  # for the one that hangs
TIMEOUT_MS = 60_000  # and for the other, however busy


class Tries:
    """How often each broker was tried."""

    def __init__(self) -> None:
        self.by_broker: Counter[str] = Counter()

    def before_send(self, context: SendContext) -> None:
        self.by_broker[context.queue.broker_name] += 1

    def after_send(self, context: SendContext) -> None: ...


async def test_a_broker_that_hangs_is_tried_once_and_then_left_alone(cluster: Cluster, tmp_path: Path) -> None:
    topic, tries, inbox, sent = fresh("topic"), Tries(), Inbox(), bodies(24)
    cluster.create_topic(topic, 4)
    options = ProducerOptions(avoid_slow_brokers=True, max_try_ms=TRY_MS, send_hooks=(tries,))
    config = ClientConfig(poll_route_interval_ms=3_600_000)
    with CosmodromeBroker(cluster.namesrv, tmp_path, HUNG, {"autoCreateTopicEnable": "false"}) as second:
        cluster.create_topic(topic, 4, address=second.address)
        async with Producer(fresh("producer"), cluster.namesrv, options=options, config=config) as producer:
            assert {queue.broker_name for queue in await producer.publish_queues(topic)} == {BROKER_NAME, HUNG}
            os.kill(second.pid, signal.SIGSTOP)
            try:
                results = [await producer.send(Message(topic, body), timeout_ms=TIMEOUT_MS) for body in sent]
            finally:
                os.kill(second.pid, signal.SIGCONT)
    assert {result.queue.broker_name for result in results} == {BROKER_NAME}
    assert tries.by_broker == {BROKER_NAME: len(sent), HUNG: 1}
    async with consumer(cluster, fresh("group"), topic, inbox):
        await inbox.has(sent)


async def test_clients_outlive_their_broker(cluster: Cluster) -> None:
    """It is killed and comes back: what it acknowledged is there, and producer and consumer go on by themselves."""
    topic, inbox = fresh("topic"), Inbox()
    cluster.create_topic(topic, 4)
    first, second = bodies(20, "first"), bodies(20, "second")
    async with (
        consumer(cluster, fresh("group"), topic, inbox),
        Producer(fresh("producer"), cluster.namesrv) as producer,
    ):
        for body in first:
            await producer.send(Message(topic, body), timeout_ms=SEND_TIMEOUT_MS)
        await inbox.has(first)
        await asyncio.to_thread(cluster.restart_broker)
        for body in second:
            await send_until_taken(producer, Message(topic, body))
        await until(lambda: set(inbox.bodies) >= {*first, *second}, lambda: inbox.bodies)
    assert set(inbox.bodies) == {*first, *second}


async def send_until_taken(producer: Producer, message: Message) -> None:
    """A broker that refused connections for a while is not called again at once."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await producer.send(message)
                return
            except SendFailed:
                await asyncio.sleep(0.1)
