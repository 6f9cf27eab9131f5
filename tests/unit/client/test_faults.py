"""Which brokers are left alone, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.client.faults import AVOIDED_MS, Faults, avoided_ms

NAMES = st.sampled_from(["a", "b", "c", "d"])
NOTES = st.lists(st.tuples(NAMES, st.integers(0, 20_000), st.booleans()), max_size=12)


@pytest.mark.parametrize(
    ("latency_ms", "expected_ms"),
    [
        (0, 0),
        (49, 0),
        (50, 0),
        (100, 0),
        (549, 0),
        (550, 30_000),
        (999, 30_000),
        (1_000, 60_000),
        (2_000, 120_000),
        (2_999, 120_000),
        (3_000, 180_000),
        (14_999, 180_000),
        (15_000, 600_000),
        (30_000, 600_000),
    ],
)
def test_the_slower_the_longer(latency_ms: int, expected_ms: int) -> None:
    assert avoided_ms(latency_ms) == expected_ms


@given(st.integers(0, 100_000), st.integers(0, 100_000))
def test_slower_is_never_avoided_for_less(one: int, other: int) -> None:
    assert avoided_ms(min(one, other)) <= avoided_ms(max(one, other))
    assert avoided_ms(one) in AVOIDED_MS


def test_a_broker_is_available_until_seen_slow_and_again_after_its_time() -> None:
    faults = Faults()
    assert faults.is_available("a", 0)
    faults.note("a", 600, 1_000)
    assert not faults.is_available("a", 30_999)
    assert faults.is_available("a", 31_000)


def test_the_levels_may_be_others() -> None:
    faults = Faults((10, 20), (5, 50))
    faults.note("a", 15, 0)
    faults.note("b", 1, 0, failed=True)
    assert (faults.is_available("a", 4), faults.is_available("a", 5)) == (False, True)
    assert (faults.is_available("b", 49), faults.is_available("b", 50)) == (False, True)


def test_a_failure_counts_as_thirty_seconds_however_quick_it_was() -> None:
    faults = Faults()
    faults.note("a", 1, 0, failed=True)
    assert not faults.is_available("a", 599_999)
    assert faults.is_available("a", 600_000)


def test_a_quick_answer_forgives() -> None:
    faults = Faults()
    faults.note("a", 1, 0, failed=True)
    faults.note("a", 10, 5)
    assert faults.is_available("a", 5)


@given(NOTES)
def test_one_is_always_picked_among_those_seen_and_it_is_of_the_better_half(notes: list[tuple[str, int, bool]]) -> None:
    faults = Faults()
    latest = {}
    for name, latency_ms, failed in notes:
        faults.note(name, latency_ms, 0, failed=failed)
        latest[name] = (avoided_ms(30_000 if failed else latency_ms) > 0, latency_ms)
    picked = {faults.pick_one_at_least(0, latest) for _ in range(8)}
    if not latest:
        assert picked == {None}
        return
    better = sorted(latest.values())[: max(len(latest) // 2, 1)]
    assert all(latest[name] <= better[-1] for name in picked if name is not None)
    assert len(picked) == max(len(latest) // 2, 1)


def test_only_a_broker_that_will_do_is_picked() -> None:
    faults = Faults()
    faults.note("a", 600, 0)
    faults.note("b", 20_000, 0)
    assert faults.pick_one_at_least(0, {"b", "c"}) == "b"
    assert faults.pick_one_at_least(0, {"c"}) is None
