"""Commit by hand, several messages of a queue as one: all of them are booked, or all of them come again."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import ConsumeFrom, Message, OrderlyStatus, Producer, PushConsumer, ReceivedMessage

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    consumer = PushConsumer(
        "ex-ledger", NAMESRV, orderly=True, auto_commit=False, suspend_ms=100, consume_from=ConsumeFrom.FIRST_OFFSET
    )
    open_sums: list[int] = []
    balances = iter([False, True])
    done = asyncio.Event()

    @consumer.handles("ex-ledger")
    async def book(message: ReceivedMessage) -> OrderlyStatus:
        open_sums.append(int(message.body))
        if len(open_sums) < 2:
            return OrderlyStatus.SUCCESS  # go on, and commit nothing yet
        print("booking", *open_sums)
        open_sums.clear()
        if not next(balances):
            return OrderlyStatus.ROLLBACK  # both again, after suspend_ms
        done.set()
        return OrderlyStatus.COMMIT

    async with Producer("shop", NAMESRV) as producer:
        for amount in (b"-5", b"5"):
            await producer.send(Message("ex-ledger", amount, sharding_key="account 1"))
    async with consumer:
        await done.wait()


asyncio.run(main())
