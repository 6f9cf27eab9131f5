"""Cosmodrome's own client in the shapes that cases compare: sends a Load, hands back what it received as Seen."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from cosmodrome import Message, Producer, PushConsumer
from cosmodrome.model import ConsumeFrom, ReceivedMessage, SendResult, SendStatus
from interop.messages import Load, Seen, Sent

RECEIVE_TIMEOUT_S = 60
SEND_TIMEOUT_MS = 10_000  # as long as the Java program waits: a send that is given up may be stored all the same


def send_ours(namesrv: str, group: str, load: Load, way: str = "send") -> list[Sent]:
    """Send a load in one of WAYS and tell what each message's result was; a oneway send has none."""

    async def run() -> list[Sent]:
        async with Producer(group=group, namesrv=namesrv) as producer:
            return await WAYS[way](producer, load)

    return asyncio.run(run())


def receive_ours(namesrv: str, group: str, topic: str, count: int, expression: str = "*") -> list[Seen]:
    """What a PushConsumer is given until it has count messages; all of it, should there be more.

    It begins with the first, and says so: where a queue's first message is acknowledged but not yet in its queue,
    Apache's 5.x broker does not know where a new group begins.
    """

    async def run() -> list[Seen]:
        received: list[Seen] = []
        enough = asyncio.Event()

        def handler(message: ReceivedMessage) -> None:
            received.append(seen_by_us(message))
            if len(received) >= count:
                enough.set()

        consumer = PushConsumer(group=group, namesrv=namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe(topic, expression, handler)
        async with consumer:
            await asyncio.wait_for(enough.wait(), RECEIVE_TIMEOUT_S)
        return received

    return asyncio.run(run())


def seen_by_us(message: ReceivedMessage) -> Seen:
    return Seen(
        topic=message.topic,
        body=message.body,
        tags=message.tags,
        keys=message.keys,
        properties=message.properties,
        flag=message.flag,
        msg_id=message.msg_id,
        offset_msg_id=message.offset_msg_id,
        queue_id=message.queue.queue_id,
        queue_offset=message.queue_offset,
        commit_log_offset=message.commit_log_offset,
        store_host=message.store_host,
        born_timestamp=message.born_timestamp,
        store_timestamp=message.store_timestamp,
        reconsume_times=message.reconsume_times,
    )


async def _send(producer: Producer, load: Load) -> list[Sent]:
    return [
        _sent(index, await producer.send(_message(load, index), timeout_ms=SEND_TIMEOUT_MS)) for index in load.indexes
    ]


async def _send_oneway(producer: Producer, load: Load) -> list[Sent]:
    for index in load.indexes:
        await producer.send_oneway(_message(load, index))
    return []


async def _send_batch(producer: Producer, load: Load) -> list[Sent]:
    """A batch's ids come joined by commas, and its offsets follow each other."""
    result = await producer.send_batch([_message(load, index) for index in load.indexes], timeout_ms=SEND_TIMEOUT_MS)
    ids, offset_ids = result.msg_id.split(","), result.offset_msg_id.split(",")
    places = zip(load.indexes, ids, offset_ids, strict=True)
    return [
        Sent(index, msg_id, offset_id, result.queue.broker_name, result.queue.queue_id, result.queue_offset + place)
        for place, (index, msg_id, offset_id) in enumerate(places)
    ]


async def _send_by_selector(producer: Producer, load: Load) -> list[Sent]:
    """Message i goes to queue i modulo the number of queues, as the Java program's orderly mode sends it."""
    sent = []
    for index in load.indexes:
        result = await producer.send(
            _message(load, index),
            selector=lambda queues, _, place: queues[place % len(queues)],
            arg=index,
            timeout_ms=SEND_TIMEOUT_MS,
        )
        sent.append(_sent(index, result))
    return sent


WAYS: dict[str, Callable[[Producer, Load], Coroutine[Any, Any, list[Sent]]]] = {
    "send": _send,
    "oneway": _send_oneway,
    "batch": _send_batch,
    "selector": _send_by_selector,
}


def _message(load: Load, index: int) -> Message:
    return Message(
        load.topic,
        load.body(index),
        tags=load.tag(index),
        keys=load.key(index),
        properties=load.user_properties(index),
        flag=load.flag,
    )


def _sent(index: int, result: SendResult) -> Sent:
    assert result.status is SendStatus.SEND_OK, result
    queue = result.queue
    return Sent(index, result.msg_id, result.offset_msg_id, queue.broker_name, queue.queue_id, result.queue_offset)
