"""Two tenants use the same names on the same brokers, and do not see each other."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import ClientConfig, Message, Producer, TopicReader

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    for tenant in ("red", "blue"):
        async with Producer("shop", NAMESRV, config=ClientConfig(namespace=tenant)) as producer:
            result = await producer.send(Message("ex-namespace", f"for {tenant}".encode()))
            print(tenant, "sent to", result.queue.topic)
    async with TopicReader("blue%ex-namespace", namesrv=NAMESRV, from_earliest=True) as reader:
        async for message in reader:
            print("brokers call it", message.queue.topic, "-", message.body.decode())
            break


asyncio.run(main())
