"""Our client's behaviour against each RocketMQ that `AGAINST` names; unless told, against our own alone.

AGAINST=apache pytest tests/behaviour                 Apache's, every version
AGAINST="cosmodrome apache-5.3.3" pytest …            these
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.lab import APACHE_CLUSTERS, OURS
from tests.behaviour.clusters import Cluster

_asked_for = os.environ.get("AGAINST", OURS)
AGAINST = APACHE_CLUSTERS if _asked_for == "apache" else _asked_for.split()

_HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the cases of a RocketMQ in one worker of `--dist loadgroup`, so that it is started once."""
    for item in items:
        if isinstance(item, pytest.Function) and item.path.is_relative_to(_HERE) and hasattr(item, "callspec"):
            name = item.callspec.params.get("cluster", item.path.stem)
            item.add_marker(pytest.mark.xdist_group(f"behaviour-{name}"))


@pytest.fixture(scope="session", params=AGAINST)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(request.param, tmp_path_factory.mktemp(request.param))
    yield cluster
    cluster.close()
