"""Send one message, and look at what the broker says."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import Message, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        result = await producer.send(Message("ex-send", b'{"id": 1}', tags="paid", keys="1"))
        print(result.status, result.msg_id, "in", result.queue.broker_name, "at", result.queue_offset)


asyncio.run(main())
