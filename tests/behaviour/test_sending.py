"""Every way to send, and what arrives."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from cosmodrome import (
    ClientConfig,
    Compression,
    ConsumeContext,
    FilterContext,
    Message,
    MessageQueue,
    Producer,
    ProducerOptions,
    ReceivedMessage,
    SendContext,
    SendResult,
    SendStatus,
    select_by_hash,
    split_batches,
)
from cosmodrome.client.outgoing import MAX_BODY_BYTES
from cosmodrome.errors import ClientError, CosmodromeError, InvalidMessage, RouteNotFound
from cosmodrome.wire.command import Command
from tests.behaviour.clusters import BROKER_NAME, Cluster
from tests.behaviour.support import PATIENCE_S, SEND_TIMEOUT_MS, Inbox, bodies, consumer, fresh, limited, send, until


async def received(cluster: Cluster, topic: str, count: int) -> list[ReceivedMessage]:
    """What a new group gets of a topic, in the order of its queues."""
    inbox = Inbox()
    async with consumer(cluster, fresh("group"), topic, inbox):
        await until(lambda: len(inbox.messages) >= count, lambda: inbox.bodies)
    return sorted(inbox.messages, key=lambda message: (message.queue, message.queue_offset))


def check_places(results: list[SendResult], messages: list[ReceivedMessage]) -> None:
    """What a producer was told of each message is what its consumer sees."""
    told = sorted((result.msg_id, result.offset_msg_id, result.queue, result.queue_offset) for result in results)
    assert told == sorted((one.msg_id, one.offset_msg_id, one.queue, one.queue_offset) for one in messages)


# --- ways


async def test_send_tells_where_each_message_went(cluster: Cluster) -> None:
    topic, sent = fresh("topic"), bodies(12)
    queues = cluster.create_topic(topic, 4)
    async with Producer(fresh("producer"), cluster.namesrv) as producer:
        assert list(await producer.publish_queues(topic)) == queues
        results = [await producer.send(Message(topic, body), timeout_ms=SEND_TIMEOUT_MS) for body in sent]
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    assert len({result.msg_id for result in results}) == len(results)
    assert sorted(result.queue for result in results) == sorted(queues * 3)  # in turn
    found = await received(cluster, topic, len(sent))
    check_places(results, found)
    assert {message.store_host for message in found} == {cluster.broker_address}


async def test_send_async_by_future_and_by_callback(cluster: Cluster) -> None:
    topic, sent = fresh("topic"), bodies(200)
    cluster.create_topic(topic)
    told: list[SendResult | BaseException] = []
    async with Producer(fresh("producer"), cluster.namesrv) as producer:
        futures = [producer.send_async(Message(topic, body)) for body in sent[:100]]
        for body in sent[100:]:
            producer.send_async(Message(topic, body), callback=told.append)
        async with limited(lambda: told):
            results = await asyncio.gather(*futures)
    results += [result for result in told if isinstance(result, SendResult)]
    assert len(results) == len(sent)  # stopping waited for the others
    found = await received(cluster, topic, len(sent))
    check_places(results, found)
    assert sorted(message.body for message in found) == sorted(sent)


async def test_send_oneway(cluster: Cluster) -> None:
    topic, sent = fresh("topic"), bodies(20)
    queues = cluster.create_topic(topic)
    async with Producer(fresh("producer"), cluster.namesrv) as producer:
        for body in sent:
            await producer.send_oneway(Message(topic, body))
        await producer.send_oneway(Message(topic, b"there"), queues[2])
    found = await received(cluster, topic, len(sent) + 1)
    assert sorted(message.body for message in found) == sorted([*sent, b"there"])
    assert next(message.queue for message in found if message.body == b"there") == queues[2]


async def test_a_batch_is_stored_in_one_queue_in_its_order(cluster: Cluster) -> None:
    topic = fresh("topic")
    cluster.create_topic(topic)
    batch = [
        Message(topic, body, tags=f"tag-{number}", keys=[f"key-{number}", "all"], properties={"number": str(number)})
        for number, body in enumerate(bodies(10))
    ]
    async with Producer(fresh("producer"), cluster.namesrv) as producer:
        result = await producer.send_batch(batch)
    found = await received(cluster, topic, len(batch))
    assert [message.body for message in found] == [message.body for message in batch]
    assert [message.tags for message in found] == [message.tags for message in batch]
    assert [message.properties["number"] for message in found] == [str(number) for number in range(len(batch))]
    assert {message.queue for message in found} == {result.queue}
    assert result.msg_id.split(",") == [message.msg_id for message in found]
    assert result.offset_msg_id.split(",") == [message.offset_msg_id for message in found]
    assert [message.queue_offset for message in found] == list(range(len(batch)))


async def test_any_number_of_messages_goes_out_in_batches(cluster: Cluster) -> None:
    topic = fresh("topic")
    (queue,) = cluster.create_topic(topic, 1)
    large = [random.Random(number).randbytes(900_000) for number in range(10)]
    async with Producer(fresh("producer"), cluster.namesrv) as producer:
        messages = (Message(topic, body) for body in large)
        results = [result async for result in producer.send_batches(messages, queue, timeout_ms=10_000)]
        assert len(results) == 3
        small = split_batches([Message(topic, body) for body in bodies(50)], max_bytes=1_000)
        results += [await producer.send_batch(batch, queue) for batch in small]
    assert len(results) > 5
    found = await received(cluster, topic, len(large) + 50)
    assert [message.body for message in found] == large + bodies(50)


async def test_a_chosen_queue(cluster: Cluster) -> None:
    """Given, chosen by a selector with its argument, or by a sharding key."""
    topic = fresh("topic")
    queues = cluster.create_topic(topic, 4)
    keys = [f"key-{number % 5}" for number in range(20)]
    async with Producer(fresh("producer"), cluster.namesrv) as producer:
        for number, queue in enumerate(queues):
            assert (await producer.send(Message(topic, b"given"), queue, timeout_ms=SEND_TIMEOUT_MS)).queue == queue
            assert (
                await producer.send(Message(topic, b"chosen"), selector=choose, arg=number, timeout_ms=SEND_TIMEOUT_MS)
            ).queue == queue
        by_key = [
            await producer.send(Message(topic, b"keyed", sharding_key=key), timeout_ms=SEND_TIMEOUT_MS) for key in keys
        ]
        by_hash = [
            await producer.send(Message(topic, b"hashed"), selector=select_by_hash, arg=key, timeout_ms=SEND_TIMEOUT_MS)
            for key in keys
        ]
        assert [result.queue for result in by_key] == [result.queue for result in by_hash]
        assert len({(key, result.queue) for key, result in zip(keys, by_key, strict=True)}) == len(set(keys))
        with pytest.raises(InvalidMessage, match="is one of"):
            await producer.send(Message(topic, b"a"), MessageQueue("another", BROKER_NAME, 0))
        with pytest.raises(ClientError):
            await producer.send(Message(topic, b"a"), MessageQueue(topic, BROKER_NAME, 99))
    found = await received(cluster, topic, 48)
    assert {message.properties["__SHARDINGKEY"] for message in found if message.body == b"keyed"} == set(keys)


def choose(queues: object, message: Message, number: int) -> MessageQueue:
    assert isinstance(queues, tuple)
    chosen = queues[number]
    assert isinstance(chosen, MessageQueue)
    return chosen


# --- what arrives


async def test_everything_a_message_has_arrives(cluster: Cluster) -> None:
    topic = fresh("topic")
    cluster.create_topic(topic, 1)
    message = Message(
        topic,
        bytes(range(256)),
        tags="röt-标签",
        keys=["ключ", "llave-ñ"],
        properties={"farbe": "grün 🟢", "名前": "value with blanks", "a": "="},
        flag=-7,
    )
    (result,) = await send(cluster, message)
    (found,) = await received(cluster, topic, 1)
    assert (found.topic, found.body, found.flag) == (topic, message.body, message.flag)
    assert (found.tags, found.keys) == (message.tags, "ключ llave-ñ")
    assert {name: found.properties[name] for name in message.properties} == message.properties
    assert (found.msg_id, found.reconsume_times) == (result.msg_id, 0)
    assert found.born_timestamp <= found.store_timestamp + 1_000


@pytest.mark.parametrize("kind", Compression)
async def test_a_large_body_travels_compressed(cluster: Cluster, kind: Compression) -> None:
    topic = fresh("topic")
    cluster.create_topic(topic, 1)
    small, large, noise = b"x" * 1_000, b"a body that repeats itself " * 1_000, random.Random(1).randbytes(8_000)
    options = ProducerOptions(compression=kind)
    async with Producer(fresh("producer"), cluster.namesrv, options=options) as producer:
        for body in (small, large, noise):
            await producer.send(Message(topic, body), timeout_ms=SEND_TIMEOUT_MS)
    found = await received(cluster, topic, 3)
    assert [message.body for message in found] == [small, large, noise]
    assert found[0].store_size > len(small)
    assert found[1].store_size < len(large) // 10
    assert found[2].store_size > len(noise)


async def test_the_largest_body_and_a_larger_one(cluster: Cluster) -> None:
    topic = fresh("topic")
    (queue,) = cluster.create_topic(topic, 1)
    largest = random.Random(2).randbytes(MAX_BODY_BYTES)
    plain = ProducerOptions(compress_from_bytes=2 * MAX_BODY_BYTES, max_message_bytes=2 * MAX_BODY_BYTES)
    async with Producer(fresh("producer"), cluster.namesrv) as producer:
        with pytest.raises(InvalidMessage, match="at most"):
            await producer.send(Message(topic, largest + b"x"))
        await producer.send(Message(topic, largest), timeout_ms=PATIENCE_S * 1_000)
        with pytest.raises(InvalidMessage, match="empty"):
            await producer.send(Message(topic, b""))
    async with Producer(fresh("producer"), cluster.namesrv, options=plain) as careless:
        with pytest.raises(CosmodromeError):  # the broker's own limit
            await careless.send(Message(topic, largest + b"x" * 100_000), queue, timeout_ms=PATIENCE_S * 1_000)
    (found,) = await received(cluster, topic, 1)
    assert found.body == largest


# --- topics that are not there


async def test_a_topic_is_made_by_the_first_message(cluster: Cluster) -> None:
    topic = fresh("topic")
    results = await send(cluster, *(Message(topic, body) for body in bodies(8)))
    assert len({result.queue for result in results}) == 4
    assert len(await received(cluster, topic, 8)) == 8


async def test_a_topic_that_nobody_makes_is_an_error_that_says_so(cluster: Cluster, tmp_path: Path) -> None:
    with cluster.start_name_server(tmp_path) as lonely:
        async with Producer(fresh("producer"), lonely.address) as producer:
            with pytest.raises(RouteNotFound, match="autoCreateTopicEnable"):
                await producer.send(Message("nowhere", b"a"))


# --- namespaces and hooks


async def test_namespaces_keep_names_apart(cluster: Cluster) -> None:
    """Topics and groups of the same name are others in another namespace, for those that fail too."""
    topic, group = fresh("topic"), fresh("group")
    names = "one", "two", ""
    for name in names:
        cluster.create_topic(f"{name}%{topic}".removeprefix("%"), 1)
    inboxes = {name: Inbox() for name in names}

    def failing_once(inbox: Inbox, message: ReceivedMessage) -> None:
        inbox(message)
        if message.reconsume_times == 0:
            raise RuntimeError("not now")

    async def live(name: str) -> None:
        config = ClientConfig(namespace=name)
        inbox = inboxes[name]
        async with (
            consumer(cluster, group, topic, lambda message: failing_once(inbox, message), config=config) as member,
            Producer(group, cluster.namesrv, config=config) as producer,
        ):
            result = await producer.send(Message(topic, name.encode() or b"none"), timeout_ms=SEND_TIMEOUT_MS)
            assert result.queue == MessageQueue(topic, BROKER_NAME, 0)
            await inbox.has([name.encode() or b"none"] * 2)
            assert {queue.topic for queue in member.assigned_queues} == {topic, f"%RETRY%{group}"}

    await asyncio.gather(*map(live, names))
    assert {message.topic for inbox in inboxes.values() for message in inbox.messages} == {topic}


class Watcher:
    """Every kind of hook in one."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.requests: set[str] = set()

    def before_send(self, context: SendContext) -> None:
        context.properties["by-hook"] = "yes"
        self.seen.append(f"before {context.message.body.decode()}")

    def after_send(self, context: SendContext) -> None:
        self.seen.append(f"after {context.message.body.decode()} {context.result and context.result.status}")

    def forbid(self, context: SendContext) -> None:
        if context.message.body == b"forbidden":
            raise PermissionError("not this one")

    def before_consume(self, context: ConsumeContext) -> None:
        self.seen.append(f"consume {context.messages[0].body.decode()}")

    def after_consume(self, context: ConsumeContext) -> None:
        self.seen.append(f"consumed {context.messages[0].body.decode()} {context.success}")

    def before_request(self, address: str, command: Command) -> None:
        self.requests.add(address)

    def after_response(self, address: str, command: Command, reply: Command) -> None:
        assert reply.opaque == command.opaque

    @staticmethod
    def drop(context: FilterContext) -> list[ReceivedMessage]:
        return [message for message in context.messages if message.body != b"unwanted"]


async def test_hooks_watch_refuse_and_filter(cluster: Cluster) -> None:
    topic, watcher, inbox = fresh("topic"), Watcher(), Inbox()
    cluster.create_topic(topic, 1)
    options = ProducerOptions(send_hooks=(watcher,), check_forbidden=(watcher.forbid,))
    async with Producer(fresh("producer"), cluster.namesrv, options=options, rpc_hooks=[watcher]) as producer:
        with pytest.raises(PermissionError, match="not this one"):
            await producer.send(Message(topic, b"forbidden"))
        for body in (b"unwanted", b"wanted"):
            await producer.send(Message(topic, body), timeout_ms=SEND_TIMEOUT_MS)
    async with consumer(cluster, fresh("group"), topic, inbox, consume_hooks=[watcher], filter_hooks=[watcher.drop]):
        await until(lambda: "consumed wanted True" in watcher.seen)
    assert inbox.bodies == [b"wanted"]
    assert inbox.messages[0].properties["by-hook"] == "yes"
    assert watcher.requests == {cluster.namesrv, cluster.broker_address}
    assert [line for line in watcher.seen if "forbidden" not in line] == [
        "before unwanted",
        "after unwanted SEND_OK",
        "before wanted",
        "after wanted SEND_OK",
        "consume wanted",
        "consumed wanted True",
    ]
