"""What the config tables share: a version that moves with every change, and a file that follows it.

Saving is group commit in small: however many changes wait, one file write covers them, off the loop.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from cosmodrome import state_file
from cosmodrome.clock import Clock
from cosmodrome.errors import ServiceNotAvailable
from cosmodrome.model import DataVersion

LONG_SAVE_SECONDS = 0.2


class SavedTable(ABC):
    """A table in memory with one state file. `saved()` returns once every change made before it is on disk."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._write: asyncio.Task[None] | None = None
        self._changes = 0
        self._changes_on_disk = 0
        self._rest_seconds = 0.0
        self.data_version = DataVersion()
        self._next_change: asyncio.Future[None] | None = None  # for those that wait for one
        self.watchers = 0

    @abstractmethod
    def encoded(self) -> bytes:
        """The table in Apache's JSON shape."""

    def snapshot(self) -> Callable[[], bytes]:
        """Return a function that encodes the table as it is now, in another thread if need be.

        A table that peers can make large overrides this: copying it takes moments, encoding it may take seconds.
        """
        encoded = self.encoded()
        return lambda: encoded

    def changed(self) -> None:
        self.replaced(self.data_version.next(self._clock.now_ms()))

    def replaced(self, version: DataVersion) -> None:
        """Note that the table is now that of another broker, with its version."""
        self._changes += 1
        self.data_version = version
        self.wake_watchers()

    def wake_watchers(self) -> None:
        """Let those that wait for a change look at the version, whether it has changed or not."""
        waiting, self._next_change = self._next_change, None
        if waiting is not None:
            waiting.set_result(None)

    def next_change(self) -> asyncio.Future[None]:
        """Return what is done when the table changes the next time. It is shared: wait for it, and do not cancel it."""
        if self._next_change is None:
            self._next_change = asyncio.get_running_loop().create_future()
        return self._next_change

    @property
    def version_text(self) -> str:
        """The version as a word, which is another one after each change."""
        version = self.data_version
        return f"{version.state_version}-{version.timestamp}-{version.counter}"

    @property
    def unsaved(self) -> bool:
        return self._changes_on_disk < self._changes

    async def saved(self) -> None:
        wanted = self._changes
        while self._changes_on_disk < wanted:
            if self._write is None:
                self._write = asyncio.create_task(self._save(self._rest_seconds))
            # Shielded, for a thread can't be cancelled: a second write beside it would spoil the file.
            await asyncio.shield(self._write)

    async def _save(self, rest_seconds: float) -> None:
        try:
            if rest_seconds:  # a large table that changes all the time is saved half of the time
                await asyncio.sleep(rest_seconds)
            covered = self._changes
            encode = self.snapshot()
            began = monotonic()
            await asyncio.to_thread(lambda: state_file.save(self._path, encode()))
            self._changes_on_disk = covered
            took = monotonic() - began
            self._rest_seconds = took if took > LONG_SAVE_SECONDS else 0.0
        except OSError as error:
            raise ServiceNotAvailable(f"cannot save {self._path.name}: {error}") from error
        finally:
            self._write = None
