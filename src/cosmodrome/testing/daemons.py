"""Name servers and brokers in the test's own process, from the beginning of a block to its end."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from cosmodrome.broker.broker import Broker
from cosmodrome.clock import Clock, SystemClock
from cosmodrome.config import MIB, BrokerConfig, NameServerConfig, NetConfig, ReplicationConfig, StoreConfig
from cosmodrome.nameserver.server import NameServer

# Small files: an index of Apache's size would be sparse, but it is mapped and walked all the same.
SMALL_STORE = StoreConfig(
    mapped_file_size_commit_log=8 * MIB,
    mapped_file_size_consume_queue=20 * 1_000,
    max_hash_slot_num=1_000,
    max_index_num=4_000,
)


@asynccontextmanager
async def running_name_server(clock: Clock | None = None, net: NetConfig | None = None) -> AsyncIterator[NameServer]:
    server = NameServer(NameServerConfig(listen_port=0), net or NetConfig(), clock or SystemClock())
    await server.start()
    async with running(server.run):
        yield server


@asynccontextmanager
async def running_broker(
    folder: Path,
    namesrv: str,
    config: BrokerConfig | None = None,
    store: StoreConfig = SMALL_STORE,
    clock: Clock | None = None,
    replication: ReplicationConfig | None = None,
) -> AsyncIterator[Broker]:
    config = config or BrokerConfig(broker_name="broker-a")
    broker = Broker(
        dataclasses.replace(config, namesrv_addr=namesrv, listen_port=0),
        dataclasses.replace(store, store_path_root_dir=str(folder)),
        clock=clock,
        replication=replication,
    )
    await broker.start()
    async with running(broker.run):
        yield broker


@asynccontextmanager
async def running(run: Callable[[asyncio.Event], Awaitable[None]]) -> AsyncIterator[None]:
    """A daemon's `run`, from here to the end of the block."""
    stop = asyncio.Event()
    task = asyncio.ensure_future(run(stop))
    try:
        yield
    finally:
        stop.set()
        await task
