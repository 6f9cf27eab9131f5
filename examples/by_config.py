"""Say yourself which member of a group reads which queues."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from cosmodrome import ByConfig, Message, MessageQueue, Producer, PushConsumer, ReceivedMessage

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def handle(_message: ReceivedMessage) -> None: ...


def member(queues: Sequence[MessageQueue]) -> PushConsumer:
    consumer = PushConsumer("ex-configured", NAMESRV, strategy=ByConfig(queues))
    consumer.subscribe("ex-by-config", "*", handle)
    return consumer


async def queue_ids(consumer: PushConsumer) -> list[int]:
    while True:  # a name server may know the topic a moment later
        if mine := [queue.queue_id for queue in consumer.assigned_queues if queue.topic == "ex-by-config"]:
            return sorted(mine)
        await asyncio.sleep(0.1)


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        await producer.send(Message("ex-by-config", b"makes the topic"))
        queues = await producer.publish_queues("ex-by-config")
    async with member(queues[:1]) as one, member(queues[1:]) as other:
        print("one reads", *await queue_ids(one))
        print("the other reads", *await queue_ids(other))


asyncio.run(main())
