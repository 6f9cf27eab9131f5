"""A healthy client beside hostile ones: it sends and consumes, and notes how long each took and what came."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import MIB
from cosmodrome.net.caller import Caller
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import decode_records
from cosmodrome.wire.requests import PullFlag, PullMessage, SendMessage
from tests.system.daemons import Daemon
from tests.system.test_abuse import heap_bytes

TOPIC, GROUP = "Healthy", "healthy"
TIMEOUT_MS = 60_000
PACE_SECONDS = 0.005
HOLD_MS = 5_000
ALL_AT_ONCE = "all at once"
ALONE_SHARE = 0.1  # of the time, for each kind of hostile peer alone
# Unfinished frames, unread replies and waiting requests have budgets of 256, 512 and 512 MiB; tables come on top.
MOST_MEMORY_BYTES = 1_536 * MIB


@dataclass
class Healthy:
    """One producer and one consumer of one queue; `sends_ms` and `deliveries_ms` are of the phase that goes on."""

    address: str
    acknowledged: dict[int, int] = field(default_factory=dict)  # number → offset
    refused: list[str] = field(default_factory=list)
    consumed: list[int] = field(default_factory=list)
    sends_ms: list[float] = field(default_factory=list)
    deliveries_ms: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._producer, self._consumer = Caller(), Caller()
        self._sent_at: dict[int, float] = {}
        self._stop = self._is_done = False

    async def send(self) -> None:
        """Send, one message after the other, until told to stop."""
        loop, number = asyncio.get_running_loop(), 0
        while not self._stop:
            header = SendMessage(GROUP, TOPIC, "TBW102", 1, 0, 0, 0, 0)
            began = self._sent_at[number] = loop.time()
            request = Command.request(RequestCode.SEND_MESSAGE, header, b"%d" % number)
            reply = await self._producer.call(self.address, request, TIMEOUT_MS)
            self.sends_ms.append((loop.time() - began) * 1000)
            if reply.code == ResponseCode.SUCCESS:
                self.acknowledged[number] = int(reply.fields["queueOffset"])
            else:
                self.refused.append(f"{reply.code} {reply.remark}")
            number += 1
            await asyncio.sleep(PACE_SECONDS)
        self._is_done = True

    async def consume(self) -> None:
        """Pull until every message that was acknowledged is here and sending has stopped."""
        loop, offset = asyncio.get_running_loop(), 0
        flags = PullFlag.SUBSCRIPTION | PullFlag.SUSPEND
        while not self._is_done or offset <= max(self.acknowledged.values(), default=-1):
            header = PullMessage(GROUP, TOPIC, 0, offset, 32, flags, 0, HOLD_MS, subscription="*")
            reply = await self._consumer.call(
                self.address, Command.request(RequestCode.PULL_MESSAGE, header), TIMEOUT_MS
            )
            if reply.code != ResponseCode.SUCCESS:
                continue
            now = loop.time()
            for record in decode_records(reply.body):
                number = int(record.body)
                self.consumed.append(number)
                self.deliveries_ms.append((now - self._sent_at[number]) * 1000)
                offset = record.queue_offset + 1

    async def first_message(self) -> None:
        """Return when the topic is there."""
        while not self.acknowledged:  # noqa: ASYNC110
            await asyncio.sleep(PACE_SECONDS)

    def stop(self) -> None:
        self._stop = True

    async def close(self) -> None:
        await self._producer.close()
        await self._consumer.close()

    def take_phase(self) -> tuple[float, float]:
        """Return the 99th percentile of sends and of deliveries since the last phase, in milliseconds."""
        phase = percentile(self.sends_ms, 99), percentile(self.deliveries_ms, 99)
        self.sends_ms.clear()
        self.deliveries_ms.clear()
        return phase

    def check(self) -> None:
        """Every message that was acknowledged was consumed, in order and once."""
        assert self.consumed == sorted(set(self.consumed))
        missing = self.acknowledged.keys() - set(self.consumed)
        assert not missing, f"{len(missing)} acknowledged messages are lost: {sorted(missing)[:10]}"


def percentile(values: list[float], percent: int) -> float:
    return sorted(values)[min(len(values) * percent // 100, len(values) - 1)] if values else 0.0


async def attack(address: str, seed: int, seconds: float, only: str = "") -> str:
    """Let a process of its own attack; return what it counted."""
    arguments = ["-m", "tests.system.hostile", address, str(seed), str(seconds), only]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, f"seed {seed} {only}: the attacker ended with {process.returncode}"
    return output.decode().strip()


async def live_through(
    daemon: Daemon, seed: int, seconds: float, kinds: list[str], measure: Callable[[str], str] = lambda _: ""
) -> dict[str, tuple[float, float]]:
    """Attack in phases while a healthy client works; return what it waited for in each. `measure` is told when a phase
    is over, and has something to print of it."""
    address = daemon.address("broker")
    healthy = Healthy(address)
    phases: dict[str, tuple[float, float]] = {}
    most_bytes = 0
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(healthy.send())
        await healthy.first_message()
        tasks.create_task(healthy.consume())
        await asyncio.sleep(min(seconds, 2))
        phases["calm"] = healthy.take_phase()
        print(f"seed {seed}: calm: p99 of sends {phases['calm'][0]:.0f} ms, of deliveries {phases['calm'][1]:.0f} ms")
        measure("calm")
        for kind in kinds:
            share = seconds if kind == ALL_AT_ONCE else seconds * ALONE_SHARE
            counted = await attack(address, seed, share, "" if kind == ALL_AT_ONCE else kind)
            phases[kind] = healthy.take_phase()
            most_bytes = max(most_bytes, heap_bytes(daemon.pid))
            sends, deliveries = phases[kind]
            print(
                f"seed {seed}: {kind}: p99 of sends {sends:.0f} ms, of deliveries {deliveries:.0f} ms; "
                f"{measure(kind)}; broker {heap_bytes(daemon.pid) // MIB} MiB; {counted}",
                flush=True,
            )
        healthy.stop()
    healthy.check()
    await healthy.close()
    assert most_bytes < MOST_MEMORY_BYTES, f"{most_bytes // MIB} MiB"
    return phases
