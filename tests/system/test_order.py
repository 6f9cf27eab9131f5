"""Order: who may read a queue, and which queues a topic has, over the wire and in a time the test moves."""

from __future__ import annotations

from pathlib import Path

from cosmodrome import Producer
from cosmodrome.broker.queue_locks import LOCK_LIFE_MS
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.model import MessageQueue, Subscription
from cosmodrome.net.connection import Connection
from cosmodrome.testing import FakeClock
from cosmodrome.wire.bodies import LockBatch, decode_locked
from cosmodrome.wire.command import Command
from cosmodrome.wire.name_server_requests import KvConfig
from tests.system.wired import GROUP, Wired, another, until, wired

QUEUES = tuple(MessageQueue("t", "broker-a", queue_id) for queue_id in range(4))


async def lock(client: Wired, name: str, *queues: MessageQueue) -> set[MessageQueue]:
    request = LockBatch(GROUP, name, queues)
    return {*decode_locked(bytes((await client.ask(RequestCode.LOCK_BATCH_MQ, body=request.encode())).body))}


async def unlock(client: Wired, name: str, *queues: MessageQueue) -> None:
    await client.ask(RequestCode.UNLOCK_BATCH_MQ, body=LockBatch(GROUP, name, queues).encode())


async def test_a_member_that_leaves_hands_its_queues_over(tmp_path: Path) -> None:
    told: list[int] = []

    async def hear(_connection: Connection, command: Command) -> None:
        told.append(command.code)

    async with wired(tmp_path, clock=FakeClock()) as first, another(first, hear) as second:
        await first.heartbeat(Subscription("t"), client_id="first")
        assert await lock(first, "first", *QUEUES) == {*QUEUES}
        await second.heartbeat(Subscription("t"), client_id="second")
        assert await lock(second, "second", *QUEUES[:2]) == set()

        await unlock(first, "first", *QUEUES[:2])
        assert await lock(second, "second", *QUEUES) == {*QUEUES[:2]}
        assert await lock(first, "first", *QUEUES) == {*QUEUES[2:]}

        told.clear()
        await unlock(first, "first", *QUEUES[2:])
        await first.leave(client_id="first")
        await until(lambda: RequestCode.NOTIFY_CONSUMER_IDS_CHANGED in told)
        assert await lock(second, "second", *QUEUES) == {*QUEUES}


async def test_the_queues_of_a_member_that_dies_are_free_after_a_minute(tmp_path: Path) -> None:
    """Its last messages may still be in work somewhere, so nobody takes its place before."""
    clock = FakeClock()
    async with wired(tmp_path, clock=clock) as survivor:
        async with another(survivor) as dead:
            await dead.heartbeat(Subscription("t"), client_id="dead")
            await lock(dead, "dead", *QUEUES)
        await until(lambda: survivor.broker.clients.find_consumers(GROUP) is None)
        await clock.advance(LOCK_LIFE_MS - 1)
        assert await lock(survivor, "survivor", *QUEUES) == set()
        await clock.advance(2)
        assert await lock(survivor, "survivor", *QUEUES) == {*QUEUES}


async def test_a_configured_orderly_topic_keeps_its_queues(tmp_path: Path) -> None:
    conf = KvConfig("ORDER_TOPIC_CONFIG", "t", "broker-a:2;broker-b:1")
    async with wired(tmp_path) as client:
        for command in (
            Command.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\n"),
            Command.request(RequestCode.PUT_KV_CONFIG, conf),
        ):
            assert (await client.caller.call(client.namesrv, command, 5_000)).code == ResponseCode.SUCCESS
        await client.send("t", b"the topic has one queue")
        async with Producer("p", client.namesrv) as producer:
            queues = await producer.publish_queues("t")
    places = [("broker-a", 0), ("broker-a", 1), ("broker-b", 0)]
    assert sorted((queue.broker_name, queue.queue_id) for queue in queues) == places


async def test_a_broker_learns_from_the_name_server_which_topics_are_orderly(tmp_path: Path) -> None:
    async with wired(tmp_path) as client:
        await client.send("t", b"x")
        for topic in ("t", "elsewhere"):
            put = Command.request(RequestCode.PUT_KV_CONFIG, KvConfig("ORDER_TOPIC_CONFIG", topic, "broker-a:1"))
            assert (await client.caller.call(client.namesrv, put, 5_000)).code == ResponseCode.SUCCESS
        topics = client.broker.topics
        assert not topics.topic("t").order
        await client.send("u", b"a new topic is told at once")
        await until(lambda: topics.topic("t").order)
        assert not topics.topic("u").order
        assert topics.find_topic("elsewhere") is None
    async with wired(tmp_path) as client:
        assert client.broker.topics.topic("t").order
