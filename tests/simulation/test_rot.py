"""Bits of the log flip, and the broker starts again after any end: every message that was not hit is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from cosmodrome.config import FlushDiskType
from tests.simulation.rot_lives import live_and_rot
from tests.simulation.store_lives import ASYNC, SYNC

SEEDS = 6


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("flush", [SYNC, ASYNC])
def test_rot_costs_only_what_it_hits(tmp_path: Path, flush: FlushDiskType, seed: int) -> None:
    assert live_and_rot(tmp_path, flush, seed) > 2
