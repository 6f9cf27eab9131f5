"""Rows are slowed down, never hurried."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.spark.pacing import Pace, paced
from tests.unit.spark.own_time import set_time


@given(
    st.floats(0.5, 1e6),
    st.lists(st.tuples(st.integers(1, 1_000), st.floats(0, 10)), min_size=1, max_size=20),
)
def test_no_more_rows_go_than_the_rate_allows(rate: float, arrivals: list[tuple[int, float]]) -> None:
    pace, now, gone = Pace(rate, 0.0), 0.0, 0
    for rows, idle in arrivals:
        now += idle
        pause = pace.pause_seconds(rows, now)
        assert pause >= 0
        now += pause
        assert gone <= now * rate * (1 + 1e-9) + 1e-6  # before these go, those before have had their time
        gone += rows


def test_time_in_which_nothing_came_is_not_made_up_for() -> None:
    pace = Pace(100, 0.0)
    assert pace.step == 10
    assert pace.pause_seconds(10, 50.0) == 0
    assert abs(pace.pause_seconds(10, 50.0) - 0.1) < 1e-9


def test_batches_go_in_steps_with_a_pause_before_each(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = [100.0], []

    def sleep(seconds: float) -> None:
        pauses.append(round(seconds, 6))
        now[0] += seconds

    set_time(monkeypatch, "pacing", sleep=sleep, monotonic=lambda: now[0])
    batches = [pa.RecordBatch.from_pydict({"n": list(range(begin, begin + 25))}) for begin in (0, 25)]
    pieces = [piece.column("n").to_pylist() for piece in paced(iter(batches), 100)]
    assert [number for piece in pieces for number in piece] == list(range(50))
    assert [len(piece) for piece in pieces] == [10, 10, 5, 10, 10, 5]
    assert pauses == [0, 0.1, 0.1, 0.05, 0.1, 0.1]
