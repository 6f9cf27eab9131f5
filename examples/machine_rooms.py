"""Read what is near: members share the queues of their own machine room, and those of rooms that have no member."""

from __future__ import annotations

import asyncio
import os

from cosmodrome import ClientConfig, MachineRoomNearby, Message, MessageQueue, Producer, PushConsumer, ReceivedMessage

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


def room_of_queue(queue: MessageQueue) -> str:
    return {"broker-a": "east", "broker-b": "west"}[queue.broker_name]


def room_of_client(client_id: str) -> str:
    """It is `address@instance name`."""
    return client_id.split("@")[1]


async def handle(_message: ReceivedMessage) -> None: ...


def member(room: str) -> PushConsumer:
    strategy = MachineRoomNearby(room_of_queue, room_of_client)
    consumer = PushConsumer("ex-rooms", NAMESRV, strategy=strategy, config=ClientConfig(instance_name=room))
    consumer.subscribe("ex-machine-rooms", "*", handle)
    return consumer


def queues_of(consumer: PushConsumer) -> int:
    return sum(queue.topic == "ex-machine-rooms" for queue in consumer.assigned_queues)


async def main() -> None:
    async with Producer("shop", NAMESRV) as producer:
        await producer.send(Message("ex-machine-rooms", b"makes the topic"))
    async with member("east") as east:
        await east.ready()  # the topic is new: a name server may learn of it later
        async with member("west") as west:
            await west.ready()
            print("of broker-a in the east, the east reads", queues_of(east), "queues and the west", queues_of(west))


asyncio.run(main())
