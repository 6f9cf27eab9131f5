"""Sends that go on by themselves."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.client.async_sends import AsyncSends
from cosmodrome.client.outgoing import snapshot
from cosmodrome.client.producer import Producer
from cosmodrome.client.producer_options import ProducerOptions
from cosmodrome.client.requesting import RequestProducer
from cosmodrome.codes import RequestCode
from cosmodrome.errors import BrokerError, ClientError, InvalidMessage, TooManySends
from cosmodrome.model import Message, SendResult
from cosmodrome.wire import properties as properties_string
from tests.unit.client.fake_cluster import fake_cluster

SEND = RequestCode.SEND_MESSAGE_V2
LATER = 1e9


async def test_the_future_has_the_result() -> None:
    async with fake_cluster(T=4) as cluster, Producer("g", cluster.namesrv) as producer:
        results = await asyncio.gather(*(producer.send_async(Message("T", b"x")) for _ in range(100)))
        assert len({(result.queue, result.queue_offset) for result in results}) == 100
        assert cluster.broker.asked.count(SEND) == 100


@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_a_callback_hears_how_it_ended(is_coroutine: bool, caplog: pytest.LogCaptureFixture) -> None:
    heard: asyncio.Queue[SendResult | BaseException] = asyncio.Queue()

    async def later(outcome: SendResult | BaseException) -> None:
        await asyncio.sleep(0)
        heard.put_nowait(outcome)

    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        callback: Any = later if is_coroutine else heard.put_nowait
        producer.send_async(Message("T", b"x"), callback=callback)
        assert isinstance(await heard.get(), SendResult)
        cluster.broker.answers[SEND] = lambda command: command.reply(13, remark="no")
        producer.send_async(Message("T", b"x"), callback=callback)
        assert isinstance(await heard.get(), BrokerError)
        producer.send_async(Message("T", b""), callback=callback)
        assert isinstance(await heard.get(), InvalidMessage)
        gc.collect()
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_a_callback_that_fails_is_logged(is_coroutine: bool, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_outcome: object) -> None:
        raise RuntimeError("my fault")

    async def fail_later(_outcome: object) -> None:
        raise RuntimeError("my fault")

    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        await producer.send_async(Message("T", b"x"), callback=fail_later if is_coroutine else fail)
    assert "my fault" in caplog.text
    assert "callback" in caplog.text


async def test_stopping_waits_for_what_is_under_way_and_its_callbacks() -> None:
    heard: list[object] = []

    async def hear(outcome: object) -> None:
        await asyncio.sleep(0.01)
        heard.append(outcome)

    async with fake_cluster(T=1) as cluster:
        async with Producer("g", cluster.namesrv) as producer:
            futures = [producer.send_async(Message("T", b"x"), callback=hear) for _ in range(20)]
        assert all(future.done() for future in futures)
        assert len(heard) == 20
        assert len(cluster.broker.queues["T", 0]) == 20
        with pytest.raises(ClientError, match="stopped"):
            producer.send_async(Message("T", b"x"))


@pytest.mark.parametrize("way", ["send_async", "request_async"])
async def test_a_message_may_be_changed_as_soon_as_its_send_has_begun(way: str) -> None:
    message = Message("T", b"", keys=[], properties={})
    begun: list[asyncio.Future[Any]] = []
    async with fake_cluster(T=1) as cluster, RequestProducer("g", cluster.namesrv) as producer:
        for number in range(5):
            message.body, message.tags = b"%d" % number, f"tag{number}"
            message.properties["n"] = f"n{number}"
            message.keys = ["k"] if not number else message.keys
            assert isinstance(message.keys, list)
            message.keys[0] = f"key{number}"
            begun.append(getattr(producer, way)(message))
        await cluster.broker.asked.wait_for(SEND, 5)
        for future in begun:
            future.cancel()  # the answers to requests never come
    stored = {one.body: properties_string.decode(one.properties) for one in cluster.broker.queues["T", 0]}
    seen = {(body, of["TAGS"], of["KEYS"], of["n"]) for body, of in stored.items()}
    assert seen == {(b"%d" % n, f"tag{n}", f"key{n}", f"n{n}") for n in range(5)}


def test_a_message_of_the_applications_own_kind_is_taken_as_such() -> None:
    class Order(Message):
        customer = ""

    order = Order("T", b"x")
    order.customer = "eve"
    taken = snapshot(order)
    assert isinstance(taken, Order)
    assert (taken, taken.customer, taken.properties is order.properties) == (order, "eve", False)


async def test_a_cancelled_send_calls_nobody_back() -> None:
    heard: list[object] = []
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        cluster.broker.silent = True
        future = producer.send_async(Message("T", b"x"), callback=heard.append)
        await cluster.broker.asked.wait_for(SEND)
        future.cancel()
        with pytest.raises(asyncio.CancelledError):
            await future
        cluster.broker.silent = False
    assert heard == []


@pytest.mark.parametrize(
    ("options", "taken"),
    [(ProducerOptions(max_async_sends=5), 5), (ProducerOptions(max_async_bytes=1_000), 3)],
)
async def test_more_than_fits_is_refused_until_there_is_room(options: ProducerOptions, taken: int) -> None:
    message = Message("T", bytes(400))
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv, options=options) as producer:
        futures = [producer.send_async(message) for _ in range(taken)]
        with pytest.raises(TooManySends, match=r"await producer.room\(\)"):
            producer.send_async(message)
        await producer.room()
        futures.append(producer.send_async(message))
        await asyncio.gather(*futures)


async def test_a_loop_over_many_messages_holds_only_a_few() -> None:
    options = ProducerOptions(max_async_sends=10)
    async with fake_cluster(T=1) as cluster, Producer("g", cluster.namesrv, options=options) as producer:
        for _ in range(500):
            await producer.room()
            producer.send_async(Message("T", b"x"))
            assert producer._async_sends.count <= 10
    assert len(cluster.broker.queues["T", 0]) == 500


async def test_all_who_wait_for_room_get_some() -> None:
    sends = AsyncSends(1, 1_000)
    done: list[int] = []

    async def one(number: int) -> None:
        while True:
            await sends.room()
            try:
                await sends.start(lambda: asyncio.sleep(0.001, number), 1, LATER)
            except TooManySends:
                continue  # somebody was quicker
            done.append(number)
            return

    async with asyncio.timeout(30):
        await asyncio.gather(*(one(number) for number in range(20)))
    assert sorted(done) == list(range(20))
    assert not sends._waiters


@given(st.lists(st.tuples(st.integers(1, 60), st.sampled_from(["return", "raise", "cancel"])), max_size=30))
def test_counts_are_right_however_sends_end(steps: list[tuple[int, str]]) -> None:
    async def main() -> None:
        sends = AsyncSends(8, 200)
        gate = asyncio.Event()

        async def send(way: str) -> None:
            await gate.wait()
            if way == "raise":
                raise ValueError

        tasks, sizes = [], []
        for size, way in steps:
            if sends.is_full:
                with pytest.raises(TooManySends):
                    sends.start(lambda: send("return"), size, LATER)
                continue
            tasks.append(sends.start(lambda way=way: send(way), size, LATER))  # type: ignore[misc]
            sizes.append(size)
            assert (sends.count, sends._bytes) == (len(tasks), sum(sizes))
            if way == "cancel":
                tasks[-1].cancel()
        gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (sends.count, sends._bytes) == (0, 0)

    asyncio.run(main())


async def test_what_does_not_end_in_time_is_cancelled() -> None:
    sends = AsyncSends(10, 1_000)
    stuck = sends.start(lambda: asyncio.Event().wait(), 1, asyncio.get_running_loop().time() - 10)
    await sends.drain()
    assert stuck.cancelled()


async def test_who_is_in_line_at_the_end_still_gets_a_turn() -> None:
    sends, began = AsyncSends(2, 1_000), asyncio.get_running_loop().time()
    done: list[int] = []

    async def send(number: int) -> None:
        await asyncio.sleep(0.001)
        done.append(number)

    def one(number: int) -> asyncio.Task[None]:
        return asyncio.create_task(sends.in_turn(lambda: sends.start(lambda: send(number), 1, began + 10)))

    tasks = [one(number) for number in range(20)]
    await asyncio.sleep(0)
    await sends.drain()
    assert sorted(done) == list(range(20))
    await asyncio.gather(*tasks)


async def test_who_is_in_line_behind_what_never_ends_is_told() -> None:
    sends, late = AsyncSends(1, 1_000), asyncio.get_running_loop().time() - 10
    stuck = sends.start(lambda: asyncio.Event().wait(), 1, late)
    in_line = asyncio.create_task(sends.in_turn(lambda: sends.start(lambda: asyncio.sleep(0), 1, late)))
    await asyncio.sleep(0)
    await sends.drain()
    assert stuck.cancelled()
    with pytest.raises(ClientError, match="the producer was stopped"):
        await in_line


async def test_what_callers_await_is_waited_for_by_its_deadline() -> None:
    sends, gate = AsyncSends(1, 1_000), asyncio.Event()
    now = asyncio.get_running_loop().time

    async def send(deadline: float) -> None:
        with sends.awaited(deadline):
            await gate.wait()

    sending = [asyncio.create_task(send(now() + LATER)) for _ in range(3)]
    await asyncio.sleep(0)
    draining = asyncio.create_task(sends.drain())
    await asyncio.sleep(0.01)
    assert not draining.done()
    gate.set()
    await draining
    assert all(task.done() for task in sending)
    gate.clear()
    stuck = AsyncSends(1, 1_000)
    with stuck.awaited(now() - 10):
        await stuck.drain()
