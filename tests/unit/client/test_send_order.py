"""Messages of one queue are written in the order in which they were handed over, whatever each has to wait for."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.blocking import Producer as BlockingProducer
from cosmodrome.client import producer as producer_module
from cosmodrome.client.async_sends import AsyncSends
from cosmodrome.client.lines import Lines
from cosmodrome.client.producer import Producer
from cosmodrome.client.producer_options import ProducerOptions
from cosmodrome.client.requesting import RequestProducer
from cosmodrome.client.transactions import TransactionProducer, TransactionState
from cosmodrome.codes import RequestCode
from cosmodrome.errors import SendFailed
from cosmodrome.model import Message, MessageQueue, SendResult
from tests.unit.client.fake_cluster import FakeCluster, fake_cluster

SEND = RequestCode.SEND_MESSAGE_V2
QUEUE = MessageQueue("T", "broker-a", 0)
ELSEWHERE = MessageQueue("T", "broker-a", 1)
LARGE = b"0" * producer_module.COMPRESS_ASIDE_FROM_BYTES


@contextmanager
def compressing_hangs(producer: Producer) -> Iterator[Callable[[], None]]:
    """No thread compresses anything until the function is called."""
    may_end = threading.Event()
    for _ in range(producer_module.PACKING_THREADS):
        producer._packing.submit(may_end.wait, 30)
    try:
        yield may_end.set
    finally:
        may_end.set()


def first_queue(queues: Any, _message: Message, arg: Any) -> MessageQueue:
    return MessageQueue("T", "broker-a", arg)


def stored(cluster: FakeCluster, queue_id: int = 0) -> list[bytes]:
    return [record.body for record in cluster.broker.queues.get(("T", queue_id), [])]


WAYS: dict[str, dict[str, Any]] = {
    "queue": {"queue": QUEUE},
    "selector": {"selector": first_queue, "arg": 0},
}


@pytest.mark.parametrize("way", ["key", *WAYS])
async def test_small_bodies_wait_for_a_large_one_of_their_queue(way: str) -> None:
    key = "k" if way == "key" else ""
    async with fake_cluster(T=2 if way != "key" else 1) as cluster, Producer("g", cluster.namesrv) as producer:
        await producer.publish_queues("T")
        with compressing_hangs(producer) as go_on:
            sends = [producer.send_async(Message("T", LARGE, sharding_key=key), **WAYS.get(way, {}))]
            for number in range(5):
                message = Message("T", b"%d" % number, sharding_key=key)
                sends.append(producer.send_async(message, **WAYS.get(way, {})))
            other = producer.send_async(Message("T", b"other"), ELSEWHERE)
            if way == "key":
                other.cancel()  # there is one queue only
            else:
                assert (await other).queue == ELSEWHERE  # messages of other queues do not wait
            assert stored(cluster) == []
            go_on()
            await asyncio.gather(*sends)
    assert stored(cluster)[1:] == [b"%d" % number for number in range(5)]


async def test_a_large_body_without_a_queue_of_its_own_holds_up_nothing() -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        with compressing_hangs(producer) as go_on:
            large = producer.send_async(Message("T", LARGE))
            await producer.send(Message("T", b"1"), QUEUE)
            await producer.send(Message("T", b"2", sharding_key="k"))
            assert stored(cluster) == [b"1", b"2"]
            go_on()
            await large


async def sent_by_every_way(producer: Any, done: list[asyncio.Task[Any]]) -> None:
    """Begin one send after the other; each has begun when the next does."""

    def keyed(body: bytes) -> Message:
        return Message("T", body, sharding_key="k")

    ways = [
        producer.send(keyed(b"send")),
        producer.send_oneway(keyed(b"oneway")),
        producer.send_batch([keyed(b"batch")]),
    ]
    if isinstance(producer, RequestProducer):
        ways.append(producer.request(keyed(b"request")))
    if isinstance(producer, TransactionProducer):
        ways.append(producer.send_in_transaction(keyed(b"half"), lambda _message: TransactionState.COMMIT))
    for way in ways:
        done.append(asyncio.create_task(way))
        await asyncio.sleep(0)


@asynccontextmanager
async def producing(kind: str, namesrv: str) -> AsyncIterator[Producer]:
    producer: Producer
    match kind:
        case "request":
            producer = RequestProducer("g", namesrv)
        case _:
            producer = TransactionProducer("g", namesrv, check=lambda _message: TransactionState.UNKNOWN)
    async with producer:
        yield producer


@pytest.mark.parametrize("kind", ["request", "half"])
async def test_every_way_to_send_keeps_behind_a_large_body(kind: str) -> None:
    async with fake_cluster(T=1) as cluster, producing(kind, cluster.namesrv) as producer:
        cluster.broker.answers[RequestCode.HEART_BEAT] = lambda command: command.reply()
        await producer.publish_queues("T")
        done: list[asyncio.Task[Any]] = []
        with compressing_hangs(producer) as go_on:
            large = producer.send_async(Message("T", LARGE, sharding_key="k"))
            await asyncio.sleep(0)
            await sent_by_every_way(producer, done)
            last = producer.send_async(Message("T", b"last", sharding_key="k"))
            go_on()
            await asyncio.gather(large, last)
        for task in done:
            task.cancel()
        await asyncio.gather(*done, return_exceptions=True)
    assert stored(cluster)[1:] == [b"send", b"oneway", b"batch", kind.encode(), b"last"]


async def test_sends_that_wait_for_the_route_and_the_connection_are_not_overtaken() -> None:
    """One begins in each round of the event loop: before the route is known, before the connection is, and after."""
    async with fake_cluster(T=4) as cluster, Producer("g", cluster.namesrv) as producer:
        sends: list[asyncio.Future[SendResult]] = []
        while not sends or not sends[0].done():
            sends.append(producer.send_async(Message("T", b"%d" % len(sends), sharding_key="k")))
            await asyncio.sleep(0)
        results = await asyncio.gather(*sends)
    assert [result.queue_offset for result in results] == list(range(len(sends)))


async def test_keys_of_mixed_bodies_keep_their_order() -> None:
    dice = random.Random(4)
    async with fake_cluster(T=3) as cluster, Producer("g", cluster.namesrv) as producer:
        sends: dict[str, list[asyncio.Future[SendResult]]] = {key: [] for key in "abcdef"}
        for _ in range(300):
            key = dice.choice("abcdef")
            body = bytes(dice.choice([10, 10, len(LARGE), 2 * len(LARGE)]))
            sends[key].append(producer.send_async(Message("T", body, sharding_key=key), timeout_ms=30_000))
            if dice.random() < 0.2:
                await asyncio.sleep(0)
        for futures in sends.values():
            offsets = [result.queue_offset for result in await asyncio.gather(*futures)]
            assert offsets == sorted(offsets)


async def test_a_large_body_that_fails_lets_the_others_go_on() -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        await producer.publish_queues("T")
        with compressing_hangs(producer):
            late = producer.send_async(Message("T", LARGE), QUEUE, timeout_ms=50)
            cancelled = producer.send_async(Message("T", LARGE), QUEUE)
            small = producer.send_async(Message("T", b"1"), QUEUE)
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(SendFailed, match="could not be compressed in time"):
                await late
            await small
    assert stored(cluster) == [b"1"]
    assert producer._lines._places == {}


async def test_a_small_body_waits_no_longer_than_its_own_time() -> None:
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        await producer.publish_queues("T")
        with compressing_hangs(producer):
            large = producer.send_async(Message("T", LARGE), QUEUE)
            with pytest.raises(SendFailed, match="no turn in time: those before it were not ready"):
                await producer.send_async(Message("T", b"1"), QUEUE, timeout_ms=50)
        await large
    assert len(stored(cluster)) == 1


async def test_who_waits_for_room_begins_in_order() -> None:
    sends, gate = AsyncSends(1, 1_000), asyncio.Event()
    begun: list[int] = []

    async def send(number: int) -> None:
        begun.append(number)
        await gate.wait()

    def one(number: int) -> asyncio.Task[None]:
        return asyncio.create_task(sends.in_turn(lambda: sends.start(lambda: send(number), 1, 1e9)))

    tasks = [one(number) for number in range(40)]
    await asyncio.sleep(0)
    tasks[5].cancel()
    gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert begun == [number for number in range(40) if number != 5]


async def test_a_thread_that_fills_the_room_keeps_its_order() -> None:
    """In `cosmodrome.blocking`, what finds no room waits on the event loop, several at a time."""
    async with fake_cluster(T=1) as cluster:

        def send_all() -> None:
            options = ProducerOptions(max_async_bytes=2_000)
            with BlockingProducer("g", cluster.namesrv, options=options) as producer:
                for number in range(60):
                    producer.send_async(Message("T", b"%-400d" % number, sharding_key="k"))

        await asyncio.to_thread(send_all)
    assert [int(body) for body in stored(cluster)] == list(range(60))


async def test_places_are_called_in_order_whenever_each_is_ready() -> None:
    lines, went = Lines(), list[int]()
    ready = [asyncio.Event() for _ in range(6)]

    async def go(number: int) -> None:
        with lines.enter("key") as place:
            await ready[number].wait()
            await place.front()
            went.append(number)

    tasks = [asyncio.create_task(go(number)) for number in range(6)]
    for number in (3, 1, 2):
        ready[number].set()
        await asyncio.sleep(0)
    tasks[4].cancel()
    await asyncio.sleep(0)
    assert went == []
    ready[0].set()
    ready[5].set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert went == [0, 1, 2, 3, 5]
    assert lines.is_empty("key")


async def test_places_go_on_in_order_in_whatever_rounds_they_get_ready() -> None:
    """All of five places that get ready in one of three rounds: also one that does when another is being called."""
    for all_rounds in itertools.product(range(3), repeat=5):
        lines, went = Lines(), list[int]()

        async def go(number: int, rounds: int, lines: Lines = lines, went: list[int] = went) -> None:
            with lines.enter("key") as place:
                for _ in range(rounds):
                    await asyncio.sleep(0)
                await place.front()
                went.append(number)

        await asyncio.gather(*(go(number, rounds) for number, rounds in enumerate(all_rounds)))
        assert went == [0, 1, 2, 3, 4], all_rounds


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.sampled_from(["go", "fail", "cancel"])), max_size=8))
def test_no_place_is_overtaken_however_long_each_takes(steps: list[tuple[int, int, str]]) -> None:
    """Each enters some rounds after the one before, takes some to get ready, and may be gone before its turn."""

    async def main() -> None:
        lines, went = Lines(), list[int]()

        async def go(number: int, rounds: int, way: str) -> None:
            with lines.enter("key") as place:
                for _ in range(rounds):
                    await asyncio.sleep(0)
                if way == "fail":
                    return
                await place.front()
                went.append(number)

        tasks = []
        for number, (pause, rounds, way) in enumerate(steps):
            tasks.append(asyncio.create_task(go(number, rounds, way)))
            for _ in range(pause):
                await asyncio.sleep(0)
            if way == "cancel":
                tasks[-1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert went == sorted(went)
        assert set(went) >= {number for number, (_, _, way) in enumerate(steps) if way == "go"}
        assert lines.is_empty("key")

    asyncio.run(main())
