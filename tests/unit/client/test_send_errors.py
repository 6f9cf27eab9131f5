"""What is raised, as a program sees it: classes and fields, not texts."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cosmodrome import (
    AlreadyStarted,
    BrokerError,
    CallTimeout,
    Closed,
    ConfigError,
    ConnectionFailed,
    InvalidMessage,
    LifecycleError,
    Message,
    MessageQueue,
    NotStarted,
    Producer,
    ProducerOptions,
    RequestProducer,
    SendFailed,
    TransactionProducer,
    TransactionState,
)
from cosmodrome import blocking as sync
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import ClientConfig
from cosmodrome.model import Property
from cosmodrome.net.caller import Caller
from cosmodrome.wire.command import Command
from tests.unit.client.fake_cluster import fake_cluster

SEND = RequestCode.SEND_MESSAGE_V2
QUEUE = MessageQueue("T", "broker-a", 0)


async def test_a_failed_send_tells_of_each_try() -> None:
    async with fake_cluster("a", "b", T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        cluster.named("a").answers[SEND] = lambda command: command.reply(ResponseCode.SYSTEM_BUSY, remark="full")
        await producer.publish_queues("T")
        await cluster.named("b").close()
        with pytest.raises(SendFailed) as raised:
            await producer.send(Message("T", b"x"))
    failed = raised.value
    assert len(failed.attempts) == 3
    for broker, error in failed.attempts:
        assert type(error) is {"a": BrokerError, "b": ConnectionFailed}[broker]
    assert failed.code == ResponseCode.SYSTEM_BUSY
    assert failed.__cause__ is failed.attempts[-1].error
    assert str(pickle.loads(pickle.dumps(failed)).__cause__) == str(failed.__cause__)


async def test_a_broker_that_says_nothing_is_a_timeout_and_one_that_is_away_a_connection_error() -> None:
    queue = MessageQueue("T", "broker-a", 0)
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        await producer.publish_queues("T")
        cluster.broker.answers[SEND] = lambda command: None
        with pytest.raises(TimeoutError) as late:
            await producer.send(Message("T", b"x"), queue, timeout_ms=30)
        await cluster.broker.close()
        with pytest.raises(ConnectionError) as away:
            await producer.send(Message("T", b"x"), queue)
    assert isinstance(late.value, CallTimeout)
    assert isinstance(away.value, ConnectionFailed)


async def test_the_name_server_that_is_late_is_the_one_that_is_named() -> None:
    """Its timeout is a TimeoutError, and is not taken for that of the send."""
    async with fake_cluster(T=1) as cluster:
        cluster._server._handler = lambda connection, command: asyncio.sleep(1)
        config = ClientConfig(namesrv=cluster.namesrv, call_timeout_ms=30)
        async with Producer("g", config=config) as producer:
            with pytest.raises(CallTimeout, match=cluster.namesrv):
                await producer.send(Message("T", b"x"))


async def test_a_request_that_no_broker_takes_in_time_names_the_broker() -> None:
    async with fake_cluster(T=1) as cluster, RequestProducer("g", cluster.namesrv) as producer:
        cluster.broker.answers[RequestCode.HEART_BEAT] = lambda command: command.reply()
        await producer.publish_queues("T")
        cluster.broker.answers[SEND] = lambda command: None
        with pytest.raises(CallTimeout) as late:
            await producer.request(Message("T", b"x"), MessageQueue("T", "broker-a", 0), timeout_ms=50)
    assert late.value.address == cluster.broker.address


async def test_what_is_no_address_is_said_once() -> None:
    caller = Caller()
    with pytest.raises(ConnectionFailed, match=r"^nowhere: is not an address; write host:port$"):
        await caller.call("nowhere", Command.request(SEND), 1_000)
    await caller.close()


# --- lifecycle


async def test_each_moment_of_a_lifecycle_has_a_class_of_its_own() -> None:
    async with fake_cluster(T=1) as cluster:
        producer = Producer("g", cluster.namesrv)
        with pytest.raises(NotStarted):
            await producer.send(Message("T", b"x"))
        await producer.start()
        with pytest.raises(AlreadyStarted):
            await producer.start()
        with pytest.raises(LifecycleError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, producer.send(Message("T", b"x")))
        await producer.stop()
        with pytest.raises(Closed):
            await producer.send(Message("T", b"x"))
        with pytest.raises(Closed):
            await producer.start()


def test_without_await_the_classes_are_the_same() -> None:
    producer = sync.Producer("g", "127.0.0.1:1")
    with pytest.raises(sync.NotStarted):
        producer.send(Message("T", b"x"))


# --- messages


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Message("T", b""), {"field": "body"}),
        (Message("T", b"123456"), {"field": "body", "size": 6, "limit": 5}),
        (Message("or ders", b"x"), {"field": "topic", "topic": "or ders"}),
        (Message("T", b"x", tags=["a"]), {"field": "tags"}),  # type: ignore[arg-type]
        (Message("T", b"x", keys=["a b"]), {"field": "keys"}),
        (Message("T", b"x", flag=2**31), {"field": "flag"}),
        (Message("T", b"x", delay_level=-1), {"field": "delay_level"}),
        (Message("T", b"x", properties={"color": ""}), {"field": "properties", "name": "color"}),
        (Message("T", b"x", properties={Property.KEYS: "k"}), {"field": "properties", "name": "KEYS"}),
        (Message("T", b"x", tags="t" * 40_000), {"field": "properties", "limit": 32_767}),
    ],
    ids=lambda value: value.get("field") if isinstance(value, dict) else "",
)
async def test_a_refused_message_says_what_is_wrong_with_it(message: Message, expected: dict[str, Any]) -> None:
    options = ProducerOptions(max_message_bytes=5)
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv, options=options) as producer:
        for send in (producer.send, producer.send_oneway):
            with pytest.raises(InvalidMessage) as raised:
                await send(message)
            assert {name: getattr(raised.value, name) for name in expected} == expected
            assert raised.value.topic == message.topic


async def test_a_batch_and_a_queue_that_do_not_fit_are_named() -> None:
    options = ProducerOptions(max_message_bytes=100)
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv, options=options) as producer:
        with pytest.raises(InvalidMessage) as raised:
            await producer.send_batch([Message("T", b"x" * 40)] * 3)
        assert (raised.value.field, raised.value.limit, raised.value.topic) == ("messages", 100, "T")
        nothing: Any = []
        with pytest.raises(InvalidMessage) as raised:
            await producer.send_batch(nothing)
        assert (raised.value.field, raised.value.topic) == ("messages", "")
        with pytest.raises(InvalidMessage) as raised:
            await producer.send_batch([Message("T", b"x", properties={"": "x"})])
        assert (raised.value.field, raised.value.topic) == ("properties", "T")
        with pytest.raises(InvalidMessage) as raised:
            await producer.send(Message("T", b"x"), MessageQueue("U", "broker-a", 0))
        assert (raised.value.field, raised.value.topic) == ("queue", "T")


# --- how long


WAYS: dict[str, Callable[[Any, dict[str, Any]], Awaitable[Any]]] = {
    "send": lambda producer, more: producer.send(Message("T", b"x"), QUEUE, **more),
    "send_async": lambda producer, more: producer.send_async(Message("T", b"x"), QUEUE, **more),
    "send_batch": lambda producer, more: producer.send_batch([Message("T", b"x")], QUEUE, **more),
    "send_in_transaction": lambda producer, more: producer.send_in_transaction(
        Message("T", b"x", sharding_key="k"), lambda message: TransactionState.COMMIT, **more
    ),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_producer_has_a_timeout_for_all_its_sends_and_a_call_may_have_another(way: str) -> None:
    options = ProducerOptions(send_timeout_ms=30)
    async with (
        fake_cluster(T=1) as cluster,
        TransactionProducer(
            "g", cluster.namesrv, check=lambda message: TransactionState.UNKNOWN, options=options
        ) as producer,
    ):
        await producer.publish_queues("T")
        cluster.broker.answers[SEND] = cluster.broker.answers[RequestCode.SEND_BATCH_MESSAGE] = lambda command: None
        for more, least_ms, most_ms in (({}, 0, 30), ({"timeout_ms": 300}, 30, 300)):
            with pytest.raises(CallTimeout) as late:
                await WAYS[way](producer, more)
            assert least_ms < late.value.timeout_ms <= most_ms, "the time left for the last call"


async def test_so_have_requests() -> None:
    options = ProducerOptions(send_timeout_ms=500)  # time enough to send on a busy machine
    async with fake_cluster(T=1) as cluster, RequestProducer("g", cluster.namesrv, options=options) as producer:
        cluster.broker.answers[RequestCode.HEART_BEAT] = lambda command: command.reply()
        for ask in (producer.request, producer.request_async):
            with pytest.raises(CallTimeout, match="the consumer of T did not answer within 500 ms"):
                await ask(Message("T", b"x"))


def test_the_timeout_is_javas_and_must_be_one() -> None:
    assert ProducerOptions().send_timeout_ms == 3_000
    with pytest.raises(ConfigError, match="send_timeout_ms is 0"):
        ProducerOptions(send_timeout_ms=0)
