"""Connections that wait for the next task, and for how long."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cosmodrome.spark import pool
from cosmodrome.spark.link import Cluster
from cosmodrome.spark.options import LinkOptions

HERE, THERE = LinkOptions(("127.0.0.1:1",)), LinkOptions(("127.0.0.1:2",))
USED_ONCE = LinkOptions(("127.0.0.1:3",), idle_ms=0)
# A connection is left in the pool when the process ends.
LEFT = """
import socket
from cosmodrome.spark.options import LinkOptions
from cosmodrome.spark.pool import connected

listener = socket.create_server(("127.0.0.1", 0))
address = f"127.0.0.1:{listener.getsockname()[1]}"
with listener, connected(LinkOptions((address,))) as cluster:
    cluster.peer(address)
"""


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> list[Cluster]:
    """Those that were closed, in a pool of its own."""
    closed: list[Cluster] = []
    monkeypatch.setattr(pool, "_idle", {})
    monkeypatch.setattr(Cluster, "close", lambda cluster: closed.append(cluster))
    return closed


def used(options: LinkOptions) -> Cluster:
    with pool.connected(options) as cluster:
        return cluster


def test_a_fresh_one_is_used_again_by_who_asks_the_same_cluster(closed: list[Cluster]) -> None:
    first = used(HERE)
    assert used(THERE) is not first
    assert used(HERE) is first
    assert closed == []


def test_routes_are_asked_for_anew_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave that stood in for its master would be read for good; connections stay."""
    forgotten: list[Cluster] = []
    monkeypatch.setattr(Cluster, "forget_routes", lambda cluster: forgotten.append(cluster))
    first = used(HERE)
    forgotten.clear()
    assert used(HERE) is first
    assert forgotten == [first]


def test_one_has_it_at_a_time() -> None:
    with pool.connected(HERE) as first:
        assert used(HERE) is not first


def test_a_stale_one_is_closed_whoever_comes_next(closed: list[Cluster]) -> None:
    stale = used(USED_ONCE)
    used(HERE)
    assert closed == [stale]
    assert used(USED_ONCE) is not stale
    assert closed == [stale], "once"


def test_after_a_failure_it_is_closed(closed: list[Cluster]) -> None:
    with pytest.raises(ValueError, match="failed"), pool.connected(HERE) as failed:
        raise ValueError("failed")
    assert closed == [failed]
    assert used(HERE) is not failed


def test_nothing_is_open_when_a_process_ends() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "always", "-c", LEFT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
