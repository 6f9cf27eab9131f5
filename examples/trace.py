"""Write down the life of a message; `cosmodrome trace ID` shows it."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    consumer = PushConsumer("ex-traced", NAMESRV, consume_from=ConsumeFrom.FIRST_OFFSET, trace=True)
    done = asyncio.Event()

    @consumer.handles("ex-trace")
    async def handle(_message: ReceivedMessage) -> None:
        done.set()

    async with Producer("shop", NAMESRV, trace=True) as producer:
        result = await producer.send(Message("ex-trace", b"follow me"))
        async with consumer:
            await done.wait()
    print("now type: cosmodrome trace", result.msg_id)


asyncio.run(main())
