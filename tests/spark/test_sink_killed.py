"""Failed tasks, killed processes, killed executors and killed drivers: after all of it, each row is there once."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from cosmodrome.model import CHECK_MAX_TIME_TOPIC
from cosmodrome.testing import Cluster
from tests.spark.drivers import Driver, copies, prepare
from tests.spark.helpers import eventually

ROWS = 800
BATCH = 200  # rows, for two tasks


def test_each_row_is_written_once_through_failures_and_deaths(rocketmq: Cluster, tmp_path: Path) -> None:
    """Every batch has a task that fails first, with an error or with its process. The driver dies right after a
    marker, then between two commits; the last one finishes. `make torture` kills at any moment."""
    prepare(rocketmq, ROWS)
    assert Driver(rocketmq, tmp_path, fault="1/0").ended() != 0  # batch 0 is empty
    assert copies(rocketmq) == Counter()
    assert Driver(rocketmq, tmp_path, fault="2/41").ended() != 0
    in_mid_commit = copies(rocketmq)
    assert (len(in_mid_commit), set(in_mid_commit.values())) == (BATCH + 41, {1})
    assert Driver(rocketmq, tmp_path).ended() == 0
    assert copies(rocketmq) == Counter(range(ROWS))

    transactions = rocketmq.brokers[0].broker.transactions
    orphans = len(transactions)  # of killed processes: nobody commits them, and they are given up in the end
    give_up_open_transactions(rocketmq, orphans)
    assert copies(rocketmq) == Counter(range(ROWS))


def test_each_row_is_written_once_though_an_executor_is_killed(rocketmq: Cluster, tmp_path: Path) -> None:
    """Two executors have sent half of their rows when one is killed; its task is done again on a third one."""
    prepare(rocketmq, 2 * BATCH)
    lives = tmp_path / "lives"
    lives.mkdir()
    transactions = rocketmq.brokers[0].broker.transactions
    driver = Driver(rocketmq, tmp_path / "checkpoint", fault=f"executors:{lives}")
    try:
        eventually(lambda: len(transactions) == BATCH // 2)
        os.kill(int((lives / "0-0").read_text()), signal.SIGKILL)
        assert driver.ended() == 0
    finally:
        driver.kill()
    assert copies(rocketmq) == Counter(range(2 * BATCH))

    assert sorted(life.name for life in lives.iterdir()) == ["0-0", "0-1", "1-0"]
    assert len({life.read_text() for life in lives.iterdir()}) == 3, "the task was done again elsewhere"
    assert len(transactions) == BATCH // 4, "what the killed executor had sent"
    give_up_open_transactions(rocketmq, BATCH // 4)
    assert copies(rocketmq) == Counter(range(2 * BATCH))


def give_up_open_transactions(cluster: Cluster, count: int) -> None:
    """Their broker asks about them until it has asked often enough."""
    transactions = cluster.brokers[0].broker.transactions
    cluster.advance_until(lambda: len(transactions) == 0)
    assert len(cluster.messages(CHECK_MAX_TIME_TOPIC)) >= count
