"""The fake clock: time moves only when told, and sleepers wake at their own moments, in order."""

from __future__ import annotations

import asyncio

import pytest

from cosmodrome.testing import FakeClock


async def test_time_stands_still_until_it_is_moved() -> None:
    clock = FakeClock(1_000)
    await asyncio.sleep(0)
    assert clock.now_ms() == 1_000
    await clock.advance(5)
    assert clock.now_ms() == 1_005


async def test_a_sleeper_wakes_at_its_deadline_and_not_before() -> None:
    clock = FakeClock()
    sleeper = asyncio.create_task(clock.sleep(100))
    await clock.advance(99)
    assert not sleeper.done()
    assert clock.sleepers == 1
    await clock.advance(1)
    assert sleeper.done()
    assert clock.sleepers == 0


async def test_sleepers_wake_in_the_order_of_their_deadlines() -> None:
    clock, woken = FakeClock(0), []

    async def sleeper(name: str, ms: int) -> None:
        await clock.sleep(ms)
        woken.append((name, clock.now_ms()))

    async with asyncio.TaskGroup() as tasks:
        for name, ms in (("late", 30), ("early", 10), ("also early", 10), ("middle", 20)):
            tasks.create_task(sleeper(name, ms))
        await clock.advance(1_000)
    assert woken == [("early", 10), ("also early", 10), ("middle", 20), ("late", 30)]
    assert clock.now_ms() == 1_000


async def test_a_loop_sleeps_again_within_one_advance() -> None:
    clock, ticks = FakeClock(0), []

    async def tick() -> None:
        while True:
            await clock.sleep(10)
            ticks.append(clock.now_ms())

    task = asyncio.create_task(tick())
    await clock.advance(35)
    assert ticks == [10, 20, 30]
    task.cancel()


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = FakeClock()
    sleeper = asyncio.create_task(clock.sleep(10))
    await clock.advance(1)
    sleeper.cancel()
    await asyncio.gather(sleeper, return_exceptions=True)
    assert clock.sleepers == 0
    await clock.advance(100)


@pytest.mark.parametrize("ms", [0, -5])
async def test_sleeping_for_nothing_returns_without_an_advance(ms: int) -> None:
    clock = FakeClock(7)
    await clock.sleep(ms)
    assert clock.now_ms() == 7


async def test_time_does_not_run_backwards() -> None:
    with pytest.raises(ValueError, match="backwards"):
        await FakeClock().advance(-1)
