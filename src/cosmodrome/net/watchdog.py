"""What keeps the event loop busy for too long, by name: always on, for one look at the clock per request.

A loop that stands still keeps every client waiting. Nothing of ours should do that; where something does, the log says
which request it was and who sent it, so that it can be bounded, or its peer be talked to.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

from cosmodrome.codes import RequestCode

log = logging.getLogger(__name__)

LOG_EVERY_SECONDS = 1.0  # a line at most; those in between are counted
# How often it is seen whether what lives has so grown that all of it is worth a look: half of it may be garbage then.
THAW_LOOK_SECONDS = 60.0
THAW_GROWTH = 2
THAW_LEAST = 200_000  # objects: a look at so many takes some ten milliseconds
_OLDEST = 2  # the generation of a full collection


class Watchdog:
    """Told how long each step of a request took; looks itself how late the loop is."""

    def __init__(self, limit_ms: int, clock: Callable[[], float] = monotonic) -> None:
        self.limit_seconds = limit_ms / 1000
        self.clock = clock
        self.count = 0  # of requests that kept the loop busy for too long
        self._noted = False  # since the last look
        self._logged = float("-inf")
        self._unlogged = 0
        self._collecting_since = 0.0
        self._collected_seconds = 0.0  # since the last look
        self._thaw_look = 0.0
        self._thawed_count = 0  # what lived after the last look at everything

    def note(self, code: int, peer: str, seconds: float) -> None:
        """A step of a request took longer than it may."""
        self.count += 1
        self._noted = True
        self._log("request=%s peer=%s took=%.0f ms", request_name(code), peer, seconds * 1000)

    def look(self, late_seconds: float) -> None:
        """The loop came so much too late: tell it if no request was told of."""
        collected, self._collected_seconds = self._collected_seconds, 0.0
        noted, self._noted = self._noted, False
        if late_seconds > self.limit_seconds and not noted:
            cause = "no single request; the machine or work in the background"
            if collected > late_seconds / 2:
                cause = f"garbage collection for {collected * 1000:.0f} ms"
            self._log("cause=%r took=%.0f ms", cause, late_seconds * 1000)

    def _log(self, text: str, *values: object) -> None:
        now = self.clock()
        if now - self._logged < LOG_EVERY_SECONDS:
            self._unlogged += 1
            return
        more = f", and {self._unlogged} times more before" if self._unlogged else ""
        self._logged, self._unlogged = now, 0
        log.warning(f"the event loop was busy: {text}{more}", *values)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look again and again, to the end of the block.

        What a garbage collection has found to live, the next need not look at again, so none takes long from the loop,
        however large the tables have become. For what has become garbage since, all is looked at when there is twice as
        much of it.
        """
        self._thaw()
        looking = asyncio.create_task(self._run())
        try:
            yield
        finally:
            looking.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        gc.callbacks.append(self._collecting)
        try:
            while True:
                due = loop.time() + self.limit_seconds
                await asyncio.sleep(self.limit_seconds)
                self.look(loop.time() - due)
                if self.clock() - self._thaw_look >= THAW_LOOK_SECONDS:
                    self._thaw_if_grown()
        finally:
            gc.callbacks.remove(self._collecting)

    def _thaw_if_grown(self) -> None:
        self._thaw_look = self.clock()
        if gc.get_freeze_count() > max(THAW_GROWTH * self._thawed_count, THAW_LEAST):
            self._thaw()

    def _thaw(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._thaw_look = self.clock()
        self._thawed_count = gc.get_freeze_count()

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since = self.clock()
        else:
            self._collected_seconds += self.clock() - self._collecting_since
            if info.get("generation") == _OLDEST:
                gc.freeze()


def request_name(code: int) -> str:
    """Return a request code by name, as far as it has one."""
    return RequestCode(code).name if code in RequestCode.__members__.values() else str(code)
