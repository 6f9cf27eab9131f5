"""A message that is delivered only if your own work succeeds."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import Message, ReceivedMessage, TransactionProducer, TransactionState

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


PAID: set[str] = set()


def pay(message: Message, order: str) -> TransactionState:
    """Your own transaction, for example in a database."""
    PAID.add(order)
    return TransactionState.COMMIT


def check(message: ReceivedMessage) -> TransactionState:
    """The broker asks what became of it, when it did not hear: any producer of the group must know."""
    return TransactionState.COMMIT if message.keys in PAID else TransactionState.ROLLBACK


async def main() -> None:
    async with TransactionProducer("ex-payments", NAMESRV, check=check) as producer:
        result = await producer.send_in_transaction(Message("ex-transaction", b"paid", keys="7"), pay, "7")
        print(result.sent.status, result.state.name)


asyncio.run(main())
