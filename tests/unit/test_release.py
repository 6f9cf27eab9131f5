"""Waiting together."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.release import ReleaseGroup, TurnGroups, WaitingLine


async def test_tasks_wait_for_the_outcome_and_one_that_is_cancelled_takes_no_other_along() -> None:
    group: ReleaseGroup[str] = ReleaseGroup()

    async def wait() -> str:
        return await group

    tasks = [asyncio.create_task(wait()) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.sleep(0)
    assert not tasks[1].done()
    group.release("done")
    assert await asyncio.gather(*tasks[1:]) == ["done", "done"]
    assert tasks[0].cancelled()
    assert await group == "done"


async def test_who_steps_a_coroutine_by_hand_gets_the_group() -> None:
    group: ReleaseGroup[str] = ReleaseGroup()
    outcomes: list[str] = []

    async def wait() -> None:
        outcomes.append(await group)

    def step() -> None:
        coroutine = wait()
        assert coroutine.send(None) is group

        def go_on(outcome: str) -> None:
            try:
                coroutine.send(outcome)
            except StopIteration:
                outcomes.append("ended")

        group.join(go_on)

    asyncio.get_running_loop().call_soon(step)  # outside of any task
    await asyncio.sleep(0)
    assert outcomes == []
    group.release("done")
    assert outcomes == ["done", "ended"]


class Groups:
    """`TurnGroups` of 100 bytes over a line of waiters, as flushing and replication use them."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.safe = 0
        self.line = WaitingLine[ReleaseGroup[str]]()
        self.groups = TurnGroups[str](self._ask, 100)

    def _ask(self, group: ReleaseGroup[str], end: int) -> str | None:
        self.asked.append(end)
        if end <= self.safe:
            return "safe"
        self.line.add(group, end, 0)
        return None


async def test_requests_of_one_turn_ask_once_for_the_last_of_them() -> None:
    stage = Groups()
    first = [stage.groups.join(end) for end in (10, 30, 20)]
    assert first[0] is first[1] is first[2]
    await asyncio.sleep(0)
    second = stage.groups.join(40)
    assert second is not first[0]
    await asyncio.sleep(0)
    assert (stage.asked, stage.groups.waiting) == ([30, 40], 4)
    for group in stage.line.take_safe(30):
        stage.groups.release(group, "done")
    assert (first[0].outcome, second.outcome, stage.groups.waiting) == ("done", None, 1)


async def test_a_group_covers_a_bounded_part_of_the_log_and_ends_when_it_is_closed() -> None:
    stage = Groups()
    stage.safe = 10
    groups = [stage.groups.join(end) for end in (10, 109, 110)]
    assert groups[0] is groups[1] is not groups[2]
    stage.groups.close()
    late = stage.groups.join(5)
    assert late is not groups[2]
    await asyncio.sleep(0)
    assert (stage.asked, stage.groups.waiting) == ([109, 110, 5], 3)
    assert late.outcome == "safe"


@given(
    st.lists(st.tuples(st.sampled_from(["add", "safe", "late"]), st.integers(0, 50), st.integers(0, 50)), max_size=40)
)
def test_each_waiter_leaves_the_line_once_and_none_before_its_time(steps: list[tuple[str, int, int]]) -> None:
    line = WaitingLine[int]()
    asked: dict[int, tuple[int, int]] = {}
    gone: list[int] = []
    for number, (what, end, deadline_ms) in enumerate(steps):
        if what == "add":
            line.add(number, end, deadline_ms)
            asked[number] = (end, deadline_ms)
            continue
        if what == "safe":
            taken = line.take_safe(end)
            assert all(asked[waiter][0] <= end for waiter in taken)
        else:
            taken = line.take_late(deadline_ms)
            assert all(asked[waiter][1] <= deadline_ms for waiter in taken)
        gone += taken
    gone += line.take_all()
    assert gone == sorted(asked)
    assert (len(line), line.deadline_ms) == (0, None)
