"""Requests of one connection that wait, for a thread, their turn or a disk: nothing that comes later overtakes them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cosmodrome import state_file
from cosmodrome.broker.broker import Broker
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.model import GroupConfig, MessageQueue
from cosmodrome.wire.bodies import LockBatch, decode_locked
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import decode_records
from cosmodrome.wire.requests import PullFlag, PullMessage, SendMessage, UnregisterClient, UpdateConsumerOffset
from tests.system.test_hostile_peers import PATIENCE_SECONDS, TIMEOUT_MS, beat, broker_and_caller, until


def send(topic: str, body: bytes) -> Command:
    return Command.request(RequestCode.SEND_MESSAGE, SendMessage("p", topic, "TBW102", 1, 0, 0, 0, 0), body)


@contextmanager
def busy_thread(broker: Broker) -> Iterator[None]:
    """Whatever is done beside the loop waits until the end of the block."""
    gate = threading.Event()
    busy = asyncio.ensure_future(broker.lane.aside(lambda: gate.wait(PATIENCE_SECONDS)))
    try:
        yield
    finally:
        gate.set()
        assert not busy.cancelled()


async def test_a_heartbeat_of_a_connection_that_is_lost_meanwhile_leaves_nothing(tmp_path: Path) -> None:
    """Nobody would ever remove its members: their queues would go to a client that is not there."""
    async with broker_and_caller(tmp_path) as (broker, caller):
        with busy_thread(broker):
            beating = asyncio.create_task(caller.call(broker.address, beat(producers=5, consumers=200), TIMEOUT_MS))
            connections = broker._servers[0].connections
            await until(lambda: any(connection._tasks for connection in connections))
            (lost,) = connections
            lost.abort()
            await until(lambda: not connections)
        await until(lambda: not lost._tasks)
        await asyncio.gather(beating, return_exceptions=True)
        assert len(broker.clients) == 0


async def test_a_client_that_leaves_is_not_brought_back_by_its_heartbeat(tmp_path: Path) -> None:
    """The heartbeat was sent before it left, and waits for the thread that reads long bodies."""
    async with broker_and_caller(tmp_path) as (broker, caller):
        with busy_thread(broker):
            beating = asyncio.create_task(caller.call(broker.address, beat(consumers=200), TIMEOUT_MS))
            await until(lambda: any(connection._tasks for connection in broker._servers[0].connections))
            header = UnregisterClient("client", consumer_group="c7")
            leaving = asyncio.create_task(
                caller.call(broker.address, Command.request(RequestCode.UNREGISTER_CLIENT, header), TIMEOUT_MS)
            )
            # What needs no order is answered; by then whatever may overtake has.
            await caller.call(broker.address, send("t", b"x"), TIMEOUT_MS)
        assert {(await beating).code, (await leaving).code} == {ResponseCode.SUCCESS}
        assert broker.clients.find_consumers("c6") is not None
        assert broker.clients.find_consumers("c7") is None


async def test_a_queue_that_is_unlocked_stays_unlocked(tmp_path: Path) -> None:
    """The lock of many queues was asked for before, and waits for the thread that reads long bodies."""

    def asking(code: RequestCode, client_id: str, count: int) -> Command:
        queues = tuple(MessageQueue("t", "broker-a", number) for number in range(count))
        return Command.request(code, body=LockBatch("g", client_id, queues).encode())

    async with broker_and_caller(tmp_path) as (broker, caller):
        with busy_thread(broker):
            locking = asyncio.create_task(
                caller.call(broker.address, asking(RequestCode.LOCK_BATCH_MQ, "a", 1_000), TIMEOUT_MS)
            )
            await until(lambda: any(connection._tasks for connection in broker._servers[0].connections))
            unlocking = asyncio.create_task(
                caller.call(broker.address, asking(RequestCode.UNLOCK_BATCH_MQ, "a", 1), TIMEOUT_MS)
            )
            await caller.call(broker.address, send("t", b"x"), TIMEOUT_MS)
        assert {(await locking).code, (await unlocking).code} == {ResponseCode.SUCCESS}
        reply = await caller.call(broker.address, asking(RequestCode.LOCK_BATCH_MQ, "b", 2), TIMEOUT_MS)
        assert decode_locked(reply.body) == (MessageQueue("t", "broker-a", 0),)


async def test_a_commit_is_not_undone_by_one_that_came_before_with_a_pull(tmp_path: Path) -> None:
    """The pull waits until its long expression is compiled."""
    expression = " OR ".join(f"long = 'word {number}'" for number in range(100))
    flags = PullFlag.SUBSCRIPTION | PullFlag.COMMIT_OFFSET
    header = PullMessage("g", "t", 0, 0, 32, flags, 5, 0, subscription=expression, expression_type="SQL92")
    async with broker_and_caller(tmp_path) as (broker, caller):
        await caller.call(broker.address, send("t", b"x"), TIMEOUT_MS)
        with busy_thread(broker):
            pull = Command.request(RequestCode.PULL_MESSAGE, header)
            pulling = asyncio.create_task(caller.call(broker.address, pull, TIMEOUT_MS))
            await until(lambda: any(connection._tasks for connection in broker._servers[0].connections))
            commit = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("g", "t", 0, 7))
            assert (await caller.call(broker.address, commit, TIMEOUT_MS)).code == ResponseCode.SUCCESS
        await pulling
        assert broker.offsets.find_offset("g", "t", 0) == 7


async def test_a_group_that_is_refused_keeps_no_other_group_of_its_client_out(tmp_path: Path) -> None:
    """There is no room for new groups; those that are there live on, whatever their place in the heartbeat."""
    async with broker_and_caller(tmp_path) as (broker, caller):
        config = GroupConfig("c99")
        broker.groups.put(config)
        broker.groups._limit = len(broker.groups._groups)
        reply = await caller.call(broker.address, beat(consumers=100), TIMEOUT_MS)
        assert "maxSubscriptionGroups allows" in (reply.remark or "")
        assert broker.clients.find_consumers("c0") is None
        assert broker.clients.find_consumers("c99") is not None


async def test_messages_to_a_topic_that_is_just_made_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ones wait until the topic is on disk, and then for their turn; those behind them need not."""
    gate = threading.Event()
    real = state_file.save

    def slow(path: Path, data: bytes) -> None:
        if path.name == "topics.json":
            assert gate.wait(PATIENCE_SECONDS)
        real(path, data)

    async with broker_and_caller(tmp_path) as (broker, caller):
        monkeypatch.setattr(state_file, "save", slow)
        sends = [asyncio.create_task(caller.call(broker.address, send("new", b"0"), TIMEOUT_MS))]
        await until(lambda: broker.topics.find_topic("new") is not None)
        busy = asyncio.gather(broker.lane.run(None for _ in range(100)))
        gate.set()
        number = 0
        while not sends[0].done() or number < 20:
            number += 1
            sends.append(
                asyncio.create_task(caller.call(broker.address, send("new", str(number).encode()), TIMEOUT_MS))
            )
            await asyncio.sleep(0)
        codes = {reply.code for reply in await asyncio.gather(*sends)}
        assert codes == {ResponseCode.SUCCESS}
        await busy
        bodies: list[bytes] = []
        while len(bodies) < len(sends):
            views = broker.store.read("new", 0, len(bodies), 32).views
            bodies += [record.body for view in views for record in decode_records(view)]
        assert bodies == [str(number).encode() for number in range(len(sends))]
