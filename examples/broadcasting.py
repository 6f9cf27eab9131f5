"""Every member of the group gets every message, and keeps its own offsets."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from cosmodrome import ConsumeFrom, Message, MessageModel, Producer, PushConsumer, ReceivedMessage

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    got: asyncio.Queue[str] = asyncio.Queue()

    def member(name: str, folder: str) -> PushConsumer:
        consumer = PushConsumer(
            "ex-caches",
            NAMESRV,
            model=MessageModel.BROADCASTING,
            offsets_file=Path(folder) / f"{name}.json",
            consume_from=ConsumeFrom.FIRST_OFFSET,
        )

        @consumer.handles("ex-broadcast")
        async def handle(message: ReceivedMessage) -> None:
            await got.put(f"{name} got {message.body.decode()}")

        return consumer

    with tempfile.TemporaryDirectory() as folder:
        async with Producer("shop", NAMESRV) as producer, member("one", folder), member("two", folder):
            await producer.send(Message("ex-broadcast", b"prices changed"))
            print(*sorted([await got.get(), await got.get()]), sep="\n")


asyncio.run(main())
