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

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from interop.java import hosts
from interop.lab import OURS, Cluster, Lab

_names = itertools.count(1)

_HERE = Path(__file__).resolve().parent
_APACHE = "apache"
# Cases at a cluster that no other module has may run beside those at the module's other clusters.
_PARTS = ("guarded", "cluster_name", "name")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Share the cases out to the workers of `--dist loadgroup`, longest groups first.

    Each worker has a laboratory of its own. All that ask one of the Apache brokers that many modules share say so with
    `xdist_group("apache")`, and are in one worker, so that of each generation one such broker runs.
    """
    mine = [item for item in items if isinstance(item, pytest.Function) and item.path.is_relative_to(_HERE)]
    for item in mine:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(_group(item)))
    others = [item for item in items if item not in {*mine}]
    items[:] = [*others, *sorted(mine, key=_place)]


def _group(item: pytest.Function) -> str:
    """A case without a laboratory starts what it needs itself, and may run anywhere."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    part = next((str(params[name]) for name in _PARTS if name in params), "")
    if part or "lab" in item.fixturenames:
        return f"{item.path.stem} {part}".strip()
    return item.name


def _place(item: pytest.Function) -> int:
    group = item.get_closest_marker("xdist_group")
    return 0 if group is not None and group.args == (_APACHE,) else 1 if "lab" not in item.fixturenames else 2


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
