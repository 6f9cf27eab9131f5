"""Long work in steps: one in each turn of the loop, whoever else has some, and in turns among each other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Iterator
from functools import partial

import pytest

from cosmodrome.net.lane import OWNER, Lane
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


async def acting_for(owner: str, work: Awaitable[object]) -> None:
    OWNER.set(owner)
    await work


async def test_who_asks_for_much_does_not_keep_others_waiting_for_their_turn() -> None:
    taken: list[str] = []
    lane = Lane()
    async with asyncio.TaskGroup() as tasks:
        for number in range(100):
            tasks.create_task(acting_for("greedy", lane.run(steps(f"greedy {number}", 20, taken))))
        await asyncio.sleep(0)
        before = len(taken)
        await tasks.create_task(acting_for("modest", lane.run(steps("modest", 10, taken))))
        assert len(taken) - before <= 3 * 10
    assert len(taken) == 100 * 20 + 10


async def test_who_asks_for_much_does_not_keep_others_waiting_for_the_thread() -> None:
    done: list[str] = []
    gate = threading.Event()
    lane = Lane()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(lane.aside(lambda: gate.wait(60)))
        for number in range(100):
            tasks.create_task(acting_for("greedy", lane.aside(partial(done.append, f"greedy {number}"))))
        await asyncio.sleep(0)
        tasks.create_task(acting_for("modest", lane.aside(partial(done.append, "modest"))))
        await asyncio.sleep(0)
        gate.set()
    assert done.index("modest") <= 1
    assert len(done) == 101


async def test_works_for_the_thread_that_are_cancelled_do_not_stop_the_others() -> None:
    done: list[str] = []
    gate = threading.Event()
    lane = Lane()
    first = asyncio.create_task(lane.aside(lambda: gate.wait(60)))
    works = [asyncio.create_task(lane.aside(partial(done.append, str(number)))) for number in range(4)]
    await asyncio.sleep(0)
    works[1].cancel()
    first.cancel()  # the thread goes on with it, and the next one has its turn
    await asyncio.sleep(0)
    works[0].cancel()
    gate.set()
    await asyncio.gather(first, *works, return_exceptions=True)
    assert done[-2:] == ["2", "3"]
    assert await lane.aside(lambda: "free") == "free"


async def test_what_waits_for_the_thread_of_a_closed_lane_is_cancelled() -> None:
    gate = threading.Event()
    lane = Lane()
    first = asyncio.create_task(lane.aside(lambda: gate.wait(60)))
    waiting = asyncio.create_task(lane.aside(lambda: True))
    await asyncio.sleep(0)
    lane.close()
    gate.set()
    await asyncio.wait((first, waiting))
    assert waiting.cancelled()
    assert await first
