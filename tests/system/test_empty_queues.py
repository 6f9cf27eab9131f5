"""A group that is new to an empty queue: the first message belongs to it, whenever it lands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cosmodrome import PushConsumer, ReceivedMessage
from cosmodrome.broker import answer
from cosmodrome.broker.broker import Broker
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig
from cosmodrome.model import ConsumeFrom, TopicConfig
from cosmodrome.net.connection import Connection, completed
from cosmodrome.store.message import StoreMessage
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import decode_records, pack_host
from cosmodrome.wire.requests import OffsetReply, PopMessage, QueryConsumerOffset
from tests.system.wired import Wired, until, wired

TOPIC, GROUP = "orders", "billing"
FROM_LAST = 1
HOST = pack_host("127.0.0.1", 0)


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[Wired]:
    async with wired(tmp_path, BrokerConfig(broker_name="broker-a")) as there:
        there.broker.topics.put(TopicConfig(TOPIC, 1, 1))
        yield there


def land(broker: Broker, body: bytes) -> None:
    broker.store.append(StoreMessage(TOPIC, 0, body, "", 0, 0, 0, HOST, HOST))


async def ask_offset(client: Wired, topic: str = TOPIC, **fields: bool) -> Command:
    return await client.call(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffset(GROUP, topic, 0, **fields))


async def test_a_new_group_is_at_0_of_an_empty_queue(client: Wired) -> None:
    for topic in (TOPIC, "a-topic-nobody-made"):
        assert OffsetReply.decode(await ask_offset(client, topic)).offset == 0
    reply = await ask_offset(client, set_zero_if_not_found=False)
    assert reply.code == ResponseCode.QUERY_NOT_FOUND
    land(client.broker, b"first")
    assert OffsetReply.decode(await ask_offset(client)).offset == 0


@pytest.mark.parametrize("start", ConsumeFrom)
async def test_a_message_that_lands_between_two_questions_is_not_skipped(
    client: Wired, monkeypatch: pytest.MonkeyPatch, start: ConsumeFrom
) -> None:
    """Our client would ask for the end of the queue next, were it told that its group has no offset."""
    ours = answer.PROCESSORS[RequestCode.QUERY_CONSUMER_OFFSET]
    received: list[bytes] = []

    async def answer_and_land(broker: Broker, connection: Connection, command: Command) -> Command:
        try:
            return await completed(ours(broker, connection, command))
        finally:
            if command.fields["topic"] == TOPIC and broker.store.max_offset(TOPIC, 0) == 0:
                land(broker, b"first")

    def receive(message: ReceivedMessage) -> None:
        received.append(message.body)

    monkeypatch.setitem(answer.PROCESSORS, RequestCode.QUERY_CONSUMER_OFFSET, answer_and_land)
    consumer = PushConsumer(GROUP, client.namesrv, consume_from=start)
    consumer.subscribe(TOPIC, "*", receive)
    async with consumer:
        await until(lambda: received == [b"first"])


async def test_a_message_that_lands_between_two_pops_is_not_skipped(client: Wired) -> None:
    pop = PopMessage(GROUP, TOPIC, -1, 32, 60_000, 0, init_mode=FROM_LAST)
    await client.call(RequestCode.POP_MESSAGE, pop)
    land(client.broker, b"first")
    land(client.broker, b"second")
    reply = await client.ask(RequestCode.POP_MESSAGE, pop)
    assert [record.body for record in decode_records(bytes(reply.body))] == [b"first", b"second"]
