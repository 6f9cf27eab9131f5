"""Producers and consumers against a real name server and broker, in one process."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome import Message, Producer, PushConsumer
from cosmodrome.blocking import Producer as BlockingProducer
from cosmodrome.blocking import PushConsumer as BlockingPushConsumer
from cosmodrome.client.queue_reader import TopicReader
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import InvalidMessage
from cosmodrome.model import ConsumeFrom, MessageQueue, ReceivedMessage, SendStatus
from cosmodrome.net.caller import Caller
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import parse_offset_msg_id
from cosmodrome.wire.requests import CreateTopic
from tests.bounded import in_thread
from tests.system.cluster import Cluster, running_broker, running_cluster, running_name_server

PATIENCE_SECONDS = 30


class Inbox:
    """A handler that remembers."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        self._arrived = asyncio.Condition()

    async def __call__(self, message: ReceivedMessage) -> None:
        async with self._arrived:
            self.messages.append(message)
            self._arrived.notify_all()

    async def wait_for(self, count: int) -> list[ReceivedMessage]:
        async with asyncio.timeout(PATIENCE_SECONDS), self._arrived:
            await self._arrived.wait_for(lambda: len(self.messages) >= count)
        return self.messages

    @property
    def bodies(self) -> Counter[bytes]:
        return Counter(message.body for message in self.messages)


async def test_a_message_arrives_as_it_was_sent(tmp_path: Path) -> None:
    inbox = Inbox()
    async with running_cluster(tmp_path) as cluster:
        consumer = PushConsumer(group="billing", namesrv=cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe("orders", "paid || refunded", inbox)
        async with Producer(group="orders-app", namesrv=cluster.namesrv) as producer, consumer:
            message = Message("orders", b'{"id": 1}', tags="paid", keys="1", properties={"shop": "Köln"})
            result = await producer.send(message)
            await producer.send(Message("orders", b"ignored", tags="cancelled"))
            (received,) = await inbox.wait_for(1)

    assert result.status is SendStatus.SEND_OK
    assert (received.topic, received.body, received.tags, received.keys) == ("orders", b'{"id": 1}', "paid", "1")
    assert received.properties["shop"] == "Köln"
    assert received.msg_id == result.msg_id
    assert received.offset_msg_id == result.offset_msg_id
    assert (received.queue, received.queue_offset) == (result.queue, result.queue_offset)
    ip, port, offset = parse_offset_msg_id(result.offset_msg_id)
    assert (f"{ip}:{port}", offset) == (received.store_host, received.commit_log_offset)


async def test_every_way_of_sending(tmp_path: Path) -> None:
    inbox = Inbox()
    async with running_cluster(tmp_path) as cluster, Producer(group="p", namesrv=cluster.namesrv) as producer:
        first = await producer.send(Message("t", b"plain"))
        queues = await producer.publish_queues("t")
        to_queue = await producer.send(Message("t", b"queue"), queue=queues[2])
        selected = await producer.send(Message("t", b"selected"), selector=lambda q, _m, arg: q[arg % len(q)], arg=5)
        batch = await producer.send_batch([Message("t", b"b0", tags="x", keys="k0"), Message("t", b"b1", tags="y")])
        large = b"0123456789" * 2_000
        compressed = await producer.send(Message("t", large))
        await producer.send_oneway(Message("t", b"oneway"))
        consumer = PushConsumer(group="c", namesrv=cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe("t", "*", inbox)
        async with consumer:
            received = await inbox.wait_for(7)

    by_body = {message.body: message for message in received}
    assert set(by_body) == {b"plain", b"queue", b"selected", b"b0", b"b1", large, b"oneway"}
    assert len(queues) == 4
    assert by_body[b"plain"].queue == first.queue
    assert by_body[b"queue"].queue == to_queue.queue == queues[2]
    assert by_body[b"selected"].queue == selected.queue == queues[5 % 4]
    assert [by_body[b].queue_offset - batch.queue_offset for b in (b"b0", b"b1")] == [0, 1]
    assert (by_body[b"b0"].tags, by_body[b"b0"].keys, by_body[b"b1"].tags) == ("x", "k0", "y")
    assert batch.offset_msg_id == f"{by_body[b'b0'].offset_msg_id},{by_body[b'b1'].offset_msg_id}"
    assert batch.msg_id == f"{by_body[b'b0'].msg_id},{by_body[b'b1'].msg_id}"
    assert by_body[large].store_size < len(large)
    assert by_body[large].msg_id == compressed.msg_id


async def test_a_group_shares_its_queues_and_another_group_gets_everything_too(tmp_path: Path) -> None:
    count = 400
    first, second, other = Inbox(), Inbox(), Inbox()
    async with (
        running_cluster(tmp_path, brokers=2) as cluster,
        Producer(group="p", namesrv=cluster.namesrv) as producer,
    ):
        await create_topic("t", cluster)
        consumers = [PushConsumer(group=group, namesrv=cluster.namesrv) for group in ("g", "g", "h")]
        for consumer, inbox in zip(consumers, (first, second, other), strict=True):
            consumer.subscribe("t", "*", inbox)
        async with consumers[0], consumers[1], consumers[2]:
            await _until(lambda: _shared_evenly(consumers[0], consumers[1]))
            await asyncio.gather(*(producer.send(Message("t", b"%d" % index)) for index in range(count)))
            await other.wait_for(count)
            await _until(lambda: len(first.messages) + len(second.messages) >= count)

    expected = {b"%d" % index: 1 for index in range(count)}
    assert first.bodies + second.bodies == expected
    assert other.bodies == expected
    assert first.messages
    assert second.messages


def _shared_evenly(one: PushConsumer, two: PushConsumer) -> bool:
    mine, yours = (_queues_of("t", consumer) for consumer in (one, two))
    return len(mine) == len(yours) == 4 and not mine & yours


def _queues_of(topic: str, consumer: PushConsumer) -> set[MessageQueue]:
    return {queue for queue in consumer.assigned_queues if queue.topic == topic}


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110  # the moment a rebalance settles is no event
            await asyncio.sleep(0.01)


async def test_a_restarted_consumer_goes_on_where_it_stopped(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, Producer(group="p", namesrv=cluster.namesrv) as producer:
        before, after = Inbox(), Inbox()
        for inbox, bodies in ((before, [b"1", b"2"]), (after, [b"3"])):
            consumer = PushConsumer(group="g", namesrv=cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
            consumer.subscribe("t", "*", inbox)
            for body in bodies:
                await producer.send(Message("t", body))
            async with consumer:
                await inbox.wait_for(len(bodies))
    assert set(before.bodies) == {b"1", b"2"}
    assert set(after.bodies) == {b"3"}


async def test_messages_and_offsets_outlive_the_broker(tmp_path: Path) -> None:
    inbox = Inbox()
    async with running_name_server() as name_server:
        async with (
            running_broker(tmp_path, name_server.address),
            Producer(group="p", namesrv=name_server.address) as producer,
        ):
            for index in range(50):
                await producer.send(Message("t", b"%d" % index))
            consumer = PushConsumer(group="g", namesrv=name_server.address, consume_from=ConsumeFrom.FIRST_OFFSET)
            consumer.subscribe("t", "*", inbox)
            async with consumer:
                await inbox.wait_for(50)
        async with running_broker(tmp_path, name_server.address):
            again = Inbox()
            fresh = PushConsumer(group="fresh", namesrv=name_server.address, consume_from=ConsumeFrom.FIRST_OFFSET)
            fresh.subscribe("t", "*", again)
            same = PushConsumer(group="g", namesrv=name_server.address, consume_from=ConsumeFrom.FIRST_OFFSET)
            same.subscribe("t", "*", inbox)
            async with fresh, same:
                await again.wait_for(50)
    assert again.bodies == inbox.bodies == {b"%d" % index: 1 for index in range(50)}


async def test_a_producer_turns_to_another_broker_when_one_is_gone(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, brokers=2) as cluster,
        Producer(group="p", namesrv=cluster.namesrv) as producer,
    ):
        await create_topic("t", cluster)
        before = [await producer.send(Message("t", b"x")) for _ in range(16)]
        await cluster.brokers[0].stop_listening()
        after = [await producer.send(Message("t", b"y")) for _ in range(16)]
    assert {result.queue.broker_name for result in before} == {"broker-a", "broker-b"}
    assert {result.queue.broker_name for result in after} == {"broker-b"}


async def create_topic(name: str, cluster: Cluster) -> None:
    caller = Caller()
    for broker in cluster.brokers:
        request = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopic(name, 4, 4, 6))
        reply = await caller.call(broker.address, request, 20_000)
        assert reply.code == ResponseCode.SUCCESS, reply.remark
    await caller.close()


async def test_a_long_poll_is_answered_the_moment_a_message_arrives(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, Producer(group="p", namesrv=cluster.namesrv) as producer:
        await producer.send(Message("t", b"old"))
        await _until(lambda: "t" in cluster.name_server.routes.all_topics())  # else its queues count as new ones
        async with TopicReader("t", namesrv=cluster.namesrv) as reader:
            await _until(lambda: len(cluster.broker.long_polls) == 4)
            await producer.send(Message("t", b"new"))
            async with asyncio.timeout(PATIENCE_SECONDS):
                message = await anext(aiter(reader))
    assert message.body == b"new"


async def test_the_blocking_face(tmp_path: Path) -> None:
    def talk(namesrv: str) -> tuple[str, list[bytes]]:
        seen: list[bytes] = []
        done = threading.Event()

        def handler(message: ReceivedMessage) -> None:
            seen.append(message.body)
            done.set()

        consumer = BlockingPushConsumer(group="g", namesrv=namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe("t", "*", handler)
        with BlockingProducer(group="p", namesrv=namesrv) as producer, consumer:
            result = producer.send(Message("t", b"hello"))
            assert done.wait(PATIENCE_SECONDS)
        return result.status, seen

    async with running_cluster(tmp_path) as cluster:
        status, seen = await in_thread(talk, cluster.namesrv)
    assert (status, seen) == (SendStatus.SEND_OK, [b"hello"])


async def test_what_cannot_be_promised_is_refused(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, Producer(group="p", namesrv=cluster.namesrv) as producer:
        with pytest.raises(InvalidMessage, match="body is empty"):
            await producer.send(Message("t", b""))
        with pytest.raises(InvalidMessage, match="illegal"):
            await producer.send(Message("../../etc", b"x"))
        with pytest.raises(InvalidMessage, match="brokers only"):
            await producer.send(Message("SCHEDULE_TOPIC_XXXX", b"x"))


async def test_an_unknown_request_is_answered_as_such(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        caller = Caller()
        for address in (cluster.namesrv, cluster.broker.address):
            reply = await caller.call(address, Command.request(31_999), 20_000)
            assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        reply = await caller.call(cluster.broker.address, Command.request(RequestCode.PULL_MESSAGE), 20_000)
        assert (reply.code, "consumerGroup" in str(reply.remark)) == (ResponseCode.INVALID_PARAMETER, True)
        await caller.close()
