"""Brokers on a small disk, filled and freed, killed and started, at length: `make torture`, with SEED and KILLS."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cosmodrome.config import FlushDiskType
from tests.system.full_disk_lives import live
from tests.system.small_disk import SmallDisk

SEED = int(os.environ.get("SEED") or 1)
KILLS = max(int(os.environ.get("KILLS") or 2_000) // 20, 1)
KILLS_PER_DISK = 10

pytestmark = pytest.mark.skipif(not SmallDisk.is_possible(), reason="this machine lets nobody mount a disk of his own")


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_the_disk_is_full(tmp_path: Path, flush: FlushDiskType) -> None:
    kills = messages = refused = 0
    for seed in range(SEED, SEED + -(-KILLS // KILLS_PER_DISK)):
        lives = live(tmp_path / f"seed-{seed}", flush, seed, min(KILLS_PER_DISK, KILLS - kills))
        kills, messages, refused = kills + lives.kills, messages + len(lives.known), refused + lives.refused
        print(
            f"{flush} seed {seed}: {kills} brokers killed on full disks, {messages} messages acknowledged, "
            f"{refused} times refused; none lost",
            flush=True,
        )
