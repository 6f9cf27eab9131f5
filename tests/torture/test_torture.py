"""The crash, power-loss and soak tests at length: `make torture`, with SEED and KILLS to choose which and how many.

Everything is drawn from the seed, and every line printed says which one it was. A failure leaves its store behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from cosmodrome.config import FlushDiskType
from tests.simulation.soak import soak
from tests.simulation.store_lives import live_and_lose_power
from tests.system.broker_lives import BrokerLives

SEED = int(os.environ.get("SEED") or 1)
STORE_KILLS = int(os.environ.get("KILLS") or 2_000)
BROKER_KILLS = max(STORE_KILLS // 20, 1)
POWER_SEEDS = max(STORE_KILLS // 4, 1)
POWER_PROGRESS = 50
SOAKS = max(STORE_KILLS // 200, 1)
BROKERS_PER_STORE = 10

pytestmark = pytest.mark.parametrize("flush", list(FlushDiskType))


def test_the_store_is_killed(tmp_path: Path, flush: FlushDiskType) -> None:
    command = [sys.executable, "-m", "tests.system.mortal", str(tmp_path), flush, str(SEED), str(STORE_KILLS)]
    assert subprocess.run(command, check=False).returncode == 0, f"seed {SEED}"


def test_the_broker_is_killed(tmp_path: Path, flush: FlushDiskType) -> None:
    kills = messages = 0
    for number in range(SEED, SEED + -(-BROKER_KILLS // BROKERS_PER_STORE)):
        lives = BrokerLives(tmp_path / f"seed-{number}", flush, Random(f"{flush} {number}"))
        lives.run(min(BROKERS_PER_STORE, BROKER_KILLS - kills))
        kills, messages = kills + lives.kills, messages + len(lives.known)
        print(f"{flush} seed {number}: {kills} brokers killed, {messages} messages acknowledged, none lost", flush=True)


def test_the_power_fails(tmp_path: Path, flush: FlushDiskType) -> None:
    crashes = 0
    for number, seed in enumerate(range(SEED, SEED + POWER_SEEDS), 1):
        folder = tmp_path / f"seed-{seed}"
        folder.mkdir()
        crashes += live_and_lose_power(folder, flush, seed)
        if number % POWER_PROGRESS == 0 or number == POWER_SEEDS:
            print(f"{flush} seed {seed}: {crashes} power cuts, nothing lost that was promised", flush=True)


def test_a_busy_hour_with_restarts_and_kills(tmp_path: Path, flush: FlushDiskType) -> None:
    for seed in range(SEED, SEED + SOAKS):
        folder = tmp_path / f"seed-{seed}"
        folder.mkdir()
        print(soak(folder, seed, flush), flush=True)
        shutil.rmtree(folder)
