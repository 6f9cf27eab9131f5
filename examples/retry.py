"""A message whose handler fails comes again, later and later; in the end it is a dead letter."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage, RetryLater, TopicReader

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    consumer = PushConsumer("ex-careful", NAMESRV, consume_from=ConsumeFrom.FIRST_OFFSET, max_reconsume_times=1)

    @consumer.handles("ex-retry")
    async def fail(message: ReceivedMessage) -> None:
        print("try", message.reconsume_times + 1)
        raise RetryLater(delay_level=1)  # in a second; any other exception leaves it to the broker

    async with Producer("shop", NAMESRV) as producer:
        await producer.send(Message("ex-retry", b"impossible"))
        async with consumer, TopicReader("%DLQ%ex-careful", namesrv=NAMESRV, from_earliest=True) as dead_letters:
            async for message in dead_letters:
                print("given up:", message.body.decode())
                break


asyncio.run(main())
