"""Long work in steps: one in each turn of the loop, whoever else has some, and in turns among each other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from cosmodrome.net.lane import Lane
from tests.turns import Turns


def steps(name: str, count: int, taken: list[str]) -> Iterator[None]:
    for _ in range(count):
        taken.append(name)
        yield


async def test_works_take_turns_and_one_step_of_each_turn_of_the_loop() -> None:
    taken: list[str] = []
    lane = Lane()
    with Turns() as turns:
        record = turns.counting(taken.append)

        def work(name: str) -> Iterator[None]:
            for _ in range(5):
                yield
                record(name)

        await asyncio.gather(lane.run(work("a")), lane.run(work("b")), lane.run(work("c")))
    assert taken == ["a", "b", "c"] * 5
    assert turns.most == 1


async def test_work_in_the_background_takes_its_first_step_at_once() -> None:
    taken: list[str] = []
    lane = Lane()
    lane.start(steps("a", 1, taken))
    lane.start(steps("b", 2, taken))
    assert taken == ["a", "b"]
    await lane.run(steps("c", 3, taken))
    assert sorted(taken) == ["a", "b", "b", "c", "c", "c"]


async def test_a_work_that_is_cancelled_does_not_stop_the_others() -> None:
    taken: list[str] = []
    lane = Lane()
    doomed = asyncio.create_task(lane.run(steps("a", 100, taken)))
    other = asyncio.create_task(lane.run(steps("b", 3, taken)))
    await asyncio.sleep(0)
    doomed.cancel()
    await other
    assert taken.count("b") == 3
    assert len(lane) == 0


async def test_a_failure_in_the_background_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    lane = Lane()

    def failing() -> Iterator[None]:
        yield
        raise ValueError("broken")

    lane.start(failing())
    await lane.run(iter([None, None, None]))
    assert "work in the background failed" in caplog.text


async def test_a_closed_lane_goes_on_with_nothing() -> None:
    taken: list[str] = []
    lane = Lane()
    lane.start(steps("a", 5, taken))
    lane.close()
    lane.start(steps("b", 5, taken))
    for _ in range(10):
        await asyncio.sleep(0)
    assert taken == ["a", "b"]


async def test_work_beside_the_loop_has_one_thread() -> None:
    lane = Lane()
    names = await asyncio.gather(*(lane.aside(lambda: threading.current_thread().name) for _ in range(5)))
    assert len(set(names)) == 1
    assert names[0] != threading.current_thread().name
    lane.close()
