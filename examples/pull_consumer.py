"""Pull what you want, when you want, and keep the offsets yourself."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import Message, Producer, PullConsumer, PullStatus

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        for number in range(5):
            await producer.send(Message("ex-pull", b"%d" % number))
    await asyncio.sleep(2)  # a topic that was just made is known to the name servers in a moment
    async with PullConsumer("ex-pullers", NAMESRV) as consumer:
        found = 0
        for queue in await consumer.fetch_subscribe_queues("ex-pull"):
            offset = await consumer.fetch_consume_offset(queue) or 0
            while (result := await consumer.pull(queue, "*", offset)).status is PullStatus.FOUND:
                found += len(result.messages)
                offset = result.next_begin_offset
            consumer.update_consume_offset(queue, offset)
        print("found", found)


asyncio.run(main())
