"""Test your own code with the pytest plugin: `pytest examples/test_orders.py`. No node is needed; it brings its own."""

from __future__ import annotations

import asyncio

from cosmodrome import Message, ReceivedMessage
from cosmodrome.testing import AsyncCluster, Cluster


def test_a_reminder_comes_after_two_hours(rocketmq: Cluster) -> None:
    with rocketmq.producer() as producer:
        producer.send(Message("reminders", b"pay", delay_level=18))
        rocketmq.advance(hours=1, minutes=59)
        assert rocketmq.messages("reminders") == []
        rocketmq.advance(minutes=1)
        assert len(rocketmq.messages("reminders")) == 1


async def test_an_order_is_tried_again(rocketmq_virtual: AsyncCluster) -> None:
    """In virtual time: ten seconds pass as soon as everybody waits."""
    tries: list[int] = []

    async def bill(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        if len(tries) == 1:
            raise ConnectionError("the bank does not answer")

    consumer = rocketmq_virtual.push_consumer("billing")
    consumer.subscribe("orders", "*", bill)
    async with rocketmq_virtual.producer() as producer, consumer:
        await producer.send(Message("orders", b"1"))
        await asyncio.sleep(15)
    assert tries == [0, 1]
