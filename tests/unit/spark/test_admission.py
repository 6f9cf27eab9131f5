"""When a micro-batch begins, and how much it takes."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from cosmodrome.spark import lag
from cosmodrome.spark.progress import MeanSize, Patience
from cosmodrome.spark.watching import rows_and_rate, summary


def test_a_batch_waits_for_enough_but_not_for_ever() -> None:
    patience = Patience(10, 5_000)
    assert patience.must_wait(3, now=100.0)
    assert patience.must_wait(9, now=104.9)
    assert not patience.must_wait(9, now=105.0)
    assert patience.must_wait(9, now=106.0), "the next one waits anew"
    assert not patience.must_wait(10, now=106.1)
    assert not patience.must_wait(0, now=200.0)
    assert patience.must_wait(1, now=300.0), "the time in which nothing was there does not count"
    assert not Patience(None, 5_000).must_wait(1, now=0.0)


@given(st.lists(st.lists(st.integers(0, 10**6), min_size=1), min_size=1), st.integers(1, 10**9))
@example([[0]], 2)
def test_a_limit_in_bytes_admits_at_least_one_message(samples: list[list[int]], limit: int) -> None:
    mean = MeanSize()
    for sample in samples:
        mean.add(sample)
    low, high = min(map(min, samples)), max(map(max, samples))
    assert max(limit // max(high, 1), 1) <= mean.rows(limit) <= max(limit // max(low, 1), 1) + 1


def test_lag_comes_out_of_sparks_progress() -> None:
    ours = {
        "endOffset": '{"orders": {"broker-a": {"0": 5, "1": 3}}}',
        "latestOffset": '{"orders": {"broker-a": {"0": 9, "1": 3}}, "new": {"broker-a": {"0": 2}}}',
    }
    other = {"endOffset": "17", "latestOffset": "null"}
    progress = {
        "sources": [ours, other],
        "name": "q",
        "batchId": 3,
        "numInputRows": 1_200,
        "processedRowsPerSecond": 9.6,
    }
    assert lag(progress) == {"orders": 4, "new": 2}
    assert lag(None) == {}
    assert summary(progress) == "q, batch 3: 1,200 rows, 10 rows/s; behind: new 2, orders 4"
    nameless = {**progress, "name": None, "id": "c5cc9fd8-c8b2-4ae9-ad06-9368a05b97ba"}
    assert summary(nameless).startswith("orders (c5cc9fd8), batch 3: 1,200 rows")


def test_rows_and_rate_are_those_of_the_sources_where_spark_tells_no_others() -> None:
    sources = [{"numInputRows": 30, "processedRowsPerSecond": 2.5}, {"numInputRows": 12, "processedRowsPerSecond": 1.5}]
    assert rows_and_rate({"sources": sources}) == (42, 4.0)
    assert rows_and_rate({"numInputRows": None, "processedRowsPerSecond": None, "sources": sources}) == (42, 4.0)
    assert rows_and_rate({"numInputRows": 7, "processedRowsPerSecond": 1.0, "sources": sources}) == (7, 1.0)
    assert rows_and_rate({"numInputRows": 0, "sources": sources[:1]}) == (0, 0.0)
