"""Time, passed in where it matters, so that a test can hold it."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """What the daemons and the client know of time: the date, which somebody may set, and how much time passes.

    Ask `now_ms` for dates that people or other machines read, `steady_ms` for everything that lasts: deadlines, ages,
    pauses. A number of one is never compared with a number of the other.
    """

    def now_ms(self) -> int:
        """The date, in milliseconds since the epoch. It jumps when the machine's clock is set."""
        ...

    def steady_ms(self) -> int:
        """Milliseconds that only ever pass, whatever is done to the machine's clock; where they begin means nothing."""
        ...

    @property
    def boot_id(self) -> str:
        """What two processes have in common that count the same steady milliseconds."""
        ...

    async def sleep(self, ms: int) -> None:
        """Return once `ms` milliseconds have passed on this clock."""
        ...


# Counts on while the machine is suspended, as a date does; systems without it have the monotonic clock.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# Far from 0, so that "long ago" may be written as 0, and such that its milliseconds change together with the date's.
_STEADY_BEGINS_NS = 10**18 + (time.time_ns() - time.clock_gettime_ns(_STEADY)) % 1_000_000


def _this_boot() -> str:
    """The kernel's name for this boot and for whose steady clock we see; where there is none, a name of our own."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return secrets.token_hex(16)


_BOOT_ID = _this_boot()


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return (_STEADY_BEGINS_NS + time.clock_gettime_ns(_STEADY)) // 1_000_000

    @property
    def boot_id(self) -> str:
        return _BOOT_ID

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
