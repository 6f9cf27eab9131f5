"""What brokers ask of a consumer: answered over real sockets, by a consumer that goes on working."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from cosmodrome.client.broker_calls import directly_result
from cosmodrome.client.push_consumer import PushConsumer
from cosmodrome.client.results import Ended, OrderlyStatus
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import RetryLater
from cosmodrome.model import ConsumeType, MessageQueue, ReceivedMessage
from cosmodrome.wire.bodies import (
    ConsumeDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumerStatus,
    ResetOffsets,
)
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header
from cosmodrome.wire.requests import ConsumeDirectly, GetConsumerStatus, GetRunningInfo, ResetOffset
from tests.unit.client.fake_cluster import PATIENCE_SECONDS, FakeCluster, fake_cluster, quick
from tests.unit.client.messages import record

GROUP, TOPIC = "g", "T"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
CALL_TIMEOUT_MS = 30_000


async def turn() -> None:
    await asyncio.sleep(0.001)


class Inbox:
    """A handler that keeps what it got, returns once it is `open`, and raises `failure` if there is one."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.queues: set[MessageQueue] = set()
        self.failure: Exception | None = None
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.bodies.append(message.body)
        self.queues.add(message.queue)
        async with asyncio.timeout(PATIENCE_SECONDS):  # which needs a task
            await self.open.wait()
        if self.failure is not None:
            raise self.failure

    async def has(self, *bodies: bytes) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.bodies != list(bodies):
                await turn()


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


def consumer_of(cluster: FakeCluster, handler: Any) -> PushConsumer:
    consumer = PushConsumer(GROUP, config=quick(cluster.namesrv))
    consumer.subscribe(TOPIC, "*", handler)
    return consumer


async def ask(cluster: FakeCluster, code: RequestCode, header: Header, body: bytes = b"") -> Command:
    """As the broker asks its only member."""
    (connection,) = cluster.broker.members[GROUP]
    return await connection.call(Command.request(code, header, body), CALL_TIMEOUT_MS)


async def tell(cluster: FakeCluster, header: ResetOffset, offsets: dict[MessageQueue, int]) -> None:
    (connection,) = cluster.broker.members[GROUP]
    body = ResetOffsets(offsets).encode()
    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    await connection.oneway(Command.request(code, header, body, oneway=True))


async def committed(cluster: FakeCluster, offset: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while cluster.broker.offsets.get((GROUP, TOPIC, 0)) != offset:
            await turn()


async def test_a_reset_brings_messages_again(inbox: Inbox) -> None:
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, inbox):
        for body in (b"0", b"1", b"2"):
            await cluster.broker.append(TOPIC, 0, body)
        await inbox.has(b"0", b"1", b"2")
        elsewhere = MessageQueue("other", "broker-a", 0)
        await tell(cluster, ResetOffset(TOPIC, GROUP, 0), {QUEUE: 1, elsewhere: 0})
        await inbox.has(b"0", b"1", b"2", b"1", b"2")
        await committed(cluster, 3)


async def test_a_reset_finds_its_way_into_a_namespace(inbox: Inbox) -> None:
    """Brokers know the wrapped names only."""
    async with fake_cluster(**{"ns%T": 1}) as cluster:
        consumer = PushConsumer(GROUP, config=dataclasses.replace(quick(cluster.namesrv), namespace="ns"))
        consumer.subscribe(TOPIC, "*", inbox)
        async with consumer:
            await cluster.broker.append("ns%T", 0, b"0")
            await inbox.has(b"0")
            (connection,) = cluster.broker.members["ns%g"]
            body = ResetOffsets({MessageQueue("ns%T", "broker-a", 0): 0}).encode()
            code, header = RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ResetOffset("ns%T", "ns%g", 0)
            await connection.oneway(Command.request(code, header, body, oneway=True))
            await inbox.has(b"0", b"0")
            handed = record(b"1", topic="ns%T").encode()
            direct = ConsumeDirectly("ns%g", consumer.client_id, "id", "broker-a", "ns%T")
            answer = await connection.call(
                Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, direct, handed), CALL_TIMEOUT_MS
            )
            assert ConsumeDirectlyResult.decode(answer.body).result is ConsumeResult.SUCCESS
            assert inbox.bodies == [b"0", b"0", b"1"]
            assert inbox.queues == {QUEUE}
            assert consumer.statistics(TOPIC).pull_tps > 0


async def test_what_was_in_process_at_a_reset_is_not_committed(inbox: Inbox) -> None:
    async with fake_cluster(T=1) as cluster:
        async with consumer_of(cluster, inbox) as consumer:
            inbox.open.clear()
            for body in (b"0", b"1", b"2"):
                await cluster.broker.append(TOPIC, 0, body)
            await inbox.has(b"0", b"1", b"2")
            consumer.pause()
            await tell(cluster, ResetOffset(TOPIC, GROUP, 0), {QUEUE: 1})
            await committed(cluster, 1)
            inbox.open.set()
        assert cluster.broker.offsets[GROUP, TOPIC, 0] == 1


async def test_it_tells_how_far_it_is(inbox: Inbox) -> None:
    async with fake_cluster(T=2) as cluster, consumer_of(cluster, inbox):
        inbox.open.clear()
        await cluster.broker.append(TOPIC, 1, b"0")
        await inbox.has(b"0")
        answer = await ask(cluster, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, GetConsumerStatus(TOPIC, GROUP))
        inbox.open.set()
    assert ConsumerStatus.decode(answer.body).offsets == {QUEUE: 0, MessageQueue(TOPIC, "broker-a", 1): 0}


async def test_it_tells_what_it_does(inbox: Inbox) -> None:
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, inbox) as consumer:
        await cluster.broker.append(TOPIC, 0, b"0")
        await inbox.has(b"0")
        await committed(cluster, 1)
        inbox.open.clear()
        await cluster.broker.append(TOPIC, 0, b"1")
        await inbox.has(b"0", b"1")
        header = GetRunningInfo(GROUP, consumer.client_id, jstack_enable=True)
        answer = await ask(cluster, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        own = consumer.running_info()
        inbox.open.set()
    info = ConsumerRunningInfo.decode(answer.body)
    assert info.properties["PROP_CONSUME_TYPE"] == ConsumeType.PASSIVELY
    assert info.properties["PROP_NAMESERVER_ADDR"] == f"{cluster.namesrv};"
    assert info.properties["PROP_CONSUMEORDERLY"] == "false"
    assert info.properties["PROP_CLIENT_VERSION"].startswith("V5_")
    assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) > 0
    assert int(info.properties["PROP_THREADPOOL_CORE_SIZE"]) == 20
    assert {one.topic for one in info.subscriptions} == set(info.statuses) == {TOPIC, "%RETRY%g"}
    progress = info.queues[QUEUE]
    assert (progress.commit_offset, progress.cached_count) == (1, 1)
    assert (progress.cached_min_offset, progress.cached_max_offset) == (1, 1)
    assert progress.last_consume_timestamp >= int(info.properties["PROP_CONSUMER_START_TIMESTAMP"])
    assert "test_broker_calls.py" in (info.stacks or "")
    assert "Thread MainThread" in (info.stacks or "")
    assert (own.queues, own.stacks) == (info.queues, None)


async def test_it_counts_what_it_pulls_and_handles(inbox: Inbox) -> None:
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, inbox) as consumer:
        cluster.broker.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = Command.reply
        inbox.failure = RuntimeError("told to fail")
        await cluster.broker.append(TOPIC, 0, b"0")
        await inbox.has(b"0")
        await committed(cluster, 1)
        inbox.failure = None
        await cluster.broker.append(TOPIC, 0, b"1")
        await inbox.has(b"0", b"1")
        await committed(cluster, 2)
        status = consumer.statistics(TOPIC)
    assert status.consume_failed_msgs == 1
    assert status.consume_ok_tps == status.consume_failed_tps > 0
    assert status.pull_tps == pytest.approx(2 * status.consume_ok_tps)
    assert consumer.statistics("nothing").pull_tps == 0


@pytest.mark.parametrize(
    ("failure", "result", "remark"),
    [
        (None, ConsumeResult.SUCCESS, None),
        (RetryLater("not now"), ConsumeResult.LATER, "RetryLater: not now"),
        (ValueError("broken"), ConsumeResult.THROW_EXCEPTION, "ValueError: broken"),
    ],
)
async def test_it_handles_a_message_it_is_given(
    inbox: Inbox, failure: Exception | None, result: ConsumeResult, remark: str | None
) -> None:
    inbox.failure = failure
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, inbox) as consumer:
        header = ConsumeDirectly(GROUP, consumer.client_id, "id", "broker-a", TOPIC)
        body = record(b"look", topic=TOPIC).encode()
        answer = await ask(cluster, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, body)
        assert inbox.bodies == [b"look"]
        assert not cluster.broker.asked.of(RequestCode.CONSUMER_SEND_MSG_BACK)
    told = ConsumeDirectlyResult.decode(answer.body)
    assert (told.result, told.order, told.auto_commit, told.remark) == (result, False, True, remark)


async def test_a_message_no_handler_is_for_is_said_to_be_so(inbox: Inbox) -> None:
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, inbox) as consumer:
        header = ConsumeDirectly(GROUP, consumer.client_id, "id", "broker-a", "other")
        body = record(b"look", topic="other").encode()
        answer = await ask(cluster, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, body)
    told = ConsumeDirectlyResult.decode(answer.body)
    assert told.result is ConsumeResult.THROW_EXCEPTION
    assert "no handler is subscribed to topic other" in (told.remark or "")
    assert inbox.bodies == []


@pytest.mark.parametrize(
    ("code", "header"),
    [
        (RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, GetConsumerStatus(TOPIC, "another")),
        (RequestCode.GET_CONSUMER_RUNNING_INFO, GetRunningInfo("another", "c")),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeDirectly("another", "c")),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeDirectly(GROUP, "c")),
    ],
)
async def test_what_is_meant_for_others_or_has_no_message_is_refused(
    inbox: Inbox, code: RequestCode, header: Header
) -> None:
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, inbox):
        answer = await ask(cluster, code, header)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark


@pytest.mark.parametrize(
    ("status", "result"),
    [
        (None, ConsumeResult.SUCCESS),
        (OrderlyStatus.SUCCESS, ConsumeResult.SUCCESS),
        (OrderlyStatus.COMMIT, ConsumeResult.COMMIT),
        (OrderlyStatus.ROLLBACK, ConsumeResult.ROLLBACK),
        (OrderlyStatus.SUSPEND, ConsumeResult.LATER),
    ],
)
def test_what_an_orderly_handler_returns_is_told_in_java_s_words(
    status: OrderlyStatus | None, result: ConsumeResult
) -> None:
    told = directly_result(Ended(status, None, 7), order=True)
    assert told == ConsumeDirectlyResult(result, order=True, spent_ms=7)
    assert directly_result(Ended(status, None, 7)).result is ConsumeResult.SUCCESS
