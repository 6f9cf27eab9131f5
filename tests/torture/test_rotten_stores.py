"""Rot at length: bits flipped, files cut short, pages zeroed, in every kind of file of a store: `make torture`.

SEED and ROTS choose which and how many; ROT_LOG=0 leaves the files of the log out. Each store is drawn from a seed, and
each trial on it from the seed and its number, so a line that failed says how to get it again.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from random import Random

from tests.simulation.rotten_stores import Outcome, RottenStores, Trial, summary

SEED = int(os.environ.get("SEED") or 1)
ROTS = int(os.environ.get("ROTS") or 11_000)
WITH_LOG = os.environ.get("ROT_LOG") != "0"
ROTS_PER_STORE = 500
SHOWN = 20


def test_rot_is_mended_told_or_costs_what_it_hit(quick_path: Path) -> None:
    trials: list[Trial] = []
    for seed in range(SEED, SEED + -(-ROTS // ROTS_PER_STORE)):
        folder = quick_path / f"seed-{seed}"
        folder.mkdir()
        stores = RottenStores(folder, seed)
        for number in range(min(ROTS_PER_STORE, ROTS - len(trials))):
            trial = stores.trial(Random(f"{seed} {number}"), log_too=WITH_LOG)
            trials.append(trial)
            if trial.outcome is Outcome.WRONG:
                print(f"seed {seed}, number {number}: {trial}", flush=True)
        print(f"seed {seed}: {summary(trials)}", flush=True)
        shutil.rmtree(folder)
    for (kind, outcome), count in sorted(Counter((trial.rot.kind, str(trial.outcome)) for trial in trials).items()):
        print(f"  {kind}: {count} {outcome}")
    wrong = [str(trial) for trial in trials if trial.outcome is Outcome.WRONG]
    assert not wrong, f"{len(wrong)} of {len(trials)}:\n" + "\n".join(wrong[:SHOWN])
