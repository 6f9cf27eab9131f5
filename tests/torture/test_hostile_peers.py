"""Hostile peers against a broker, each kind alone and then all at once: `make torture`, HOSTILE_SECONDS for how long.

A healthy client sends and consumes meanwhile. What it waits for is printed; that it waits for less than HOSTILE_P99_MS,
that nothing of it is lost, that the broker lives and its memory is bounded, is asserted.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.system.daemons import up
from tests.system.healthy import ALL_AT_ONCE, live_through
from tests.system.hostile import ABUSES
from tests.system.test_abuse import all_open_files

SEED = int(os.environ.get("SEED") or 1)
SECONDS = float(os.environ.get("HOSTILE_SECONDS") or 60)
P99_MS = float(os.environ.get("HOSTILE_P99_MS") or 2_000)  # far less on a quiet machine
BUSY_LINES = 40
ONLY = os.environ.get("HOSTILE_ONLY", "")  # abuses by name


async def test_hostile_peers_keep_nobody_waiting(tmp_path: Path) -> None:
    kinds = ONLY.split() or [*(abuse.__name__ for abuse in ABUSES), ALL_AT_ONCE]
    with all_open_files(), up(tmp_path / "data") as daemon:
        phases = await live_through(daemon, SEED, SECONDS, kinds)
        assert daemon.interrupt() == 0
        busy = [line for line in daemon.rest() if "the event loop was busy" in line]
    print(f"seed {SEED}: the broker told {len(busy)} times of a busy loop", *busy[:BUSY_LINES], sep="\n  ")
    late = {kind: phase for kind, phase in phases.items() if max(phase) > P99_MS}
    assert not late, f"seed {SEED}: 99th percentiles beyond {P99_MS:.0f} ms: {late}"
