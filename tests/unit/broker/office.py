"""A store with its delays at work, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from cosmodrome.broker.delays import Delays, to_schedule
from cosmodrome.config import MIB, StoreConfig
from cosmodrome.model import SCHEDULE_TOPIC
from cosmodrome.store import MessageStore, StoreMessage
from cosmodrome.testing import FakeClock
from cosmodrome.wire import properties as props
from tests.unit.store.kit import SMALL, kill, message

SAVE_EVERY_MS = 10_000
STORE = replace(SMALL, mapped_file_size_commit_log=1 * MIB)
FEW_LEVELS = replace(STORE, message_delay_level="1s 5s 10s 30s")
FEW_LEVELS_MS = FEW_LEVELS.delays_ms


@dataclass
class Delivery:
    body: bytes
    at_ms: int


@dataclass
class Office:
    """From one start to one end."""

    folder: Path
    clock: FakeClock
    config: StoreConfig = STORE
    deliveries: list[Delivery] = field(default_factory=list)
    refuse: Callable[[StoreMessage], None] = lambda message: None

    def __post_init__(self) -> None:
        self.store = MessageStore.open(self.folder, self.config, self.clock, self._arrived)
        path = self.folder / "config" / "delayOffset.json"
        self.delays = Delays(
            self.store, self.config.delays_ms, path, self.clock, self._put, save_every_ms=SAVE_EVERY_MS
        )
        self._task = asyncio.create_task(self.delays.run())

    def _arrived(self, topic: str, queue_id: int, _next_offset: int, _tags_code: int) -> None:
        if topic == SCHEDULE_TOPIC:
            self.delays.arrived(queue_id)

    def _put(self, delivered: StoreMessage) -> None:
        self.refuse(delivered)
        self.store.append(delivered)
        self.deliveries.append(Delivery(delivered.body, self.clock.now_ms()))

    def send(self, body: bytes, level: int, queue_id: int = 0, **properties: str) -> None:
        sent = message("orders", queue_id, body)
        sent.properties = props.encode({"DELAY": str(level), **properties})
        to_schedule(sent, level, self.delays.levels)
        self.store.append(sent)

    async def flush(self) -> None:
        self.store.flusher.stop()  # a stopped flusher flushes once and ends
        await self.store.flusher.run()

    async def stop(self) -> None:
        """As a broker does it."""
        await self._end()
        await self.flush()
        await self.delays.save()
        self.store.close()

    async def kill(self) -> None:
        await self._end()
        kill(self.store)

    async def _end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def delivered(self) -> list[bytes]:
        return [delivery.body for delivery in self.deliveries]


@asynccontextmanager
async def office(folder: Path, clock: FakeClock, config: StoreConfig = STORE) -> AsyncIterator[Office]:
    opened = Office(folder, clock, config)
    try:
        yield opened
    finally:
        await opened.stop()
