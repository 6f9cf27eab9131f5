"""Have many messages under way at once, with futures or a callback."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import Message, Producer, SendResult

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


def report(outcome: SendResult | BaseException) -> None:
    print("called back:", outcome.status if isinstance(outcome, SendResult) else outcome)


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        futures = []
        for number in range(100):
            await producer.room()  # no more than the producer may have under way
            futures.append(producer.send_async(Message("ex-async", b"%d" % number)))
        results = await asyncio.gather(*futures)
        print(len(results), "stored")
        producer.send_async(Message("ex-async", b"one more"), callback=report)


asyncio.run(main())
