"""What the cases share: names nobody used, an inbox for handlers, and waiting with a deadline."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from cosmodrome import ConsumeFrom, Message, MessageQueue, Producer, PushConsumer, ReceivedMessage, SendResult
from cosmodrome.client.subscribing import Expression
from tests.behaviour.clusters import Cluster

PATIENCE_S = 30
# As long as a broker may let a send wait on a busy machine, and more: given up, it may be stored all the same.
SEND_TIMEOUT_MS = 10_000
ASK_INTERVAL_S = 0.01


def fresh(kind: str) -> str:
    """A name of a topic or a group that nobody has used."""
    return f"{kind}-{uuid.uuid4().hex[:12]}"


def bodies(count: int, prefix: str = "body") -> list[bytes]:
    return [f"{prefix}-{index}".encode() for index in range(count)]


async def until(holds: Callable[[], object], what: Callable[[], object] | None = None) -> None:
    """Return once it holds; at the deadline say what there is instead."""
    async with limited(what):
        while not holds():  # noqa: ASYNC110  # what others have seen is no event here
            await asyncio.sleep(ASK_INTERVAL_S)


@asynccontextmanager
async def limited(what: Callable[[], object] | None = None) -> AsyncIterator[None]:
    """A block that must end by itself; at the deadline say what there is instead."""
    try:
        async with asyncio.timeout(PATIENCE_S) as limit:
            yield
    except TimeoutError as late:
        if not limit.expired():
            raise
        raise AssertionError(f"not within {PATIENCE_S} s; there is {what() if what else 'nothing to show'}") from late


class Inbox:
    """A handler that keeps what it is given, in that order."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    @property
    def sorted(self) -> list[bytes]:
        return sorted(self.bodies)

    async def has(self, wanted: Iterable[bytes]) -> None:
        """Wait until every one of these is here; any other, or one twice, is an error at once or soon after."""
        expected = sorted(wanted)
        await until(lambda: len(self.messages) >= len(expected), lambda: self.bodies)
        assert self.sorted == expected


def consumer(
    cluster: Cluster,
    group: str,
    topic: str,
    handler: Callable[[Any], Any],
    expression: Expression = "*",
    **options: Any,
) -> PushConsumer:
    """One that reads the topic from its beginning."""
    made = PushConsumer(group, cluster.namesrv, **{"consume_from": ConsumeFrom.FIRST_OFFSET, **options})
    made.subscribe(topic, expression, handler)
    return made


async def send(cluster: Cluster, *messages: Message) -> list[SendResult]:
    """Send messages one after the other."""
    async with Producer(fresh("producer"), cluster.namesrv) as producer:
        return [await producer.send(message, timeout_ms=SEND_TIMEOUT_MS) for message in messages]


async def send_bodies(cluster: Cluster, topic: str, wanted: Iterable[bytes]) -> list[SendResult]:
    return await send(cluster, *(Message(topic, body) for body in wanted))


def owned(member: PushConsumer, topic: str) -> list[MessageQueue]:
    """The queues of the topic that the member reads."""
    return [queue for queue in member.assigned_queues if queue.topic == topic]


async def readable(cluster: Cluster, topic: str, body: bytes) -> ReceivedMessage:
    """The message, once its queue has it: Apache's brokers acknowledge it a moment earlier."""
    inbox = Inbox()
    async with consumer(cluster, fresh("group"), topic, inbox):
        await until(lambda: body in inbox.bodies)
    return next(message for message in inbox.messages if message.body == body)


async def stored_at_ms(cluster: Cluster, topic: str, body: bytes) -> int:
    """When the broker stored the message, by its own clock."""
    return (await readable(cluster, topic, body)).store_timestamp
