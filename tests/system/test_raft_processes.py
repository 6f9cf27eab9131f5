"""Three members in processes of their own, which are killed and stopped while proposals come."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

from cosmodrome.raft.entry_log import EntryLog
from cosmodrome.raft.messages import Entry, EntryKind
from tests.system.raft_process import opened

PATIENCE_SECONDS = 120
NAMES = ("n0", "n1", "n2")


def addresses() -> dict[str, str]:
    """Return an address for each member that no other process listens on: a host of the loopback net for each test."""
    pid = os.getpid()
    host = f"127.{16 + (pid >> 16)}.{pid >> 8 & 255}.{pid & 255}"
    return {name: f"{host}:{40911 + number}" for number, name in enumerate(NAMES)}


class Processes:
    """The group, and what its members said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.peers = addresses()
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self.readers: list[asyncio.Task[None]] = []
        self.leader: str | None = None
        self.commits = dict.fromkeys(NAMES, -1)
        self.acked: dict[str, int] = {}
        self.refused: set[str] = set()
        self.terms: dict[int, str] = {}  # who led in each
        self.last: dict[str, deque[str]] = {name: deque(maxlen=6) for name in NAMES}  # what each said last
        self._numbers = itertools.count()

    async def start(self, name: str) -> None:
        peers = [f"{peer}={address}" for peer, address in self.peers.items()]
        arguments = ["-m", "tests.system.raft_process", str(self.folder / name), name, *peers]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        self.processes[name] = process
        self.readers.append(asyncio.ensure_future(self._read(name, process)))

    async def _read(self, name: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self.last[name].append(line.decode()[:60].strip())
            match line.decode().split():
                case ["ack", index, body]:
                    self.acked[body] = int(index)
                case ["no", body]:
                    self.refused.add(body)
                case ["commit", index]:
                    self.commits[name] = int(index)
                case ["role", "leader", term]:
                    assert self.terms.setdefault(int(term), name) == name, f"two leaders in term {term}"
                    self.leader = name
                case ["role", _, _] if self.leader == name:
                    self.leader = None

    def propose(self, count: int, name: str | None = None) -> None:
        """Send lines to the leader, or to the member that is named; nobody waits for them."""
        name = name or self.leader
        if name is not None:
            stdin = self.processes[name].stdin
            assert stdin is not None
            with suppress(ConnectionError):
                stdin.write(b"".join(b"m%d%s\n" % (next(self._numbers), b"x" * 300) for _ in range(count)))

    async def acked_more(self, count: int) -> None:
        """Propose until so many more proposals are acknowledged."""
        goal = len(self.acked) + count
        await self.until(lambda: len(self.acked) >= goal, lambda: self.propose(10))

    async def until(self, condition: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Return once the condition holds; AssertionError with the state of the group if it does not in time."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            for reader in self.readers:
                if reader.done():
                    reader.result()
            living = [name for name, process in self.processes.items() if process.returncode is None]
            assert time.monotonic() < deadline, (
                f"living {living}, leader {self.leader}, leaders by term {self.terms}, committed {self.commits}, "
                f"{len(self.acked)} acknowledged, {len(self.refused)} refused, last lines {self.last}"
            )
            meanwhile()
            await asyncio.sleep(0.02)

    async def kill(self, name: str) -> None:
        self.processes[name].kill()
        await self.processes[name].wait()
        if self.leader == name:
            self.leader = None

    async def stop(self) -> None:
        for process in self.processes.values():
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes.values():
            assert await asyncio.wait_for(process.wait(), PATIENCE_SECONDS) == 0
        await asyncio.gather(*self.readers)

    def logs(self) -> dict[str, EntryLog]:
        return {name: opened(self.folder / name, name, self.peers).log for name in NAMES}


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Processes]:
    group = Processes(folder)
    try:
        for name in NAMES:
            await group.start(name)
        yield group
    finally:
        for process in group.processes.values():
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def entries(log: EntryLog) -> list[Entry]:
    found: list[Entry] = []
    while log.first_index + len(found) <= log.last_index:
        found += log.read(log.first_index + len(found), 1 << 20)
    return found


async def test_what_is_acknowledged_outlives_killed_and_stopped_members(tmp_path: Path) -> None:
    random = Random(15)
    async with running(tmp_path) as group:
        await group.acked_more(50)
        for round_ in range(6):
            await group.until(lambda: group.leader is not None)
            assert group.leader is not None
            victim = group.leader if round_ % 2 == 0 else random.choice(NAMES)
            group.propose(30)
            await asyncio.sleep(random.random() * 0.02)
            if round_ % 3 == 2:  # it sleeps while others take over, and wakes with proposals in hand
                process = group.processes[victim]
                process.send_signal(signal.SIGSTOP)
                group.propose(20, victim)
                if group.leader == victim:
                    group.leader = None
                    await group.until(lambda: group.leader is not None)  # what it had said before is no sign of it
                await group.acked_more(30)
                process.send_signal(signal.SIGCONT)
            else:
                await group.kill(victim)
                await group.acked_more(30)
                await group.start(victim)
        await group.acked_more(30)
        last = max(group.acked.values())
        await group.until(lambda: min(group.commits.values()) >= last)
        await group.stop()
        assert len(group.terms) > 2
        logs = group.logs()
        kept = {name: entries(log) for name, log in logs.items()}
        for body, index in group.acked.items():
            for name, log in logs.items():
                entry = kept[name][index - log.first_index]
                assert (entry.kind, entry.data) == (EntryKind.NORMAL, body.encode()), (
                    f"{name} lost an acknowledged entry"
                )
        bodies = [entry.data.decode() for entry in kept["n0"] if entry.kind is EntryKind.NORMAL]
        assert len(bodies) == len(set(bodies))
        assert not group.refused & set(bodies)
        shortest = min(log.end for log in logs.values())
        files = {tuple(bytes(file.view[: shortest - file.start]) for file in log.files) for log in logs.values()}
        assert len({tuple(part for part in file if part) for file in files}) == 1
        assert len(logs["n0"].files) > 1
        for log in logs.values():
            log.close()


async def test_two_of_three_go_on_and_one_alone_does_not(tmp_path: Path) -> None:
    async with running(tmp_path) as group:
        await group.acked_more(10)
        assert group.leader is not None
        first, second = [name for name in NAMES if name != group.leader]
        await group.kill(first)
        await group.acked_more(10)
        await group.kill(second)
        alone = group.leader
        assert alone is not None
        await group.until(lambda: group.leader is None)  # it hears nobody, so it leads no more
        acked, refused = len(group.acked), len(group.refused)
        group.propose(3, alone)
        await group.until(lambda: len(group.refused) >= refused + 3)
        assert len(group.acked) == acked
        await group.start(first)
        await group.acked_more(10)
