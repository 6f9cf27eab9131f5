"""The members of the Raft groups that `cosmodrome up --replicas 3` starts: one process each, watched over.

Each member has a folder and a file of settings below the data folder, which `cosmodrome broker -c` takes as well. A
member that dies is started again, unless it dies over and over.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from cosmodrome import state_file
from cosmodrome.cli.broker_processes import DEFAULT_BROKER_NAME, START_SECONDS, other_names
from cosmodrome.config import BrokerConfig, RaftConfig
from cosmodrome.errors import ConfigError
from cosmodrome.net.addresses import EVERY_ADDRESS

log = logging.getLogger(__name__)

GROUP_SIZES = (3, 5)
LEADS = "leads"  # the word of the line in which a member says that it serves as the master
GROUP_PORT_STEP = 100  # from one group's first broker to the next one's
MEMBER_PORT_STEP = 10
RAFT_PORT_STEP = 5  # from a broker's port to that for the members of its group
AGAIN_SECONDS = 1
MAX_QUICK_DEATHS = 5  # one after the other; then a member is given up
QUICK_SECONDS = 10
STOP_SECONDS = 30
EXAMPLE = RaftConfig(is_enabled=True, group="g", peers="n0-127.0.0.1:1", self_id="n0")  # to try settings out with


@dataclass
class _Member:
    """A process of a group, and how often it died soon after its start."""

    group: str
    id: str
    config_file: Path
    process: asyncio.subprocess.Process | None = None
    quick_deaths: int = 0

    def __str__(self) -> str:
        return f"{self.id} of {self.group}"


class RaftProcesses:
    """Members of Raft groups, in processes that end when the block does."""

    def __init__(
        self,
        first: BrokerConfig,
        properties: Mapping[str, str],
        *,
        groups: int,
        members: int,
        data: Path,
        stop: asyncio.Event,
    ) -> None:
        self._first = first
        self._properties = properties
        self._count = members
        self._data = data
        self._stop = stop
        self._members: list[_Member] = []
        self._keeping: list[asyncio.Task[None]] = []
        self._names = [first.broker_name, *other_names(first.broker_name, groups - 1)]
        self._all_led = asyncio.Event()
        self.leaders: dict[str, str] = {}  # the address of each group's master, as last heard

    async def __aenter__(self) -> None:
        try:
            for index, name in enumerate(self._names):
                self._plan(name, name if index else DEFAULT_BROKER_NAME, index * GROUP_PORT_STEP)
            self._keeping = [asyncio.create_task(self._keep(member)) for member in self._members]
            waiting = [asyncio.create_task(event.wait()) for event in (self._all_led, self._stop)]
            await asyncio.wait(waiting, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            if not self._all_led.is_set():
                raise ConfigError("not every Raft group has a leader; the messages of the members are above")
        except BaseException:
            await self.__aexit__()
            raise

    def _plan(self, name: str, folder: str, step: int) -> None:
        """Write the settings of each member of a group."""
        host = "127.0.0.1" if self._first.bind_address in EVERY_ADDRESS else self._first.bind_address
        if self._first.listen_port:
            ports = [self._first.listen_port + step + number * MEMBER_PORT_STEP for number in range(self._count)]
            raft_ports = [port + RAFT_PORT_STEP for port in ports]
        else:
            ports, raft_ports = [0] * self._count, free_ports(host, self._count)
        peers = ";".join(f"n{number}-{host}:{port}" for number, port in enumerate(raft_ports))
        state_file.make_folder(self._data)
        for number, port in enumerate(ports):
            root = self._data / f"{folder}-n{number}"
            settings = {
                **self._properties,
                "brokerName": name,
                "namesrvAddr": self._first.namesrv_addr,
                "bindAddress": self._first.bind_address,
                "listenPort": str(port),
                "storePathRootDir": str(root.resolve()),
                "enableDLegerCommitLog": "true",
                "dLegerGroup": name,
                "dLegerPeers": peers,
                "dLegerSelfId": f"n{number}",
            }
            path = root.with_name(f"{root.name}.conf")
            state_file.save(path, "".join(f"{key}={value}\n" for key, value in settings.items()).encode())
            self._members.append(_Member(name, f"n{number}", path))

    async def _keep(self, member: _Member) -> None:
        """Run a member's process, again and again, until all are to stop."""
        loop = asyncio.get_running_loop()
        while not self._stop.is_set():
            began = loop.time()
            process = member.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "cosmodrome", "broker", "-c", str(member.config_file)),
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            if self._stop.is_set():
                process.terminate()
            await self._read(process, member.group)
            code = await process.wait()
            if self._stop.is_set():
                return
            member.quick_deaths = member.quick_deaths + 1 if loop.time() - began < QUICK_SECONDS else 0
            if member.quick_deaths >= MAX_QUICK_DEATHS:
                log.error(
                    "member not started again, it ended %d times: member=%s code=%d", MAX_QUICK_DEATHS, member, code
                )
                if not self._all_led.is_set():
                    self._stop.set()
                return
            log.error("member ended, starting it again: member=%s code=%d", member, code)
            try:
                async with asyncio.timeout(AGAIN_SECONDS):
                    await self._stop.wait()
            except TimeoutError:
                pass

    async def _read(self, process: asyncio.subprocess.Process, group: str) -> None:
        """Read what a member says, to its end: a full pipe would stop it."""
        assert process.stdout is not None
        while line := (await process.stdout.readline()).decode(errors="replace"):
            if f" {LEADS} " in line:
                self.leaders[group] = line.partition(" on ")[2].partition(" ")[0]
                if len(self.leaders) == len(self._names):
                    self._all_led.set()

    async def __aexit__(self, *_error: object) -> None:
        self._stop.set()
        running = [one.process for one in self._members if one.process is not None and one.process.returncode is None]
        for process in running:
            process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await asyncio.gather(*(process.wait() for process in running))
        except TimeoutError:
            log.error("members killed, they did not end within %d s; nothing acknowledged is lost", STOP_SECONDS)
            for process in running:
                if process.returncode is None:
                    process.kill()
        await asyncio.gather(*self._keeping)


def free_ports(host: str, count: int) -> list[int]:
    """Return ports that nobody listens on now."""
    with ExitStack() as opened:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sockets = [opened.enter_context(socket.socket(family)) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [one.getsockname()[1] for one in sockets]
