"""Waking a loop before its time."""

from __future__ import annotations

import asyncio

from cosmodrome.clock import Clock


class Bell:
    """A loop waits on it for its next round; anyone may ring to have the round at once.

    A ring while nobody waits is kept, and several count as one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()

    def clear(self) -> None:
        """What was rung for is about to be done."""
        self._rung.clear()

    async def wait(self, ms: int) -> None:
        """Return when rung, or after `ms` milliseconds."""
        rung = asyncio.ensure_future(self._rung.wait())
        asleep = asyncio.ensure_future(self._clock.sleep(ms))
        try:
            await asyncio.wait({rung, asleep}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            rung.cancel()
            asleep.cancel()
        self._rung.clear()
