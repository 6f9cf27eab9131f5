"""Transactions, requests and their answers, and traces of what happened."""

from __future__ import annotations

import asyncio

import pytest

from cosmodrome import (
    Message,
    Producer,
    ReceivedMessage,
    RequestProducer,
    SendStatus,
    TransactionProducer,
    TransactionState,
)
from cosmodrome.client.tracing import find_traces
from cosmodrome.errors import CallTimeout, InvalidMessage, RouteNotFound
from cosmodrome.wire.trace import EndTransaction, Pub, SubAfter, SubBefore, TraceRecord
from tests.behaviour.clusters import Cluster
from tests.behaviour.support import PATIENCE_S, SEND_TIMEOUT_MS, Inbox, consumer, fresh, limited, send_bodies, until

SILENCE_MS = 3_000  # in which a slow broker takes a message all the same
COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


async def test_only_what_is_committed_arrives(cluster: Cluster) -> None:
    """Decided at once, or later when the broker asks; by a failing application too."""
    topic, inbox = fresh("topic"), Inbox()
    cluster.create_topic(topic, 1)
    decided = {b"commit": COMMIT, b"rollback": ROLLBACK}
    later = {b"checked-commit": COMMIT, b"checked-rollback": ROLLBACK, b"failed": COMMIT}
    asked: set[bytes] = set()

    async def execute(message: Message) -> TransactionState:
        if message.body == b"failed":
            raise RuntimeError("no money")
        return decided.get(message.body, UNKNOWN)

    def check(message: ReceivedMessage) -> TransactionState:
        assert (message.topic, message.keys, message.properties["n"]) == (topic, message.body.decode(), "7")
        if message.body in asked:  # Apache's asks again while it is slow to see an answer, and commits once per answer
            return UNKNOWN
        asked.add(message.body)
        return later.get(message.body, UNKNOWN)

    async with (
        TransactionProducer(fresh("producer"), cluster.namesrv, check=check) as producer,
        consumer(cluster, fresh("group"), topic, inbox),
    ):
        for body in (*decided, *later):
            message = Message(topic, body, keys=body.decode(), properties={"n": "7"})
            if body == b"failed":
                with pytest.raises(RuntimeError, match="no money"):
                    await producer.send_in_transaction(message, execute)
                continue
            result = await producer.send_in_transaction(message, execute)
            assert (result.sent.status, result.state) == (SendStatus.SEND_OK, decided.get(body, UNKNOWN))
            assert result.sent.transaction_id in ("", result.sent.msg_id)  # 4.x tells none
        await inbox.has([b"commit", b"checked-commit", b"failed"])
        await until(lambda: asked >= set(later), lambda: asked)  # brokers ask from several threads
    assert all(message.topic == topic for message in inbox.messages)


async def test_another_producer_answers_for_one_that_is_gone(cluster: Cluster) -> None:
    topic, group, inbox = fresh("topic"), fresh("producer"), Inbox()
    cluster.create_topic(topic, 1)
    async with TransactionProducer(group, cluster.namesrv, check=lambda _: UNKNOWN) as gone:
        await gone.send_in_transaction(Message(topic, b"left"), lambda _: UNKNOWN)
    async with (
        TransactionProducer(group, cluster.namesrv, check=lambda _: COMMIT) as heir,
        consumer(cluster, fresh("group"), topic, inbox),
    ):
        await heir.publish_queues(topic)  # makes it known to the topic's brokers
        await inbox.has([b"left"])


# --- request and reply


async def test_a_request_is_answered(cluster: Cluster) -> None:
    topic = fresh("topic")
    cluster.create_topic(topic, 2)
    async with RequestProducer(fresh("producer"), cluster.namesrv) as replier:

        async def answer(message: ReceivedMessage) -> None:
            if message.body != b"silence":
                await replier.reply(message, message.body[::-1] * (1 if len(message.body) < 100 else 10))

        async with (
            consumer(cluster, fresh("group"), topic, answer),
            RequestProducer(fresh("producer"), cluster.namesrv) as asker,
        ):
            asked = [f"question-{number}".encode() for number in range(10)] + [b"long" * 1_000]
            answers = await asyncio.gather(
                *(asker.request(Message(topic, body), timeout_ms=PATIENCE_S * 1_000) for body in asked)
            )
            assert [one.body for one in answers[:-1]] == [body[::-1] for body in asked[:-1]]
            assert answers[-1].body == asked[-1][::-1] * 10
            told: asyncio.Future[ReceivedMessage | BaseException] = asyncio.get_running_loop().create_future()
            asker.request_async(Message(topic, b"call"), callback=told.set_result, timeout_ms=PATIENCE_S * 1_000)
            async with limited():
                called = await told
            assert isinstance(called, ReceivedMessage)
            assert called.body == b"llac"
            with pytest.raises(CallTimeout, match="the consumer of"):
                await asker.request(Message(topic, b"silence"), timeout_ms=SILENCE_MS)


async def test_what_asks_for_no_answer_gets_none(cluster: Cluster) -> None:
    topic, inbox = fresh("topic"), Inbox()
    cluster.create_topic(topic, 1)
    await send_bodies(cluster, topic, [b"a"])
    async with (
        consumer(cluster, fresh("group"), topic, inbox),
        RequestProducer(fresh("producer"), cluster.namesrv) as replier,
    ):
        await inbox.has([b"a"])
        with pytest.raises(InvalidMessage, match="asks for no answer"):
            await replier.reply(inbox.messages[0], b"b")


# --- traces


async def test_what_happened_to_a_message_is_found_by_its_id_and_its_key(cluster: Cluster) -> None:
    topic, group, inbox, key = fresh("topic"), fresh("group"), Inbox(), fresh("key")
    cluster.create_topic(topic, 1)
    producer_group = fresh("producer")

    def fail_once(message: ReceivedMessage) -> None:
        inbox(message)
        if message.reconsume_times == 0:
            raise RuntimeError("not now")

    async with Producer(producer_group, cluster.namesrv, trace=True) as producer:
        sent = await producer.send(Message(topic, b"a", tags="red", keys=key), timeout_ms=SEND_TIMEOUT_MS)
    async with consumer(cluster, group, topic, fail_once, trace=True):
        await inbox.has([b"a", b"a"])
    for wanted in (sent.msg_id, key):
        found = await traces(cluster, wanted, 5)
        (pub,) = [one for one in found if isinstance(one, Pub)]
        assert (pub.group, pub.topic, pub.tags, pub.keys) == (producer_group, topic, "red", key)
        assert (pub.offset_msg_id, pub.store_host, pub.success) == (sent.offset_msg_id, cluster.broker_address, True)
        before = sorted((one for one in found if isinstance(one, SubBefore)), key=lambda one: one.retry_times)
        after = {one.request_id: one.success for one in found if isinstance(one, SubAfter)}
        assert [(one.group, one.retry_times, after[one.request_id]) for one in before] == [
            (group, 0, False),
            (group, 1, True),
        ]


async def test_the_end_of_a_transaction_is_traced(cluster: Cluster) -> None:
    topic = fresh("topic")
    cluster.create_topic(topic, 1)
    async with TransactionProducer(fresh("producer"), cluster.namesrv, check=lambda _: UNKNOWN, trace=True) as producer:
        result = await producer.send_in_transaction(Message(topic, b"a"), lambda _: COMMIT)
    found = await traces(cluster, result.sent.msg_id, 2)
    (end,) = [one for one in found if isinstance(one, EndTransaction)]
    assert (end.state, end.from_check, end.transaction_id) == ("COMMIT_MESSAGE", False, result.sent.msg_id)


async def traces(cluster: Cluster, key: str, count: int) -> list[TraceRecord]:
    """Once there are so many: a broker needs a moment to find a new message by its key."""
    found: list[TraceRecord] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            try:
                found = await find_traces(key, namesrv=cluster.namesrv)
            except RouteNotFound:
                pass  # the first trace makes the topic
            await asyncio.sleep(0.05)
    return found
