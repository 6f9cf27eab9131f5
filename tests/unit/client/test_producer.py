"""Sending, against brokers that fail in every way a broker can."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

from cosmodrome.client import producer as producer_module
from cosmodrome.client.producer import Producer
from cosmodrome.client.producer_options import ProducerOptions
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import ClientConfig
from cosmodrome.errors import (
    BrokerError,
    CallTimeout,
    ClientError,
    ConfigError,
    ConnectionFailed,
    InvalidMessage,
    InvalidParameter,
    RouteNotFound,
    SendFailed,
)
from cosmodrome.model import Message, MessageQueue, SendStatus
from cosmodrome.net.connection import Connection
from cosmodrome.net.server import Server
from cosmodrome.testing import FakeClock
from cosmodrome.wire import properties as properties_string
from cosmodrome.wire.bodies import HeartbeatData
from cosmodrome.wire.command import Command
from cosmodrome.wire.compression import decompress
from cosmodrome.wire.requests import SendMessage, SendReply, UnregisterClient
from tests.unit.client.fake_cluster import PATIENCE_SECONDS, FakeBroker, fake_cluster, quick

SEND = RequestCode.SEND_MESSAGE_V2


def refusing(code: int) -> Any:
    return lambda command: command.reply(code, remark="no")


async def test_a_message_goes_out_as_java_would_send_it() -> None:
    async with fake_cluster(T=4) as cluster, Producer("g", cluster.namesrv) as producer:
        message = Message("T", b"hello", tags="paid", keys=["a", "b"], properties={"x": "y"}, flag=7)
        result = await producer.send(message)
        (command,) = cluster.broker.asked.of(SEND)
    sent = SendMessage.decode(command)
    assert (sent.producer_group, sent.topic, sent.flag, sent.sys_flag) == ("g", "T", 7, 0)
    assert (sent.default_topic, sent.default_topic_queue_nums) == ("TBW102", 4)
    assert (sent.broker_name, sent.batch, sent.reconsume_times) == ("broker-a", False, 0)
    assert bytes(command.body) == b"hello"
    assert properties_string.decode(sent.properties or "") == {
        "UNIQ_KEY": result.msg_id,
        "WAIT": "true",
        "TAGS": "paid",
        "KEYS": "a b",
        "x": "y",
    }
    assert result.status is SendStatus.SEND_OK
    assert result.queue == MessageQueue("T", "broker-a", sent.queue_id)
    assert (result.offset_msg_id, result.queue_offset) == ("broker-a-0", 0)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, SendStatus.SEND_OK),
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_stored_with_reservations_is_stored(code: int, status: SendStatus) -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        cluster.broker.answers[SEND] = lambda command: command.reply(code, header=SendReply("id", 0, 5, "tx"))
        result = await producer.send(Message("T", b"x"))
        assert (result.status, result.queue_offset, result.transaction_id) == (status, 5, "tx")
        assert cluster.broker.asked.count(SEND) == 1


async def test_queues_take_turns() -> None:
    async with fake_cluster("a", "b", T=2) as cluster, Producer("g", cluster.namesrv) as producer:
        used = [(await producer.send(Message("T", b"x"))).queue for _ in range(8)]
        assert used[:4] == used[4:]
        assert sorted(used[:4]) == list(await producer.publish_queues("T"))


async def test_a_large_body_travels_compressed_and_a_huge_one_is_compressed_aside() -> None:
    for body in (b"x" * 5_000, b"x" * producer_module.COMPRESS_ASIDE_FROM_BYTES):
        async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
            await producer.send(Message("T", body))
            (command,) = cluster.broker.asked.of(SEND)
            sys_flag = SendMessage.decode(command).sys_flag
            assert len(command.body) < 1_000
            assert decompress(bytes(command.body), sys_flag, limit_bytes=len(body)) == body


async def test_a_huge_body_needs_nothing_of_the_loops_own_threads() -> None:
    """They may be busy, and are refused after the end of the main thread."""
    refusing = ThreadPoolExecutor()
    refusing.shutdown()
    asyncio.get_running_loop().set_default_executor(refusing)
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        body = b"x" * producer_module.COMPRESS_ASIDE_FROM_BYTES
        assert (await producer.send(Message("T", body))).status is SendStatus.SEND_OK


async def test_compressing_a_huge_body_counts_towards_the_timeout() -> None:
    may_end = threading.Event()
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        busy = [producer._packing.submit(may_end.wait, 30) for _ in range(producer_module.PACKING_THREADS)]
        async with asyncio.timeout(30):
            with pytest.raises(SendFailed, match="could not be compressed in time"):
                await producer.send(Message("T", b"x" * producer_module.COMPRESS_ASIDE_FROM_BYTES), timeout_ms=50)
        may_end.set()
        wait(busy, 30)
        assert cluster.broker.asked.count(SEND) == 0


# --- choosing a queue


async def test_a_chosen_queue_is_used() -> None:
    async with fake_cluster("a", "b", T=2) as cluster, Producer("g", cluster.namesrv) as producer:
        queue = MessageQueue("T", "b", 1)
        assert (await producer.send(Message("T", b"x"), queue)).queue == queue
        assert (await producer.send_batch([Message("T", b"x")], queue)).queue == queue
        await producer.send_oneway(Message("T", b"x"), queue)
        assert len(await cluster.named("b").asked.wait_for(SEND, 2)) == 2


async def test_a_selector_chooses_among_all_queues_with_its_argument() -> None:
    async with fake_cluster("a", "b", T=2) as cluster, Producer("g", cluster.namesrv) as producer:
        result = await producer.send(Message("T", b"x"), selector=lambda queues, message, arg: queues[arg], arg=3)
        assert result.queue == MessageQueue("T", "b", 1)


async def test_a_selector_that_chooses_a_queue_of_another_topic_is_told() -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        with pytest.raises(ClientError, match="one of the queues"):
            await producer.send(Message("T", b"x"), selector=lambda *_: MessageQueue("U", "broker-a", 0))
        number: Any = 0
        with pytest.raises(InvalidMessage, match="publish_queues"):
            await producer.send(Message("T", b"x"), number)
        assert cluster.broker.asked.count(SEND) == 0


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205])
async def test_a_chosen_queue_is_tried_once(code: int) -> None:
    async with fake_cluster("a", "b", T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        cluster.named("a").answers[SEND] = refusing(code)
        with pytest.raises(BrokerError) as refused:
            await producer.send(Message("T", b"x"), MessageQueue("T", "a", 0))
        assert refused.value.code == code
        assert cluster.named("a").asked.count(SEND) == 1
        assert cluster.named("b").asked.count(SEND) == 0


async def test_a_queue_of_an_unknown_broker_is_an_error_that_names_it() -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        with pytest.raises(ConnectionFailed, match="nowhere"):
            await producer.send(Message("T", b"x"), MessageQueue("T", "nowhere", 0))


# --- trying again


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205])
async def test_a_refusal_that_may_be_local_is_tried_on_another_broker(code: int) -> None:
    async with fake_cluster("a", "b", T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        cluster.named("a").answers[SEND] = refusing(code)
        for _ in range(4):
            assert (await producer.send(Message("T", b"x"))).queue.broker_name == "b"


@pytest.mark.parametrize("code", [13, 15, 29, 3])
async def test_a_refusal_that_every_broker_would_repeat_is_final(code: int) -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        cluster.broker.answers[SEND] = refusing(code)
        with pytest.raises(BrokerError):
            await producer.send(Message("T", b"x"))
        assert cluster.broker.asked.count(SEND) == 1


async def test_every_try_carries_the_same_id_so_that_a_duplicate_can_be_told() -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        cluster.broker.answers[SEND] = refusing(ResponseCode.SYSTEM_BUSY)
        with pytest.raises(SendFailed, match=r"SYSTEM_BUSY: no \(3 times\)"):
            await producer.send(Message("T", b"x"))
        sent = [SendMessage.decode(command).properties for command in cluster.broker.asked.of(SEND)]
        assert len(sent) == 3
        assert len(set(sent)) == 1


async def test_the_number_of_tries_can_be_chosen() -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv, max_tries=1) as producer:
        cluster.broker.answers[SEND] = refusing(ResponseCode.SYSTEM_BUSY)
        with pytest.raises(SendFailed):
            await producer.send(Message("T", b"x"))
        assert cluster.broker.asked.count(SEND) == 1


async def test_a_broker_that_is_gone_is_passed_over() -> None:
    async with fake_cluster("a", "b", T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        await producer.publish_queues("T")
        await cluster.named("a").close()
        for _ in range(4):
            assert (await producer.send(Message("T", b"x"))).queue.broker_name == "b"


async def test_a_broker_that_says_nothing_leaves_time_for_another_if_it_is_told_to() -> None:
    options = ProducerOptions(max_try_ms=500)
    async with fake_cluster("a", "b", T=1) as cluster, Producer("g", cluster.namesrv, options=options) as producer:
        cluster.named("a").silent = True
        for _ in range(2):
            assert (await producer.send(Message("T", b"x"), timeout_ms=30_000)).queue.broker_name == "b"
        cluster.named("a").silent = False


async def test_a_slow_broker_gets_the_message_once() -> None:
    """A second try while the first is under way would be a second copy, stored by both."""
    async with fake_cluster("a", "b", T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        await producer.publish_queues("T")
        cluster.named("a").silent = cluster.named("b").silent = True
        with pytest.raises(SendFailed, match="did not answer"):
            await producer.send(Message("T", b"x"), timeout_ms=1_000)
        assert sum(cluster.named(name).asked.count(SEND) for name in "ab") == 1
        cluster.named("a").silent = cluster.named("b").silent = False


async def test_a_host_that_is_gone_leaves_time_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing answers there at all, as behind a router that drops packets."""
    async with fake_cluster("a", "b", T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        await producer.publish_queues("T")
        loop, gone = asyncio.get_running_loop(), int(cluster.named("a").address.rpartition(":")[2])
        connect = loop.create_connection

        async def create_connection(make: Any, host: str, port: int, **options: Any) -> Any:
            if port == gone:
                await asyncio.Event().wait()
            return await connect(make, host, port, **options)

        monkeypatch.setattr(loop, "create_connection", create_connection)
        for _ in range(2):
            assert (await producer.send(Message("T", b"x"), timeout_ms=2_000)).queue.broker_name == "b"


async def test_the_timeout_holds_over_all_tries() -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        await producer.publish_queues("T")
        cluster.broker.silent = True
        with pytest.raises(SendFailed, match="did not answer"):
            await producer.send(Message("T", b"x"), timeout_ms=1_000)
        assert cluster.broker.asked.count(SEND) == 1
        with pytest.raises(CallTimeout):
            await producer.send(Message("T", b"x"), MessageQueue("T", "broker-a", 0), timeout_ms=50)
        cluster.broker.silent = False


# --- one-way and batches


async def test_oneway_asks_for_no_answer() -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        await producer.send_oneway(Message("T", b"x"))
        (command,) = await cluster.broker.asked.wait_for(SEND)
        assert command.is_oneway


async def test_a_batch_is_one_request_with_an_id_for_each_message() -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        result = await producer.send_batch([Message("T", b"a", tags="x"), Message("T", b"b" * 9_000)])
        (command,) = cluster.broker.asked.of(RequestCode.SEND_BATCH_MESSAGE)
        stored = cluster.broker.queues["T", 0]
    header = SendMessage.decode(command)
    assert (header.batch, header.sys_flag, header.properties) == (True, 0, "WAIT\x01true\x02")
    assert [one.body for one in stored] == [b"a", b"b" * 9_000]
    ids = [properties_string.find(one.properties, "UNIQ_KEY") for one in stored]
    assert result.msg_id == ",".join(filter(None, ids))
    assert (result.offset_msg_id, result.queue_offset) == ("broker-a-0,broker-a-1", 0)


# --- routes


async def test_a_topic_that_does_not_exist_is_sent_where_its_template_lives() -> None:
    async with fake_cluster(TBW102=8) as cluster, Producer("g", cluster.namesrv) as producer:
        queues = await producer.publish_queues("new")
        assert len(queues) == 4
        assert (await producer.send(Message("new", b"x"))).queue in queues


async def test_an_unknown_topic_without_template_is_refused_and_forgotten() -> None:
    async with fake_cluster() as cluster, Producer("g", cluster.namesrv) as producer:
        with pytest.raises(RouteNotFound, match="nope"):
            await producer.send(Message("nope", b"x"))
        assert producer._instance.routes.addresses(masters_only=False) == set()
        assert producer._instance.routes._topics == {}


async def test_a_topic_nobody_may_write_to_is_an_error() -> None:
    async with fake_cluster(T=0) as cluster, Producer("g", cluster.namesrv) as producer:
        with pytest.raises(SendFailed, match="no queue of topic T"):
            await producer.send(Message("T", b"x"))


async def test_another_name_server_is_asked_when_one_is_away() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        away = f"127.0.0.1:{taken.getsockname()[1]}"
        async with fake_cluster(T=1, U=1) as cluster:
            for _ in range(4):  # the first is chosen at random
                async with Producer("g", f"{away};{cluster.namesrv}") as producer:
                    await producer.send(Message("T", b"x"))
                    await producer.send(Message("U", b"x"))


async def test_no_name_server_at_all_is_an_error_in_time() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with Producer("g", f"127.0.0.1:{taken.getsockname()[1]}") as producer:
            with pytest.raises(ConnectionFailed):
                await producer.send(Message("T", b"x"))


# --- life


@pytest.mark.parametrize("way", ["send", "send_batch"])
async def test_stopping_waits_for_what_is_being_sent(way: str) -> None:
    """The goodbye comes after the answers, so none of those who wait for one is told that it failed."""
    async with fake_cluster(T=1) as cluster:
        producer = Producer("g", cluster.namesrv)
        await producer.start()
        code = SEND if way == "send" else RequestCode.SEND_BATCH_MESSAGE
        cluster.broker.answers[code] = lambda command: None
        what = Message("T", b"x") if way == "send" else [Message("T", b"x")]
        sending = [asyncio.create_task(getattr(producer, way)(what, timeout_ms=20_000)) for _ in range(3)]
        held = await cluster.broker.asked.wait_for(code, 3)
        stopping = asyncio.create_task(producer.stop())
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert cluster.broker.asked.count(RequestCode.UNREGISTER_CLIENT) == 0
        with pytest.raises(ClientError, match="stopped"):
            await producer.send(Message("T", b"late"))
        (connection,) = cluster.broker.connections
        for command in held:
            connection.send(command.reply(header=SendReply("id", 0, 0)))
        await stopping
        assert [(await one).status for one in sending] == [SendStatus.SEND_OK] * 3
        assert cluster.broker.asked.count(RequestCode.UNREGISTER_CLIENT) == 1


async def test_the_brokers_hear_of_the_end_whatever_becomes_of_the_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise RuntimeError("no more traces")

    async with fake_cluster(T=1) as cluster:
        producer = Producer("g", cluster.namesrv, trace=True)
        await producer.start()
        await producer.send(Message("T", b"x"))
        tracer = producer._tracer
        assert tracer is not None
        stop = tracer.stop
        monkeypatch.setattr(tracer, "stop", fail)
        with pytest.raises(RuntimeError, match="no more traces"):
            await producer.stop()
        assert cluster.broker.asked.count(RequestCode.UNREGISTER_CLIENT) == 1
        await stop()


@pytest.mark.parametrize("name", ["DEFAULT", "blue"])
def test_the_producer_of_traces_has_a_client_id_of_its_own(name: str) -> None:
    config = ClientConfig(namesrv="127.0.0.1:9876", instance_name=name)
    producer = Producer("g", trace=True, config=config)
    sender: Any = producer._tracer and producer._tracer._sender
    assert sender.client_id != producer.client_id


async def test_brokers_hear_of_the_producer_and_of_its_end() -> None:
    async with fake_cluster("a", "b", T=1) as cluster:
        async with Producer("g", cluster.namesrv) as producer:
            await producer.publish_queues("T")
            for broker in cluster.brokers:
                (beat, *_) = await broker.asked.wait_for(RequestCode.HEART_BEAT)
                assert HeartbeatData.decode(beat.body) == HeartbeatData(producer.client_id, ("g",))
        for broker in cluster.brokers:
            (bye,) = broker.asked.of(RequestCode.UNREGISTER_CLIENT)
            assert UnregisterClient.decode(bye) == UnregisterClient(producer.client_id, "g", None)


async def test_a_lost_connection_is_made_again_and_the_broker_told() -> None:
    clock = FakeClock()
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv, clock=clock) as producer:
        await producer.publish_queues("T")
        await cluster.broker.asked.wait_for(RequestCode.HEART_BEAT)
        for connection in list(cluster.broker.connections):
            connection.abort()
        again = asyncio.create_task(cluster.broker.asked.wait_for(RequestCode.HEART_BEAT, 2))
        while not again.done():
            await clock.advance(100)
            await asyncio.sleep(0.001)
        await again


async def test_what_a_broker_may_not_ask_is_refused() -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        await producer.send(Message("T", b"x"))
        (connection,) = cluster.broker.connections
        for code in (39, 220, 221, 307, 309, 326, 40):
            reply = await connection.call(Command.request(code), 1_000)
            assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_it_runs_once() -> None:
    async with fake_cluster(T=1) as cluster:
        producer = Producer("g", cluster.namesrv)
        with pytest.raises(ClientError, match="not started"):
            await producer.send(Message("T", b"x"))
        async with producer:
            with pytest.raises(ClientError, match="is running"):
                await producer.start()
        await producer.stop()
        with pytest.raises(ClientError, match="stopped"):
            await producer.send(Message("T", b"x"))
        with pytest.raises(ClientError, match="stopped"):
            await producer.start()


def test_a_producer_that_cannot_work_is_refused_when_made() -> None:
    with pytest.raises(ConfigError, match="namesrv"):
        Producer("g")
    with pytest.raises(ConfigError, match="not an address"):
        Producer("g", "localhost")
    with pytest.raises(InvalidParameter, match="group"):
        Producer("bad group", "127.0.0.1:9876")
    with pytest.raises(ConfigError, match="max_tries"):
        Producer("g", "127.0.0.1:9876", max_tries=0)


async def test_a_queue_and_a_selector_exclude_each_other() -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        with pytest.raises(InvalidMessage, match="not both"):
            await producer.send(Message("T", b"x"), MessageQueue("T", "broker-a", 0), selector=lambda qs, m, a: qs[0])


def test_no_two_clients_share_an_id() -> None:
    ids = {Producer("g", "127.0.0.1:9876").client_id for _ in range(100)}
    assert len(ids) == 100


@pytest.mark.parametrize("message", ["orders", None, {"topic": "T"}, b"x"])
async def test_what_is_no_message_is_said_to_be_none(message: Any) -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        for send in (producer.send, producer.send_oneway, producer.send_async):
            with pytest.raises(InvalidMessage, match=r"is a Message\(topic, body\)"):
                await send(message)
        with pytest.raises(InvalidMessage, match=r"is a Message\(topic, body\)"):
            await producer.send_batch([message])
        assert cluster.broker.asked.count(SEND) == 0


@pytest.mark.parametrize("namespace", ["", "staging"])
@pytest.mark.parametrize("topic", [None, 5])
async def test_a_topic_that_is_no_text_is_refused(topic: Any, namespace: str) -> None:
    config = ClientConfig(namesrv="127.0.0.1:1", namespace=namespace)
    async with Producer("g", config=config) as producer:
        with pytest.raises(InvalidMessage, match="the topic is"):
            await producer.send(Message(topic, b"x"))
        with pytest.raises(InvalidMessage, match="the topic is"):
            await producer.publish_queues(topic)


async def test_a_message_that_cannot_be_sent_costs_no_request() -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        for message in (Message("bad topic", b"x"), Message("T", b""), Message("T", b"x", properties={"TAGS": "x"})):
            with pytest.raises(InvalidMessage):
                await producer.send(message)
        assert cluster.asked.requests == []


async def test_sends_from_many_tasks_share_one_connection() -> None:
    async with fake_cluster(T=4) as cluster, Producer("g", cluster.namesrv) as producer:
        results = await asyncio.gather(*(producer.send(Message("T", b"%d" % i)) for i in range(200)))
        assert len(cluster.broker.connections) == 1
        assert len(cluster.asked.requests) == 1
        assert _bodies(cluster.broker) == {b"%d" % i for i in range(200)}
        assert len({result.msg_id for result in results}) == 200


def _bodies(broker: FakeBroker) -> set[bytes]:
    return {one.body for queue in broker.queues.values() for one in queue}


async def test_a_broker_that_comes_back_is_found_within_the_timeout() -> None:
    """However often a connect failed before, which makes further calls fail at once for a while."""
    async with fake_cluster(T=1) as cluster, Producer("p", config=quick(cluster.namesrv)) as producer:
        await producer.send(Message("T", b"x"))
        port = int(cluster.broker.address.rpartition(":")[2])
        await cluster.broker.close()
        with socket.socket() as kept:  # and not listened on: clients are refused, and nobody else gets the port
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            kept.bind(("127.0.0.1", port))
            while producer._instance.caller.back_off_ms(f"127.0.0.1:{port}") < 300:
                with pytest.raises(SendFailed):
                    await producer.send(Message("T", b"lost"), timeout_ms=100)

            async def store(_connection: Connection, command: Command) -> Command:
                return await cluster.broker._send(command) if command.code == SEND else command.reply()

            again = Server(store, "127.0.0.1", port)
            await again.start()
        result = await producer.send(Message("T", b"y"), timeout_ms=PATIENCE_SECONDS * 1_000)
        assert result.status is SendStatus.SEND_OK
        await again.close()
