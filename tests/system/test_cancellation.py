"""Clients that are cancelled anywhere: nothing of them is left behind, and nothing is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cosmodrome import (
    ConsumeFrom,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    TopicReader,
    TransactionProducer,
    TransactionState,
)
from cosmodrome.client.lifecycle import Startable
from tests.system.cluster import Cluster, running_cluster
from tests.unit.client.fake_cluster import PATIENCE_SECONDS

SEED = 20_241
ROUNDS = 60
# A life of a client below takes about this many turns of the loop; some are cancelled after its end.
LIFE_TURNS = 250

Life = Callable[[Startable], Awaitable[None]]


async def send_some(client: Startable) -> None:
    assert isinstance(client, Producer)
    async with client as producer:
        for number in range(5):
            await producer.send(Message("orders", b"%d" % number))
        await asyncio.gather(*(producer.send(Message("orders", b"x" * 100_000)) for _ in range(3)))


async def commit_some(client: Startable) -> None:
    assert isinstance(client, TransactionProducer)
    async with client as producer:
        for number in range(3):
            await producer.send_in_transaction(Message("paid", b"%d" % number), lambda message: TransactionState.COMMIT)


async def listen(client: Startable) -> None:
    async with client:
        await asyncio.sleep(0.2)


async def read_some(client: Startable) -> None:
    assert isinstance(client, TopicReader)
    async with client as reader:
        for _ in range(10):
            await anext(reader)


async def iterate(client: Startable) -> None:
    assert isinstance(client, LitePullConsumer)
    async with client as consumer:
        stream = consumer.messages(auto_ack=False)
        for _ in range(5):
            async with await anext(stream):
                await asyncio.sleep(0)
        async for message in consumer:
            await consumer.commit()
            if message.queue_offset > 3:
                break
        await consumer.poll(100)


async def pull_some(client: Startable) -> None:
    assert isinstance(client, PullConsumer)
    async with client as consumer:
        for queue in await consumer.fetch_subscribe_queues("orders"):
            result = await consumer.pull(queue)
            consumer.update_consume_offset(queue, result.next_begin_offset)
        await consumer.persist_consume_offset()


def iterating_consumer_of(namesrv: str) -> LitePullConsumer:
    consumer = LitePullConsumer("billing", namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe("orders")
    return consumer


def consumer_of(namesrv: str) -> PushConsumer:
    async def handler(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.001)

    consumer = PushConsumer("billing", namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, trace=True)
    consumer.subscribe("orders", "*", handler)
    return consumer


KINDS: dict[str, tuple[Callable[[str], Startable], Life]] = {
    "producer": (lambda namesrv: Producer("app", namesrv, trace=True), send_some),
    "transactions": (
        lambda namesrv: TransactionProducer("app", namesrv, check=lambda message: TransactionState.COMMIT),
        commit_some,
    ),
    "consumer": (consumer_of, listen),
    "iterating consumer": (iterating_consumer_of, iterate),
    "pull consumer": (lambda namesrv: PullConsumer("billing", namesrv), pull_some),
    "reader": (lambda namesrv: TopicReader("orders", namesrv=namesrv, from_earliest=True), read_some),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_cancelled_anywhere_leaves_nothing_behind(kind: str, tmp_path: Path) -> None:
    make, life = KINDS[kind]
    chance = random.Random(SEED)
    async with running_cluster(tmp_path) as cluster, quiet_afterwards():
        await filled(cluster)
        for number in range(ROUNDS):
            client = make(cluster.namesrv)
            living = asyncio.ensure_future(life(client))
            for _ in range(chance.choice((1, 1, 2))):  # a second one falls into the stop, as often as not
                await turns(chance.randrange(LIFE_TURNS) // (1 + number % 4))
                living.cancel()
            await ended(living)
            await client.stop()
            await nothing_is_left(client, cluster)


async def filled(cluster: Cluster) -> None:
    async with Producer("filler", cluster.namesrv) as producer:
        for topic in ("orders", "paid"):
            for number in range(20):
                await producer.send(Message(topic, b"%d" % number))


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def ended(task: asyncio.Future[None]) -> None:
    """However it ended; one that goes on in spite of its cancellation is an error."""
    _, going_on = await asyncio.wait([task], timeout=PATIENCE_SECONDS)
    assert not going_on


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def nothing_is_left(client: Startable, cluster: Cluster) -> None:
    assert not client.running
    client_id = client._instance.client_id  # type: ignore[attr-defined]
    assert not [task for task in asyncio.all_tasks() if client_id in task.get_name()]
    clients = cluster.broker.clients
    await until(lambda: not clients.producers("app") and clients.find_consumers("billing") is None)
    await until(lambda: not cluster.broker._servers[0].connections)


@asynccontextmanager
async def quiet_afterwards() -> AsyncIterator[None]:
    """No task of the block outlives it, named or not."""
    before = asyncio.all_tasks()
    complaints: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: complaints.append(context))
    yield
    await until(lambda: not [task for task in asyncio.all_tasks() - before if is_ours(task)])
    assert not complaints


def is_ours(task: asyncio.Task[object]) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and "/client/" in code.co_filename


async def test_what_was_acknowledged_is_stored_whoever_was_cancelled(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    acknowledged: set[str] = set()

    async def send(producer: Producer) -> None:
        acknowledged.add((await producer.send(Message("orders", b"x"))).msg_id)

    async with running_cluster(tmp_path) as cluster:
        async with Producer("app", cluster.namesrv) as producer:
            await send(producer)
            for _ in range(300):
                sending = asyncio.ensure_future(send(producer))
                await turns(chance.randrange(8))
                sending.cancel()
                await ended(sending)
            await send(producer)
        stored = sum(cluster.broker.store.max_offset("orders", queue) for queue in range(8))
        reader = TopicReader("orders", namesrv=cluster.namesrv, from_earliest=True)
        async with asyncio.timeout(PATIENCE_SECONDS), reader:
            seen = {(await anext(reader)).msg_id for _ in range(stored)}
    assert acknowledged <= seen
    assert 2 < len(acknowledged) < 302, "some were cancelled and some were not, or this shows nothing"


async def test_what_cancelled_consumers_did_not_finish_others_get(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    handled: set[bytes] = set()

    async def handler(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.001)
        handled.add(message.body)

    async def consume() -> None:
        consumer = PushConsumer("billing", cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, max_in_flight=2)
        consumer.subscribe("orders", "*", handler)
        async with consumer:
            await asyncio.Event().wait()

    async with running_cluster(tmp_path) as cluster:
        async with Producer("app", cluster.namesrv) as producer:
            for number in range(400):
                await producer.send(Message("orders", b"%d" % number))
        for wanted in (*range(20, 400, 20), 400):
            consuming = asyncio.ensure_future(consume())
            await until(lambda: len(handled) >= wanted)  # noqa: B023
            await turns(chance.randrange(10))
            for _ in range(chance.choice((1, 2))):
                consuming.cancel()
                await turns(chance.randrange(20))
            await ended(consuming)
    assert len(handled) == 400
