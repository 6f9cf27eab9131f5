"""One message of a queue after the other: while one fails, the next has to wait."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage, SuspendQueue

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    consumer = PushConsumer("ex-orderly", NAMESRV, orderly=True, consume_from=ConsumeFrom.FIRST_OFFSET)
    steps: list[str] = []
    done = asyncio.Event()

    @consumer.handles("ex-steps")
    async def handle(message: ReceivedMessage) -> None:
        step = message.body.decode()
        if step == "paid" and "bank asked" not in steps:
            steps.append("bank asked")
            raise SuspendQueue(100)  # the same message again in 100 ms
        steps.append(step)
        if step == "sent":
            done.set()

    async with Producer("shop", NAMESRV) as producer:
        for step in ("created", "paid", "sent"):
            await producer.send(Message("ex-steps", step.encode(), sharding_key="order 7"))
    async with consumer:
        await done.wait()
    print(*steps, sep=" > ")


asyncio.run(main())
