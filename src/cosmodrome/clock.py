"""Time, passed in where it matters, so that a test can hold it."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What the daemons and the client know of time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    async def sleep(self, ms: int) -> None:
        """Return once `ms` milliseconds have passed on this clock."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)


async def sleep_unless(event: asyncio.Event, clock: Clock, ms: int) -> None:
    """Return once `ms` milliseconds have passed, or as soon as `event` is set."""
    waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep(ms))]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
