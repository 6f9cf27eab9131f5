"""Dates jump, time does not: every clock knows both."""

from __future__ import annotations

import asyncio

import pytest

from cosmodrome.clock import Clock, SystemClock
from cosmodrome.testing import FakeClock, LoopClock, VirtualLoop

HOUR_MS = 3_600_000


def test_the_machines_steady_clock_passes_and_says_whose_it_is() -> None:
    clock = SystemClock()
    first, second = clock.steady_ms(), SystemClock().steady_ms()
    assert 0 < first <= second
    assert clock.boot_id == SystemClock().boot_id != ""


@pytest.mark.parametrize("ms", [3 * HOUR_MS, -3 * HOUR_MS])
async def test_a_step_moves_the_date_and_wakes_nobody(ms: int) -> None:
    clock = FakeClock()
    before = clock.now_ms(), clock.steady_ms()
    sleeper = asyncio.create_task(clock.sleep(1_000))
    await clock.advance(0)
    clock.step(ms)
    assert (clock.now_ms(), clock.steady_ms()) == (before[0] + ms, before[1])
    await clock.advance(999)
    assert not sleeper.done()
    await clock.advance(1)
    assert sleeper.done()


def test_the_clock_of_a_loop_steps_too() -> None:
    async def steps() -> None:
        clock: LoopClock = LoopClock()
        seen: Clock = clock
        before = seen.now_ms()
        clock.step(-HOUR_MS)
        await seen.sleep(250)
        assert (seen.now_ms() - before, seen.steady_ms() - before) == (250 - HOUR_MS, 250)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(steps())
