"""The broker processes that `cosmodrome up` starts beside its own: more brokers, and a slave for each."""

from __future__ import annotations

import asyncio
import logging
import string
import sys
from pathlib import Path

from cosmodrome.config import BrokerConfig, BrokerRole
from cosmodrome.errors import ConfigError, StoreError

log = logging.getLogger(__name__)

DEFAULT_BROKER_NAME = "broker-a"
BROKER_PORT_STEP = 10  # a broker's neighbours belong to it: two below for old clients, one above for replication
SLAVE_PORT_STEP = 5  # from a master to its slave, whose neighbours belong to it as well
START_SECONDS = 60
FOLLOWS = "follows"  # the word of the line in which a slave says that it has found its master


class BrokerProcesses:
    """The brokers of `up --brokers N --replicas M` beyond the first: one process each, so that each has a core.

    A process ends when the block does: masters first, so that their slaves have all that the masters took.
    """

    def __init__(
        self,
        first: BrokerConfig,
        role: BrokerRole,
        *,
        brokers: int,
        replicas: int,
        data: Path,
        config_file: str | None,
        stop: asyncio.Event,
    ) -> None:
        self._first = first
        self._role = role
        self._brokers = brokers
        self._has_slaves = replicas > 1
        self._data = data
        self._config_file = config_file
        self._stop = stop
        self._watching: list[asyncio.Task[None]] = []
        self._masters: dict[str, asyncio.subprocess.Process] = {}
        self._slaves: dict[str, asyncio.subprocess.Process] = {}

    async def __aenter__(self) -> None:
        try:
            others = other_names(self._first.broker_name, self._brokers - 1)
            for index, name in enumerate(others, 1):
                await self._start(name, name, self._role, self._port(index * BROKER_PORT_STEP))
            if self._has_slaves:
                # The first one's folder is broker-a, whatever that broker is called.
                masters = [(self._first.broker_name, DEFAULT_BROKER_NAME), *zip(others, others, strict=True)]
                for index, (name, folder) in enumerate(masters):
                    port = self._port(index * BROKER_PORT_STEP + SLAVE_PORT_STEP)
                    await self._start(name, f"{folder}-slave", BrokerRole.SLAVE, port)
        except BaseException:
            await self.__aexit__()
            raise

    def _port(self, step: int) -> int:
        return self._first.listen_port + step if self._first.listen_port else 0

    async def _start(self, name: str, folder: str, role: BrokerRole, port: int) -> None:
        is_slave = role is BrokerRole.SLAVE
        arguments = ["broker", "-n", self._first.namesrv_addr, "--name", name, "--port", str(port)]
        arguments += ["--role", role, "--id", "1" if is_slave else "0"]
        arguments += ["--host", self._first.bind_address, "--store", str(self._data / folder)]
        if self._config_file is not None:
            arguments += ["-c", self._config_file]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cosmodrome", *arguments, stdout=asyncio.subprocess.PIPE, start_new_session=True
        )
        who = f"the slave of {name}" if is_slave else name
        (self._slaves if is_slave else self._masters)[who] = process
        follows = ", slave " in await _wait_for(process, "ready", who)  # else it was promoted while it ran
        if follows and is_slave:
            await _wait_for(process, FOLLOWS, who)
        self._watching.append(asyncio.create_task(self._watch(process, who, is_slave=follows)))

    async def _watch(self, process: asyncio.subprocess.Process, who: str, *, is_slave: bool) -> None:
        assert process.stdout is not None
        while await process.stdout.readline():  # else a full pipe would keep it from ending
            pass
        code = await process.wait()
        if self._stop.is_set():
            return
        if is_slave:  # its master goes on, and says in each answer what that is worth
            log.error("%s ended with code %d; start `cosmodrome up` again to have it back", who, code)
            return
        log.error("%s ended with code %d; stopping", who, code)
        self._stop.set()

    async def __aexit__(self, *_error: object) -> None:
        for processes in (self._masters.values(), self._slaves.values()):
            for process in processes:
                if process.returncode is None:
                    process.terminate()
            await asyncio.gather(*(process.wait() for process in processes))
        await asyncio.gather(*self._watching)

    def check(self) -> None:
        """StoreError if one of them did not end as it should: the code of this process says so, too."""
        processes = {**self._masters, **self._slaves}
        codes = {who: process.returncode for who, process in processes.items() if process.returncode}
        if codes:
            told = ", ".join(f"{who} ended with code {code}" for who, code in codes.items())
            raise StoreError(f"{told}; what it said is above")


def other_names(first: str, count: int) -> list[str]:
    """Return names for brokers beside the first, whose own the config file may have chosen."""
    names = [f"broker-{letter}" for letter in (*string.ascii_lowercase[1:], "aa")]
    return [name for name in names if name != first][:count]


async def _wait_for(process: asyncio.subprocess.Process, word: str, who: str) -> str:
    """Return the line with `word` when the process says it; ConfigError if it ends, or does not say so in time."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            while line := await process.stdout.readline():
                if word.encode() in line:
                    return line.decode()
    except TimeoutError:
        pass
    raise ConfigError(f"{who} did not start; its messages are above")
