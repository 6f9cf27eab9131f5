"""Read a topic without taking anything away from anybody: no group, no offsets."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import Message, Producer, TopicReader

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        for number in range(3):
            await producer.send(Message("ex-reader", f"event {number}".encode()))
    async with TopicReader("ex-reader", namesrv=NAMESRV, from_earliest=True) as reader:
        found = []
        async for message in reader:
            found.append(message.body.decode())
            if len(found) == 3:
                break
    print(*sorted(found), sep=", ")


asyncio.run(main())
