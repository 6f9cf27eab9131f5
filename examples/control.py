"""A push consumer while it runs: pause it, let it go on, have messages again, subscribe anew, ask how it does."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    consumer = PushConsumer("ex-controlled", NAMESRV, consume_from=ConsumeFrom.FIRST_OFFSET)
    handled: asyncio.Queue[str] = asyncio.Queue()

    @consumer.handles("ex-control", "paid")
    async def handle(message: ReceivedMessage) -> None:
        await handled.put(message.body.decode())

    async with Producer("shop", NAMESRV) as producer:
        sent = await producer.send(Message("ex-control", b"first", tags="paid"))
        async with consumer:
            print(await handled.get())
            consumer.pause()
            await producer.send(Message("ex-control", b"second", tags="paid"))
            print("paused" if consumer.paused else "running")
            consumer.resume()
            print(await handled.get())
            await consumer.reset_offsets({sent.queue: sent.queue_offset})
            print(await handled.get(), "again")
            consumer.subscribe("ex-control", "paid || refunded", handle, replace=True)  # counts within a second
            figures = consumer.statistics("ex-control")
            print("failed within the hour:", figures.consume_failed_msgs)


asyncio.run(main())
