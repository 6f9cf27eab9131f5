"""Make a topic, and find a message again: by its ids, and by its key."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import Message, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        await producer.create_topic("ex-finding", queues=2)
        result = await producer.send(Message("ex-finding", b"two apples", keys=["order-17", "customer-4"]))
        for message_id in (result.msg_id, result.offset_msg_id):
            message = await producer.view_message("ex-finding", message_id)
            print("by id:", message.body.decode(), "- keys", message.keys)
        for message in await producer.query_message("ex-finding", "order-17"):
            print("by key:", message.body.decode(), "in queue", message.queue.queue_id, "at", message.queue_offset)
        print("the queue ends at", await producer.max_offset(result.queue))


asyncio.run(main())
