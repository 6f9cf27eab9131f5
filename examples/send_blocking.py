"""Send without asyncio: `cosmodrome.blocking` has the same names."""

from __future__ import annotations

import os

from cosmodrome.blocking import Message, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


def main() -> None:
    with Producer("shop", NAMESRV) as producer:
        for number in range(3):
            result = producer.send(Message("ex-blocking", f"order {number}".encode()))
            print(result.status, number)


main()
