"""Messages with the same sharding key go to the same queue, and so stay in order. A selector chooses by itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from cosmodrome import Message, MessageQueue, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


def by_customer(queues: Sequence[MessageQueue], _message: Message, customer: int) -> MessageQueue:
    return queues[customer % len(queues)]


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        for step in ("created", "paid", "sent"):
            result = await producer.send(Message("ex-ordered", step.encode(), sharding_key="order 7"))
            print(step, "in queue", result.queue.queue_id, "at", result.queue_offset)
        chosen = await producer.send(Message("ex-ordered", b"created"), selector=by_customer, arg=4711)
        print("customer 4711 in queue", chosen.queue.queue_id)


asyncio.run(main())
