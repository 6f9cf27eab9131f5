"""Clusters to meet, started when first asked for; topics and groups are each test's own.

`make interop` runs every day, and leaves out what is marked `full`; `make interop-full` runs everything. A case is
`full` if it takes long and a quicker one guards the same: volumes, kills of many members, waits of more than half a
minute, Spark without Apache's servers, and further combinations of parameters once every value of each has had its turn
with both generations. A kind of meeting that no other case has is never `full`.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from interop.groups import group, place
from interop.java import hosts
from interop.lab import OURS, Cluster, Lab

_names = itertools.count(1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share the cases out to the workers, each of which has a laboratory of its own, by groups in their order.

    xdist's own way, `--dist loadgroup`, groups nothing with pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    config.option.loadscopereorder = False
    return Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest groups first."""
    items.sort(key=lambda item: place(item.nodeid))


@pytest.fixture(scope="session", autouse=True)
def _java_hosts() -> Iterator[None]:
    """End what the Java programs run in, behind all else."""
    yield
    hosts.close()


@pytest.fixture(scope="session")
def main_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path_factory.mktemp("interop"), stack)


@pytest.fixture(scope="module")
def lab(main_lab: Lab) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield main_lab.wing(stack)


@pytest.fixture(scope="module")
def ours(lab: Lab) -> Cluster:
    """One `cosmodrome up` for all tests that need nothing special of it."""
    return lab.cluster(OURS)


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """Names nobody has used in this session: fresh("topic"), fresh("group")."""
    return lambda kind: f"{kind}-{next(_names)}"
