"""Names and places: namespaces, sharding keys, batches of any size, topics that do not exist, client ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cosmodrome.client.lite_pull_consumer import LitePullConsumer
from cosmodrome.client.producer import Producer
from cosmodrome.client.producer_options import ProducerOptions
from cosmodrome.client.pull_consumer import PullConsumer
from cosmodrome.client.push_consumer import PushConsumer
from cosmodrome.client.queue_choice import select_by_hash
from cosmodrome.client.requesting import RequestProducer
from cosmodrome.codes import RequestCode
from cosmodrome.config import MIB, ClientConfig
from cosmodrome.errors import (
    AlreadyStarted,
    BrokerError,
    ClientError,
    ConfigError,
    InvalidMessage,
    InvalidParameter,
    UnknownTopic,
)
from cosmodrome.model import Message, MessageQueue
from cosmodrome.wire import properties as properties_string
from cosmodrome.wire.bodies import HeartbeatData
from cosmodrome.wire.compression import Compression, decompress
from cosmodrome.wire.requests import SendMessage, UnregisterClient
from cosmodrome.wire.trace import Pub, TraceRecord
from tests.unit.client.fake_cluster import fake_cluster

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE


# --- namespaces


async def test_brokers_see_wrapped_names_and_the_application_its_own() -> None:
    async with fake_cluster() as cluster:
        cluster.topics["INST%T"] = 2
        async with Producer("g", cluster.namesrv, config=ClientConfig(namespace="INST")) as producer:
            result = await producer.send(Message("T", b"x"))
            queues = await producer.publish_queues("T")
            chosen = await producer.send(Message("T", b"x"), queues[1])
            selected = await producer.send(Message("T", b"x"), selector=lambda found, message, arg: found[0])
            batch = await producer.send_batch([Message("T", b"x")])
            (beat, *_) = await cluster.broker.asked.wait_for(RequestCode.HEART_BEAT)
        (bye,) = cluster.broker.asked.of(RequestCode.UNREGISTER_CLIENT)
    assert {result.queue.topic, batch.queue.topic} == {"T"}
    assert queues == tuple(MessageQueue("T", "broker-a", queue_id) for queue_id in range(2))
    assert (chosen.queue, selected.queue) == (queues[1], queues[0])
    sent = [SendMessage.decode(command) for command in cluster.broker.asked.of(SEND)]
    assert {(one.topic, one.producer_group) for one in sent} == {("INST%T", "INST%g")}
    assert properties_string.find(sent[0].properties or "", "INSTANCE_ID") == "INST"
    assert HeartbeatData.decode(beat.body).producers == ("INST%g",)
    assert UnregisterClient.decode(bye).producer_group == "INST%g"


async def test_every_way_to_send_is_traced_by_the_names_of_the_application() -> None:
    noted: list[tuple[str, str, bool]] = []

    class Notes:
        def note(self, record: TraceRecord, _msg_ids: str, _keys: str) -> None:
            assert isinstance(record, Pub)
            noted.append((record.group, record.topic, record.success))

    async with fake_cluster() as cluster:
        cluster.topics["INST%T"] = 1
        async with Producer("g", cluster.namesrv, config=ClientConfig(namespace="INST")) as producer:
            producer._sending.tracer = Notes()  # type: ignore[assignment]
            await producer.send(Message("T", b"x"))
            await producer.send_async(Message("T", b"x"))
            await producer.send_batch([Message("T", b"x")])
            cluster.broker.answers[SEND] = lambda command: command.reply(13, remark="no")
            with pytest.raises(BrokerError):
                await producer.send(Message("T", b"x"))
    assert noted == [("g", "T", True)] * 3 + [("g", "T", False)]


async def test_topics_of_the_system_are_in_no_namespace() -> None:
    config = ClientConfig(namespace="INST")
    async with fake_cluster(TBW102=8) as cluster, Producer("g", cluster.namesrv, config=config) as producer:
        await producer.send(Message("BenchmarkTest", b"x"))
        await producer.send(Message("new", b"x"))
        topics = [SendMessage.decode(command).topic for command in cluster.broker.asked.of(SEND)]
        assert topics == ["BenchmarkTest", "INST%new"]
        with pytest.raises(InvalidMessage, match="written by brokers only"):
            await producer.send(Message("SCHEDULE_TOPIC_XXXX", b"x"))


async def test_a_name_must_be_short_enough_with_its_namespace() -> None:
    config = ClientConfig(namespace="I" * 30)
    async with fake_cluster() as cluster, Producer("g", cluster.namesrv, config=config) as producer:
        with pytest.raises(InvalidMessage, match="at most 127"):
            await producer.send(Message("T" * 100, b"x"))


# --- order


async def test_a_sharding_key_has_one_queue_and_travels_along() -> None:
    async with fake_cluster("a", "b", T=4) as cluster, Producer("g", cluster.namesrv) as producer:
        queues = await producer.publish_queues("T")
        for key in ("order-1", "order-2", "中文"):
            message = Message("T", b"x", sharding_key=key)
            expected = select_by_hash(queues, message, key)
            results = [
                await producer.send(message),
                await producer.send_async(message),
                await producer.send_batch([message, message]),
            ]
            assert [result.queue for result in results] == [expected] * 3
            command = cluster.named(expected.broker_name).asked.of(SEND)[-1]
            assert properties_string.find(SendMessage.decode(command).properties or "", "__SHARDINGKEY") == key


async def test_a_sharding_key_is_never_sent_elsewhere() -> None:
    async with fake_cluster("a", "b", T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        for broker in cluster.brokers:
            broker.answers[SEND] = lambda command: command.reply(1, remark="no")
        with pytest.raises(BrokerError):
            await producer.send(Message("T", b"x", sharding_key="k"))
        assert sum(broker.asked.count(SEND) for broker in cluster.brokers) == 1


async def test_a_chosen_queue_goes_before_a_sharding_key() -> None:
    async with fake_cluster("a", "b", T=4) as cluster, Producer("g", cluster.namesrv) as producer:
        for queue in await producer.publish_queues("T"):
            assert (await producer.send(Message("T", b"x", sharding_key="k"), queue)).queue == queue


# --- mistakes in choosing


async def test_a_queue_of_another_topic_is_refused() -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        with pytest.raises(InvalidMessage, match="for topic T, the queue is one of U"):
            await producer.send(Message("T", b"x"), MessageQueue("U", "broker-a", 0))


async def test_a_selector_that_chooses_nothing_is_an_error() -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        with pytest.raises(ClientError, match="chose None"):
            await producer.send(Message("T", b"x"), selector=lambda queues, message, arg: None)  # type: ignore[arg-type, return-value]


# --- batches


async def test_any_number_of_messages_goes_out_in_batches() -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        messages = (Message("T", b"%04d" % number) for number in range(100))
        results = [result async for result in producer.send_batches(messages, max_bytes=1_000)]
        batches = cluster.broker.asked.count(BATCH)
        assert len(results) == batches > 1
        assert [one.body for one in cluster.broker.queues["T", 0]] == [b"%04d" % number for number in range(100)]
        assert sum(len(result.msg_id.split(",")) for result in results) == 100


async def test_the_results_before_a_failed_batch_say_what_is_stored() -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        messages = [Message("T", bytes(100))] * 3 + [Message("T", b"")]
        results = producer.send_batches(messages)
        assert len((await anext(results)).msg_id.split(",")) == 3
        with pytest.raises(InvalidMessage, match="empty"):
            await anext(results)
        assert len(cluster.broker.queues["T", 0]) == 3


# --- options


async def test_the_size_limit_and_compression_can_be_chosen() -> None:
    options = ProducerOptions(
        max_message_bytes=2_000, compress_from_bytes=1_000, compression=Compression.ZSTD, compression_level=3
    )
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv, options=options) as producer:
        await producer.send(Message("T", b"x" * 1_000))
        (command,) = cluster.broker.asked.of(SEND)
        sys_flag = SendMessage.decode(command).sys_flag
        assert sys_flag & 0x700 == Compression.ZSTD
        assert decompress(bytes(command.body), sys_flag, limit_bytes=1_000) == b"x" * 1_000
        with pytest.raises(InvalidMessage, match="at most 2000"):
            await producer.send(Message("T", b"x" * 2_001))
        with pytest.raises(InvalidMessage, match="at most 2000"):
            await producer.send_batch([Message("T", b"x" * 1_500)] * 2)


async def test_a_larger_limit_is_one_for_batches_too() -> None:
    options = ProducerOptions(max_message_bytes=6 * MIB, compress_from_bytes=10 * MIB)
    message = Message("T", bytes(5 * MIB))
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv, options=options) as producer:
        await producer.send(message)
        assert len([result async for result in producer.send_batches([message, message])]) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_async_tries": 0},
        {"max_async_sends": 0},
        {"latency_ms": (1, 2)},
        {"latency_ms": (2, 1), "avoided_ms": (1, 2)},
        {"max_async_bytes": 0},
        {"compress_from_bytes": 0},
        {"new_topic_queues": 0},
        {"compression_level": 77},
        {"compression": "zlib"},
        {"compress_from_bytes": "4k"},
    ],
)
def test_an_option_that_cannot_work_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ProducerOptions(**wrong)


def test_the_default_group_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="DEFAULT_PRODUCER"):
        Producer("DEFAULT_PRODUCER", "127.0.0.1:9876")


# --- topics that do not exist


async def test_a_new_topic_is_made_from_the_template_that_was_chosen() -> None:
    options = ProducerOptions(template_topic="TEMPLATE", new_topic_queues=2)
    async with fake_cluster(TEMPLATE=8) as cluster, Producer("g", cluster.namesrv, options=options) as producer:
        assert len(await producer.publish_queues("new")) == 2
        await producer.send(Message("new", b"x"))
        (command,) = cluster.broker.asked.of(SEND)
        sent = SendMessage.decode(command)
        assert (sent.default_topic, sent.default_topic_queue_nums) == ("TEMPLATE", 2)


async def test_without_a_template_the_error_says_what_to_do() -> None:
    async with fake_cluster() as cluster, Producer("g", cluster.namesrv) as producer:
        with pytest.raises(UnknownTopic, match=r"'nope' does not exist.*create it.*autoCreateTopicEnable=true"):
            await producer.send(Message("nope", b"x"))


# --- client ids


async def test_two_producers_of_one_group_need_client_ids_of_their_own() -> None:
    async with fake_cluster(T=1) as cluster:
        named = ClientConfig(namesrv=cluster.namesrv, instance_name="blue")
        async with Producer("g", config=named) as first:
            twin = Producer("g", config=named)
            with pytest.raises(AlreadyStarted, match="producer group g: another one with the client id"):
                await twin.start()
            async with Producer("h", config=named) as other, Producer("g", cluster.namesrv) as own:
                assert first.client_id == other.client_id
                assert own.client_id != first.client_id
            await first.send(Message("T", b"x"))
        async with Producer("g", config=named) as next_one:
            await next_one.send(Message("T", b"x"))


async def test_answers_are_pushed_to_a_client_id_so_only_one_may_wait_for_them() -> None:
    async with fake_cluster(T=1) as cluster:
        named = ClientConfig(namesrv=cluster.namesrv, instance_name="blue")
        async with RequestProducer("g", config=named):
            with pytest.raises(ClientError, match="answers to requests"):
                await RequestProducer("h", config=named).start()


# --- name servers that the environment names


@pytest.mark.parametrize(("given", "config", "used"), [("", "", "E"), ("", "C", "C"), ("N", "C", "N")])
async def test_a_client_without_name_servers_asks_those_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, given: str, config: str, used: str
) -> None:
    """As Java's clients do; what is given in the program counts first."""
    places = {"": "", "C": "127.0.0.1:2", "N": "127.0.0.1:3"}
    async with fake_cluster(T=1) as cluster:
        places[used] = cluster.namesrv
        monkeypatch.setenv("NAMESRV_ADDR", places.get("E", "127.0.0.1:1"))
        async with Producer("g", places[given], config=ClientConfig(namesrv=places[config])) as producer:
            assert (await producer.send(Message("T", b"x"))).queue.topic == "T"


@pytest.mark.parametrize("make", [Producer, PushConsumer, PullConsumer, LitePullConsumer])
def test_without_any_name_server_the_error_says_how_to_give_one(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[str], object]
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(ConfigError, match=r"write namesrv='host:port', .* or set NAMESRV_ADDR"):
        make("g")
    monkeypatch.setenv("NAMESRV_ADDR", "nowhere")
    with pytest.raises(ConfigError, match="'nowhere' is not an address"):
        make("g")
