"""Consuming in order over real sockets: members that come and go, messages that fail, commits by hand."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cosmodrome import ConsumeFrom, Message, OrderlyStatus, Producer, PushConsumer, ReceivedMessage
from cosmodrome.broker.broker import Broker
from cosmodrome.clock import Clock
from cosmodrome.config import ClientConfig
from cosmodrome.model import MessageQueue, TopicConfig
from cosmodrome.testing import LoopClock, VirtualLoop
from cosmodrome.wire import properties as props
from cosmodrome.wire.record import Record, decode_records
from tests.system.cluster import Cluster, running_broker, running_cluster, running_name_server
from tests.system.wired import until

QUEUES = 4
PATIENCE_SECONDS = 3_600
EAGER = ClientConfig(persist_offset_interval_ms=50)


def consumer(
    namesrv: str, handler: Any, *, orderly: bool = True, batch: int | None = None, **options: Any
) -> PushConsumer:
    one = PushConsumer("g", namesrv, orderly=orderly, consume_from=ConsumeFrom.FIRST_OFFSET, config=EAGER, **options)
    one.subscribe("t", "*", handler, batch=batch)
    return one


async def send(namesrv: str, count: int, first: int = 0) -> None:
    """Message i goes to queue i modulo the number of queues."""
    async with Producer("p", namesrv) as producer:
        for number in range(first, first + count):
            message = Message("t", b"%d" % number)
            await producer.send(message, selector=lambda queues, _, place: queues[place % len(queues)], arg=number)


def stored(broker: Broker, topic: str) -> list[Record]:
    return decode_records(b"".join(broker.store.read(topic, 0, 0, 32).views))


def with_topic(cluster: Cluster, queues: int = QUEUES) -> str:
    cluster.broker.topics.put(TopicConfig("t", queues, queues))
    return cluster.namesrv


def held(one: PushConsumer) -> list[MessageQueue]:
    return [queue for queue in one.assigned_queues if queue.topic == "t"]


class Seen:
    """What arrived, by queue in the order of arrival."""

    def __init__(self) -> None:
        self.offsets: dict[int, list[int]] = defaultdict(list)

    def note(self, message: ReceivedMessage) -> None:
        self.offsets[message.queue.queue_id].append(message.queue_offset)

    @property
    def count(self) -> int:
        return sum(map(len, self.offsets.values()))


# --- how soon


def virtually(folder: Path, scene: Callable[[str, Clock], Awaitable[None]]) -> None:
    """Play a scene in a cluster whose time passes only while everybody waits."""

    async def play() -> None:
        clock = LoopClock()
        async with (
            running_name_server(clock) as name_server,
            running_broker(folder, name_server.address, clock=clock) as broker,
        ):
            broker.topics.put(TopicConfig("t", QUEUES, QUEUES))
            async with asyncio.timeout(PATIENCE_SECONDS):  # by the scene's own time
                await scene(name_server.address, clock)

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(Random(1))) as runner:
        runner.run(play())


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("orderly", [True, False])
def test_the_first_message_comes_within_a_second_of_the_start(tmp_path: Path, orderly: bool, is_async: bool) -> None:
    async def scene(namesrv: str, clock: Clock) -> None:
        came = asyncio.Event()

        def handler(_: ReceivedMessage) -> None:
            came.set()

        async def async_handler(_: ReceivedMessage) -> None:
            came.set()

        await send(namesrv, 1)
        began_ms = clock.now_ms()
        async with consumer(namesrv, async_handler if is_async else handler, orderly=orderly, clock=clock):
            await came.wait()
            assert clock.now_ms() - began_ms < 1_000

    virtually(tmp_path, scene)


def test_the_next_member_goes_on_within_seconds_of_a_goodbye(tmp_path: Path) -> None:
    async def scene(namesrv: str, clock: Clock) -> None:
        seen = Seen()
        async with consumer(namesrv, seen.note, clock=clock) as stays:
            leaves = consumer(namesrv, seen.note, clock=clock)
            await leaves.start()
            while len(held(leaves)) < QUEUES // 2:
                await clock.sleep(100)
            await leaves.stop()
            began_ms = clock.now_ms()
            await send(namesrv, QUEUES)
            while seen.count < QUEUES:
                await clock.sleep(10)
            assert clock.now_ms() - began_ms <= 2_000
            assert len(held(stays)) == QUEUES

    virtually(tmp_path, scene)


# --- members


async def test_every_message_comes_once_and_in_order_while_members_come_and_go(tmp_path: Path) -> None:
    seen, running_now = Seen(), set[MessageQueue]()

    async def slow(messages: list[ReceivedMessage]) -> None:
        queue = messages[0].queue
        assert queue not in running_now
        running_now.add(queue)
        await asyncio.sleep(0.002)
        running_now.discard(queue)
        for message in messages:
            seen.note(message)

    async with running_cluster(tmp_path) as cluster:
        namesrv = with_topic(cluster)
        first = consumer(namesrv, slow, batch=3)
        await first.start()
        sending = asyncio.ensure_future(send(namesrv, 600))
        async with consumer(namesrv, seen.note) as second:
            await until(lambda: len(held(second)) == QUEUES // 2)
            await first.stop()
            await sending
            await until(lambda: seen.count >= 600)
        assert seen.offsets == {queue_id: list(range(600 // QUEUES)) for queue_id in range(QUEUES)}
        assert cluster.broker.locks.lock("g", "next", [MessageQueue("t", "broker-a", 0)], 0)


# --- failures and commits


async def test_a_message_that_fails_for_good_becomes_a_dead_letter_and_the_next_ones_follow(tmp_path: Path) -> None:
    tried: list[tuple[bytes, int]] = []

    def handler(message: ReceivedMessage) -> None:
        tried.append((message.body, message.reconsume_times))
        if message.body == b"1":
            raise ValueError("never")

    async with running_cluster(tmp_path) as cluster:
        namesrv = with_topic(cluster, queues=1)
        await send(namesrv, 3)
        async with consumer(namesrv, handler, max_reconsume_times=2, suspend_ms=5):
            await until(lambda: len(tried) >= 5)
        assert tried == [(b"0", 0), (b"1", 0), (b"1", 1), (b"1", 2), (b"2", 0)]
        (dead,) = stored(cluster.broker, "%DLQ%g")
        assert dead.body == b"1"
        properties = props.decode(dead.properties)
        (_, original, _) = stored(cluster.broker, "t")
        assert properties["RETRY_TOPIC"] == "t"
        assert properties["ORIGIN_MESSAGE_ID"] == props.decode(original.properties)["UNIQ_KEY"]
        assert cluster.broker.offsets.find_offset("g", "t", 0) == 3


async def test_what_is_not_committed_comes_again_after_a_restart(tmp_path: Path) -> None:
    seen: list[bytes] = []

    def commits_the_first_two(message: ReceivedMessage) -> OrderlyStatus:
        seen.append(message.body)
        return OrderlyStatus.COMMIT if message.body == b"1" else OrderlyStatus.SUCCESS

    async with running_cluster(tmp_path) as cluster:
        namesrv = with_topic(cluster, queues=1)
        await send(namesrv, 4)
        async with consumer(namesrv, commits_the_first_two, auto_commit=False):
            await until(lambda: len(seen) == 4)
        assert cluster.broker.offsets.find_offset("g", "t", 0) == 2
        async with consumer(namesrv, commits_the_first_two, auto_commit=False):
            await until(lambda: len(seen) == 6)
    assert seen == [b"0", b"1", b"2", b"3", b"2", b"3"]
