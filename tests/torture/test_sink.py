"""A Spark query killed at any moment, again and again: `make torture`, with SEED and KILLS for when and how often."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random

from cosmodrome.testing import Cluster
from tests.spark.drivers import DEADLINE_SECONDS, Driver, copies, prepare
from tests.spark.helpers import eventually

SEED = int(os.environ.get("SEED") or 1)
KILLS = max(int(os.environ.get("KILLS") or 2_000) // 200, 1)
ROWS = 400 * KILLS


def test_a_query_is_killed(rocketmq: Cluster, tmp_path: Path) -> None:
    random = Random(SEED)
    prepare(rocketmq, ROWS)
    for kill in range(KILLS):
        kill_after(rocketmq, tmp_path, len(copies(rocketmq)) + random.randrange(1, 350))
        seen = copies(rocketmq)
        print(f"seed {SEED}, kill {kill}: {len(seen)} of {ROWS} rows", flush=True)
        assert set(seen.values()) == {1}
    assert Driver(rocketmq, tmp_path).ended() == 0
    assert copies(rocketmq) == Counter(range(ROWS))


def kill_after(cluster: Cluster, checkpoint: Path, count: int) -> None:
    """Let a driver make so many copies in all."""
    driver = Driver(cluster, checkpoint)
    try:
        eventually(lambda: len(copies(cluster)) >= count, DEADLINE_SECONDS)
    finally:
        driver.kill()
