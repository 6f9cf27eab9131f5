"""A master and a slave around logs in memory, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

from cosmodrome.clock import Clock
from cosmodrome.config import ReplicationConfig
from cosmodrome.replication.epochs import LogEpoch, MasterLog
from cosmodrome.replication.follower import Follower, Inquire
from cosmodrome.replication.leader import Leader
from tests.simulation.replication_lives import FakeLog

HOST = "127.0.0.1"
PATIENCE_SECONDS = 60
ROOT = LogEpoch(1, "root", 0)


def make_log(records: int = 0, *, syncs: bool = False, seed: int = 1) -> FakeLog:
    log = FakeLog(Random(seed), "log", syncs)
    log.epochs.list = [ROOT]
    for _ in range(records):
        log.append()
    return log


def grow(log: FakeLog) -> tuple[int, int]:
    """Append a record; returns where what is new begins and ends, the blank before the record included."""
    begin = log.max_physical_offset
    return begin, log.append()[1]


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what sockets bring."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110 - nobody sets an event for a state
            await asyncio.sleep(0.001)


@asynccontextmanager
async def leading(log: FakeLog, config: ReplicationConfig, clock: Clock) -> AsyncIterator[Leader]:
    leader = Leader(log, config, clock)
    await leader.start(HOST, 0)
    try:
        yield leader
    finally:
        await leader.close()


def answers(log: FakeLog) -> Inquire:
    async def inquire() -> MasterLog | None:
        return MasterLog(list(log.epochs.list), log.min_physical_offset, log.max_physical_offset)

    return inquire


async def refuses() -> MasterLog | None:
    """As Apache's master does."""
    return None


@asynccontextmanager
async def following(
    log: FakeLog, address: str | None, config: ReplicationConfig, clock: Clock, inquire: Inquire = refuses
) -> AsyncIterator[Follower]:
    follower = Follower(log, config, clock, inquire)
    follower.follow(address)
    running = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        await follower.close()
        await running
