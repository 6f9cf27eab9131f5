"""Be told which queues of a topic are yours, as other members of the group come and go."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import LitePullConsumer, Message, MessageQueue, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


def member() -> LitePullConsumer:
    consumer = LitePullConsumer("ex-members", NAMESRV)
    consumer.subscribe("ex-assignments")
    return consumer


async def main() -> None:
    first = member()
    gained: asyncio.Queue[int] = asyncio.Queue()
    lost: asyncio.Queue[int] = asyncio.Queue()

    @first.on_assigned
    async def begin(queues: list[MessageQueue]) -> None:
        await gained.put(len(queues))

    @first.on_revoked
    async def end(queues: list[MessageQueue]) -> None:
        await lost.put(len(queues))

    async with Producer("shop", NAMESRV) as producer:
        await producer.send(Message("ex-assignments", b"makes the topic"))
    async with first:
        print("alone:", await gained.get(), "queues")
        async with member():
            print("with another:", await lost.get(), "fewer")


asyncio.run(main())
