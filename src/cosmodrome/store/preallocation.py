"""Making the log's next file before it is needed."""

from __future__ import annotations

import asyncio
import logging

from cosmodrome.clock import Clock
from cosmodrome.errors import ServiceNotAvailable
from cosmodrome.store.commit_log import CommitLog

log = logging.getLogger(__name__)

RETRY_MS = 1_000


class Preallocator:
    """Keeps one file ready behind the last, made in a thread, so that going on to it costs an append nothing.

    An append that comes before the file is ready makes it itself. If it cannot be made, the current file is filled
    all the same; only when that has no room left are messages refused.
    """

    def __init__(self, commit_log: CommitLog, clock: Clock) -> None:
        self._log = commit_log
        self._clock = clock
        self._wanted = asyncio.Event()
        self._wanted.set()
        commit_log.on_roll = self._wanted.set

    async def run(self) -> None:
        was_made = True
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await asyncio.to_thread(self._log.make_next)
                was_made = True
            except (OSError, ServiceNotAvailable) as error:
                if was_made:
                    log.error("the log has no next file yet: %s; trying on", error)
                was_made = False
                await self._clock.sleep(RETRY_MS)
                self._wanted.set()
