"""The four ways in which a message that was sent may be lost, each with what a milder crash or a safer mode keeps.

Brokers run in this process, on a disk that loses all that was not synced when the power goes. Five messages are safe
in every way; five more come while something keeps them from a disk. Each case says which of them are left, no more and
no less, and that none is lost that was answered SEND_OK, unless the mode says so.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from cosmodrome import Message, Producer
from cosmodrome.broker.broker import Broker
from cosmodrome.config import BrokerConfig, BrokerRole, FlushDiskType, ReplicationConfig, StoreConfig
from cosmodrome.mapped_file import MappedFile
from cosmodrome.model import SendResult
from cosmodrome.store import MessageStore, flusher
from cosmodrome.testing import FaultyDisk, Moment, Mood
from cosmodrome.testing.daemons import running_broker, running_name_server
from tests.simulation.store_lives import ASYNC, SYNC, TINY, boot
from tests.unit.store.kit import bodies

NAME, TOPIC = "broker-a", "orders"
SAFE = [b"%d" % number for number in range(5)]
LATER = [b"%d" % number for number in range(5, 10)]
PATIENCE_SECONDS = 30
NEVER_MS = 3_600_000
CONFIG = BrokerConfig(broker_name=NAME, default_topic_queue_nums=1)
ASYNC_MASTER, SYNC_MASTER = BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110  # another connection's bytes are no event
            await asyncio.sleep(0.01)


@dataclass
class Machines:
    """A master, perhaps its slave, and the disk that both have."""

    folder: Path
    disk: FaultyDisk
    producer: Producer
    master: Broker
    slave: Broker | None
    after: int = 0

    async def send(self, sent: list[bytes]) -> set[str]:
        """Send one after the other; return what the senders were answered."""
        return {(await self._send(body)).status.name for body in sent}

    async def _send(self, body: bytes) -> SendResult:
        return await self.producer.send(Message(TOPIC, body), timeout_ms=NEVER_MS)

    async def die_before_answering(self, sent: list[bytes]) -> Moment:
        """Send one after the other without waiting for answers; return the disk once the master's log has them all."""
        sends = []
        for body in sent:
            sends.append(asyncio.create_task(self._send(body)))
            await _grows(self.master.store)
        dead = self.die()
        assert not any(send.done() for send in sends), "nobody was told that it is safe"
        for send in sends:
            send.cancel()
        await asyncio.gather(*sends, return_exceptions=True)
        return dead

    async def send_safely(self) -> None:
        """Send what all disks of the pair have when this returns."""
        assert await self.send(SAFE) == {"SEND_OK"}
        end = self.master.store.max_physical_offset
        for broker in (self.master, self.slave):
            if broker is not None:
                await _has_on_disk(broker.store, end)

    def die(self) -> Moment:
        """Return the disk as it is now, when everything dies."""
        self.disk.mark("all die")
        return self.disk.moments[-1]

    def hold_back_the_slave(self) -> None:
        """Let nothing more come through to the slave."""
        assert self.slave is not None
        follower = self.slave.replicas._follower
        assert follower is not None
        link = follower._link
        assert link is not None
        assert link._transport is not None
        link._transport.pause_reading()


async def _has_on_disk(store: MessageStore, end: int) -> None:
    await until(lambda: store.max_physical_offset == end)
    store.flusher.want(end)
    await until(lambda: store.flusher.flushed == end)


async def _grows(store: MessageStore) -> None:
    end = store.max_physical_offset
    await until(lambda: store.max_physical_offset > end)


@asynccontextmanager
async def machines(
    folder: Path,
    role: BrokerRole,
    flush: FlushDiskType,
    slave_flush: FlushDiskType | None = None,
) -> AsyncIterator[Machines]:
    live = folder / "live"
    live.mkdir()
    leads = ReplicationConfig(broker_role=role, slave_timeout=NEVER_MS)
    follows = ReplicationConfig(broker_role=BrokerRole.SLAVE)
    config = dataclasses.replace(CONFIG, broker_id=1)
    with boot(0), FaultyDisk(live) as disk:
        async with (
            running_name_server() as server,
            running_broker(live / "master", server.address, CONFIG, _store(flush), replication=leads) as master,
            Producer("p", server.address, max_tries=1) as producer,
        ):
            if slave_flush is None:
                yield Machines(folder, disk, producer, master, None)
                return
            store = _store(slave_flush)
            async with running_broker(live / "slave", server.address, config, store, replication=follows) as slave:
                await until(lambda: any(one.is_in_sync for one in master.replicas.slaves()))
                yield Machines(folder, disk, producer, master, slave)


def _store(flush: FlushDiskType) -> StoreConfig:
    return dataclasses.replace(
        TINY, flush_disk_type=flush, sync_flush_timeout=NEVER_MS, flush_interval_commit_log=NEVER_MS
    )


async def left(folder: Path, moment: Moment, who: str, *, power_fails: bool) -> list[bytes]:
    """Start a broker on the disk of `who`, as master, after everything died; return what it serves."""
    after = folder / f"{who}-{power_fails}"
    after.mkdir()
    moment.materialise(after, Random(1), Mood.DROPPED if power_fails else Mood.KEPT)
    with boot(int(power_fails)):
        async with (
            running_name_server() as server,
            running_broker(after / who, server.address, CONFIG, _store(SYNC)) as broker,
        ):
            return bodies(broker.store, TOPIC)


@contextmanager
def busy_disk(broker: Broker) -> Iterator[None]:
    """Meanwhile no sync of this broker's log begins."""
    sync, free, log = flusher.sync_files, threading.Event(), broker.store._log

    def wait(files: list[MappedFile]) -> None:
        if files[0] in log.files:
            free.wait()
        sync(files)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flusher, "sync_files", wait)
        try:
            yield
        finally:
            free.set()


async def test_case_a_async_flush_loses_with_the_power_what_was_not_flushed(tmp_path: Path) -> None:
    async with machines(tmp_path, ASYNC_MASTER, ASYNC) as lab:
        await lab.send_safely()
        assert await lab.send(LATER) == {"SEND_OK"}
        dead = lab.die()
    assert await left(tmp_path, dead, "master", power_fails=True) == SAFE
    assert await left(tmp_path, dead, "master", power_fails=False) == SAFE + LATER, "a killed process loses nothing"


async def test_case_a_does_not_happen_with_sync_flush(tmp_path: Path) -> None:
    async with machines(tmp_path, ASYNC_MASTER, SYNC) as lab:
        await lab.send_safely()
        assert await lab.send(LATER) == {"SEND_OK"}
        dead = lab.die()
    assert await left(tmp_path, dead, "master", power_fails=True) == SAFE + LATER


async def test_case_b_sync_flush_loses_with_the_power_what_it_had_not_answered(tmp_path: Path) -> None:
    async with machines(tmp_path, ASYNC_MASTER, SYNC) as lab:
        await lab.send_safely()
        with busy_disk(lab.master):
            dead = await lab.die_before_answering(LATER)
    assert await left(tmp_path, dead, "master", power_fails=True) == SAFE
    assert await left(tmp_path, dead, "master", power_fails=False) == SAFE + LATER, "a killed process loses nothing"


async def test_case_c_an_async_master_dies_before_its_slave_has_what_it_answered(tmp_path: Path) -> None:
    async with machines(tmp_path, ASYNC_MASTER, SYNC, SYNC) as lab:
        await lab.send_safely()
        lab.hold_back_the_slave()
        assert await lab.send(LATER) == {"SEND_OK"}
        dead = lab.die()
    assert await left(tmp_path, dead, "slave", power_fails=True) == SAFE
    assert await left(tmp_path, dead, "master", power_fails=True) == SAFE + LATER, "the master's own disk has them"


async def test_case_c_costs_a_sync_master_only_what_it_had_not_answered(tmp_path: Path) -> None:
    async with machines(tmp_path, SYNC_MASTER, SYNC, SYNC) as lab:
        await lab.send_safely()
        lab.hold_back_the_slave()
        dead = await lab.die_before_answering(LATER)
    assert await left(tmp_path, dead, "slave", power_fails=True) == SAFE


async def test_case_d_a_slave_that_flushes_later_dies_too(tmp_path: Path) -> None:
    async with machines(tmp_path, SYNC_MASTER, SYNC, ASYNC) as lab:
        await lab.send_safely()
        assert await lab.send(LATER) == {"SEND_OK"}
        dead = lab.die()
    assert await left(tmp_path, dead, "slave", power_fails=True) == SAFE
    assert await left(tmp_path, dead, "slave", power_fails=False) == SAFE + LATER, "a killed process loses nothing"
    assert await left(tmp_path, dead, "master", power_fails=True) == SAFE + LATER, "the master's own disk has them"


async def test_case_d_costs_only_what_was_not_answered_with_sync_flush_at_the_slave(tmp_path: Path) -> None:
    async with machines(tmp_path, SYNC_MASTER, SYNC, SYNC) as lab:
        assert lab.slave is not None
        await lab.send_safely()
        with busy_disk(lab.slave):
            dead = await lab.die_before_answering(LATER)
    assert await left(tmp_path, dead, "slave", power_fails=True) == SAFE
    assert await left(tmp_path, dead, "master", power_fails=True) == SAFE + LATER, "the master's own disk has them"


async def test_case_d_does_not_happen_with_sync_flush_on_both(tmp_path: Path) -> None:
    async with machines(tmp_path, SYNC_MASTER, SYNC, SYNC) as lab:
        await lab.send_safely()
        assert await lab.send(LATER) == {"SEND_OK"}
        dead = lab.die()
    assert await left(tmp_path, dead, "slave", power_fails=True) == SAFE + LATER
    assert await left(tmp_path, dead, "master", power_fails=True) == SAFE + LATER
