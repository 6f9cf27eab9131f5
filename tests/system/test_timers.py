"""Delivery at any time on a real broker: through the client, the wire and the command line, over stops and kills."""

from __future__ import annotations

import asyncio
import dataclasses
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cosmodrome import Message, Producer
from cosmodrome.blocking import Producer as BlockingProducer
from cosmodrome.broker.broker import Broker
from cosmodrome.client.queue_reader import TopicReader
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig, FlushDiskType, StoreConfig
from cosmodrome.errors import BrokerError, InvalidMessage
from cosmodrome.net.caller import Caller
from cosmodrome.store.timer_checkpoint import TimerCheckpoint
from cosmodrome.testing import FakeClock
from cosmodrome.wire.bodies import TimerMetricsBody
from cosmodrome.wire.command import Command
from cosmodrome.wire.properties import encode
from cosmodrome.wire.recall_handle import RecallHandle
from cosmodrome.wire.record import Record, decode_records
from cosmodrome.wire.requests import SendMessage
from tests.bounded import in_thread
from tests.system.cluster import SMALL_STORE, running_broker, running_name_server
from tests.system.daemons import cosmodrome, cosmodrome_json, up

PATIENCE_SECONDS = 30
TOPIC = "orders"
RECALLING = BrokerConfig(broker_name="broker-a", recall_message_enable=True)


@dataclass
class Post:
    """A broker whose time the test moves, and a producer at it."""

    broker: Broker
    clock: FakeClock
    producer: Producer
    services: int = 0  # of the broker that sleep while nothing happens

    async def send(self, body: bytes, **seconds: float) -> str:
        message = Message(TOPIC, body, delay=timedelta(**seconds))
        return (await self.producer.send(message)).recall_handle

    @property
    def delivered(self) -> list[bytes]:
        store = self.broker.store
        return [record.body for queue_id in store.queues(TOPIC) for record in _stored(self.broker, queue_id)]

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(int(seconds * 1_000))

    async def pass_by(self, seconds: float) -> None:
        """Until the broker's services have done what fell due and sleep again: some of them sync files, in threads."""
        await self.advance(seconds)
        self.services = max(self.services, self.clock.sleepers)
        await self.until(lambda: self.clock.sleepers >= self.services)

    async def until(self, holds: Callable[[], bool]) -> None:
        """The broker's time stands still meanwhile."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds():  # noqa: ASYNC110  # what is in the store is no event here
                await asyncio.sleep(0.01)


def _stored(broker: Broker, queue_id: int) -> list[Record]:
    return decode_records(b"".join(broker.store.read(TOPIC, queue_id, 0, 32).views))


@asynccontextmanager
async def post_office(
    folder: Path, config: BrokerConfig = RECALLING, store: StoreConfig = SMALL_STORE
) -> AsyncIterator[Post]:
    clock = FakeClock()
    async with (
        running_name_server() as name_server,
        running_broker(folder, name_server.address, config, store, clock) as broker,
        Producer("orders-app", name_server.address) as producer,
    ):
        yield Post(broker, clock, producer)


@pytest.mark.parametrize("flush", FlushDiskType)
async def test_a_timed_message_comes_at_its_time(tmp_path: Path, flush: FlushDiskType) -> None:
    store = dataclasses.replace(SMALL_STORE, flush_disk_type=flush)
    async with post_office(tmp_path, store=store) as post:
        await post.send(b"later", minutes=5)
        at = datetime.fromtimestamp(post.clock.now_ms() / 1_000, UTC) + timedelta(seconds=10)
        await post.producer.send(Message(TOPIC, b"then", deliver_at=at))
        await post.advance(9)
        assert post.delivered == []
        await post.advance(1)
        await post.until(lambda: post.delivered == [b"then"])
        await post.advance(290)
        await post.until(lambda: sorted(post.delivered) == [b"later", b"then"])


async def test_the_delivery_time_of_ons_clients_is_obeyed(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        soon_ms = post.clock.now_ms() + 10_000
        await post.producer.send(Message(TOPIC, b"then", properties={"__STARTDELIVERTIME": str(soon_ms)}))
        await post.producer.send(Message(TOPIC, b"past", properties={"__STARTDELIVERTIME": str(soon_ms - 20_000)}))
        await post.advance(9)
        assert post.delivered == [b"past"]
        await post.advance(1)
        await post.until(lambda: sorted(post.delivered) == [b"past", b"then"])
        await post.advance(20)
        assert len(post.delivered) == 2  # it still says its time, which has come


@pytest.mark.parametrize("time", ["soon", "1.5e12", "0x10", str(2**62)])
@pytest.mark.parametrize("others", [{}, {"TRAN_MSG": "true"}])
async def test_a_delivery_time_that_is_none_is_refused(tmp_path: Path, time: str, others: dict[str, str]) -> None:
    """That of a half message too, and at once: its commit could only fail."""
    kept = encode({"UNIQ_KEY": "u", "__STARTDELIVERTIME": time, **others})
    async with post_office(tmp_path) as post:
        header = SendMessage("p", TOPIC, "TBW102", 1, 0, 0, 0, 0, kept)
        caller = Caller()
        command = Command.request(RequestCode.SEND_MESSAGE, header, b"x")
        reply = await caller.call(post.broker.address, command, PATIENCE_SECONDS * 1_000)
        await caller.close()
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL
        assert "write a whole number" in (reply.remark or "")
        assert post.broker.store.max_physical_offset == 0


async def test_what_was_delivered_is_noted_soon_even_if_little_else_is_written(tmp_path: Path) -> None:
    """So that a kill repeats the deliveries of the last moments only."""
    async with post_office(tmp_path) as post:
        await post.send(b"x", seconds=1)
        due_ms = post.clock.now_ms()
        noted: TimerCheckpoint | None = None
        for _ in range(50):  # five seconds; a trickle alone would be flushed after ten
            await post.pass_by(0.1)
            noted = TimerCheckpoint.load(tmp_path / "config" / "timercheck")
            if noted is not None and noted.read_ms > due_ms:
                break
        assert noted is not None
        assert noted.read_ms > due_ms
        assert post.delivered == [b"x"]


async def test_a_message_is_taken_back_by_its_handle(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        handle = await post.send(b"wrong", seconds=10)
        await post.send(b"right", seconds=10)
        await post.advance(5)
        result_id = await post.producer.recall(TOPIC, handle)
        assert result_id == RecallHandle.decode(handle).unique_key
        await post.advance(10)
        await post.until(lambda: post.delivered == [b"right"])


@pytest.mark.parametrize("hours", [3, -3, 100, -100])
async def test_setting_the_clock_moves_neither_messages_nor_what_takes_them_back(tmp_path: Path, hours: int) -> None:
    async with post_office(tmp_path) as post:
        handle = await post.send(b"wrong", seconds=10)
        await post.send(b"right", seconds=12)
        await post.advance(5)
        post.clock.step(hours * 3_600_000)
        await post.advance(1)
        later = await post.send(b"wrong too", seconds=10)
        await post.send(b"later", seconds=10)
        await post.producer.recall(TOPIC, handle)
        await post.advance(5)
        assert post.delivered == []
        await post.producer.recall(TOPIC, later)
        await post.advance(2)
        await post.until(lambda: post.delivered == [b"right"])
        await post.advance(2)
        assert post.delivered == [b"right"]
        await post.advance(2)
        await post.until(lambda: sorted(post.delivered) == [b"later", b"right"])


async def test_what_a_recall_may_not_do(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        handle = await post.send(b"x", seconds=10)
        await post.producer.send(Message("bills", b"x"))
        parts = RecallHandle.decode(handle)
        far = parts._replace(deliver_ms=post.clock.now_ms() + 41 * 86_400_000).encode()
        for topic, wrong, remark in (
            ("bills", handle, "topic not match"),
            (TOPIC, far, "timestamp invalid"),
            (TOPIC, parts._replace(deliver_ms=post.clock.now_ms()).encode(), "timestamp invalid"),
        ):
            with pytest.raises(BrokerError, match=remark) as refused:
                await post.producer.recall(topic, wrong)
            assert refused.value.code == ResponseCode.ILLEGAL_OPERATION
        with pytest.raises(InvalidMessage, match="not a recall handle"):
            await post.producer.recall(TOPIC, "rubbish")
        await post.advance(10)
        await post.until(lambda: post.delivered == [b"x"])
        with pytest.raises(BrokerError, match="timestamp invalid"):
            await post.producer.recall(TOPIC, handle)


async def test_a_broker_recalls_nothing_unless_told_to(tmp_path: Path) -> None:
    async with post_office(tmp_path, BrokerConfig(broker_name="broker-a")) as post:
        handle = await post.send(b"x", seconds=10)
        with pytest.raises(BrokerError, match="recallMessageEnable") as refused:
            await post.producer.recall(TOPIC, handle)
        assert refused.value.code == ResponseCode.NO_PERMISSION


async def test_a_replica_is_told_how_far_timers_are(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        start_ms = post.clock.now_ms()
        await post.send(b"x", minutes=1)
        await post.advance(2)
        caller = Caller()
        reply = await caller.call(post.broker.address, Command(RequestCode.GET_TIMER_CHECK_POINT, {}), 20_000)
        assert struct.unpack(">7q", reply.body)[:4] == (start_ms + 2_000, 52, 1, 1)
        reply = await caller.call(post.broker.address, Command(RequestCode.GET_TIMER_METRICS, {}), 20_000)
        assert TimerMetricsBody.decode(reply.body).pending[TOPIC][0] == 1
        await caller.close()


async def test_a_time_out_of_reach_is_refused(tmp_path: Path) -> None:
    async with post_office(tmp_path) as post:
        with pytest.raises(BrokerError, match="max delay 3456000000ms") as refused:
            await post.send(b"x", days=41)
        assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    "message",
    [
        Message(TOPIC, b"x", delay=timedelta(1), delay_level=1),
        Message(TOPIC, b"x", delay=timedelta(1), deliver_at=datetime.now(UTC)),
        Message(TOPIC, b"x", deliver_at=datetime(2030, 1, 1)),  # in which time zone?
    ],
)
async def test_an_unclear_time_is_refused_before_it_is_sent(tmp_path: Path, message: Message) -> None:
    async with post_office(tmp_path) as post:
        with pytest.raises(InvalidMessage, match=r"delay_level|time zone"):
            await post.producer.send(message)
        with pytest.raises(InvalidMessage, match="batch"):
            await post.producer.send_batch([Message(TOPIC, b"x", delay=timedelta(1))])


async def test_the_blocking_producer_recalls_too(tmp_path: Path) -> None:
    async with running_name_server() as server, running_broker(tmp_path, server.address, RECALLING):

        def use() -> str:
            with BlockingProducer("orders-app", server.address) as producer:
                result = producer.send(Message(TOPIC, b"x", delay=timedelta(minutes=1)))
                assert producer.recall(TOPIC, result.recall_handle) == result.msg_id
                return result.recall_handle

        assert await in_thread(use)


# --- over stops and kills, in real time

PENDING = 40


def test_pending_messages_come_once_after_a_stop_and_at_least_once_after_a_kill(tmp_path: Path) -> None:
    """Half of them are due while the broker is killed and started again, the others when it has stopped in between."""
    with up(tmp_path) as daemon:
        namesrv = daemon.address("name server")
        _send_all(namesrv, "before", timedelta(seconds=3))
        _send_all(namesrv, "after", timedelta(seconds=8))
        daemon.kill()
    with up(tmp_path) as daemon:
        namesrv = daemon.address("name server")
        assert set(_received(namesrv, "before")) == set(range(PENDING))
        assert daemon.interrupt() == 0
    with up(tmp_path) as daemon:
        assert _received(daemon.address("name server"), "after") == Counter(range(PENDING))


def _send_all(namesrv: str, topic: str, delay: timedelta) -> None:
    with BlockingProducer("orders-app", namesrv) as producer:
        for number in range(PENDING):
            producer.send(Message(topic, b"%d" % number, delay=delay))


def _received(namesrv: str, topic: str) -> Counter[int]:
    """How often each message came, once all have come."""
    return asyncio.run(_read_all(namesrv, topic))


async def _read_all(namesrv: str, topic: str) -> Counter[int]:
    seen: Counter[int] = Counter()
    reader = TopicReader(topic, namesrv=namesrv, from_earliest=True)
    async with asyncio.timeout(30), reader:
        async for message in reader:
            seen[int(message.body)] += 1
            if len(seen) == PENDING:
                break
    return seen


def test_an_empty_broker_makes_no_wheel(tmp_path: Path) -> None:
    with up(tmp_path) as daemon:
        namesrv = daemon.address("name server")
        cosmodrome_json("send", TOPIC, "x", "-n", namesrv)
        assert daemon.interrupt() == 0
    assert not list(tmp_path.rglob("timer*"))


def test_sending_for_later_on_the_command_line(tmp_path: Path) -> None:
    with up(tmp_path) as daemon:
        namesrv = daemon.address("name server")
        for seconds in (3, 10, 60):  # on a busy machine the command starts slowly, and the time may be over
            later = datetime.now(UTC) + timedelta(seconds=seconds)
            (by_time,) = cosmodrome_json("send", TOPIC, "time", "-n", namesrv, "--deliver-at", later.isoformat())
            if datetime.now(UTC) < later:
                break
        (by_delay,) = cosmodrome_json("send", TOPIC, "delay", "-n", namesrv, "--delay", "2s500ms")
        told = {by_time["msgId"]: "time", by_delay["msgId"]: "delay"}
        lines: list[dict[str, Any]] = []
        for limit in (2, 3, 4):  # those that were too late are there, too
            shown = cosmodrome_json("tail", TOPIC, "-n", namesrv, "--from", "earliest", "--limit", str(limit))
            lines = [line for line in shown if line["msgId"] in told]
            if len(lines) == len(told):
                break
        assert {line["msgId"]: line["body"] for line in lines} == told
        assert RecallHandle.decode(by_time["recallHandle"]).unique_key == by_time["msgId"]
        assert by_delay["recallHandle"]
        for line in lines:
            assert line["storeTimestamp"] >= int(line["properties"]["TIMER_OUT_MS"]) + 1_000


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--delay", "soon"], "write a duration such as"),
        (["--deliver-at", "tomorrow"], "write a time such as"),
        (["--delay", "1s", "--deliver-at", "2030-01-31T09:00"], "give one of"),
    ],
)
def test_a_time_that_makes_no_sense_is_explained(options: list[str], says: str) -> None:
    done = cosmodrome("send", TOPIC, "x", *options)
    assert done.returncode == 2
    assert says in done.stderr
