"""Delays, retries and dead letters on a real broker, through the client, the wire and the command line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cosmodrome import Message, Producer, PushConsumer
from cosmodrome.broker.broker import Broker
from cosmodrome.client.queue_reader import TopicReader
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig, FlushDiskType, StoreConfig
from cosmodrome.model import SCHEDULE_TOPIC, ConsumeFrom, GroupConfig, MessageQueue, ReceivedMessage
from cosmodrome.net.caller import Caller
from cosmodrome.testing import FakeClock
from cosmodrome.wire import properties as props
from cosmodrome.wire.batch import encode_batch
from cosmodrome.wire.bodies import LockBatch
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import Record, decode_records
from cosmodrome.wire.requests import SendBack, SendMessage
from tests.system.cluster import SMALL_STORE, running_broker, running_name_server
from tests.system.daemons import cosmodrome, cosmodrome_json, up

PATIENCE_SECONDS = 30
TOPIC, GROUP = "orders", "billing"
RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"


@dataclass
class Post:
    """A broker whose time the test moves, and a connection to it."""

    namesrv: str
    broker: Broker
    clock: FakeClock
    caller: Caller

    async def call(self, command: Command) -> Command:
        return await self.caller.call(self.broker.address, command, 20_000)

    async def send(self, body: bytes = b"x", *, topic: str = TOPIC, times: int | None = None, **properties: str) -> int:
        """The physical offset of a message sent over the wire."""
        header = SendMessage("p", topic, "TBW102", 1, 0, 0, 0, 0, props.encode(properties), times)
        reply = await self.call(Command.request(RequestCode.SEND_MESSAGE, header, body))
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        return int(reply.fields["msgId"][-16:], 16)

    async def send_back(self, offset: int, group: str = GROUP, *, level: int = 0, limit: int | None = None) -> Command:
        header = SendBack(offset, group, level, max_reconsume_times=limit)
        return await self.call(Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header))

    def stored(self, topic: str, queue_id: int = 0) -> list[Record]:
        return decode_records(b"".join(self.broker.store.read(topic, queue_id, 0, 32).views))

    def waiting(self, level: int) -> list[Record]:
        return self.stored(SCHEDULE_TOPIC, level - 1)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Let the broker's time pass until something is so: new topics, too, are told to name servers by its clock."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():
                await self.clock.advance(10)
                await asyncio.sleep(0.01)


@asynccontextmanager
async def post_office(
    folder: Path, config: BrokerConfig | None = None, store: StoreConfig = SMALL_STORE
) -> AsyncIterator[Post]:
    clock, caller = FakeClock(), Caller()
    async with (
        running_name_server() as name_server,
        running_broker(folder, name_server.address, config, store, clock) as broker,
    ):
        yield Post(name_server.address, broker, clock, caller)
        await caller.close()


async def until(holds: Callable[[], bool]) -> None:
    """Wait while the broker's time stands still."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110  # what a consumer has seen is no event here
            await asyncio.sleep(0.01)


# --- delays


async def test_a_delayed_message_reaches_its_consumer_when_it_is_due(tmp_path: Path) -> None:
    seen: list[ReceivedMessage] = []
    async with post_office(tmp_path) as post, Producer(group="p", namesrv=post.namesrv) as producer:
        consumer = PushConsumer(GROUP, post.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe(TOPIC, "paid", seen.append)
        await producer.send(Message(TOPIC, b"now", tags="paid"))
        async with consumer:
            await post.until(lambda: len(seen) == 1)
            result = await producer.send(Message(TOPIC, b"later", tags="paid", keys="k", delay_level=3))
            await post.clock.advance(9_999)
            assert [message.body for message in seen] == [b"now"]
            await post.clock.advance(1)
            await until(lambda: len(seen) == 2)
    later = seen[1]
    assert (later.topic, later.body, later.tags, later.keys) == (TOPIC, b"later", "paid", "k")
    assert (later.msg_id, later.queue, later.reconsume_times) == (result.msg_id, result.queue, 0)
    assert later.store_host == post.broker.address


@pytest.mark.parametrize("flush", FlushDiskType)
async def test_delayed_messages_outlive_a_clean_restart_and_come_once(tmp_path: Path, flush: FlushDiskType) -> None:
    store = replace(SMALL_STORE, flush_disk_type=flush)
    async with post_office(tmp_path, store=store) as post:
        for body in (b"a", b"b"):
            await post.send(body, DELAY="1")
        await post.send(b"c", DELAY="2")
        await post.clock.advance(1_000)
        await until(lambda: len(post.stored(TOPIC)) == 2)
        now_ms = post.clock.now_ms()
    async with post_office(tmp_path, store=store) as post:
        assert post.clock.now_ms() < now_ms  # a clock that was set back must not deliver again what was delivered
        await post.clock.advance(5_000)
        await until(lambda: len(post.stored(TOPIC)) == 3)
        await post.clock.advance(60_000)
        assert [record.body for record in post.stored(TOPIC)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("level", ["soon", ""])
async def test_what_is_no_level_is_refused_or_ignored(tmp_path: Path, level: str) -> None:
    async with post_office(tmp_path) as post:
        header = SendMessage("p", TOPIC, "TBW102", 1, 0, 0, 0, 0, f"DELAY\x01{level}\x02")
        reply = await post.call(Command.request(RequestCode.SEND_MESSAGE, header, b"x"))
        assert reply.code == (ResponseCode.MESSAGE_ILLEGAL if level else ResponseCode.SUCCESS)


async def test_a_batch_cannot_be_delayed(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        header = SendMessage("p", TOPIC, "TBW102", 1, 0, 0, 0, 0, "", batch=True)
        body = encode_batch([(0, b"x", props.encode({"DELAY": "3"}))])
        reply = await post.call(Command.request(RequestCode.SEND_MESSAGE, header, body))
        assert (reply.code, "one by one" in str(reply.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)


def test_a_delayed_message_from_the_command_line_outlives_kill_9(tmp_path: Path) -> None:
    assert "2 h" in cosmodrome("send", "--help").stdout
    assert cosmodrome("send", "t", "x", "--delay-level", "0").returncode == 2
    with up(tmp_path) as daemon:
        namesrv = ("--namesrv", daemon.address("name server"))
        (sent,) = cosmodrome_json("send", "t", "later", "--delay-level", "2", *namesrv)
        cosmodrome_json("send", "t", "now", *namesrv)
        (shown,) = _tailed(1, *namesrv)  # two commands take more than five seconds on a busy machine
        assert shown["body"] == "now" or _waited_ms(shown) >= 5_000
        daemon.kill()
    with up(tmp_path) as daemon:
        namesrv = ("--namesrv", daemon.address("name server"))
        later = next(shown for shown in _tailed(2, *namesrv) if shown["body"] == "later")
    assert later["msgId"] == sent["msgId"]
    assert _waited_ms(later) >= 5_000


def _tailed(count: int, *namesrv: str) -> list[dict[str, Any]]:
    return cosmodrome_json("tail", "t", "--from", "earliest", "--limit", str(count), *namesrv)


def _waited_ms(message: dict[str, Any]) -> int:
    return int(message["storeTimestamp"]) - int(message["bornTimestamp"])


# --- retries and dead letters


async def test_a_failing_handler_gets_its_message_again_and_then_it_is_a_dead_letter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[tuple[str, str, int]] = []
    errors: list[str | None] = []

    def fail(message: ReceivedMessage) -> None:
        errors.append(message.properties.get("COSMODROME_LAST_ERROR"))
        tries.append((message.topic, message.msg_id, message.reconsume_times))
        raise RuntimeError("no")

    async with post_office(tmp_path) as post, Producer(group="p", namesrv=post.namesrv) as producer:
        consumer = PushConsumer(GROUP, post.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, max_reconsume_times=2)
        consumer.subscribe(TOPIC, "*", fail)
        sent = await producer.send(Message(TOPIC, b"poison", tags="bad"))
        async with consumer:
            await post.until(lambda: len(post.waiting(3)) == 1)
            await post.clock.advance(10_000)
            await post.until(lambda: len(post.waiting(4)) == 1)
            await post.clock.advance(30_000)
            await post.until(lambda: len(post.stored(DEAD)) == 1)
        await post.clock.advance(1_000)
        assert tries == [(TOPIC, sent.msg_id, times) for times in range(3)]
        reader = TopicReader(DEAD, namesrv=post.namesrv, from_earliest=True)
        async with asyncio.timeout(PATIENCE_SECONDS), reader:
            dead = await anext(aiter(reader))
    assert (dead.body, dead.tags, dead.msg_id, dead.reconsume_times) == (b"poison", "bad", sent.msg_id, 3)
    assert dead.properties["RETRY_TOPIC"] == TOPIC
    assert dead.properties["ORIGIN_MESSAGE_ID"] == sent.offset_msg_id
    assert dead.properties["COSMODROME_LAST_ERROR"] == "RuntimeError: no"
    assert errors == [None, "RuntimeError: no", "RuntimeError: no"], "a later delivery says why the one before failed"
    place = f"broker=broker-a queue={sent.queue.queue_id} offset=0"
    ids = f"group={GROUP} topic={TOPIC} {place} msg_id={sent.msg_id} attempt=1"
    assert f'handler failed: {ids} next=10s reason="RuntimeError: no"' in "\n".join(caplog.messages)
    stored = f"dead letter stored: group={GROUP} topic={TOPIC} msg_id={sent.msg_id} attempt=3 reason='RuntimeError: no'"
    assert caplog.text.count(stored) == 1
    assert caplog.text.count("next=dead-letters") == 1
    assert caplog.text.count(f"message sent to the dead letters: group={GROUP}") == 1


async def test_each_retry_waits_a_level_longer_and_keeps_its_origin(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        offset = await post.send(b"x", TAGS="a", UNIQ_KEY="U")
        origin = post.stored(TOPIC)[0]
        for times in range(3):
            assert (await post.send_back(offset)).code == ResponseCode.SUCCESS
            level = 3 + times
            (waiting,) = post.waiting(level)
            assert waiting.reconsume_times == times + 1
            await post.clock.advance([10_000, 30_000, 60_000][times])
            retry = post.stored(RETRY)[times]
            offset = retry.physical_offset
            kept = props.decode(retry.properties)
            assert (retry.topic, retry.queue_id, retry.body, retry.reconsume_times) == (RETRY, 0, b"x", times + 1)
            assert (kept["RETRY_TOPIC"], kept["ORIGIN_MESSAGE_ID"]) == (TOPIC, origin.offset_msg_id)
            assert (kept["TAGS"], kept["UNIQ_KEY"]) == ("a", "U")
            assert (retry.born_timestamp, retry.born_port) == (origin.born_timestamp, origin.born_port)


@pytest.mark.parametrize(
    ("group", "level", "limit"),
    [
        (GroupConfig(GROUP), -1, None),
        (GroupConfig(GROUP), 0, 0),
        (GroupConfig(GROUP, retry_max_times=0), 0, None),
        (GroupConfig(GROUP, retry_max_times=0), 5, None),
    ],
    ids=["not wanted again", "limit of the request", "limit of the group", "with a level"],
)
async def test_when_a_message_becomes_a_dead_letter(
    tmp_path: Path, group: GroupConfig, level: int, limit: int | None
) -> None:
    async with post_office(tmp_path) as post:
        post.broker.groups.put(group)
        offset = await post.send()
        assert (await post.send_back(offset, level=level, limit=limit)).code == ResponseCode.SUCCESS
        (dead,) = post.stored(DEAD)
        assert (dead.queue_id, dead.reconsume_times, props.find(dead.properties, "DELAY")) == (0, 1, "0")
        topic = post.broker.topics.topic(DEAD)
        assert (topic.read_queues, topic.write_queues, topic.perm) == (1, 1, 6)


async def test_a_level_of_the_consumers_own_choice_and_the_limit_of_the_request_count(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        post.broker.groups.put(GroupConfig(GROUP, retry_max_times=0))
        offset = await post.send()
        assert (await post.send_back(offset, level=1, limit=16)).code == ResponseCode.SUCCESS
        await post.clock.advance(1_000)
        assert len(post.stored(RETRY)) == 1


async def test_retries_spread_over_the_queues_of_the_retry_topic(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        post.broker.groups.put(GroupConfig(GROUP, retry_queues=2))
        offset = await post.send()
        for _ in range(30):
            await post.send_back(offset, level=1)
        await post.clock.advance(1_000)
        counts = [len(post.stored(RETRY, queue_id)) for queue_id in range(2)]
        assert sum(counts) == 30
        assert min(counts) > 0


async def test_what_cannot_be_sent_back(tmp_path: Path) -> None:
    config = BrokerConfig(broker_name="broker-a", auto_create_subscription_group=False)
    async with post_office(tmp_path, config) as post:
        offset = await post.send()
        assert (await post.send_back(offset)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        post.broker.groups.put(GroupConfig(GROUP))
        for wrong in (offset + 1, 10**9, -1):
            reply = await post.send_back(wrong)
            assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {wrong}")
        post.broker.groups.put(GroupConfig(GROUP, retry_queues=0))
        assert (await post.send_back(offset)).code == ResponseCode.SUCCESS
        assert post.broker.store.topics() == [TOPIC]
    forbidden = BrokerConfig(broker_name="broker-a", broker_permission=4)
    async with post_office(tmp_path, forbidden) as post:
        assert (await post.send_back(offset)).code == ResponseCode.NO_PERMISSION


async def _plain(_post: Post) -> None: ...


async def _lock_a_queue(post: Post) -> None:
    body = LockBatch(GROUP, "client", (MessageQueue(TOPIC, "broker-a", 0),)).encode()
    assert (await post.call(Command.request(RequestCode.LOCK_BATCH_MQ, body=body))).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("prepare", "times", "target"),
    [(_plain, 16, RETRY), (_plain, 17, DEAD), (_lock_a_queue, 1, DEAD)],
    ids=["in time", "too often", "orderly"],
)
async def test_a_retry_that_a_client_sends_itself(
    tmp_path: Path, prepare: Callable[[Post], Awaitable[None]], times: int, target: str
) -> None:
    async with post_office(tmp_path) as post:
        await prepare(post)
        await post.send(b"x", topic=RETRY, times=times, DELAY="1", RETRY_TOPIC=TOPIC)
        assert len(post.stored(DEAD)) == (target == DEAD)
        await post.clock.advance(1_000)
        (record,) = post.stored(target)
        assert (record.reconsume_times, props.find(record.properties, "RETRY_TOPIC")) == (times, TOPIC)


@pytest.mark.parametrize(
    ("room", "told", "noted"),
    [
        (1_000, "RuntimeError: no\x02NAME\x01value", "RuntimeError: no NAME value"),
        (1_000, "x" * 1_000, "x" * 256),
        (1_000, None, None),
        (300, "RuntimeError: no", None),  # the message must not be lost for its properties
    ],
)
async def test_a_message_that_is_sent_back_says_why_if_there_is_room(
    tmp_path: Path, room: int, told: str | None, noted: str | None
) -> None:
    async with post_office(tmp_path) as post:
        offset = await post.send(b"x", UNIQ_KEY="U", big="x" * (props.MAX_SIZE_BYTES - 130 - room))
        request = Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, SendBack(offset, GROUP, -1, last_error=told))
        assert (await post.call(request)).code == ResponseCode.SUCCESS
        (dead,) = post.stored(DEAD)
    assert props.decode(dead.properties).get("COSMODROME_LAST_ERROR") == noted
