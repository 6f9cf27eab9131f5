"""Large bodies travel compressed: from which size on, how hard, and how. Consumers undo it by themselves."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import Compression, Message, Producer, ProducerOptions, TopicReader

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
BODY = b'{"city": "Oslo", "cents": 250}' * 1_000
# LZ4 and ZSTD need `pip install 'cosmodrome[compression]'`, here and where the messages are consumed.
QUICK = ProducerOptions(compress_from_bytes=1_024, compression=Compression.ZLIB, compression_level=1)
NEVER = ProducerOptions(compress_from_bytes=4 * 1_024 * 1_024)


async def main() -> None:
    for options in (QUICK, NEVER):
        async with Producer("shop", NAMESRV, options=options) as producer:
            await producer.send(Message("ex-compression", BODY))
    async with TopicReader("ex-compression", namesrv=NAMESRV, from_earliest=True) as reader:
        sizes = [(await anext(reader)).store_size for _ in range(2)]
    print(len(BODY), "bytes; less than a tenth of it on disk:", sum(size < len(BODY) / 10 for size in sizes), "of 2")


asyncio.run(main())
