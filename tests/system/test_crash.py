"""kill -9 at any moment: what was acknowledged is there, once, in its place and with its bytes."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest

from cosmodrome.config import FlushDiskType
from tests.bounded import run_to_end
from tests.system.broker_lives import BrokerLives

SEED = 1
BROKER_KILLS = 8  # with each flush
STORE_KILLS = 100  # with each flush
PATIENCE_SECONDS = 300


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_a_killed_broker_has_what_it_acknowledged(tmp_path: Path, flush: FlushDiskType) -> None:
    lives = BrokerLives(tmp_path / "data", flush, Random(f"{flush} {SEED}"))
    lives.run(BROKER_KILLS)
    assert len(lives.known) > BROKER_KILLS


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_a_killed_store_has_what_it_acknowledged(tmp_path: Path, flush: FlushDiskType) -> None:
    command = [sys.executable, "-m", "tests.system.mortal", str(tmp_path), flush, str(SEED), str(STORE_KILLS)]
    done = run_to_end(command, PATIENCE_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{STORE_KILLS} kills" in done.stdout
