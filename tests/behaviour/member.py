"""A member of a group in a process of its own, to be killed: it prints the bodies that it gets.

python -m tests.behaviour.member NAMESRV GROUP TOPIC
"""

from __future__ import annotations

import asyncio
import sys

from cosmodrome import ConsumeFrom, PushConsumer, ReceivedMessage


def show(message: ReceivedMessage) -> None:
    sys.stdout.write(f"{message.body.decode()}\n")  # as a whole: several threads do so
    sys.stdout.flush()


async def main(namesrv: str, group: str, topic: str) -> None:
    consumer = PushConsumer(group, namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe(topic, "*", show)
    async with consumer:
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
