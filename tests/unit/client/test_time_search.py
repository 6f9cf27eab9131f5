"""The first message since a time is found whatever the broker's hint."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.client.time_search import first_since

TIMES = st.lists(st.integers(0, 20), max_size=60).map(sorted)


def found(stored: list[int | None], since_ms: int, hint: int) -> tuple[int, int]:
    """The answer, and how many messages were looked at for it."""
    search, looks = first_since(since_ms, hint, len(stored)), 0
    try:
        offset = next(search)
        while True:
            looks += 1
            offset = search.send(stored[offset])
    except StopIteration as answer:
        return int(answer.value), looks


@given(stored=TIMES, since_ms=st.integers(-1, 22), hint=st.integers(-2, 70), gone=st.integers(0, 60))
def test_it_is_the_first_one_since_then(stored: list[int], since_ms: int, hint: int, gone: int) -> None:
    left: list[int | None] = [None if offset < gone else ms for offset, ms in enumerate(stored)]
    expected = max(bisect_left(stored, since_ms), min(gone, len(stored)))
    assert found(left, since_ms, hint)[0] == expected


@given(stored=TIMES, since_ms=st.integers(-1, 22))
def test_a_right_hint_takes_two_looks(stored: list[int], since_ms: int) -> None:
    right = bisect_left(stored, since_ms)
    assert found([*stored], since_ms, right)[1] <= 2


def test_a_hint_far_off_takes_few_looks() -> None:
    stored: list[int | None] = [*range(1_000_000)]
    for hint in (0, 999_999, 500_000):
        assert found(stored, 250_000, hint)[1] <= 40
