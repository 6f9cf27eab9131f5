"""Lives on machines whose clock is set, at length: `make torture`, with SEED and KILLS to choose which and how many."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.simulation.clock_steps import live_with_steps

SEED = int(os.environ.get("SEED") or 1)
LIVES = max(int(os.environ.get("KILLS") or 2_000) // 20, 1)


@pytest.mark.parametrize("restarts", [False, True])
def test_what_waits_comes_in_true_time(tmp_path: Path, restarts: bool) -> None:
    for seed in range(SEED, SEED + LIVES):
        folder = tmp_path / f"seed-{seed}"
        folder.mkdir()
        print(live_with_steps(folder, seed, minutes=30, restarts=restarts), flush=True)
        shutil.rmtree(folder)
