"""Request and reply: the answer to a message finds the producer that sent it, through a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from cosmodrome import Message, PushConsumer, RequestProducer
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import BrokerError, CallTimeout, InvalidMessage
from cosmodrome.model import ConsumeFrom, ReceivedMessage
from cosmodrome.net.connection import Connection
from cosmodrome.wire.command import Command
from cosmodrome.wire.properties import decode, encode
from cosmodrome.wire.requests import PushReply, SendMessage, SendReply
from tests.system.cluster import running_cluster
from tests.system.wired import Wired, another, until, wired

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


class Requester:
    """A producer that waits for replies, and answers the broker with `code`."""

    def __init__(self, code: int = ResponseCode.SUCCESS) -> None:
        self.code = code
        self.replies: list[tuple[PushReply, bytes]] = []

    async def __call__(self, _connection: Connection, command: Command) -> Command | None:
        assert command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        self.replies.append((PushReply.decode(command), bytes(command.body)))
        return command.reply(self.code)


def reply_to(client_id: str | None, flag: int = 3) -> SendMessage:
    properties = {"CORRELATION_ID": "c-1", "MSG_TYPE": "reply", "TTL": "3000"}
    if client_id is not None:
        properties["REPLY_TO_CLIENT"] = client_id
    return SendMessage("repliers", REPLY_TOPIC, "TBW102", 4, 0, 0, 42, flag, encode(properties))


async def send(replier: Wired, header: SendMessage, *, lettered: bool) -> Command:
    if not lettered:
        return await replier.call(RequestCode.SEND_REPLY_MESSAGE, header, b"answer")
    command = Command(RequestCode.SEND_REPLY_MESSAGE_V2, header.lettered_fields(), b"answer")
    return await replier.caller.call(replier.broker.address, command, 10_000)


@pytest.mark.parametrize("lettered", [False, True])
async def test_a_reply_is_pushed_to_its_requester_and_kept(tmp_path: Path, lettered: bool) -> None:
    requester = Requester()
    async with wired(tmp_path) as replier, another(replier, requester) as asking:
        await asking.heartbeat(producer="askers", client_id="asker")
        answer = await send(replier, reply_to("asker"), lettered=lettered)
        ((header, body),) = requester.replies
        (kept,) = replier.stored(REPLY_TOPIC)
    assert (answer.code, SendReply.decode(answer).msg_id) == (ResponseCode.SUCCESS, kept.offset_msg_id)
    assert (body, header.topic, header.born_timestamp, header.flag) == (b"answer", REPLY_TOPIC, 42, 3)
    assert header.store_host == replier.broker.address
    properties = decode(header.properties or "")
    assert properties["CORRELATION_ID"] == "c-1"
    assert int(properties["PUSH_REPLY_TIME"]) > 0
    assert (kept.body, kept.properties) == (b"answer", header.properties)


async def test_without_a_kept_copy_the_id_is_0(tmp_path: Path) -> None:
    config = BrokerConfig(broker_name="broker-a", store_reply_message_enable=False)
    requester = Requester()
    async with wired(tmp_path, config) as replier, another(replier, requester) as asking:
        await asking.heartbeat(producer="askers", client_id="asker")
        answer = await send(replier, reply_to("asker"), lettered=True)
        stored = replier.stored(REPLY_TOPIC)
    assert (SendReply.decode(answer).msg_id, len(requester.replies), stored) == ("0", 1, [])


@pytest.mark.parametrize("client_id", [None, "nobody", "asker"])
async def test_a_reply_that_reaches_nobody_is_told_so(tmp_path: Path, client_id: str | None) -> None:
    """Named by nobody, unknown to the broker, or refused by the requester itself."""
    async with wired(tmp_path) as replier, another(replier, Requester(ResponseCode.SYSTEM_ERROR)) as asking:
        await asking.heartbeat(producer="askers", client_id="asker")
        answer = await send(replier, reply_to(client_id), lettered=True)
    assert (answer.code, bool(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)


async def test_a_requester_that_left_is_not_asked(tmp_path: Path) -> None:
    async with wired(tmp_path) as replier:
        async with another(replier, Requester()) as asking:
            await asking.heartbeat(producer="askers", client_id="asker")
            assert replier.broker.clients.find_producer("asker") is not None
        answer = await send(replier, reply_to("asker"), lettered=True)
    assert "not found" in (answer.remark or "")


async def test_our_own_client_asks_and_answers(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, brokers=2) as cluster,
        RequestProducer("askers", cluster.namesrv) as asker,
        RequestProducer("repliers", cluster.namesrv) as replier,
    ):

        async def handle(message: ReceivedMessage) -> None:
            await replier.reply(message, b"re: " + message.body)

        consumer = PushConsumer("g", cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe("questions", "*", handle)
        async with consumer:
            large = b"0123456789" * 2_000  # compressed on both ways
            for body in (b"one", b"two", large):
                answer = await asker.request(Message("questions", body), timeout_ms=30_000)
                assert answer.body == b"re: " + body
                assert answer.topic == REPLY_TOPIC


async def test_nobody_answers_in_time_or_to_nobody(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path) as cluster,
        RequestProducer("askers", cluster.namesrv) as asker,
        RequestProducer("repliers", cluster.namesrv) as replier,
    ):
        seen: list[ReceivedMessage] = []
        consumer = PushConsumer("g", cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe("questions", "*", seen.append)
        await asker.send(Message("questions", b"no question"))
        with pytest.raises(CallTimeout, match="the consumer of questions"):
            await asker.request(Message("questions", b"?"), timeout_ms=1_000)
        async with consumer:
            await until(lambda: len(seen) == 2)
        asked, told = sorted(seen, key=lambda message: len(message.body))
        await replier.reply(asked, b"too late")  # it reaches the client, where nobody waits
        with pytest.raises(InvalidMessage, match="asks for no answer"):
            await replier.reply(told, b"?")
        await asker.stop()
        with pytest.raises(BrokerError, match="not found"):
            await replier.reply(asked, b"much too late")
