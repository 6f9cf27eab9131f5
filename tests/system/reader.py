"""A consumer that prints what it handles, to be killed: `python -m tests.system.reader NAMESRV TOPIC GROUP`."""

from __future__ import annotations

import asyncio
import sys

from cosmodrome import ConsumeFrom, PushConsumer
from cosmodrome.config import ClientConfig
from cosmodrome.model import ReceivedMessage

COMMIT_MS = 100
LOOK_MS = 200  # for another route, and for queues to read


async def read(namesrv: str, topic: str, group: str) -> None:
    config = ClientConfig(
        namesrv=namesrv,
        poll_route_interval_ms=LOOK_MS,
        rebalance_interval_ms=LOOK_MS,
        persist_offset_interval_ms=COMMIT_MS,
    )
    consumer = PushConsumer(group, config=config, consume_from=ConsumeFrom.FIRST_OFFSET)

    async def handle(message: ReceivedMessage) -> None:
        print("handled", message.body.decode(), flush=True)

    consumer.subscribe(topic, "*", handle)
    print("ready", flush=True)  # before anything is handled
    async with consumer:
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(read(*sys.argv[1:]))
