"""A whole cluster in the test's own process: real sockets, real files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

from cosmodrome.broker.broker import Broker
from cosmodrome.config import BrokerConfig
from cosmodrome.nameserver.server import NameServer
from cosmodrome.testing.daemons import SMALL_STORE, running, running_broker, running_name_server

__all__ = ["SMALL_STORE", "Cluster", "running", "running_broker", "running_cluster", "running_name_server"]


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
async def running_cluster(folder: Path, brokers: int = 1) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        name_server = await stack.enter_async_context(running_name_server())
        cluster = Cluster(name_server, [])
        for name in [f"broker-{letter}" for letter in ascii_lowercase[:brokers]]:
            config = BrokerConfig(broker_name=name)
            broker = await stack.enter_async_context(running_broker(folder / name, name_server.address, config))
            cluster.brokers.append(broker)
        yield cluster
