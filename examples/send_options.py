"""How a producer sends: what it compresses, how often and how long it tries, whom it avoids, what it refuses."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import CosmodromeError, Message, Producer, ProducerOptions, TopicReader

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
OPTIONS = ProducerOptions(
    compress_from_bytes=1_024,
    compression_level=9,
    avoid_slow_brokers=True,
    retry_another_broker_when_not_store_ok=True,
)


async def main() -> None:
    async with Producer("shop", NAMESRV, max_tries=5, options=OPTIONS) as producer:
        result = await producer.send(Message("ex-options", b"orders " * 1_000), timeout_ms=5_000)
        async with TopicReader("ex-options", namesrv=NAMESRV, from_earliest=True) as reader:
            async for message in reader:
                if message.msg_id == result.msg_id:
                    print(len(message.body), "bytes, fewer than 500 on disk:", message.store_size < 500)
                    break
        try:
            await producer.send(Message("ex options", b"1"))
        except CosmodromeError as error:
            print("refused:", error)


asyncio.run(main())
