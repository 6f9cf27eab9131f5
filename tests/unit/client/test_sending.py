"""What is tried again, where, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cosmodrome.client.producer import Producer
from cosmodrome.client.producer_options import ProducerOptions
from cosmodrome.client.sending import RETRIED_CODES, SAME_BROKER_PAUSE_MS
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import CallTimeout, ConnectionFailed, CosmodromeError, SendFailed
from cosmodrome.model import TRACE_TOPIC, Message, MessageQueue, SendResult, SendStatus
from cosmodrome.testing import FakeClock
from cosmodrome.wire import trace
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import SendMessage, SendReply
from tests.unit.client.fake_cluster import FakeBroker, fake_cluster

SEND = RequestCode.SEND_MESSAGE_V2
STORED = {0: "SEND_OK", 10: "FLUSH_DISK_TIMEOUT", 11: "SLAVE_NOT_AVAILABLE", 12: "FLUSH_SLAVE_TIMEOUT"}
# Apache's producer, 5.3: the rest of the codes is final.
RETRIED_BY_JAVA = {1, 2, 14, 16, 17, 204, 205, 1500}


def answering(code: int) -> Callable[[Command], Command]:
    header = SendReply("id", 0, 0) if code in STORED else None
    return lambda command: command.reply(code, header=header, remark="no")


async def outcome_of(sending: Awaitable[SendResult | None]) -> str:
    try:
        result = await sending
    except CosmodromeError as error:
        return type(error).__name__
    return "no answer" if result is None else result.status


def test_the_retried_codes_are_javas() -> None:
    assert set(RETRIED_CODES) == RETRIED_BY_JAVA


async def test_every_response_code_is_retried_or_final_as_in_java() -> None:
    """One broker answers with the code, then another would take the message: who was asked, and what came of it?"""
    async with fake_cluster("a", "b", T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        bad, good = cluster.named("a"), cluster.named("b")
        for code in ResponseCode:
            bad.answers[SEND] = answering(code)
            ways: dict[str, Callable[[], Awaitable[SendResult]]] = {
                "sync": lambda: producer.send(Message("T", b"x")),
                "async": lambda: producer.send_async(Message("T", b"x")),
                "queue": lambda: producer.send(Message("T", b"x"), MessageQueue("T", "a", 0)),
                "selector": lambda: producer.send(Message("T", b"x"), selector=lambda queues, message, arg: queues[0]),
            }
            for way, send in ways.items():
                producer._sending.turns._turns["T"] = 0  # the bad one comes first
                before = bad.asked.count(SEND), good.asked.count(SEND)
                outcome = await outcome_of(send())
                asked = bad.asked.count(SEND) - before[0], good.asked.count(SEND) - before[1]
                if code in STORED:
                    expected: tuple[str, tuple[int, int]] = (STORED[code], (1, 0))
                elif way == "sync" and code in RETRIED_BY_JAVA:
                    expected = ("SEND_OK", (1, 1))
                else:
                    expected = ("BrokerError", (1, 0))
                assert (outcome, asked) == expected, f"{way} {code!r}"


async def test_the_network_is_tried_again_in_every_way_but_for_a_chosen_queue() -> None:
    async with fake_cluster("a", "b", T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        await producer.publish_queues("T")
        await cluster.named("a").close()
        for send in (producer.send, producer.send_async):
            for _ in range(4):
                assert (await send(Message("T", b"x"))).queue.broker_name == "b"
            with pytest.raises(ConnectionFailed):
                await send(Message("T", b"x"), MessageQueue("T", "a", 0))
            with pytest.raises(ConnectionFailed):
                await send(Message("T", b"x"), selector=lambda queues, message, arg: queues[0])


async def test_tries_in_the_background_are_counted_apart() -> None:
    options = ProducerOptions(max_async_tries=2)
    async with (
        fake_cluster(T=1) as cluster,
        Producer("g", cluster.namesrv, max_tries=4, options=options) as producer,
    ):
        dropping(cluster.broker)
        with pytest.raises(SendFailed):
            await producer.send_async(Message("T", b"x"))
        assert cluster.broker.asked.count(SEND) == 2
        with pytest.raises(SendFailed):
            await producer.send(Message("T", b"x"))
        assert cluster.broker.asked.count(SEND) == 2 + 4


def dropping(broker: FakeBroker) -> None:
    """Close the connection instead of an answer."""

    def drop(_command: Command) -> None:
        for connection in list(broker.connections):
            connection.abort()

    broker.answers[SEND] = drop


async def test_oneway_is_never_tried_again() -> None:
    async with fake_cluster("a", "b", T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        await producer.publish_queues("T")
        await cluster.named("a").close()
        sent = await asyncio.gather(
            *(producer.send_oneway(Message("T", b"x")) for _ in range(4)), return_exceptions=True
        )
        assert sum(isinstance(one, ConnectionFailed) for one in sent) == 2
        assert len(await cluster.named("b").asked.wait_for(SEND, 2)) == 2


# --- stored, but not as safely as it should be


@pytest.mark.parametrize("code", [10, 11, 12])
async def test_another_broker_is_tried_for_what_is_not_safe_only_if_asked_for(code: int) -> None:
    options = ProducerOptions(retry_another_broker_when_not_store_ok=True)
    async with fake_cluster("a", "b", T=1) as cluster, Producer("g", cluster.namesrv, options=options) as producer:
        cluster.named("a").answers[SEND] = answering(code)
        for _ in range(4):
            result = await producer.send(Message("T", b"x"))
            assert (result.status, result.queue.broker_name) == (SendStatus.SEND_OK, "b")


@pytest.mark.parametrize("other", [10, 13, 1])
async def test_what_is_stored_somewhere_is_no_failure(other: int) -> None:
    options = ProducerOptions(retry_another_broker_when_not_store_ok=True)
    async with fake_cluster("a", "b", T=1) as cluster, Producer("g", cluster.namesrv, options=options) as producer:
        cluster.named("a").answers[SEND] = answering(12)
        cluster.named("b").answers[SEND] = answering(other)
        await producer.publish_queues("T")
        producer._sending.turns._turns["T"] = 0
        result = await producer.send(Message("T", b"x"))
        assert result.status in (SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.FLUSH_DISK_TIMEOUT)


# --- time


async def test_the_time_is_for_all_tries_together() -> None:
    async with fake_cluster("a", "b", T=1) as cluster, Producer("g", cluster.namesrv, max_tries=100) as producer:
        for broker in cluster.brokers:
            broker.silent = True
        began = asyncio.get_running_loop().time()
        for send in (producer.send, producer.send_async):
            with pytest.raises((SendFailed, CallTimeout)):
                await send(Message("T", b"x"), timeout_ms=200)
        assert asyncio.get_running_loop().time() - began < 5  # the tries alone would take the 100 pauses of each
        for broker in cluster.brokers:
            broker.silent = False


async def test_no_time_left_is_no_try() -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        await producer.publish_queues("T")
        with pytest.raises(SendFailed, match="no time was left"):
            await producer.send(Message("T", b"x"), timeout_ms=0)
        assert cluster.broker.asked.count(SEND) == 0


async def test_a_second_try_at_a_broker_has_to_wait_even_if_another_was_tried_in_between() -> None:
    clock = FakeClock()
    async with (
        fake_cluster("a", "b", T=1) as cluster,
        Producer("g", cluster.namesrv, clock=clock) as producer,
    ):
        free_ms = clock.now_ms() + SAME_BROKER_PAUSE_MS
        for broker in cluster.brokers:
            broker.answers[SEND] = lambda command: answering(2 if clock.now_ms() < free_ms else 0)(command)
        sending = asyncio.ensure_future(producer.send(Message("T", b"x"), timeout_ms=60_000))
        for broker in cluster.brokers:
            await broker.asked.wait_for(SEND)
        while not sending.done():
            await clock.advance(1)
        assert (await sending).status is SendStatus.SEND_OK


# --- slow brokers


async def test_a_broker_that_failed_is_avoided_if_that_is_asked_for() -> None:
    clock = FakeClock()
    options = ProducerOptions(avoid_slow_brokers=True)
    async with (
        fake_cluster("a", "b", T=2) as cluster,
        Producer("g", cluster.namesrv, options=options, clock=clock) as producer,
    ):
        a = cluster.named("a")
        a.answers[SEND] = answering(ResponseCode.SYSTEM_BUSY)
        await sent(producer, 8)
        assert a.asked.count(SEND) == 1
        del a.answers[SEND]
        await clock.advance(599_000)
        assert await sent(producer, 8) == {"b"}
        await clock.advance(1_001)
        assert await sent(producer, 8) == {"a", "b"}


async def sent(producer: Producer, count: int) -> set[str]:
    return {(await producer.send(Message("T", b"x"))).queue.broker_name for _ in range(count)}


async def test_a_refusal_of_the_message_says_nothing_of_the_broker() -> None:
    options = ProducerOptions(avoid_slow_brokers=True)
    async with fake_cluster("a", "b", T=1) as cluster, Producer("g", cluster.namesrv, options=options) as producer:
        cluster.named("a").answers[SEND] = answering(ResponseCode.MESSAGE_ILLEGAL)
        outcomes = [await outcome_of(producer.send(Message("T", b"x"))) for _ in range(6)]
        assert outcomes.count("BrokerError") == 3


async def test_if_all_are_bad_one_is_still_used() -> None:
    options = ProducerOptions(avoid_slow_brokers=True)
    async with fake_cluster("a", "b", T=1) as cluster, Producer("g", cluster.namesrv, options=options) as producer:
        for broker in cluster.brokers:
            broker.answers[SEND] = answering(ResponseCode.SYSTEM_BUSY)
        with pytest.raises(SendFailed):
            await producer.send(Message("T", b"x"))
        for broker in cluster.brokers:
            del broker.answers[SEND]
        assert (await producer.send(Message("T", b"x"))).status is SendStatus.SEND_OK


async def test_a_broker_that_stores_unsafely_is_followed_by_another_also_if_slow_ones_are_avoided() -> None:
    options = ProducerOptions(avoid_slow_brokers=True, retry_another_broker_when_not_store_ok=True)
    async with fake_cluster("a", "b", T=8) as cluster, Producer("g", cluster.namesrv, options=options) as producer:
        a = cluster.named("a")
        a.answers[SEND] = lambda command: command.reply(
            ResponseCode.FLUSH_DISK_TIMEOUT, header=SendReply("id", SendMessage.decode(command).queue_id, 0)
        )
        results = [await producer.send(Message("T", b"x")) for _ in range(16)]
        assert {(result.status, result.queue.broker_name) for result in results} == {(SendStatus.SEND_OK, "b")}
        assert a.asked.count(SEND) >= 1


async def test_what_a_one_way_send_meets_is_remembered_of_its_broker() -> None:
    options = ProducerOptions(avoid_slow_brokers=True)
    async with fake_cluster("a", "b", T=2) as cluster, Producer("g", cluster.namesrv, options=options) as producer:
        await producer.publish_queues("T")
        await cluster.named("a").close()
        outcomes = [await outcome_of(producer.send_oneway(Message("T", b"x"))) for _ in range(8)]
        assert outcomes.count("ConnectionFailed") == 1
        assert await sent(producer, 4) == {"b"}


async def test_a_one_way_send_to_a_chosen_queue_says_nothing_of_others() -> None:
    """As with Java's clients, in which those who choose a queue also take the consequences."""
    options = ProducerOptions(avoid_slow_brokers=True)
    async with fake_cluster("a", "b", T=1) as cluster, Producer("g", cluster.namesrv, options=options) as producer:
        (queue, _) = await producer.publish_queues("T")
        await cluster.named("a").close()
        assert await outcome_of(producer.send_oneway(Message("T", b"x"), queue)) == "ConnectionFailed"
        outcomes = [await outcome_of(producer.send_oneway(Message("T", b"x"))) for _ in range(2)]
        assert outcomes.count("ConnectionFailed") == 1


# --- traces


@pytest.mark.parametrize(
    ("code", "is_success", "offset_msg_id"),
    [
        (ResponseCode.SUCCESS, True, "id"),
        (ResponseCode.FLUSH_DISK_TIMEOUT, False, "id"),
        (ResponseCode.SLAVE_NOT_AVAILABLE, False, "id"),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, False, "id"),
        (ResponseCode.MESSAGE_ILLEGAL, False, ""),
    ],
)
async def test_only_what_is_stored_safely_is_traced_as_a_success(
    code: int, is_success: bool, offset_msg_id: str
) -> None:
    async with fake_cluster("a", T=1, RMQ_SYS_TRACE_TOPIC=1) as cluster:
        async with Producer("g", cluster.namesrv, trace=True) as producer:

            def answer(command: Command) -> Command:
                request = SendMessage.decode(command)
                if request.topic == TRACE_TOPIC:
                    traced.extend(trace.decode(command.body))
                    return command.reply(header=SendReply("trace", 0, 0))
                if offset_msg_id:
                    return command.reply(code, header=SendReply(offset_msg_id, 0, 0, msg_region="R"))
                return command.reply(code)

            traced: list[trace.TraceRecord] = []
            cluster.broker.answers[SEND] = answer
            await outcome_of(producer.send(Message("T", b"x")))
        (record,) = traced
    assert isinstance(record, trace.Pub)
    assert (record.success, record.offset_msg_id) == (is_success, offset_msg_id)


# --- cancelling


async def test_a_cancelled_send_leaves_nothing_behind() -> None:
    async with fake_cluster("a", "b", T=2) as cluster, Producer("g", cluster.namesrv) as producer:
        await producer.send(Message("T", b"x"))
        for broker in cluster.brokers:
            broker.answers[SEND] = lambda command: None
        sends: list[asyncio.Future[SendResult]] = [
            asyncio.ensure_future(producer.send(Message("T", b"x"))) for _ in range(10)
        ]
        sends += [producer.send_async(Message("T", b"x")) for _ in range(10)]
        await poll(lambda: sum(broker.asked.count(SEND) for broker in cluster.brokers) == 1 + 20, 5)
        for send in sends:
            send.cancel()
        await asyncio.gather(*sends, return_exceptions=True)
        assert all(send.cancelled() for send in sends)
        for broker in cluster.brokers:
            del broker.answers[SEND]
        await poll(lambda: pending_sends(producer) == 0, 2)  # well before they would have timed out
        assert (producer._async_sends.count, producer._async_sends._bytes) == (0, 0)
        assert (await producer.send(Message("T", b"x"))).status is SendStatus.SEND_OK


def pending_sends(producer: Producer) -> int:
    """Calls that wait for an answer, heartbeats among them."""
    links = producer._instance.caller._links.values()
    return sum(len(link.connection._calls) for link in links if link.connection is not None)


async def poll(holds: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(0.001)
