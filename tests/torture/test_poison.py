"""Thousands of poison records between messages of every kind, and a stop or a kill after each life: `make torture`.

SEED chooses what is stored and how lives end, KILLS how many there are. A failure leaves its store behind.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import pytest

from cosmodrome.config import FlushDiskType
from tests.simulation.poisoned_lives import Life, drawn, run

SEED = int(os.environ.get("SEED") or 1)
STORES = max(int(os.environ.get("KILLS") or 2_000) // 200, 1)
LIVES_A_STORE = 5
POISON_A_LIFE = 300


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_poison_costs_itself_only(tmp_path: Path, flush: FlushDiskType) -> None:
    stored = messages = lives = 0
    for number, seed in enumerate(range(SEED, SEED + STORES), 1):
        random = Random(f"{flush} {seed}")
        folder = tmp_path / f"seed-{seed}"
        folder.mkdir()
        sizes = [random.choice((1, 20, POISON_A_LIFE, 2 * POISON_A_LIFE)) for _ in range(LIVES_A_STORE)]
        plan = [Life([drawn(random) for _ in range(size)], random.random() < 0.6) for size in sizes]
        try:
            figures = run(folder, plan, seed, flush)
        except BaseException:
            print(f"{flush} seed {seed}: the store is in {folder}", flush=True)
            raise
        stored, messages, lives = stored + figures.stored, messages + figures.messages, lives + len(plan)
        if number % 5 == 0 or number == STORES:
            print(
                f"{flush} seed {seed}: {stored} poison records, {lives} lives, {messages} messages, none lost",
                flush=True,
            )
        shutil.rmtree(folder)
