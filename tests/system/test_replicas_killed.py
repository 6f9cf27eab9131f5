"""Masters killed under load and their slaves promoted, three times; `make torture` does it 200 times, with Java."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.system.replica_lives import PythonSenders, ReplicaLives

SEED = 48  # the second of three kills comes while the slave catches up
KILLS = 3


async def test_what_a_pair_acknowledged_survives_each_promotion(tmp_path: Path) -> None:
    lives = ReplicaLives(f"seed {SEED}", tmp_path / "pair", Random(SEED), (PythonSenders(),))
    await lives.run(KILLS)
    print(lives)
    lives.check_cruelty()
