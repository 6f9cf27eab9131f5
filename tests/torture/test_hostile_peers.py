"""Hostile peers against a broker, each kind alone and then all at once: `make torture`, HOSTILE_SECONDS for how long.

A healthy client sends and consumes meanwhile. What it waits for is printed; that it waits for less than HOSTILE_P99_MS,
that nothing of it is lost, that the broker lives and its memory is bounded, is asserted.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from cosmodrome.config import MIB
from tests.system.daemons import Daemon, up
from tests.system.healthy import Healthy
from tests.system.hostile import ABUSES
from tests.system.test_abuse import all_open_files, heap_bytes

SEED = int(os.environ.get("SEED") or 1)
SECONDS = float(os.environ.get("HOSTILE_SECONDS") or 60)
P99_MS = float(os.environ.get("HOSTILE_P99_MS") or 1_000)
BUSY_LINES = 40
ONLY = os.environ.get("HOSTILE_ONLY", "")  # abuses by name
ALONE_SHARE = 0.1  # of the time, for each kind alone
# Unfinished frames, unread replies and waiting requests have budgets of 256, 512 and 512 MiB; tables come on top.
MOST_MEMORY_BYTES = 1_536 * MIB


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


async def live_through(daemon: Daemon, seed: int, seconds: float, kinds: list[str]) -> dict[str, tuple[float, float]]:
    """Attack in phases while a healthy client works; return what it waited for in each."""
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
        for kind in kinds:
            share = seconds if kind == "all at once" else seconds * ALONE_SHARE
            counted = await attack(address, seed, share, "" if kind == "all at once" else kind)
            phases[kind] = healthy.take_phase()
            most_bytes = max(most_bytes, heap_bytes(daemon.pid))
            sends, deliveries = phases[kind]
            print(
                f"seed {seed}: {kind}: p99 of sends {sends:.0f} ms, of deliveries {deliveries:.0f} ms; "
                f"broker {heap_bytes(daemon.pid) // MIB} MiB; {counted}",
                flush=True,
            )
        healthy.stop()
    healthy.check()
    await healthy.close()
    assert most_bytes < MOST_MEMORY_BYTES, f"{most_bytes // MIB} MiB"
    return phases


async def test_hostile_peers_keep_nobody_waiting(tmp_path: Path) -> None:
    kinds = ONLY.split() or [*(abuse.__name__ for abuse in ABUSES), "all at once"]
    with all_open_files(), up(tmp_path / "data") as daemon:
        phases = await live_through(daemon, SEED, SECONDS, kinds)
        assert daemon.interrupt() == 0
        busy = [line for line in daemon.rest() if "the event loop was busy" in line]
    print(f"seed {SEED}: the broker told {len(busy)} times of a busy loop", *busy[:BUSY_LINES], sep="\n  ")
    late = {kind: phase for kind, phase in phases.items() if max(phase) > P99_MS}
    assert not late, f"seed {SEED}: 99th percentiles beyond {P99_MS:.0f} ms: {late}"
