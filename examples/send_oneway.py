"""Send without waiting for an answer: fast, and nobody knows whether it arrived."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import Message, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        for number in range(3):
            await producer.send_oneway(Message("ex-oneway", f"reading {number}".encode()))
        print("handed over")


asyncio.run(main())
