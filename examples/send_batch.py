"""Send messages together: one trip, one queue, all or none. Any number of them is split by itself."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import Message, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        result = await producer.send_batch([Message("ex-batch", b"%d" % number) for number in range(10)])
        print(len(result.msg_id.split(",")), "messages in one batch")

        many = (Message("ex-batch", b"x" * 1_000_000) for _ in range(10))
        async for result in producer.send_batches(many):
            print(len(result.msg_id.split(",")), "messages in a batch of at most 4 MB")


asyncio.run(main())
