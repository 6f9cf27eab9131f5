"""Ask something with a message, and get the answer."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import ConsumeFrom, Message, PushConsumer, ReceivedMessage, RequestProducer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


PRICES = {"apples": "3.50", "pears": "4.20"}


async def main() -> None:
    async with RequestProducer("ex-shop", NAMESRV) as producer:
        clerk = PushConsumer("ex-clerks", NAMESRV, consume_from=ConsumeFrom.FIRST_OFFSET)

        @clerk.handles("ex-prices")
        async def answer(message: ReceivedMessage) -> None:
            await producer.reply(message, PRICES[message.body.decode()].encode())

        async with clerk:
            for what in PRICES:
                price = await producer.request(Message("ex-prices", what.encode()), timeout_ms=10_000)
                print(what, "cost", price.body.decode())


asyncio.run(main())
