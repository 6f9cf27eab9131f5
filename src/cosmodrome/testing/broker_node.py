"""One broker of a test's cluster, from its first start to its end."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cosmodrome.broker.broker import Broker
from cosmodrome.client.incoming import received, unpack_body
from cosmodrome.clock import Clock
from cosmodrome.config import BrokerConfig, NetConfig, ReplicationConfig, StoreConfig
from cosmodrome.errors import CosmodromeError
from cosmodrome.model import MessageQueue, ReceivedMessage
from cosmodrome.testing.kill import copy, cut_off_broker
from cosmodrome.wire.record import decode_records

# Time may be moved on by hours while somebody's client, on a clock of its own, sends nothing.
NEVER_MS = 10 * 365 * 86_400_000
NET = NetConfig(idle_seconds=NEVER_MS // 1_000)


class ClusterError(CosmodromeError, RuntimeError):
    """Something that a cluster, or a broker of it, cannot do as it is."""


class BrokerNode:
    """One broker of a cluster: `name`, `address`, `folder`, and while it runs the `broker` itself."""

    def __init__(self, config: BrokerConfig, store: StoreConfig, folder: Path, clock: Clock) -> None:
        self._config = config
        self._store = dataclasses.replace(store, store_path_root_dir=str(folder))
        self._clock = clock
        self._replication = ReplicationConfig(ha_listen_port=0)  # the port above the broker's may be another's
        self._ended: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._broker: Broker | None = None
        self._port: socket.socket | None = None  # while it is down
        self.name = config.broker_name
        self.address = ""
        self.folder = folder

    @property
    def running(self) -> bool:
        """Whether it was started, and not stopped or killed since."""
        return self._broker is not None

    @property
    def broker(self) -> Broker:
        """The broker itself, while it runs."""
        if self._broker is None:
            raise ClusterError(f"{self.name} does not run; start it with start_broker()")
        return self._broker

    async def start(self) -> None:
        """The first start chooses a port, which stays."""
        if self._broker is not None:
            raise ClusterError(f"{self.name} runs already")
        broker = Broker(
            self._config, self._store, NET, self._clock, used=lambda _path: 0.0, replication=self._replication
        )
        await broker.start()
        self._release_port()
        self._broker, self.address = broker, broker.address
        port = int(broker.address.rpartition(":")[2])
        self._config = dataclasses.replace(self._config, listen_port=port, vip_listener_enable=False)
        self._stop = asyncio.Event()
        self._ended = asyncio.create_task(broker.run(self._stop), name=self.name)

    async def stop(self) -> None:
        """In order: what it has is flushed, and clients hear of it."""
        if self._ended is None:
            return
        self._stop.set()
        ended, self._broker, self._ended = self._ended, None, None
        await ended
        self._keep_port()

    async def close(self) -> None:
        """For good."""
        await self.stop()
        self._release_port()

    async def kill(self) -> None:
        """As by kill -9."""
        broker = self.broker
        left = self.folder.with_name(f"{self.folder.name}.killed")
        left.mkdir()
        copy(self.folder, left)
        cut_off_broker(broker)
        self._keep_port()
        await self.stop()
        shutil.rmtree(self.folder)
        left.rename(self.folder)

    def _keep_port(self) -> None:
        """Bound and not listened on: clients are refused, and the system gives it to nobody else."""
        self._release_port()
        host, _, port = self.address.rpartition(":")
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # somebody was quicker, of which the next start will tell
            self._port.bind((host, int(port)))

    def _release_port(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None

    def messages(self, topic: str) -> Iterable[ReceivedMessage]:
        """What it has of a topic, queue by queue."""
        store = self.broker.store
        for queue_id in store.queues(topic):
            queue = MessageQueue(topic, self.name, queue_id)
            for offset in range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)):
                entry = store.entry(topic, queue_id, offset)
                record = None if entry is None else store.record_at(entry[0])
                if record is not None:
                    (decoded,) = decode_records(bytes(record))
                    message = received(decoded, queue, {})
                    unpack_body(message)
                    yield message
