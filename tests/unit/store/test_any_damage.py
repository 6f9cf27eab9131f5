"""Whatever a disk does to the bytes: the tools say so in good order, and a repair ends well or says why not."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cosmodrome.clock import SystemClock
from cosmodrome.store.inspection import inspect
from cosmodrome.store.repair import plan_repair, repair
from cosmodrome.store.verification import verify
from tests.unit.store.damage import overwrite, stopped_store
from tests.unit.store.kit import open_store

Hit = tuple[int, float, bytes | None]  # which file, where in it, what is written there; None cuts it off

hits = st.tuples(
    st.integers(0, 99),
    st.floats(0, 1, exclude_max=True),
    st.none() | st.binary(min_size=1, max_size=64) | st.integers(1, 4096).map(bytes),
)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("healthy")
    stopped_store(root, count=60)
    return root


def hit(root: Path, which: int, where: float, data: bytes | None) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.name != "lock")
    path = files[which % len(files)]
    position = int(path.stat().st_size * where)
    if data is None:
        os.truncate(path, position)
    else:
        overwrite(path, position, data[: path.stat().st_size - position])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(hits, min_size=1, max_size=4))
def test_any_damage_is_told_and_mended_or_refused(healthy: Path, damages: list[Hit]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        shutil.copytree(healthy, root)
        for damage in damages:
            hit(root, *damage)
        inspect(root)
        found = verify(root)
        plan = plan_repair(root)
        assert not (found.is_sound and plan.steps)
        if plan.obstacles:
            return
        repaired = repair(root, SystemClock())
        assert repaired.problems == []
        assert repaired.records >= found.records
        open_store(root).close()
        assert verify(root).problems == []
