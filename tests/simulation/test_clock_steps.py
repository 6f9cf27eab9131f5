"""A few lives on a machine whose clock is set; `make torture` has more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.clock_steps import live_with_steps


@pytest.mark.parametrize("seed", [1, 2])
def test_what_waits_comes_in_true_time_however_the_clock_is_set(tmp_path: Path, seed: int) -> None:
    report = live_with_steps(tmp_path, seed, restarts=False)
    assert min(report.waits, report.steps) > 10


@pytest.mark.parametrize("seed", [8, 9])
def test_also_when_the_broker_stops_or_dies_in_between(tmp_path: Path, seed: int) -> None:
    report = live_with_steps(tmp_path, seed)
    assert min(report.waits, report.steps, report.restarts) > 2
