"""Clusters to meet, started when first asked for; topics and groups are each test's own."""

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from interop.lab import OURS, Cluster, Lab

_names = itertools.count(1)


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
