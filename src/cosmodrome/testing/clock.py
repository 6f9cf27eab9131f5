"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

from cosmodrome.errors import InvalidArgument

# How often the event loop may turn before a woken task is taken to be waiting again. A task that passes through more
# awaits than this between two sleeps, or that waits for a real socket or thread, is not waited for.
SETTLE_TURNS = 50

_START_MS = 1_700_000_000_000


class FakeClock:
    """A `Clock` whose hours pass in no time, and whose edges are exact.

        clock = FakeClock()
        task = asyncio.create_task(remind(clock))     # does `await clock.sleep(120_000)` somewhere
        await clock.advance(119_999)                  # still asleep
        await clock.advance(1)                        # woken, and run up to its next wait

    Sleepers wake in the order of their deadlines, those of the same deadline in the order they fell asleep; each
    sees its own deadline as the time and may sleep again, within the same `advance`, before the next one wakes.
    """

    def __init__(self, now_ms: int = _START_MS) -> None:
        self._steady_ms = now_ms
        self._stepped_ms = 0
        self._asleep: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()

    def now_ms(self) -> int:
        """Where it stands."""
        return self._steady_ms + self._stepped_ms

    def steady_ms(self) -> int:
        """How far it was moved on, from where it began; `step` changes nothing about it."""
        return self._steady_ms

    @property
    def boot_id(self) -> str:
        """The same for all clocks of tests."""
        return "virtual"

    def step(self, ms: int) -> None:
        """Set the date forward, or back, as somebody does who sets a machine's clock. No time passes: nobody wakes."""
        self._stepped_ms += ms

    @property
    def sleepers(self) -> int:
        """How many tasks are asleep on this clock."""
        return sum(not waiter.done() for _, _, waiter in self._asleep)

    async def sleep(self, ms: int) -> None:
        """Return once the clock has been moved on by `ms` milliseconds; at once, after one turn, for 0 or less."""
        if ms <= 0:
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._asleep, (self._steady_ms + ms, next(self._numbers), waiter))
        await waiter

    async def advance(self, ms: int) -> None:
        """Move on by `ms` milliseconds, waking every sleeper on the way at its own moment."""
        if ms < 0:
            raise InvalidArgument(f"time does not run backwards: advance({ms})")
        target = self._steady_ms + ms
        await _settle()  # tasks just started get to their first sleep before time moves
        while self._asleep and self._asleep[0][0] <= target:
            deadline, _, waiter = heapq.heappop(self._asleep)
            if waiter.done():  # its task was cancelled
                continue
            self._steady_ms = deadline
            waiter.set_result(None)
            await _settle()
        self._steady_ms = target


async def _settle() -> None:
    for _ in range(SETTLE_TURNS):
        await asyncio.sleep(0)
