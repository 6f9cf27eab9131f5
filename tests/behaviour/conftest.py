"""Our client's behaviour against each RocketMQ that `AGAINST` names; unless told, against our own alone.

AGAINST=apache pytest tests/behaviour                 Apache's, every version
AGAINST="cosmodrome apache-5.3.3" pytest …            these
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from interop.lab import APACHE_CLUSTERS, OURS
from tests.behaviour.clusters import Cluster

_asked_for = os.environ.get("AGAINST", OURS)
AGAINST = APACHE_CLUSTERS if _asked_for == "apache" else _asked_for.split()
_running: dict[str, Cluster] = {}


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End Apache's brokers when the worker goes on to something else: an idle one of 5.x takes a fifth of a core."""
    name = _asked_of(item)
    if name != OURS and name in _running and (nextitem is None or _asked_of(nextitem) != name):
        _running.pop(name).close()


def _asked_of(item: pytest.Item) -> str:
    """Return the name of the RocketMQ that a case is about; empty if it is about none."""
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return str(params.get("against", ""))


@pytest.fixture(scope="session", params=AGAINST)
def against(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    for cluster in _running.values():
        cluster.close()
    _running.clear()


@pytest.fixture
def cluster(against: str, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    if against not in _running:
        _running[against] = Cluster(against, tmp_path_factory.mktemp(against))
    return _running[against]
