"""One member of each of several groups, all reading one topic, until standard input closes: `python -m interop.member`.

interop.Members in Java is its twin: the same arguments, the same lines. A message is told of before it counts as
consumed, so that whoever kills this process has heard of all that is committed.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from cosmodrome import ClientConfig, ConsumeFrom, PushConsumer, ReceivedMessage
from cosmodrome.net.loop import run
from interop.messages import index_of
from interop.strategies import our_strategy

TICK_S = 0.05
POLL_NAMESRV_MS = 1_000
HEARTBEAT_MS = 1_000

_STRATEGY = "strategy."


async def main(words: Sequence[str]) -> None:
    arguments = dict(word.split("=", 1) for word in words)
    strategies = {key.removeprefix(_STRATEGY): text for key, text in arguments.items() if key.startswith(_STRATEGY)}
    consumers = {group: consumer(arguments, group, text) for group, text in strategies.items()}
    closed = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    async with AsyncExitStack() as stack:
        for one in consumers.values():
            await stack.enter_async_context(one)
        tell(ready=True, clientId=next(iter(consumers.values())).client_id)
        assigned: dict[str, list[str]] = {}
        while not closed.done():
            for group, one in consumers.items():
                now = assigned_queues(one, arguments["topic"])
                if now != assigned.get(group):
                    tell(group=group, assigned=now)
                    assigned[group] = now
            await asyncio.wait([closed], timeout=TICK_S)


def consumer(arguments: dict[str, str], group: str, strategy: str) -> PushConsumer:
    config = ClientConfig(
        instance_name=arguments["instance"],
        poll_route_interval_ms=POLL_NAMESRV_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )
    made = PushConsumer(
        group,
        arguments["namesrv"],
        strategy=our_strategy(strategy),
        orderly=arguments["orderly"] == "true",
        consume_from=ConsumeFrom.FIRST_OFFSET,
        config=config,
    )
    made.subscribe(arguments["topic"], "*", handler(group, int(arguments["pauseMs"]) / 1000))
    return made


def handler(group: str, pause_s: float) -> Callable[[ReceivedMessage], object]:
    async def handle(message: ReceivedMessage) -> None:
        queue = f"{message.queue.broker_name}:{message.queue.queue_id}"
        tell(group=group, index=index_of(message.body), queue=queue, at=time.monotonic_ns())
        if pause_s:
            await asyncio.sleep(pause_s)

    return handle


def assigned_queues(consumer: PushConsumer, topic: str) -> list[str]:
    return [f"{queue.broker_name}:{queue.queue_id}" for queue in consumer.assigned_queues if queue.topic == topic]


def tell(**content: object) -> None:
    """In one write, so that a kill does not cut it."""
    os.write(1, json.dumps(content).encode() + b"\n")


if __name__ == "__main__":
    run(main(sys.argv[1:]))
