"""Requests and their answers, against a broker that pushes what it likes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import wait

import pytest

from cosmodrome.client.producer import COMPRESS_ASIDE_FROM_BYTES, PACKING_THREADS, Producer
from cosmodrome.client.requesting import RequestProducer
from cosmodrome.codes import RequestCode
from cosmodrome.config import ClientConfig
from cosmodrome.errors import CallTimeout, ClientError, InvalidMessage, SendFailed
from cosmodrome.model import Message, MessageQueue, ReceivedMessage
from cosmodrome.wire import properties as properties_string
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import PushReply, SendMessage, SendReply
from tests.unit.client.fake_cluster import FakeBroker, fake_cluster

SEND, REPLY = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_REPLY_MESSAGE_V2
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT


def push(broker: FakeBroker, correlation_id: str, body: bytes) -> None:
    properties = properties_string.encode({"CORRELATION_ID": correlation_id})
    header = PushReply("g", "R", "TBW102", 4, 0, 0, 1, 0, "127.0.0.1:1", "127.0.0.1:2", 2, properties)
    for connection in broker.connections:
        connection.send(Command.request(PUSH, header, body, oneway=True))


def asked_properties(command: Command) -> dict[str, str]:
    return properties_string.decode(SendMessage.decode(command).properties or "")


def answering(broker: FakeBroker, *bodies: bytes) -> Callable[[Command], Command]:
    """Take a request, and push answers to it."""

    def take(command: Command) -> Command:
        for body in bodies:
            asyncio.get_running_loop().call_soon(push, broker, asked_properties(command)["CORRELATION_ID"], body)
        return command.reply(header=SendReply("id", SendMessage.decode(command).queue_id, 0))

    return take


async def test_the_first_answer_counts_and_the_others_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with fake_cluster(T=2) as cluster, RequestProducer("g", cluster.namesrv) as producer:
        cluster.broker.answers[SEND] = answering(cluster.broker, b"one", b"two", b"three")
        assert (await producer.request(Message("T", b"x"))).body == b"one"
        assert (await producer.request(Message("T", b"y"))).body == b"one"
        assert producer._asked == {}
    assert "nobody waits for any more" in caplog.text


async def test_a_request_says_who_asks_and_for_how_long() -> None:
    async with fake_cluster(T=2) as cluster, RequestProducer("g", cluster.namesrv) as producer:
        cluster.broker.answers[SEND] = answering(cluster.broker, b"answer")
        await producer.request(Message("T", b"x"), timeout_ms=2_500)
        (command,) = cluster.broker.asked.of(SEND)
        properties = asked_properties(command)
        assert (properties["REPLY_TO_CLIENT"], properties["TTL"]) == (producer.client_id, "2500")


async def test_the_broker_knows_the_requester_before_the_request_and_is_not_told_each_time() -> None:
    async with fake_cluster(T=2) as cluster, RequestProducer("g", cluster.namesrv) as producer:
        cluster.broker.answers[SEND] = answering(cluster.broker, b"answer")
        for _ in range(20):
            await producer.request(Message("T", b"x"))
        codes = [command.code for command in cluster.broker.asked.requests]
    assert codes[0] == RequestCode.HEART_BEAT
    assert codes.count(RequestCode.HEART_BEAT) < 5


async def test_a_broker_that_says_nothing_disturbs_no_request_to_another() -> None:
    async with fake_cluster("a", "b", T=1) as cluster, RequestProducer("g", cluster.namesrv) as producer:
        cluster.named("a").answers[SEND] = answering(cluster.named("a"), b"answer")
        cluster.named("b").silent = True
        queue = MessageQueue("T", "a", 0)
        for _ in range(3):
            assert (await producer.request(Message("T", b"x"), queue, timeout_ms=2_000)).body == b"answer"
        for _ in range(2):  # one of them begins with the other broker
            assert (await producer.request(Message("T", b"x"), timeout_ms=2_000)).body == b"answer"
        with pytest.raises(CallTimeout):
            await producer.request(Message("T", b"x"), MessageQueue("T", "b", 0), timeout_ms=100)
        assert cluster.named("b").asked.count(SEND) == 0, "it does not know whom to give the answer"
        cluster.named("b").silent = False


@pytest.mark.parametrize("way", ["request", "reply"])
async def test_stopping_waits_for_requests_and_replies(way: str) -> None:
    async with fake_cluster(T=1, C_REPLY_TOPIC=1) as cluster:
        producer = RequestProducer("g", cluster.namesrv)
        await producer.start()
        cluster.broker.answers[SEND] = answering(cluster.broker)
        cluster.broker.answers[REPLY] = lambda command: None
        call = (
            producer.request(Message("T", b"x")) if way == "request" else producer.reply(request_from("broker-a"), b"y")
        )
        calling: asyncio.Task[ReceivedMessage | None] = asyncio.create_task(call)
        (command,) = await cluster.broker.asked.wait_for(SEND if way == "request" else REPLY)
        stopping = asyncio.create_task(producer.stop())
        await asyncio.sleep(0.01)
        if way == "request":
            push(cluster.broker, asked_properties(command)["CORRELATION_ID"], b"answer")
        else:
            (connection,) = cluster.broker.connections
            connection.send(command.reply(header=SendReply("id", 0, 0)))
        answer = await calling
        assert answer is None or answer.body == b"answer"
        await stopping


@pytest.mark.parametrize("kinds", [(Producer, RequestProducer), (RequestProducer, Producer)])
async def test_no_other_producer_of_the_client_id_takes_the_answers(kinds: tuple[type[Producer], ...]) -> None:
    async with fake_cluster(T=1) as cluster:
        named = ClientConfig(namesrv=cluster.namesrv, instance_name="blue")
        first, second = (kind(kind.__name__, config=named, trace=True) for kind in kinds)
        async with first:
            with pytest.raises(ClientError, match=r"answers to requests.*instance_name"):
                await second.start()
        async with kinds[1]("again", config=named):
            pass


async def test_a_request_goes_to_the_queue_that_is_chosen() -> None:
    async with fake_cluster("a", "b", T=2) as cluster, RequestProducer("g", cluster.namesrv) as producer:
        for broker in cluster.brokers:
            broker.answers[SEND] = answering(broker, b"answer")
        await producer.request(Message("T", b"x"), MessageQueue("T", "b", 1))
        await producer.request(Message("T", b"x"), selector=lambda queues, message, arg: queues[arg], arg=2)
        sent = [SendMessage.decode(command).queue_id for command in cluster.named("b").asked.of(SEND)]
        assert sent == [1, 0]


async def test_an_answer_that_is_late_is_dropped() -> None:
    async with fake_cluster(T=1) as cluster, RequestProducer("g", cluster.namesrv) as producer:
        cluster.broker.answers[SEND] = answering(cluster.broker)
        with pytest.raises(CallTimeout, match="the consumer of T"):
            await producer.request(Message("T", b"x"), timeout_ms=1_000)
        (command,) = cluster.broker.asked.of(SEND)
        push(cluster.broker, asked_properties(command)["CORRELATION_ID"], b"late")
        cluster.broker.answers[SEND] = answering(cluster.broker, b"in time")
        assert (await producer.request(Message("T", b"y"))).body == b"in time"


async def test_requests_in_the_background_have_futures_and_callbacks() -> None:
    heard: asyncio.Queue[ReceivedMessage | BaseException] = asyncio.Queue()
    async with fake_cluster(T=2) as cluster, RequestProducer("g", cluster.namesrv) as producer:
        cluster.broker.answers[SEND] = answering(cluster.broker, b"answer")
        answers = await asyncio.gather(*(producer.request_async(Message("T", b"x")) for _ in range(20)))
        assert {answer.body for answer in answers} == {b"answer"}
        producer.request_async(Message("T", b"x"), callback=heard.put_nowait)
        outcome = await heard.get()
        assert isinstance(outcome, ReceivedMessage)
        cluster.broker.answers[SEND] = answering(cluster.broker)
        producer.request_async(Message("T", b"x"), callback=heard.put_nowait, timeout_ms=1_000)
        assert isinstance(await heard.get(), CallTimeout)


async def test_a_cancelled_request_leaves_nothing_behind() -> None:
    async with fake_cluster(T=1) as cluster, RequestProducer("g", cluster.namesrv) as producer:
        cluster.broker.answers[SEND] = answering(cluster.broker)
        requests = [producer.request_async(Message("T", b"x")) for _ in range(5)]
        await cluster.broker.asked.wait_for(SEND, 5)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        assert (producer._asked, producer._async_sends.count) == ({}, 0)


async def test_an_answer_goes_to_the_broker_that_took_the_request() -> None:
    async with fake_cluster("a", "b", C_REPLY_TOPIC=1) as cluster, RequestProducer("g", cluster.namesrv) as producer:
        cluster.named("b").answers[REPLY] = lambda command: command.reply(header=SendReply("id", 0, 0))
        await producer.reply(request_from("b"), b"answer")
        (command,) = cluster.named("b").asked.of(REPLY)
        assert asked_properties(command) == {
            "MSG_TYPE": "reply",
            "CORRELATION_ID": "c-1",
            "REPLY_TO_CLIENT": "asker",
            "TTL": "3000",
        }
        with pytest.raises(InvalidMessage, match="empty"):
            await producer.reply(request_from("b"), b"")


def request_from(broker_name: str) -> ReceivedMessage:
    properties = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "asker", "TTL": "3000", "CLUSTER": "C"}
    queue = MessageQueue("T", broker_name, 0)
    return ReceivedMessage("T", b"x", properties, 0, 0, queue, 0, 0, 1, "127.0.0.1:1", 2, "127.0.0.1:2", 0, "id", 99)


async def test_a_huge_answer_is_compressed_beside_the_loop() -> None:
    may_end = threading.Event()
    async with fake_cluster("b", C_REPLY_TOPIC=1) as cluster, RequestProducer("g", cluster.namesrv) as producer:
        cluster.broker.answers[REPLY] = lambda command: command.reply(header=SendReply("id", 0, 0))
        body = b"x" * COMPRESS_ASIDE_FROM_BYTES
        await producer.reply(request_from("b"), body)
        assert len(cluster.broker.asked.of(REPLY)[0].body) < 1_000
        busy = [producer._packing.submit(may_end.wait, 30) for _ in range(PACKING_THREADS)]
        async with asyncio.timeout(30):
            with pytest.raises(SendFailed, match="could not be compressed in time"):
                await producer.reply(request_from("b"), body, timeout_ms=50)
        may_end.set()
        wait(busy, 30)
        assert cluster.broker.asked.count(REPLY) == 1
