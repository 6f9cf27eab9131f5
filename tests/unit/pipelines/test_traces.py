"""Traces as rows, and the spans of a time axis."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.pipelines.trace_report import step_ms
from cosmodrome.pipelines.traces import rows_of
from cosmodrome.wire.trace import Pub, SubAfter, encode

HOUR_MS = 3_600_000


def pub(timestamp: int = 1, msg_id: str = "A", cost_ms: int = 2) -> Pub:
    return Pub(timestamp, "", "shop", "orders", msg_id, "", "k", "host", 10, cost_ms, 0, "")


def test_a_record_is_a_row_for_each_of_its_messages() -> None:
    rows = list(rows_of(encode([pub(msg_id="A,B"), SubAfter("r", "A", 3, False, "", 2, 9, "billing")])))
    assert [(row["kind"], row["msg_id"]) for row in rows] == [("Pub", "A"), ("Pub", "B"), ("SubAfter", "A")]
    assert (rows[0]["topic"], rows[0]["cost_ms"], rows[0]["request_id"]) == ("orders", 2, None)
    assert (rows[2]["topic"], rows[2]["success"], rows[2]["outcome"]) == (None, False, 2)


def test_numbers_that_no_column_holds_are_left_out() -> None:
    assert list(rows_of(encode([pub(timestamp=10**18), pub(cost_ms=10**30), pub(timestamp=-1)]))) == []


@given(st.binary(max_size=200))
def test_any_body_is_read(body: bytes) -> None:
    assert all(row["timestamp"] >= 0 for row in rows_of(body))


@given(st.integers(0, 2**41), st.integers(0, 400 * 24 * HOUR_MS))
def test_a_time_axis_has_a_bounded_number_of_spans(first_ms: int, length_ms: int) -> None:
    assert length_ms / step_ms(first_ms, first_ms + length_ms) <= 120
