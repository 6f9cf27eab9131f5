"""Failed tasks, killed processes and killed drivers: after all of it, each row is there once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from cosmodrome.model import CHECK_MAX_TIME_TOPIC
from cosmodrome.testing import Cluster
from tests.spark.drivers import Driver, copies, prepare

ROWS = 800


def test_each_row_is_written_once_through_failures_and_deaths(rocketmq: Cluster, tmp_path: Path) -> None:
    """Every batch has a task that fails first, with an error or with its process. The driver dies right after a
    marker, then between two commits; the last one finishes. `make torture` kills at any moment."""
    prepare(rocketmq, ROWS)
    assert Driver(rocketmq, tmp_path, fault="1/0").ended() != 0  # batch 0 is empty
    assert copies(rocketmq) == Counter()
    assert Driver(rocketmq, tmp_path, fault="2/41").ended() != 0
    in_mid_commit = copies(rocketmq)
    assert (len(in_mid_commit), set(in_mid_commit.values())) == (200 + 41, {1})
    assert Driver(rocketmq, tmp_path).ended() == 0
    assert copies(rocketmq) == Counter(range(ROWS))

    transactions = rocketmq.brokers[0].broker.transactions
    orphans = len(transactions)  # of killed processes: nobody commits them, and they are given up in the end
    rocketmq.advance_until(lambda: len(transactions) == 0)
    assert len(rocketmq.messages(CHECK_MAX_TIME_TOPIC)) >= orphans
    assert copies(rocketmq) == Counter(range(ROWS))
