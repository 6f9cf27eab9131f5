"""A broker whose disk is full, and not, and full again; killed meanwhile, and asked for all it ever acknowledged."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from cosmodrome import Message, Producer
from cosmodrome.config import FlushDiskType
from cosmodrome.errors import CosmodromeError
from cosmodrome.net.caller import Caller
from cosmodrome.store.verification import verify
from tests.system.broker_lives import BrokerLives, Place, pull_all
from tests.system.daemons import Daemon
from tests.system.small_disk import SmallDisk

DISK_BYTES = 24 * 1024 * 1024
# Nothing is deleted, so that all that was acknowledged must be there; the disk is looked at often.
CONF = (
    "mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\nmaxHashSlotNum=1000\nmaxIndexNum=4000\n"
    "diskMaxUsedSpaceRatio=100\ndiskSpaceCleanForciblyRatio=100\ndiskSpaceWarningLevelRatio=100\n"
    "cleanFileForciblyEnable=false\ncleanResourceInterval=100\nflushConsumerOffsetInterval=100\n"
    "flushConsumeQueueThoroughInterval=100\n"
)
FULL_SHARE = 0.7  # of the lives that begin with a full disk
FILLINGS = 4  # in one life, at most
MAX_LEFT_BYTES = 300_000  # by a filling
MAX_FULL_SECONDS = 0.3
ROOM_SECONDS = 60  # a broker that has room again takes messages again, long before


class FullDiskLives(BrokerLives):
    """Brokers on one small disk. In each life it is filled to its last pages, freed, and filled again."""

    def __init__(self, disk: SmallDisk, flush: FlushDiskType, random: Random) -> None:
        super().__init__(disk.path / "data", flush, random)
        self.disk = disk
        self.refused = 0

    def run(self, kills: int) -> None:
        self.folder.mkdir()
        (self.folder / "broker.conf").write_text(f"{CONF}flushDiskType={self.flush}\ndefaultTopicQueueNums=2\n")
        while self.kills < kills:
            if self.random.random() < FULL_SHARE:
                self.disk.fill(self.random.choice((0, 0, 4096, 8192, 65_536)))
            if self.random.random() < 0.2:
                self._kill_while_starting()
            else:
                self._kill_while_working()
            self.kills += 1
        self.disk.free()
        with self._daemon() as daemon:
            asyncio.run(self._check(daemon))
            assert daemon.interrupt() == 0, daemon.output
        found = verify(self.store)
        assert found.is_sound, found.problems

    def _arguments(self) -> tuple[str, ...]:
        data = self.disk.mount / "data"
        return ("up", "--data", str(data), "-c", str(data / "broker.conf"), "--namesrv-port", "0", "--broker-port", "0")

    def _within(self) -> tuple[str, ...]:
        return self.disk.command()

    async def _work(self, daemon: Daemon) -> None:
        await self._check(daemon)
        async with Producer(group="crash", namesrv=daemon.address("name server"), max_tries=1) as producer:
            senders = [asyncio.ensure_future(self._send(producer, Random(self.random.random()))) for _ in range(4)]
            for _ in range(self.random.randrange(FILLINGS + 1)):
                self.disk.fill(self.random.randrange(MAX_LEFT_BYTES))
                await asyncio.sleep(self.random.uniform(0, MAX_FULL_SECONDS))
                self.disk.free()
                await self._takes_messages(producer)
            await asyncio.sleep(self.random.uniform(0, 0.2))
            daemon.kill()
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*senders, return_exceptions=True)

    async def _takes_messages(self, producer: Producer) -> None:
        """Return once a message is taken in."""
        async with asyncio.timeout(ROOM_SECONDS):
            while True:
                try:
                    await producer.send(Message("others", b"is there room?"))
                    return
                except (CosmodromeError, OSError):
                    self.refused += 1
                    await asyncio.sleep(0.01)

    async def _send(self, producer: Producer, random: Random) -> None:
        while True:
            await super()._send(producer, random)  # until it is refused
            await asyncio.sleep(0.02)

    async def _check_queues(self, caller: Caller, address: str) -> None:
        """On a full disk, the last messages may still wait for room in their queues; then none behind them is there."""
        if self.disk.free_bytes > MAX_LEFT_BYTES:
            await super()._check_queues(caller, address)
            return
        for topic, queue_id in sorted({place[:2] for place in self.known}):
            records = await pull_all(caller, address, topic, queue_id)
            for offset, record in enumerate(records):
                known = self.known.get((topic, queue_id, offset))
                assert record.queue_offset == offset, (topic, queue_id)
                assert known is None or known.body == record.body, (topic, queue_id, offset)

    def _some_places(self) -> list[Place]:
        return super()._some_places() if self.disk.free_bytes > MAX_LEFT_BYTES else []


def live(folder: Path, flush: FlushDiskType, seed: int, kills: int) -> FullDiskLives:
    """Run one store through so many lives; returns what they were."""
    with SmallDisk(folder / "disk", DISK_BYTES) as disk:
        lives = FullDiskLives(disk, flush, Random(f"{flush} {seed}"))
        lives.run(kills)
        return lives
