"""A consumer's figures: what counts, over which time, and what is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.client.consume_stats import ConsumeStatistics
from cosmodrome.model import MessageQueue
from cosmodrome.wire.bodies import ConsumeStatus

BORN_MS = 1_700_000_000_000
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
QUEUE, OTHER = MessageQueue("T", "b", 0), MessageQueue("U", "b", 0)


@pytest.fixture
def statistics() -> ConsumeStatistics:
    return ConsumeStatistics(BORN_MS)


def test_rates_are_messages_per_second_of_the_time_there_was(statistics: ConsumeStatistics) -> None:
    statistics.pulled(QUEUE, 32, 4, BORN_MS + 1_000)
    statistics.pulled(QUEUE, 8, 8, BORN_MS + 2_000)
    statistics.consumed(QUEUE, 30, 0, 100, BORN_MS + 3_000)
    statistics.consumed(QUEUE, 0, 10, 200, BORN_MS + 4_000)
    assert statistics.status("T", BORN_MS + 10_000) == ConsumeStatus(
        consume_failed_msgs=10,
        consume_failed_tps=1.0,
        consume_ok_tps=3.0,
        consume_rt=150.0,
        pull_rt=6.0,
        pull_tps=4.0,
    )
    assert statistics.status("U", BORN_MS + 10_000) == ConsumeStatus()


def test_later_they_are_those_of_the_last_minute(statistics: ConsumeStatistics) -> None:
    for second in range(300):
        statistics.pulled(QUEUE, 5, 1, BORN_MS + second * 1_000)
        statistics.consumed(QUEUE, 5, 0, 2, BORN_MS + second * 1_000)
    now_ms = BORN_MS + 299_999
    status = statistics.status("T", now_ms)
    assert status.pull_tps == status.consume_ok_tps == pytest.approx(5, rel=0.001)
    assert statistics.status("T", now_ms + MINUTE_MS).pull_tps == 0


def test_a_pull_that_brought_nothing_only_tells_that_there_was_one(statistics: ConsumeStatistics) -> None:
    statistics.pulled(QUEUE, 0, 15_000, BORN_MS + 15_000)
    assert statistics.status("T", BORN_MS + 15_000) == ConsumeStatus()
    assert statistics.last_pull_ms(QUEUE) == BORN_MS + 15_000


def test_failures_count_for_an_hour_and_so_do_times_of_calls_when_there_are_none_newer(
    statistics: ConsumeStatistics,
) -> None:
    statistics.consumed(QUEUE, 0, 3, 40, BORN_MS)
    later = statistics.status("T", BORN_MS + 30 * MINUTE_MS)
    assert (later.consume_failed_msgs, later.consume_failed_tps, later.consume_rt) == (3, 0.0, 40.0)
    assert statistics.status("T", BORN_MS + HOUR_MS + MINUTE_MS) == ConsumeStatus()


def test_a_queue_begins_at_the_start_and_is_forgotten_with_its_owner(statistics: ConsumeStatistics) -> None:
    assert statistics.last_pull_ms(QUEUE) == statistics.last_consume_ms(QUEUE) == BORN_MS
    statistics.pulled(QUEUE, 1, 1, BORN_MS + 5)
    statistics.consumed(QUEUE, 1, 0, 1, BORN_MS + 7)
    assert (statistics.last_pull_ms(QUEUE), statistics.last_consume_ms(QUEUE)) == (BORN_MS + 5, BORN_MS + 7)
    statistics.forget(QUEUE)
    assert statistics.last_pull_ms(QUEUE) == statistics.last_consume_ms(QUEUE) == BORN_MS


events = st.lists(
    st.tuples(st.integers(0, 2 * HOUR_MS), st.sampled_from([QUEUE, OTHER]), st.integers(0, 9), st.integers(0, 9)),
    max_size=30,
)


@given(events, st.integers(0, HOUR_MS))
def test_what_is_older_than_its_window_never_counts_and_what_is_newer_always(
    happened: list[tuple[int, MessageQueue, int, int]], silence_ms: int
) -> None:
    statistics = ConsumeStatistics(BORN_MS)
    ordered = sorted(happened)
    for after_ms, queue, ok, failed in ordered:
        statistics.consumed(queue, ok, failed, 1, BORN_MS + after_ms)
    end_ms = (ordered[-1][0] if ordered else 0) + silence_ms

    def failed_since(since_ms: int) -> int:
        return sum(failed for after_ms, queue, _, failed in ordered if queue == QUEUE and after_ms > since_ms)

    counted = statistics.status("T", BORN_MS + end_ms).consume_failed_msgs
    assert failed_since(end_ms - HOUR_MS + MINUTE_MS) <= counted <= failed_since(end_ms - HOUR_MS - 1)


def test_a_clock_that_goes_back_loses_nothing(statistics: ConsumeStatistics) -> None:
    statistics.consumed(QUEUE, 0, 1, 1, BORN_MS + 5_000)
    statistics.consumed(QUEUE, 0, 1, 1, BORN_MS - 5_000)
    assert statistics.status("T", BORN_MS + 6_000).consume_failed_msgs == 2
