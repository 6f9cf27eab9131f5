"""How the members of a group share its queues: one of six ways, or a function of your own."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import ConsistentHash, Message, Producer, PushConsumer, ReceivedMessage

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def handle(_message: ReceivedMessage) -> None: ...


def member() -> PushConsumer:
    consumer = PushConsumer("ex-sharing", NAMESRV, strategy=ConsistentHash())
    consumer.subscribe("ex-strategies", "*", handle)
    return consumer


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        await producer.send(Message("ex-strategies", b"makes the topic"))
        queues = set(await producer.publish_queues("ex-strategies"))
        async with member() as one, member() as other, asyncio.timeout(30):
            while not queues <= {*one.assigned_queues, *other.assigned_queues}:
                await producer.send(Message("ex-strategies", b"keeps everybody busy"))
            print(len(queues), "queues shared by two")


asyncio.run(main())
