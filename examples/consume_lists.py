"""Handle several messages at once. Of a list that fails, those before the failure are done; the rest comes again."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage, SuspendQueue

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    consumer = PushConsumer("ex-lists", NAMESRV, orderly=True, consume_from=ConsumeFrom.FIRST_OFFSET)
    stored: list[str] = []
    failures = ["the disk is full"]
    done = asyncio.Event()

    @consumer.handles("ex-lists", batch=5)
    async def store(messages: list[ReceivedMessage]) -> None:
        print("a list of", len(messages))
        for index, message in enumerate(messages):
            if index == 3 and failures:
                raise SuspendQueue(100, failures.pop(), done=index)  # without orderly: RetryLater(done=index)
            stored.append(message.body.decode())
        done.set()

    async with Producer("shop", NAMESRV) as producer:
        await producer.send_batch([Message("ex-lists", b"%d" % number) for number in range(5)])
        async with consumer:
            await done.wait()
    print("stored", *stored)


asyncio.run(main())
