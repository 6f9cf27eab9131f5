"""Spark in more than one process: executors of their own, and a client that talks to a Spark Connect server."""

from __future__ import annotations

from pathlib import Path

import pytest

from cosmodrome.testing import Cluster
from tests.spark.elsewhere import CONNECT, run
from tests.spark.helpers import fill, numbered


@pytest.mark.parametrize(("master", "executors"), [("local-cluster[2,1,512]", 2), (CONNECT, 0)])
def test_a_table_and_a_stream(rocketmq_session: Cluster, master: str, executors: int, tmp_path: Path) -> None:
    cluster, topic = rocketmq_session, f"elsewhere-{executors}"
    cluster.create_topic(topic, queues=2)
    fill(cluster, topic, numbered(0, 60))
    fill(cluster, topic, numbered(60, 80), queue_id=1)
    seen = run(master, cluster.namesrv, topic, str(tmp_path))
    assert seen["batch"] == seen["stream"] == list(range(80))
    assert seen["tasks"] >= 4
    assert seen["batches"] == 4  # the first is empty
    assert seen["executors"] == executors
