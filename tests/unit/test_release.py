"""Waiting together."""

from __future__ import annotations

import asyncio

from cosmodrome.release import ReleaseGroup


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
