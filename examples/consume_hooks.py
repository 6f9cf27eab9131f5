"""Watch every call of a handler, and keep messages from it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable

from cosmodrome import (
    ConsumeContext,
    ConsumeFrom,
    ConsumeHook,
    FilterContext,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
)

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


class Log(ConsumeHook):
    def before_consume(self, context: ConsumeContext) -> None:
        print("about to handle", *(message.body.decode() for message in context.messages))

    def after_consume(self, context: ConsumeContext) -> None:
        print("handled, or not:", context.status)


def without_tests(context: FilterContext) -> Iterable[ReceivedMessage]:
    return [message for message in context.messages if message.tags != "test"]


async def main() -> None:
    consumer = PushConsumer(
        "ex-watched",
        NAMESRV,
        consume_from=ConsumeFrom.FIRST_OFFSET,
        consume_hooks=[Log()],
        filter_hooks=[without_tests],
    )
    done = asyncio.Event()

    @consumer.handles("ex-watched")
    async def handle(_message: ReceivedMessage) -> None:
        done.set()

    async with Producer("shop", NAMESRV) as producer:
        await producer.send(Message("ex-watched", b"a trial", tags="test"))
        await producer.send(Message("ex-watched", b"an order", tags="paid"))
    async with consumer:
        await done.wait()


asyncio.run(main())
