"""Get only some messages: by tag, or by an SQL92 expression over their properties. Brokers do the choosing."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage, Sql

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def receive(group: str, expression: str | Sql, count: int) -> list[str]:
    bodies: asyncio.Queue[str] = asyncio.Queue()

    async def handle(message: ReceivedMessage) -> None:
        await bodies.put(message.body.decode())

    consumer = PushConsumer(group, NAMESRV, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe("ex-filters", expression, handle)
    async with consumer:
        return sorted([await bodies.get() for _ in range(count)])


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        for body, tag, price in (("apple", "fruit", 2), ("melon", "fruit", 6), ("lamp", "home", 80)):
            await producer.send(Message("ex-filters", body.encode(), tags=tag, properties={"price": str(price)}))
    print("fruit:", *await receive("ex-by-tag", "fruit || vegetables", 2))
    print("dear:", *await receive("ex-by-sql", Sql("price > 5 AND price IS NOT NULL"), 2))


asyncio.run(main())
