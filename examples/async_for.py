"""Take messages in a loop. Leaving the body acknowledges; so does the end of `async with message`."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import ConsumeFrom, LitePullConsumer, Message, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        for number in range(3):
            await producer.send(Message("ex-loop", f"order {number}".encode()))
    consumer = LitePullConsumer("ex-loopers", NAMESRV, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe("ex-loop")
    found = []
    async with consumer:
        async for message in consumer:
            async with message:  # if this block raises, the broker delivers the message again later
                found.append(message.body.decode())
            if len(found) == 3:
                break
    print(*sorted(found), sep=", ")


asyncio.run(main())
