"""Consume without asyncio. A `def` handler runs in a thread, and may block."""

from __future__ import annotations

import os
import queue

from cosmodrome.blocking import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


def main() -> None:
    done: queue.Queue[str] = queue.Queue()

    def bill(messages: list[ReceivedMessage]) -> None:
        """A list, because the parameter says so: up to 32 messages at once, done together or not at all."""
        for message in messages:
            done.put(message.body.decode())

    consumer = PushConsumer("ex-billing", NAMESRV, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe("ex-push-blocking", "*", bill, batch=32)
    with Producer("shop", NAMESRV) as producer:
        for number in range(3):
            producer.send(Message("ex-push-blocking", f"order {number}".encode()))
        with consumer:
            print("billed", *sorted(done.get() for _ in range(3)), sep=", ")


main()
