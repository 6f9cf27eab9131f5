"""The machine a broker lives on: it is stopped, killed in the middle of anything and started again, in one process."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cosmodrome.broker.broker import Broker
from cosmodrome.clock import Clock
from cosmodrome.config import KIB, BrokerConfig, FlushDiskType, StoreConfig
from cosmodrome.errors import StoreError
from cosmodrome.store import Appended, StoreMessage
from cosmodrome.testing import Fault, FaultyDisk, Kind
from cosmodrome.testing.kill import copy, cut_off_broker

CONFIG = BrokerConfig(
    broker_name="broker-a",
    recall_message_enable=True,
    transaction_check_interval=15_000,
    transaction_check_max=8,
)
# Small files, so that every kind of them is rolled, and copied quickly.
STORE = StoreConfig(
    mapped_file_size_commit_log=256 * KIB,
    mapped_file_size_consume_queue=100 * 20,
    max_hash_slot_num=500,
    max_index_num=1_000,
    mapped_file_size_timer_log=16 * KIB,
)
_NEED_ROOM = frozenset({Kind.CREATE, Kind.WRITE, Kind.ALLOCATE})


@dataclasses.dataclass
class AppendFuse:
    """The broker dies with so many appends: before the last of them, or after it and so many turns of the loop."""

    appends: int
    before: bool
    turns: int


class _DiskFuse(Fault):
    """The broker dies when so much was asked of the disk, before the last of it is done."""

    def __init__(self, operations: int, kill: Callable[[], None]) -> None:
        super().__init__(operations, None)
        self._kill = kill

    def strikes(self, kind: Kind) -> bool:
        if super().strikes(kind):
            self._kill()
        return False


class Machine:
    """One broker after the other on one store.

    A broker is killed by copying its files as they are at that instant and cutting its connections: the copy is what
    the next one finds. The rest of the dead broker's doings stays in the old folder, where nobody sees it.
    """

    def __init__(self, folder: Path, disk: FaultyDisk, namesrv: str, clock: Clock, flush: FlushDiskType) -> None:
        self._folder = folder
        self._disk = disk
        self._config = dataclasses.replace(CONFIG, namesrv_addr=namesrv, listen_port=0)
        self._store_config = dataclasses.replace(STORE, flush_disk_type=flush)
        self._clock = clock
        self._fuse: AppendFuse | None = None
        self._is_made = False
        self.life = self.stops = self.kills = self.crashes = 0
        self.killed = asyncio.Event()
        self.store_path = self._home = folder / "store-0"
        self.broker: Broker

    async def start(self) -> None:
        """It may have been killed before this returns; then nobody has heard of it."""
        self.life += 1
        self.killed.clear()
        self._home, self._is_made = self.store_path, False
        config = dataclasses.replace(self._store_config, store_path_root_dir=str(self._home))
        self.broker = Broker(self._config, config, clock=self._clock, used=lambda _path: 0.1)
        self._is_made = True
        if self.killed.is_set():
            cut_off_broker(self.broker)
        self._append = self.broker.store.append
        self.broker.store.append = self._watched_append  # type: ignore[method-assign]
        await self.broker.start()
        self._stop = asyncio.Event()
        self._running = asyncio.create_task(self.broker.run(self._stop))

    async def end(self, *, machine_too: bool = False) -> None:
        """Stop the broker in order, or wait until nothing of a killed one is left. After a crash of the machine, the
        next start trusts only what it can check."""
        self._stop.set()
        with suppress(StoreError):  # a full disk; what it could not save must not be missed
            await self._running
        self.defuse()
        if not self.killed.is_set():
            self.stops += 1
            return
        self.kills += 1
        abort = self.store_path / "abort"
        if machine_too and abort.exists():
            abort.write_text("1")
            self.crashes += 1
        shutil.rmtree(self._home)

    # --- killing

    def kill_at_append(self, fuse: AppendFuse) -> None:
        self._fuse = fuse

    def kill_at_operation(self, number: int) -> None:
        """Also one of a start or a stop."""
        self._disk.fault = _DiskFuse(number, self.kill)

    def fill_disk(self) -> None:
        """No file grows any more, until `defuse` or the end of the broker."""
        self._disk.fault = Fault(0, errno.ENOSPC, lasting=True, kinds=_NEED_ROOM)

    def defuse(self) -> None:
        self._fuse = self._disk.fault = None

    def _watched_append(self, message: StoreMessage) -> Appended:
        fuse = self._fuse
        if fuse is None:
            return self._append(message)
        fuse.appends -= 1
        if fuse.appends > 0:
            return self._append(message)
        self._fuse = None
        if fuse.before:
            self.kill()
            return self._append(message)
        try:
            return self._append(message)
        finally:
            self._kill_after(fuse.turns)

    def _kill_after(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._kill_after, turns - 1)
        else:
            self.kill()

    def kill(self) -> None:
        """Whatever the broker does from here on, nobody hears of it and no file of the next life changes."""
        if self.killed.is_set():
            return
        self.defuse()
        self.store_path = self._folder / f"store-{self.life}"
        self.store_path.mkdir()
        copy(self._home, self.store_path)
        if self._is_made:
            cut_off_broker(self.broker)
        self.killed.set()
