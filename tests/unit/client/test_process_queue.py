"""What is in process, and how far may be committed."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.client.process_queue import DEFAULT_LIMITS, ProcessQueue
from cosmodrome.errors import ProtocolError
from tests.unit.client.messages import received


def test_the_commit_offset_is_the_smallest_in_process_else_the_next_to_pull() -> None:
    process = ProcessQueue(10)
    assert process.commit_offset == 10
    first, second, third = (received(offset=offset) for offset in (10, 11, 14))
    process.put([first, second, third], 20)
    process.finish([second])
    assert process.commit_offset == 10
    process.finish([first])
    assert process.commit_offset == 14
    process.finish([third])
    assert process.commit_offset == 20


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=60), st.randoms(use_true_random=False))
def test_nothing_unfinished_lies_below_the_commit_offset_and_it_never_goes_back(
    steps: list[tuple[int, bool]], random: Random
) -> None:
    process, open_offsets, committed = ProcessQueue(0), set[int](), 0
    for gap, finish in steps:
        offset = process.next_offset + gap
        process.put([received(offset=offset)], offset + gap)
        open_offsets.add(offset)
        if finish:
            done = random.choice(sorted(open_offsets))
            process.finish([received(offset=done)])
            open_offsets.discard(done)
        assert process.commit_offset == min(open_offsets, default=process.next_offset)
        assert process.newest_offset == max(open_offsets, default=process.next_offset - 1)
        assert process.commit_offset >= committed
        assert len(process) == len(open_offsets)
        committed = process.commit_offset


def test_it_is_full_beyond_a_thousand_messages() -> None:
    process = ProcessQueue(0)
    process.put([received(offset=offset) for offset in range(DEFAULT_LIMITS.max_messages)], 1_000)
    assert not process.is_full
    process.put([received(offset=1_000)], 1_001)
    assert process.is_full
    process.finish([received(offset=5)])
    assert not process.is_full


def test_it_is_full_beyond_a_hundred_mebibytes() -> None:
    process = ProcessQueue(0)
    process.put([received(offset=0, size=DEFAULT_LIMITS.max_bytes)], 1)
    assert not process.is_full
    process.put([received(offset=1, size=1)], 2)
    assert process.is_full
    process.finish([received(offset=1)])
    assert not process.is_full


def test_it_is_full_when_one_slow_message_holds_up_two_thousand_offsets() -> None:
    process = ProcessQueue(0)
    process.put([received(offset=0), received(offset=DEFAULT_LIMITS.max_span)], 3_000)
    assert not process.is_full
    process.put([received(offset=3_000)], 3_001)
    assert process.is_full
    process.finish([received(offset=0)])
    assert not process.is_full


@pytest.mark.parametrize(
    ("offsets", "next_offset"),
    [([4], 6), ([5, 5], 6), ([6, 5], 7), ([5], 5), ([], 4)],
    ids=["before the pull", "twice", "backwards", "next not beyond", "next before"],
)
def test_offsets_that_do_not_go_forward_are_refused_whole(offsets: list[int], next_offset: int) -> None:
    process = ProcessQueue(5)
    with pytest.raises(ProtocolError):
        process.put([received(offset=offset) for offset in offsets], next_offset)
    assert (len(process), process.next_offset) == (0, 5)
