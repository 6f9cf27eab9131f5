"""Tasks, admission and offsets."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cosmodrome.model import MessageQueue
from cosmodrome.spark import progress
from cosmodrome.spark.options import Slicing
from cosmodrome.spark.planning import ROWS_PER_TASK, Range, ranges, tasks
from cosmodrome.spark.progress import DataLoss

queues = st.builds(
    MessageQueue, st.sampled_from(["a", "b"]), st.sampled_from(["broker-a", "broker-b"]), st.integers(0, 12)
)
offsets = st.dictionaries(queues, st.integers(0, 10**6), max_size=12)
slicings = st.builds(
    Slicing,
    st.none() | st.integers(1, 30),
    st.none() | st.integers(1_000, 300_000),
    st.integers(1, 20),
)


def queue(number: int) -> MessageQueue:
    return MessageQueue("orders", "broker-a", number)


@given(offsets, offsets, slicings)
def test_every_message_is_in_exactly_one_task(
    start: dict[MessageQueue, int], end: dict[MessageQueue, int], slicing: Slicing
) -> None:
    wanted = ranges(start, end)
    pieces = sorted(
        (piece for task in tasks(wanted, slicing) for piece in task), key=lambda each: (each.queue, each.begin)
    )
    joined: dict[MessageQueue, Range] = {}
    for piece in sorted(pieces, key=lambda each: (each.queue, each.begin)):
        assert piece
        before = joined.get(piece.queue)
        assert before is None or before.end == piece.begin
        joined[piece.queue] = Range(piece.queue, before.begin if before else piece.begin, piece.end)
    assert sorted(joined.values(), key=lambda each: each.queue) == wanted


@given(offsets, slicings)
def test_no_task_passes_the_limit_the_user_set(end: dict[MessageQueue, int], slicing: Slicing) -> None:
    made = tasks(ranges(dict.fromkeys(end, 0), end), slicing)
    assert all(made)
    if slicing.max_records_per_partition is not None:
        assert all(sum(map(len, task)) <= slicing.max_records_per_partition for task in made)


def test_small_queues_share_a_task_and_large_ones_are_split() -> None:
    small = [Range(queue(number), 0, 10) for number in range(8)]
    assert len(tasks(small, Slicing())) == 1
    assert len(tasks([Range(queue(0), 0, 3 * ROWS_PER_TASK)], Slicing())) == 3
    assert len(tasks([Range(queue(0), 0, 300 * ROWS_PER_TASK)], Slicing(max_tasks=5))) == 5
    assert len(tasks(small, Slicing(min_partitions=4))) >= 4
    assert tasks([], Slicing()) == []


@given(offsets, slicings)
@example({queue(0): 1_000}, Slicing(600))
@example({queue(0): 9}, Slicing(6))
@example({queue(0): 3, queue(1): 3, queue(2): 1}, Slicing(6, 2))
def test_there_are_as_many_tasks_as_the_user_wants_at_least(end: dict[MessageQueue, int], slicing: Slicing) -> None:
    wanted = ranges(dict.fromkeys(end, 0), end)
    made = tasks(wanted, slicing)
    assert len(made) >= min(slicing.min_partitions or 1, sum(end.values()))
    assert sum(len(piece) for task in made for piece in task) == sum(end.values())


@given(offsets, offsets, st.none() | st.integers(1, 10**6))
def test_admission_goes_forward_and_keeps_the_limit(
    start: dict[MessageQueue, int], more: dict[MessageQueue, int], limit: int | None
) -> None:
    latest = {queue: start.get(queue, 0) + count for queue, count in more.items()}
    begin = {queue: start.get(queue, 0) for queue in latest}
    end = progress.admitted(begin, latest, limit)
    assert end.keys() == latest.keys()
    taken = {queue: end[queue] - begin[queue] for queue in end}
    assert all(0 <= taken[queue] <= more[queue] for queue in end)
    total = sum(more.values())
    assert sum(taken.values()) == (total if limit is None else min(total, limit))


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=8), st.integers(1, 20))
@example([1_000_000, 1, 1, 1, 1], 4)
@example([1_000_000, 1, 1, 1, 1], 5)
@example([1, 1, 1, 1, 1_000_000], 1)
@example([1_000_000, 3], 10)
def test_no_queue_is_left_out_for_ever_be_it_full_or_nearly_empty(waiting: list[int], limit: int) -> None:
    """However little is admitted, and though something comes into every queue all the time."""
    start = {queue(number): 17 * number for number in range(len(waiting))}
    latest = {queue(number): 17 * number + count for number, count in enumerate(waiting)}
    for _ in range(5):
        begin = dict(start)
        for _ in waiting:
            latest = {each: end + 1 for each, end in latest.items()}
            before, start = start, progress.admitted(start, latest, limit)
            total = sum(latest[each] - before[each] for each in latest)
            assert sum(start[each] - before[each] for each in latest) == min(total, limit)
            assert all(before[each] <= start[each] <= latest[each] for each in latest)
        assert all(start[each] > begin[each] for each in latest)


@given(offsets)
def test_offsets_survive_json_and_their_text_is_stable(given_offsets: dict[MessageQueue, int]) -> None:
    json = progress.to_json(given_offsets)
    assert progress.from_json(json) == given_offsets
    backwards = dict(reversed(given_offsets.items()))
    assert str(progress.to_json(backwards)) == str(json)


def test_a_step_back_is_a_loss() -> None:
    with pytest.raises(DataLoss, match="failOnDataLoss"):
        progress.check_forward({queue(0): 5}, {queue(0): 2}, fail=True)
    lost = progress.check_forward({queue(0): 5}, {queue(0): 2, queue(1): 7}, fail=False)
    assert lost.keys() == {queue(0)}
    assert progress.check_forward({queue(0): 5}, {queue(0): 5}, fail=True) == {}


def test_deleted_messages_are_a_loss() -> None:
    with pytest.raises(DataLoss, match="3 messages from 2 on are gone"):
        progress.check_there({queue(0): 2}, {queue(0): 5}, fail=True)
    assert progress.check_there({queue(0): 5}, {queue(0): 5}, fail=True) == []


def test_lag_is_by_topic() -> None:
    latest = {queue(0): 10, queue(1): 5, MessageQueue("other", "b", 0): 1}
    assert progress.behind({queue(0): 4, queue(1): 5}, latest) == {"orders": 6, "other": 1}
