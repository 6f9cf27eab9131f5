"""What operators ask of consumers through a real broker: offsets set anew, a look inside, a message handled at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from cosmodrome import PushConsumer
from cosmodrome.broker.processors import consumers
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig, ClientConfig
from cosmodrome.errors import ConnectionFailed
from cosmodrome.model import ConsumeFrom, MessageModel, MessageQueue, ReceivedMessage, Subscription
from cosmodrome.net.connection import Connection
from cosmodrome.wire.bodies import (
    ConsumeDirectlyResult,
    ConsumerData,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumerStatus,
    HeartbeatData,
    ResetOffsets,
)
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import decode_records
from cosmodrome.wire.requests import (
    ConsumeDirectly,
    GetConsumerStatus,
    GetRunningInfo,
    OffsetReply,
    QueryConsumerOffset,
    ResetOffset,
    SendReply,
    UpdateConsumerOffset,
)
from tests.system.wired import GROUP, Wired, another, until, wired

TOPIC = "T"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
ALL = Subscription(TOPIC, "*")
CLIENT_SIDE = BrokerConfig(broker_name="broker-a", use_server_side_reset_offset=False)
END = -1


class Consumer:
    """Keeps what the broker asks of it, and answers with `code` and `body`."""

    def __init__(self, code: int = ResponseCode.SUCCESS, body: bytes = b"") -> None:
        self.code, self.body = code, body
        self.asked: list[Command] = []

    async def __call__(self, _connection: Connection, command: Command) -> Command | None:
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            return None
        self.asked.append(command)
        return command.reply(self.code, body=self.body, remark="as told")


async def ten_messages(client: Wired) -> None:
    for number in range(10):
        await client.send(TOPIC, b"%d" % number)


async def commit(client: Wired, offset: int) -> None:
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset(GROUP, TOPIC, 0, offset))


async def committed(client: Wired) -> int:
    reply = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffset(GROUP, TOPIC, 0))
    return OffsetReply.decode(reply).offset


async def reset(client: Wired, timestamp: int = 0, **fields: object) -> Command:
    header = ResetOffset(TOPIC, GROUP, timestamp, **fields)  # type: ignore[arg-type]
    return await client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)


async def test_a_running_group_goes_on_where_it_was_reset_to(tmp_path: Path) -> None:
    async with wired(tmp_path) as client:
        await ten_messages(client)
        await client.heartbeat(ALL)
        await commit(client, 8)
        answer = await reset(client, is_force=True)
        assert ResetOffsets.decode(answer.body).offsets == {QUEUE: 0}
        await commit(client, 9)  # of what it had in hand
        assert await committed(client) == 0
        moved = await client.pull(TOPIC, 9)
        assert (moved.code, moved.next_offset) == (ResponseCode.PULL_OFFSET_MOVED, 0)
        again = await client.pull(TOPIC, 0)
        assert (again.code, again.bodies[0]) == (ResponseCode.SUCCESS, b"0")
        await commit(client, 1)
        assert await committed(client) == 1


async def test_a_pull_that_waits_learns_of_a_reset_at_once(tmp_path: Path) -> None:
    async with wired(tmp_path) as client, another(client) as admin:
        await ten_messages(client)
        await client.heartbeat(ALL)
        waiting = asyncio.create_task(client.pull(TOPIC, 10, suspend_timeout_millis=60_000))
        await until(lambda: len(client.broker.long_polls) == 1)
        await reset(admin, queue_id=0, offset=4)
        moved = await asyncio.wait_for(waiting, 30)
    assert (moved.code, moved.next_offset) == (ResponseCode.PULL_OFFSET_MOVED, 4)


async def test_a_pull_of_a_client_that_is_gone_takes_no_reset(tmp_path: Path) -> None:
    async with wired(tmp_path) as client:
        await ten_messages(client)
        await client.heartbeat(ALL, client_id="one")
        async with another(client) as gone:
            await gone.heartbeat(ALL, client_id="two")
            waiting = asyncio.create_task(gone.pull(TOPIC, 10, suspend_timeout_millis=60_000))
            await until(lambda: len(client.broker.long_polls) == 1)
        with pytest.raises(ConnectionFailed):
            await waiting
        await until(lambda: client.broker.clients.find_consumers(GROUP).client_ids == ["one"])  # type: ignore[union-attr]
        await reset(client, queue_id=0, offset=4)
        moved = await client.pull(TOPIC, 10)
    assert (moved.code, moved.next_offset) == (ResponseCode.PULL_OFFSET_MOVED, 4)


async def test_a_group_that_does_not_run_just_begins_there(tmp_path: Path) -> None:
    async with wired(tmp_path) as client:
        await ten_messages(client)
        await client.heartbeat(ALL)
        await client.leave()
        await reset(client, END, is_force=True)
        assert await committed(client) == 10
        await reset(client, 0)
        assert await committed(client) == 0
        await reset(client, END)  # without force a time leads back only
        assert await committed(client) == 0
        await commit(client, 3)
        assert await committed(client) == 3


async def test_a_reset_the_group_did_not_live_to_see_is_where_it_begins(tmp_path: Path) -> None:
    async with wired(tmp_path) as client:
        await ten_messages(client)
        await client.heartbeat(ALL)
        await reset(client, queue_id=0, offset=4)
        await client.leave()
        await commit(client, 5)
        assert await committed(client) == 5
        await client.heartbeat(ALL)
        pulled = await client.pull(TOPIC, 5)
    assert pulled.bodies[0] == b"5"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"queue_id": 7}, ResponseCode.INVALID_PARAMETER),
        ({"queue_id": 0, "offset": 11}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_place_the_queue_does_not_have_is_refused(tmp_path: Path, fields: dict[str, int], code: int) -> None:
    async with wired(tmp_path) as client:
        await ten_messages(client)
        await client.heartbeat(ALL)
        await commit(client, 8)
        answer = await reset(client, **fields)
        assert (answer.code, await committed(client)) == (code, 8)


async def test_unknown_topics_and_groups_are_refused(tmp_path: Path) -> None:
    async with wired(tmp_path) as client:
        answer = await reset(client)
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        await ten_messages(client)
        answer = await reset(client)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_without_server_side_resets_every_member_is_told(tmp_path: Path) -> None:
    first, second = Consumer(), Consumer()
    async with wired(tmp_path, CLIENT_SIDE) as client, another(client, first) as one, another(client, second) as two:
        await ten_messages(client)
        await one.heartbeat(ALL, client_id="one")
        await two.heartbeat(ALL, client_id="two")
        await commit(client, 8)
        answer = await reset(client)
        await until(lambda: len(first.asked) == len(second.asked) == 1)
        assert await committed(client) == 8  # that is for them to do
    for consumer in (first, second):
        (told,) = consumer.asked
        assert (told.code, told.is_oneway) == (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, True)
        assert ResetOffset.decode(told).topic == TOPIC
        assert ResetOffsets.decode(told.body) == ResetOffsets.decode(answer.body) == ResetOffsets({QUEUE: 0})


async def test_without_server_side_resets_somebody_must_be_there(tmp_path: Path) -> None:
    async with wired(tmp_path, CLIENT_SIDE) as client:
        await ten_messages(client)
        await client.heartbeat(Subscription("other", "*"))
        answer = await reset(client)
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert "not online" in (answer.remark or "")


async def test_members_of_a_broadcasting_group_are_told(tmp_path: Path) -> None:
    consumer = Consumer()
    async with wired(tmp_path) as client, another(client, consumer) as member:
        await ten_messages(client)
        data = ConsumerData(GROUP, message_model=MessageModel.BROADCASTING, subscriptions=(ALL,))
        await member.ask(RequestCode.HEART_BEAT, body=HeartbeatData("me", (), (data,)).encode())
        await reset(client)
        await until(lambda: len(consumer.asked) == 1)
    assert ResetOffsets.decode(consumer.asked[0].body).offsets == {QUEUE: 0}


# --- asking on


async def test_a_consumer_is_asked_what_it_does(tmp_path: Path) -> None:
    consumer = Consumer(body=b'{"properties":{}}')
    async with wired(tmp_path) as client, another(client, consumer) as member, another(client, Consumer()) as other:
        await member.heartbeat(ALL, client_id="one")
        await other.heartbeat(ALL, client_id="two")
        answer = await client.call(RequestCode.GET_CONSUMER_RUNNING_INFO, GetRunningInfo(GROUP, "one", True))
    assert (answer.code, bytes(answer.body), answer.remark) == (0, b'{"properties":{}}', "as told")
    (asked,) = consumer.asked
    assert GetRunningInfo.decode(asked) == GetRunningInfo(GROUP, "one", True)


async def test_a_refusal_of_the_consumer_is_passed_on(tmp_path: Path) -> None:
    async with wired(tmp_path) as client, another(client, Consumer(ResponseCode.SYSTEM_ERROR)) as member:
        await member.heartbeat(ALL, client_id="one")
        answer = await client.call(RequestCode.GET_CONSUMER_RUNNING_INFO, GetRunningInfo(GROUP, "one"))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "as told")


async def test_a_consumer_is_handed_a_stored_message(tmp_path: Path) -> None:
    consumer = Consumer(body=b"{}")
    async with wired(tmp_path) as client, another(client, consumer) as member:
        sent = SendReply.decode(await client.send(TOPIC, b"look at me"))
        await member.heartbeat(ALL, client_id="one")
        header = ConsumeDirectly(GROUP, "one", sent.msg_id, topic=TOPIC)
        answer = await client.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
    (asked,) = consumer.asked
    (record,) = decode_records(bytes(asked.body))
    assert (bytes(answer.body), record.body) == (b"{}", b"look at me")
    assert ConsumeDirectly.decode(asked).broker_name == "broker-a"


@pytest.mark.parametrize("msg_id", [None, "nonsense", "7F00000100002A9F0000000000FFFFFF"])
async def test_a_message_that_is_not_there_is_handed_to_nobody(tmp_path: Path, msg_id: str | None) -> None:
    consumer = Consumer()
    async with wired(tmp_path) as client, another(client, consumer) as member:
        await member.heartbeat(ALL, client_id="one")
        answer = await client.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeDirectly(GROUP, "one", msg_id))
    assert answer.code in (ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR)
    assert answer.remark
    assert not consumer.asked


@pytest.mark.parametrize("client_id", ["two", ""])
async def test_a_consumer_that_is_not_there_is_said_to_be_so(tmp_path: Path, client_id: str) -> None:
    async with wired(tmp_path) as client:
        await client.heartbeat(ALL, client_id="one")
        answer = await client.call(RequestCode.GET_CONSUMER_RUNNING_INFO, GetRunningInfo(GROUP, client_id))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"The Consumer <{GROUP}> <{client_id}> not online" in (answer.remark or "")


async def test_a_consumer_that_does_not_answer_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(_connection: Connection, _command: Command) -> Command | None:
        return None

    monkeypatch.setattr(consumers, "RELAY_TIMEOUT_MS", 50)
    monkeypatch.setattr(consumers, "STATUS_TIMEOUT_MS", 50)
    async with wired(tmp_path) as client, another(client, silent) as member:
        await member.heartbeat(ALL, client_id="one")
        info = await client.call(RequestCode.GET_CONSUMER_RUNNING_INFO, GetRunningInfo(GROUP, "one"))
        status = await client.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, GetConsumerStatus(TOPIC, GROUP))
    assert info.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert ConsumerStatus.decode(status.body) == ConsumerStatus()


async def test_members_tell_how_far_they_are(tmp_path: Path) -> None:
    first = Consumer(body=ConsumerStatus({QUEUE: 7}).encode())
    second, refusing = Consumer(body=ConsumerStatus().encode()), Consumer(ResponseCode.SYSTEM_ERROR)
    async with (
        wired(tmp_path) as client,
        another(client, first) as one,
        another(client, second) as two,
        another(client, refusing) as three,
    ):
        await one.heartbeat(ALL, client_id="one")
        await two.heartbeat(ALL, client_id="two")
        await three.heartbeat(ALL, client_id="three")
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        of_all = await client.ask(code, GetConsumerStatus(TOPIC, GROUP))
        of_one = await client.ask(code, GetConsumerStatus(TOPIC, GROUP, "one"))
        of_nobody = await client.call(code, GetConsumerStatus(TOPIC, GROUP, "four"))
    assert ConsumerStatus.decode(of_all.body).by_client == {"one": {QUEUE: 7}, "two": {}}
    assert ConsumerStatus.decode(of_one.body).by_client == {"one": {QUEUE: 7}}
    assert (of_nobody.code, "four" in (of_nobody.remark or "")) == (ResponseCode.CONSUMER_NOT_ONLINE, True)


# --- the library's own consumer


class Inbox:
    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.bodies.append(message.body)


@asynccontextmanager
async def consuming(client: Wired, inbox: Inbox, *, orderly: bool = False) -> AsyncIterator[PushConsumer]:
    config = ClientConfig(namesrv=client.namesrv, persist_offset_interval_ms=50)
    consumer = PushConsumer(GROUP, consume_from=ConsumeFrom.FIRST_OFFSET, orderly=orderly, config=config)
    consumer.subscribe(TOPIC, "*", inbox)
    async with consumer:
        yield consumer


TEN = [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("config", [None, CLIENT_SIDE])
async def test_our_consumer_follows_a_reset(tmp_path: Path, config: BrokerConfig | None, orderly: bool) -> None:
    inbox = Inbox()
    async with wired(tmp_path, config) as client:
        await ten_messages(client)
        async with consuming(client, inbox, orderly=orderly):
            await until(lambda: sorted(inbox.bodies) == TEN)
            await reset(client, 0, is_force=True)
            await until(lambda: sorted(inbox.bodies) == sorted(TEN + TEN))
        assert await committed(client) == 10


async def test_our_consumer_skips_what_it_is_told_to(tmp_path: Path) -> None:
    inbox = Inbox()
    async with wired(tmp_path) as client:
        await ten_messages(client)
        async with consuming(client, inbox) as consumer:
            consumer.pause()
            await reset(client, END, is_force=True)
            consumer.resume()
            await client.send(TOPIC, b"last")
            await until(lambda: b"last" in inbox.bodies)
        assert await committed(client) == 11


@pytest.mark.parametrize("orderly", [False, True])
async def test_our_consumer_answers_through_the_broker(tmp_path: Path, orderly: bool) -> None:
    inbox = Inbox()
    async with wired(tmp_path) as client:
        sent = SendReply.decode(await client.send(TOPIC, b"0"))
        async with consuming(client, inbox, orderly=orderly) as consumer:
            await until(lambda: inbox.bodies == [b"0"])
            me = consumer.client_id
            info = await client.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, GetRunningInfo(GROUP, me))
            header = ConsumeDirectly(GROUP, me, sent.msg_id, topic=TOPIC)
            result = await client.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
            status = await client.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, GetConsumerStatus(TOPIC, GROUP))
            assert inbox.bodies == [b"0", b"0"]
    told = ConsumerRunningInfo.decode(info.body)
    assert told.properties["PROP_CONSUMEORDERLY"] == str(orderly).lower()
    progress = told.queues[QUEUE]
    assert (progress.commit_offset, progress.locked, progress.last_lock_timestamp > 0) == (1, orderly, orderly)
    went = ConsumeDirectlyResult.decode(result.body)
    assert (went.result, went.order) == (ConsumeResult.SUCCESS, orderly)
    assert ConsumerStatus.decode(status.body).by_client[me][QUEUE] == 1


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("config", [None, CLIENT_SIDE])
async def test_resets_in_the_middle_of_work_lose_nothing(
    tmp_path: Path, config: BrokerConfig | None, orderly: bool
) -> None:
    """They go back from what is committed, so every message must still come."""
    inbox, random, sent = Inbox(), Random(7), 300
    async with wired(tmp_path, config) as client, another(client) as admin:
        await ten_messages(client)
        async with consuming(client, inbox, orderly=orderly):
            await until(lambda: sorted(inbox.bodies) == TEN)
            for number in range(10, sent):
                await client.send(TOPIC, b"%d" % number)
                if random.random() < 0.1:
                    done = client.broker.offsets.find_offset(GROUP, TOPIC, 0) or 0
                    await reset(admin, queue_id=0, offset=random.randrange(max(0, done - 40), done + 1))
            await until(lambda: {b"%d" % number for number in range(sent)} <= set(inbox.bodies))
            assert len(inbox.bodies) > sent  # some came again
            await until(lambda: client.broker.offsets.find_offset(GROUP, TOPIC, 0) == sent)
        assert await committed(client) == sent
