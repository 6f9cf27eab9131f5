"""How far the messages of each delay level are delivered."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from cosmodrome import state_file
from cosmodrome.broker.tables import SavedTable
from cosmodrome.clock import Clock
from cosmodrome.wire.bodies import DelayOffsetsBody


class _Snapshot(NamedTuple):
    """What was delivered by the time the log ended at `log_end`."""

    log_end: int
    offsets: dict[int, int]


class DelayOffsets(SavedTable):
    """Delay level → queue offset of the next message to deliver.

    The file never runs ahead of the disk: an offset is saved only once the copies it stands for are synced
    (`settle`). A crash may therefore repeat deliveries, but loses none.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(path, clock)
        self._next: dict[int, int] = {}
        self._settled: dict[int, int] = {}
        self._waiting: _Snapshot | None = None
        stored = state_file.load(path, DelayOffsetsBody.decode, is_progress=True)
        if stored is not None:
            self._next.update(stored.offsets)
            self._settled.update(stored.offsets)
            self.data_version = stored.data_version

    @property
    def levels(self) -> set[int]:
        return set(self._next)

    def next(self, level: int) -> int:
        return self._next.get(level, 0)

    def settled(self, level: int) -> int:
        """The offset below which every delivery is on disk."""
        return self._settled.get(level, 0)

    def move(self, level: int, offset: int) -> None:
        self._next[level] = offset

    def settle(self, flushed: int, log_end: int) -> None:
        """The log ends at `log_end` and is on disk up to `flushed`: let what that covers be saved."""
        self._settle_waiting(flushed)
        if self._waiting is None and self._next != self._settled:
            self._waiting = _Snapshot(log_end, dict(self._next))
            self._settle_waiting(flushed)

    def _settle_waiting(self, flushed: int) -> None:
        if self._waiting is not None and self._waiting.log_end <= flushed:
            self._settled = self._waiting.offsets
            self._waiting = None
            self.changed()

    def adopt(self, table: DelayOffsetsBody) -> None:
        """Take over how far a slave's master has delivered; the caller knows that its log is here up to then."""
        offsets = dict(table.offsets)
        if offsets != self._settled or table.data_version != self.data_version:  # Apache's master compares versions
            self._next, self._settled, self._waiting = dict(offsets), offsets, None
            self.replaced(table.data_version)

    def body(self) -> DelayOffsetsBody:
        """How far each level is delivered now."""
        return DelayOffsetsBody(self.data_version, dict(self._next))

    def encoded(self) -> bytes:
        return DelayOffsetsBody(self.data_version, self._settled).encode(pretty=True)
