"""Which files of the log may go, and whether the disk takes more; pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from cosmodrome.config import StoreConfig

HOUR_MS = 3_600_000
MANUAL_ROUNDS = 20  # how many rounds a request to delete now goes on for

# Apache's brokers pull a ratio that is set outside these bounds back into them, and so do we.
_USED_BOUNDS = (10, 95)
_FORCIBLY_BOUNDS = (30, 85)
_WARNING_BOUNDS = (35, 90)


class LogFile(NamedTuple):
    """A whole file of the log, and when it was last written to."""

    start: int
    modified_ms: int


class Verdict(NamedTuple):
    """The files to delete now, oldest first, and why; with `again`, look again right after: more may have to go."""

    delete: tuple[LogFile, ...] = ()
    reason: str = ""
    again: bool = False


NOTHING = Verdict()


class Retention:
    """Decides by time of day, age and how full the disk is. It is told all three and touches nothing.

    Expired files go in the hours of `deleteWhen`, at any time on a disk that is filling, and on request. On a disk
    nearly full the oldest file goes even if it has not expired, one at a time, until there is room.
    """

    def __init__(self, config: StoreConfig) -> None:
        self.use_config(config)
        self._batch = config.delete_file_batch_max
        self._forcibly_enabled = config.clean_file_forcibly_enable
        self._filling = _ratio(config.disk_max_used_space_ratio, _USED_BOUNDS)
        self._nearly_full = _ratio(config.disk_space_clean_forcibly_ratio, _FORCIBLY_BOUNDS)
        self._full = _ratio(config.disk_space_warning_level_ratio, _WARNING_BOUNDS)
        self._manual_rounds = 0

    def use_config(self, config: StoreConfig) -> None:
        """Obey the hours and the age of a config that was changed."""
        self._hours = config.delete_hours
        self._reserved_ms = config.file_reserved_time * HOUR_MS

    def delete_soon(self) -> None:
        """Delete expired files now, whatever the hour."""
        self._manual_rounds = MANUAL_ROUNDS

    @property
    def is_asked(self) -> bool:
        return self._manual_rounds > 0

    def is_full(self, disk_used: float) -> bool:
        """Whether writes are to be refused on a disk of which this share is used."""
        return disk_used > self._full

    def decide(self, files: Sequence[LogFile], disk_used: float, now_ms: int) -> Verdict:
        """What of `files`, oldest first and all of them free to go, is to be deleted now."""
        reason = self._reason(disk_used, now_ms)
        if not reason:
            return NOTHING
        expired = self._expired(files, now_ms)
        if expired:
            return Verdict(expired, reason)
        if self._forcibly_enabled and disk_used > self._nearly_full:
            return Verdict(tuple(files[:1]), f"{disk_used:.0%} of the disk are used", again=True)
        return NOTHING

    def _reason(self, disk_used: float, now_ms: int) -> str:
        if self._manual_rounds:
            self._manual_rounds -= 1
            return "it has expired and deletion was asked for"
        if disk_used > self._filling:
            return f"it has expired and {disk_used:.0%} of the disk are used"
        if time.localtime(now_ms // 1000).tm_hour in self._hours:
            return "it has expired"
        return ""

    def _expired(self, files: Sequence[LogFile], now_ms: int) -> tuple[LogFile, ...]:
        """The log stays in one piece: a file goes only with all before it."""
        expired = []
        for file in files[: self._batch]:
            if now_ms < file.modified_ms + self._reserved_ms:
                break
            expired.append(file)
        return tuple(expired)


def _ratio(percent: int, bounds: tuple[int, int]) -> float:
    low, high = bounds
    return min(max(percent, low), high) / 100
