"""Begin with the messages of a time, whatever the group has read before."""

from __future__ import annotations

import asyncio
import os
import time

from cosmodrome import LitePullConsumer, Message, MessageQueue, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        await producer.send(Message("ex-from-time", b"of yesterday"))
        await asyncio.sleep(0.2)
        midnight_ms = int(time.time() * 1000)
        await asyncio.sleep(0.2)
        await producer.send(Message("ex-from-time", b"of today"))

    # A push consumer has consume_from=ConsumeFrom.TIMESTAMP for that. It counts only for a group that is new, and as
    # long as a queue is young, brokers have such a group begin with its first message all the same.
    consumer = LitePullConsumer("ex-late", NAMESRV)
    consumer.subscribe("ex-from-time")

    @consumer.on_assigned
    async def go_there(queues: list[MessageQueue]) -> None:
        for queue in queues:
            await consumer.seek(queue, await consumer.offset_for_timestamp(queue, midnight_ms))

    async with consumer:
        async for message in consumer:
            print("begins with", message.body.decode())
            break


asyncio.run(main())
