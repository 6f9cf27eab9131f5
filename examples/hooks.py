"""Watch every send, and refuse some."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import Message, Producer, ProducerOptions, SendContext, SendHook

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


class Stopwatch(SendHook):
    def after_send(self, context: SendContext) -> None:
        print("sent to", context.message.topic, "-", context.result.status if context.result else context.error)


def not_on_sundays(context: SendContext) -> None:
    if context.message.tags == "sunday":
        raise PermissionError("no sends on sundays")


async def main() -> None:
    options = ProducerOptions(send_hooks=(Stopwatch(),), check_forbidden=(not_on_sundays,))
    async with Producer("shop", NAMESRV, options=options) as producer:
        await producer.send(Message("ex-hooks", b"1"))
        try:
            await producer.send(Message("ex-hooks", b"2", tags="sunday"))
        except PermissionError as error:
            print("refused:", error)


asyncio.run(main())
