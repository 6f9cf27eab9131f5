"""Locks of queues: taken, renewed, lost and given back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.client.instance import Instance
from cosmodrome.client.locks import LOCK_LIFE_MS, LOCK_RENEWAL_MS, LOCK_RETRY_MS, BrokerLocks, LockTable
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.model import MessageQueue
from cosmodrome.testing import FakeClock
from cosmodrome.wire.bodies import LockBatch
from cosmodrome.wire.command import Command
from tests.unit.client.fake_cluster import FakeCluster, fake_cluster, quick

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
A, B, C = (MessageQueue("T", "broker-a", queue_id) for queue_id in range(3))


# --- the table


def test_a_lock_counts_from_when_it_was_asked_for() -> None:
    table = LockTable()
    table.take([A], asked_ms=1_000)
    assert table.holds(A, 1_000 + LOCK_LIFE_MS - 1)
    assert not table.holds(A, 1_000 + LOCK_LIFE_MS)
    assert not table.holds(B, 1_000)


def test_what_a_renewal_is_not_granted_is_lost() -> None:
    table = LockTable()
    table.take([A, B, C], asked_ms=0)
    table.let_go([C])  # while the renewal is under way
    assert table.renew([A, B, C], [A, C], asked_ms=20_000, now_ms=20_001) == {B}
    assert table.queues == {A}
    assert table.holds(A, 20_000 + LOCK_LIFE_MS - 1)


def test_a_lapsed_lock_is_lost_although_it_is_granted_again() -> None:
    table = LockTable()
    table.take([A], asked_ms=0)
    assert table.renew([A], [A], asked_ms=LOCK_LIFE_MS - 1, now_ms=LOCK_LIFE_MS) == {A}
    assert table.queues == set()


@given(st.lists(st.tuples(st.sampled_from(["take", "renew", "refuse", "let go", "lapse"]), st.integers(0, 40_000))))
def test_nothing_is_held_longer_than_a_life_after_the_last_grant(steps: list[tuple[str, int]]) -> None:
    table, now_ms, granted_ms = LockTable(), 0, -LOCK_LIFE_MS
    for what, ms in steps:
        now_ms += ms
        held = table.holds(A, now_ms)
        match what:
            case "take":
                table.take([A], now_ms)
                granted_ms = now_ms
            case "renew":
                lost = table.renew([A], [A], now_ms, now_ms)
                assert lost == set() or not held
                granted_ms = now_ms if held else granted_ms
            case "refuse":
                table.renew([A], [], now_ms, now_ms)
                assert not table.holds(A, now_ms)
            case "let go":
                table.let_go([A])
                assert not table.holds(A, now_ms)
            case "lapse":
                assert table.take_lapsed(now_ms) <= {A}
                assert held == table.holds(A, now_ms)
        assert not table.holds(A, now_ms) or now_ms - granted_ms < LOCK_LIFE_MS


# --- in brokers


class Client:
    def __init__(self, cluster: FakeCluster) -> None:
        self.clock = FakeClock()
        self.lost: list[set[MessageQueue]] = []
        self.instance = Instance(quick(cluster.namesrv), self.clock, None)
        self.locks = BrokerLocks(self.instance, "g", self.clock)
        self.locks.on_lost = self.lost.append


@asynccontextmanager
async def client_of(cluster: FakeCluster) -> AsyncIterator[Client]:
    client = Client(cluster)
    client.instance.start()
    await client.instance.routes.topic("T")
    try:
        yield client
    finally:
        await client.instance.stop()


async def test_queues_are_asked_for_once_per_broker() -> None:
    async with fake_cluster("broker-a", "broker-b", T=2) as cluster, client_of(cluster) as client:
        queues = {MessageQueue("T", name, queue_id) for name in ("broker-a", "broker-b") for queue_id in (0, 1)}
        cluster.named("broker-b").locks[MessageQueue("T", "broker-b", 1)] = "somebody"
        taken = await client.locks.lock(queues)
        assert queues - taken == {MessageQueue("T", "broker-b", 1)}
        assert [broker.asked.count(LOCK) for broker in cluster.brokers] == [1, 1]
        assert {queue for queue in queues if client.locks.holds(queue)} == taken
        (request,) = cluster.named("broker-a").asked.of(LOCK)
        assert LockBatch.decode(request.body) == LockBatch("g", client.instance.client_id, (A, B))


async def test_all_locks_are_renewed_in_time_and_lost_when_somebody_else_has_them() -> None:
    async with fake_cluster(T=2) as cluster, client_of(cluster) as client:
        await client.locks.lock([A, B])
        for _ in range(3):
            await client.clock.advance(LOCK_RENEWAL_MS)
            assert await client.locks.renew()
        assert client.locks.holds(A)
        cluster.broker.locks[A] = "somebody"
        assert await client.locks.renew()
        assert client.lost == [{A}]
        assert not client.locks.holds(A)
        assert client.locks.holds(B)


async def test_locks_lapse_while_the_broker_does_not_answer() -> None:
    async with fake_cluster(T=1) as cluster, client_of(cluster) as client:
        await client.locks.lock([A])
        cluster.broker.answers[LOCK] = lambda command: command.reply(ResponseCode.SYSTEM_BUSY)
        await client.clock.advance(LOCK_LIFE_MS - 1)
        assert not await client.locks.renew()
        assert client.lost == []
        await client.clock.advance(1)
        assert not client.locks.holds(A)
        assert await client.locks.renew()
        assert client.lost == [{A}]


async def test_what_has_lapsed_is_told_of_although_a_hook_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any) -> Command:
        raise RuntimeError("a hook")

    async with fake_cluster(T=2) as cluster, client_of(cluster) as client:
        await client.locks.lock([A])
        await client.clock.advance(LOCK_LIFE_MS)
        await client.locks.lock([B])
        monkeypatch.setattr(client.instance, "ask", fail)
        assert not await client.locks.renew()
        assert client.lost == [{A}]
        assert client.locks.holds(B)


async def test_renewals_come_regularly_and_soon_after_one_that_failed() -> None:
    async with fake_cluster(T=1) as cluster, client_of(cluster) as client:
        await client.locks.lock([A])
        client.instance.run(client.locks.run(), "locks")
        await client.clock.advance(LOCK_RENEWAL_MS - 1)
        assert cluster.broker.asked.count(LOCK) == 1
        cluster.broker.answers[LOCK] = lambda command: command.reply(ResponseCode.SYSTEM_BUSY)
        await client.clock.advance(1)
        await cluster.broker.asked.wait_for(LOCK, 2)
        while cluster.broker.asked.count(LOCK) < 3:
            await client.clock.advance(LOCK_RETRY_MS)
        assert client.locks.holds(A)


async def test_what_is_given_back_is_free_at_once_also_if_its_grant_was_never_heard() -> None:
    async with fake_cluster(T=3) as cluster, client_of(cluster) as client:
        await client.locks.lock([A, B])
        await client.locks.unlock([A])
        assert set(cluster.broker.locks) == {B}
        cluster.broker.answers[LOCK] = lambda command: command.reply(ResponseCode.SYSTEM_ERROR)
        cluster.broker.locks[C] = client.instance.client_id
        assert await client.locks.lock([C]) == set()
        await client.locks.unlock_all(but={B})
        assert set(cluster.broker.locks) == {B}
        assert client.locks.renewed_ms(B) is not None
        assert client.locks.renewed_ms(C) is None
