"""Masters killed under load and their slaves promoted, a few times; `make torture` does it 200 times, with Java."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.system.replica_lives import PythonSenders, ReplicaLives

SEED = 3
KILLS = 4


async def test_what_a_pair_acknowledged_survives_each_promotion(tmp_path: Path) -> None:
    lives = ReplicaLives(tmp_path / "pair", Random(SEED), (PythonSenders(),))
    await lives.run(KILLS)
    print(lives)
    lives.check_cruelty()
