"""Finding messages and making topics, against brokers that do as the test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cosmodrome import Message, Producer, PullConsumer
from cosmodrome.client.instance import Instance
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import ClientConfig
from cosmodrome.errors import BrokerError, ClientError, InvalidArgument, InvalidParameter, MessageNotFound
from cosmodrome.model import MessageQueue, Property
from cosmodrome.wire import properties as props
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import offset_msg_id, pack_host
from cosmodrome.wire.requests import CreateTopic, QueryMessage, QueryMessageReply, QueueHeader, TimestampReply
from tests.unit.client.fake_cluster import FakeBroker, fake_cluster
from tests.unit.client.messages import record

UNIQUE_ID = "7F0000010A2B18B4AAC24F1D8D5E0003"


def answering(*found: tuple[bytes, dict[str, str], int]) -> Callable[[Command], Command]:
    """QUERY_MESSAGE: these bodies with these properties, stored then."""
    records = [
        record(body, offset=at, properties=props.encode(properties), store_timestamp=stored_ms)
        for at, (body, properties, stored_ms) in enumerate(found)
    ]

    def answer(command: Command) -> Command:
        if not records:
            return command.reply(ResponseCode.QUERY_NOT_FOUND, remark="can not find message")
        return command.reply(header=QueryMessageReply(0, 0), body=b"".join(one.encode() for one in records))

    return answer


def id_at(broker: FakeBroker, offset: int) -> str:
    host, _, port = broker.address.rpartition(":")
    return offset_msg_id(pack_host(host, int(port)), offset)


async def test_a_key_is_looked_for_on_every_broker_and_compared() -> None:
    async with fake_cluster("broker-a", "broker-b", T=1) as fake, Producer("p", fake.namesrv) as producer:
        a, b = fake.brokers
        a.answers[RequestCode.QUERY_MESSAGE] = answering(
            (b"later", {"KEYS": "other k"}, 2_030),
            (b"same hash", {"KEYS": "kk"}, 2_010),
            (b"old", {"KEYS": "k"}, 2_004),
        )
        b.answers[RequestCode.QUERY_MESSAGE] = answering((b"first", {"KEYS": "k"}, 2_020))
        found = await producer.query_message("T", "k", 2_005, 2_050, 7)
        assert [(one.body, one.queue.broker_name) for one in found] == [(b"first", "broker-b"), (b"later", "broker-a")]
        request = QueryMessage.decode(a.asked.of(RequestCode.QUERY_MESSAGE)[0])
        assert (request.topic, request.key, request.max_num) == ("T", "k", 7)
        # An index of Apache's takes a message for up to a second older than it is.
        assert (request.begin_timestamp, request.end_timestamp) == (1_006, 2_050)
        assert [one.body for one in await producer.query_message("T", "k", max_num=1)] == [b"later"]
        a.answers[RequestCode.QUERY_MESSAGE] = b.answers[RequestCode.QUERY_MESSAGE] = answering()
        assert await producer.query_message("T", "k") == []


async def test_a_broker_that_cannot_be_asked_for_a_key_is_an_error() -> None:
    async with fake_cluster("broker-a", "broker-b", T=1) as fake, Producer("p", fake.namesrv) as producer:
        a, b = fake.brokers
        a.answers[RequestCode.QUERY_MESSAGE] = answering((b"x", {"KEYS": "k", Property.UNIQ_KEY: UNIQUE_ID}, 1))
        await b.close()
        with pytest.raises(ClientError, match=b.address):
            await producer.query_message("T", "k")
        assert (await producer.view_message("T", UNIQUE_ID)).body == b"x"  # one is all that was asked for
        a.answers[RequestCode.QUERY_MESSAGE] = answering()
        with pytest.raises(ClientError, match=b.address):
            await producer.view_message("T", UNIQUE_ID)


async def test_of_a_message_that_was_stored_twice_the_newest_is_viewed() -> None:
    async with fake_cluster(T=1) as fake, PullConsumer("g", fake.namesrv) as consumer:
        twins = [(body, {Property.UNIQ_KEY: UNIQUE_ID}, at_ms) for body, at_ms in ((b"new", 20), (b"old", 10))]
        named = (b"has it as a key", {"KEYS": UNIQUE_ID}, 30)
        fake.broker.answers[RequestCode.QUERY_MESSAGE] = answering(*twins, named)
        assert (await consumer.view_message("T", UNIQUE_ID)).body == b"new"
        fake.broker.answers[RequestCode.QUERY_MESSAGE] = answering()
        with pytest.raises(MessageNotFound, match=f"topic T has the id {UNIQUE_ID}"):
            await consumer.view_message("T", UNIQUE_ID)


async def test_an_id_that_names_a_place_on_a_broker_may_be_a_unique_id_all_the_same() -> None:
    async with fake_cluster(T=1) as fake, PullConsumer("g", fake.namesrv) as consumer:
        unique = id_at(fake.broker, 5)
        fake.broker.answers[RequestCode.VIEW_MESSAGE_BY_ID] = lambda command: command.reply(
            ResponseCode.SYSTEM_ERROR, remark="can not find message by the offset, 5"
        )
        fake.broker.answers[RequestCode.QUERY_MESSAGE] = answering((b"x", {Property.UNIQ_KEY: unique}, 1))
        assert (await consumer.view_message("T", unique)).body == b"x"
        fake.broker.answers[RequestCode.QUERY_MESSAGE] = answering()
        with pytest.raises(BrokerError, match="by the offset, 5"):
            await consumer.view_message("T", unique)


async def test_a_refused_key_is_not_taken_for_a_message_that_is_not_there() -> None:
    async with fake_cluster(T=1) as fake, PullConsumer("g", fake.namesrv) as consumer:
        fake.broker.answers[RequestCode.VIEW_MESSAGE_BY_ID] = lambda command: command.reply(
            ResponseCode.SYSTEM_ERROR, remark="org.apache.rocketmq.acl.common.AclException: No acl config"
        )
        fake.broker.answers[RequestCode.QUERY_MESSAGE] = answering()
        with pytest.raises(BrokerError, match="AclException"):
            await consumer.view_message("T", id_at(fake.broker, 5))


@pytest.mark.parametrize("wrong", ["", 7, None])
async def test_ids_and_keys_that_cannot_be_are_refused(wrong: Any) -> None:
    async with fake_cluster(T=1) as fake, Producer("p", fake.namesrv) as producer:
        with pytest.raises(InvalidArgument, match="message_id"):
            await producer.view_message("T", wrong)
        with pytest.raises(InvalidArgument, match="key"):
            await producer.query_message("T", wrong)
        with pytest.raises(InvalidParameter, match="topic"):
            await producer.query_message(wrong, "k")


async def test_names_of_a_namespace_are_looked_up_and_made() -> None:
    async with fake_cluster(**{"NS%T": 1, "TBW102": 8}) as fake:
        fake.broker.answers[RequestCode.UPDATE_AND_CREATE_TOPIC] = lambda command: command.reply()
        fake.broker.answers[RequestCode.QUERY_MESSAGE] = lambda command: command.reply(
            header=QueryMessageReply(0, 0), body=record(b"x", topic="NS%T", properties="KEYS\x01k\x02").encode()
        )
        config = ClientConfig(namesrv=fake.namesrv, namespace="NS")
        async with Producer("p", config=config) as producer:
            (found,) = await producer.query_message("T", "k")
            assert (found.topic, found.queue) == ("T", MessageQueue("T", "broker-a", 0))
            await producer.create_topic("new")
        (created,) = fake.broker.asked.of(RequestCode.UPDATE_AND_CREATE_TOPIC)
        assert CreateTopic.decode(created).topic == "NS%new"


async def test_a_topic_is_made_on_every_broker_of_the_template() -> None:
    async with fake_cluster("broker-a", "broker-b", C=1) as fake, Producer("p", fake.namesrv) as producer:
        a, b = fake.brokers
        a.answers[RequestCode.UPDATE_AND_CREATE_TOPIC] = lambda command: command.reply()
        b.answers[RequestCode.UPDATE_AND_CREATE_TOPIC] = lambda command: command.reply(
            ResponseCode.SYSTEM_ERROR, remark="disk full"
        )
        with pytest.raises(ClientError, match=r"no broker has the template TBW102; give template="):
            await producer.create_topic("new")
        with pytest.raises(ClientError, match=r"new is not on every broker, create it again: broker-b: .*disk full"):
            await producer.create_topic("new", 6, template="C", attributes={"message.type": "FIFO"})
        (command,) = a.asked.of(RequestCode.UPDATE_AND_CREATE_TOPIC)
        request = CreateTopic.decode(command)
        assert (request.topic, request.read_queue_nums, request.write_queue_nums, request.perm) == ("new", 6, 6, 6)
        assert (request.default_topic, request.attributes) == ("C", "+message.type=FIFO")
        with pytest.raises(InvalidArgument, match="queues is 0"):
            await producer.create_topic("new", 0, template="C")


async def test_where_a_queue_begins_and_ends_is_told_to_producers_too() -> None:
    async with fake_cluster(T=1) as fake, Producer("p", fake.namesrv) as producer:
        queue = MessageQueue("T", "broker-a", 0)
        for _ in range(3):
            await producer.send(Message("T", b"x"), queue)
        assert (await producer.min_offset(queue), await producer.max_offset(queue)) == (0, 3)
        asked: list[QueueHeader] = []

        def earliest(command: Command) -> Command:
            asked.append(QueueHeader.decode(command))
            return command.reply(header=TimestampReply(77))

        fake.broker.answers[RequestCode.GET_EARLIEST_MSG_STORETIME] = earliest
        assert await producer.earliest_msg_store_time(queue) == 77
        assert (asked[0].topic, asked[0].queue_id) == ("T", 0)


async def test_a_search_does_not_bring_a_topic_into_use() -> None:
    async with fake_cluster(T=1, U=1) as fake, Producer("p", fake.namesrv) as producer:
        fake.broker.answers[RequestCode.QUERY_MESSAGE] = answering()
        await producer.query_message("U", "k")
        instance: Instance = producer._instance
        assert instance.routes.find("U") is None
