"""A whole cluster in the test's own process: real sockets, real files."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

from cosmodrome.broker.broker import Broker
from cosmodrome.clock import Clock, SystemClock
from cosmodrome.config import MIB, BrokerConfig, NameServerConfig, NetConfig, StoreConfig
from cosmodrome.nameserver.server import NameServer

# Small files: an index of Apache's size would be sparse, but it is mapped and walked all the same.
SMALL_STORE = StoreConfig(
    mapped_file_size_commit_log=8 * MIB,
    mapped_file_size_consume_queue=20 * 1_000,
    max_hash_slot_num=1_000,
    max_index_num=4_000,
)


@dataclass
class Cluster:
    name_server: NameServer
    brokers: list[Broker]

    @property
    def namesrv(self) -> str:
        return self.name_server.address

    @property
    def broker(self) -> Broker:
        (only,) = self.brokers
        return only


@asynccontextmanager
async def running_name_server() -> AsyncIterator[NameServer]:
    server = NameServer(NameServerConfig(listen_port=0), NetConfig(), SystemClock())
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
) -> AsyncIterator[Broker]:
    config = config or BrokerConfig(broker_name="broker-a")
    broker = Broker(
        dataclasses.replace(config, namesrv_addr=namesrv, listen_port=0),
        dataclasses.replace(store, store_path_root_dir=str(folder)),
        clock=clock,
    )
    await broker.start()
    async with running(broker.run):
        yield broker


@asynccontextmanager
async def running_cluster(folder: Path, brokers: int = 1) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        name_server = await stack.enter_async_context(running_name_server())
        cluster = Cluster(name_server, [])
        for name in [f"broker-{letter}" for letter in ascii_lowercase[:brokers]]:
            config = BrokerConfig(broker_name=name)
            broker = await stack.enter_async_context(running_broker(folder / name, name_server.address, config))
            cluster.brokers.append(broker)
        yield cluster


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
