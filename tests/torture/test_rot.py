"""Thousands of flipped bits in all files of stopped brokers, then a start and a consumer: `make torture`.

SEED chooses what is flipped, FLIPS how many bits are. A failure leaves its store behind.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.system.rotten_lives import live

SEED = int(os.environ.get("SEED") or 1)
FLIPS = int(os.environ.get("FLIPS") or 11_000)
FLIPS_A_LIFE = 8
PROGRESS = 100


def test_no_flipped_bit_reaches_a_consumer(quick_path: Path) -> None:
    lives = -(-FLIPS // FLIPS_A_LIFE)
    flips = served = lost = refused = 0
    for number, seed in enumerate(range(SEED, SEED + lives), 1):
        folder = quick_path / f"seed-{seed}"
        try:
            figures = live(folder, seed, flips=FLIPS_A_LIFE, sealed=bool(seed % 2))
        except BaseException:
            print(f"seed {seed}: the store is in {folder}", flush=True)
            raise
        flips, served = flips + figures.flips, served + figures.served
        lost, refused = lost + figures.lost, refused + figures.refused
        if number % PROGRESS == 0 or number == lives:
            print(
                f"seed {seed}: {flips} flips, {refused} starts refused with a file's name, "
                f"{served} messages served as they were sent, {lost} lost with their records",
                flush=True,
            )
