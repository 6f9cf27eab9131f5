"""What the config tables share: a version that moves with every change, and a file that follows it.

Saving is group commit in small: however many changes wait, one file write covers them, off the loop.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from pathlib import Path

from cosmodrome import state_file
from cosmodrome.clock import Clock
from cosmodrome.errors import ServiceNotAvailable
from cosmodrome.model import DataVersion


class SavedTable(ABC):
    """A table in memory with one state file. `saved()` returns once every change made before it is on disk."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._write: asyncio.Task[None] | None = None
        self._changes = 0
        self._changes_on_disk = 0
        self.data_version = DataVersion()

    @abstractmethod
    def encoded(self) -> bytes:
        """The table in Apache's JSON shape."""

    def changed(self) -> None:
        self._changes += 1
        self.data_version = self.data_version.next(self._clock.now_ms())

    @property
    def unsaved(self) -> bool:
        return self._changes_on_disk < self._changes

    async def saved(self) -> None:
        wanted = self._changes
        while self._changes_on_disk < wanted:
            if self._write is None:
                self._write = asyncio.create_task(self._save())
            # Shielded, for a thread can't be cancelled: a second write beside it would spoil the file.
            await asyncio.shield(self._write)

    async def _save(self) -> None:
        try:
            covered = self._changes
            await asyncio.to_thread(state_file.save, self._path, self.encoded())
            self._changes_on_disk = covered
        except OSError as error:
            raise ServiceNotAvailable(f"cannot save {self._path.name}: {error}") from error
        finally:
            self._write = None
