"""Deliver later: by one of the broker's delay levels, after a time, or at a time; and take it back before."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta

from cosmodrome import CosmodromeError, Message, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        await producer.send(Message("ex-delay", b"in ten seconds", delay_level=3))
        await producer.send(Message("ex-delay", b"in a day", delay=timedelta(days=1)))
        evening = datetime.now(UTC) + timedelta(hours=6)
        reminder = await producer.send(Message("ex-delay", b"this evening", deliver_at=evening))
        print("three messages wait")
        try:
            await producer.recall("ex-delay", reminder.recall_handle)
            print("one was taken back")
        except CosmodromeError as error:  # brokers refuse it unless recallMessageEnable is true
            print("not taken back:", error)


asyncio.run(main())
