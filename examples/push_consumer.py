"""Have messages handed to a function. A handler that raises gets its message again later."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    consumer = PushConsumer("ex-billing", NAMESRV, consume_from=ConsumeFrom.FIRST_OFFSET)
    done = asyncio.Event()

    @consumer.handles("ex-push")
    async def bill(message: ReceivedMessage) -> None:
        print("billed", message.body.decode(), "key", message.keys)
        done.set()

    async with Producer("shop", NAMESRV) as producer:
        await producer.send(Message("ex-push", b"order 1", keys="1"))
        async with consumer:
            await done.wait()


asyncio.run(main())
