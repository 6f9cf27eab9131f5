"""Take up a topic while the consumer runs, and leave it again."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    handled: asyncio.Queue[str] = asyncio.Queue()

    async def handle(message: ReceivedMessage) -> None:
        await handled.put(f"{message.topic}: {message.body.decode()}")

    consumer = PushConsumer("ex-flexible", NAMESRV, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe("ex-news", "*", handle)
    async with Producer("shop", NAMESRV) as producer, consumer:
        await producer.send(Message("ex-sports", b"2:1"))
        consumer.subscribe("ex-sports", "*", handle)
        print(await handled.get())
        consumer.unsubscribe("ex-sports")  # what its handler has begun is finished
        await asyncio.sleep(1)  # it counts within a second
        await producer.send(Message("ex-sports", b"2:2"))
        await producer.send(Message("ex-news", b"sunny"))
        print(await handled.get())


asyncio.run(main())
