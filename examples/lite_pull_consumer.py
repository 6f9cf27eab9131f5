"""Poll for messages, from queues and offsets of your own choice."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import LitePullConsumer, Message, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        queue = (await producer.send(Message("ex-poll", b"first"))).queue
        await producer.send(Message("ex-poll", b"second"), queue)
    consumer = LitePullConsumer("ex-pollers", NAMESRV, auto_commit=False)
    consumer.assign([queue])
    async with consumer:
        await consumer.seek_to_begin(queue)
        found: list[str] = []
        while len(found) < 2:
            found += [message.body.decode() for message in await consumer.poll()]
        await consumer.commit()
        print(*found[:2], "- committed", await consumer.committed(queue) == await consumer.max_offset(queue))


asyncio.run(main())
