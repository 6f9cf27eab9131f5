"""The timer wheel: for each second, which units of the timer log are due in it."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cosmodrome.store.mapped_file import data_ranges, sync_directory

DAY_SECONDS = 86_400
WHEEL_DAYS = 7
# Twice the days that a timer may lie ahead: a broker that was down for a week still finds every slot its own.
SLOTS = 2 * WHEEL_DAYS * DAY_SECONDS
TURN_MS = SLOTS * 1_000

_SLOT = struct.Struct(">qqqii")  # second | first unit | last unit | units | not used
SLOT_SIZE = _SLOT.size
FILE_SIZE = SLOTS * SLOT_SIZE


class Slot(NamedTuple):
    """The units due in one second: they form a chain in the timer log, from the last back to the first."""

    first: int
    last: int
    units: int


class TimerWheel:
    """Second → slot, at `second % SLOTS`; a slot that speaks of another second is empty.

        | second 8 | first position 8 | last position 8 | units 4 | 0 4 |        38 MB, most of them holes

    The file is made with the first slot that is filled. Reading is a look into memory; writing is a write(), for it can
    say that the disk is full, where touching a hole of a mapped file would kill the process. Times are in milliseconds.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._map: mmap.mmap | None = None
        self.reads = 0
        self.dirty = False

    @property
    def exists(self) -> bool:
        return self._map is not None

    def open(self) -> bool:
        """Use the file that is there; False if there is none, or one that cannot be a wheel."""
        try:
            if self._path.stat().st_size != FILE_SIZE:
                return False
        except FileNotFoundError:
            return False
        self._open()
        return True

    def clear(self) -> None:
        """Begin with an empty wheel, whatever was there."""
        self.close()
        self._path.unlink(missing_ok=True)

    def find(self, time_ms: int) -> Slot | None:
        """What is due in this second, or None."""
        self.reads += 1
        if self._map is None:
            return None
        second = time_ms // 1_000
        found, first, last, count, _ = _SLOT.unpack_from(self._map, second % SLOTS * SLOT_SIZE)
        return Slot(first, last, count) if found == second and last >= 0 and second else None

    def next_filled(self, time_ms: int, until_ms: int) -> int:
        """The first second of [time, until) in which something is due, or `until`."""
        second, until = time_ms // 1_000, until_ms // 1_000
        while self._map is not None and second < until:
            index = second % SLOTS
            count = min(until - second, SLOTS - index)
            self.reads += count
            entries = self._map[index * SLOT_SIZE : (index + count) * SLOT_SIZE]
            for wanted, (found, _, last, _, _) in enumerate(_SLOT.iter_unpack(entries), second):
                if found == wanted and last >= 0:
                    return wanted * 1_000
            second += count
        return until_ms

    def put(self, time_ms: int, slot: Slot) -> None:
        """Let `slot` be what is due in this second. OSError when the disk has no room; then nothing has changed."""
        if self._map is None:
            self._create()
        second = time_ms // 1_000
        os.pwrite(self._fd, _SLOT.pack(second, slot.first, slot.last, slot.units, 0), second % SLOTS * SLOT_SIZE)
        self.dirty = True

    def add(self, time_ms: int, position: int, units: int = 1) -> None:
        """Put one more unit behind those of a second. A unit that is already there changes nothing."""
        slot = self.find(time_ms)
        if slot is None:
            self.put(time_ms, Slot(position, position, units))
        elif slot.last < position:
            self.put(time_ms, Slot(slot.first, position, slot.units + units))

    def slots(self) -> Iterator[tuple[int, Slot]]:
        """Every filled slot with its time, in no order of time; only the parts of the file that hold data are read."""
        if self._map is None:
            return
        for low, high in data_ranges(self._fd, 0):
            begin, end = low - low % SLOT_SIZE, high - high % SLOT_SIZE
            entries = _SLOT.iter_unpack(memoryview(self._map)[begin:end])
            for index, (second, first, last, count, _) in enumerate(entries, begin // SLOT_SIZE):
                if second and second % SLOTS == index:
                    yield second * 1_000, Slot(first, last, count)

    def sync(self) -> None:
        """Return once every slot put before is on disk. A thread may do this while others are put."""
        if self.dirty:
            self.dirty = False
            try:
                os.fdatasync(self._fd)
            except OSError:
                self.dirty = True
                raise

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
            os.close(self._fd)
            self._fd = -1

    def _create(self) -> None:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.ftruncate(fd, FILE_SIZE)
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_directory(self._path.parent)
        self._open()

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR)
        self._map = mmap.mmap(self._fd, FILE_SIZE, prot=mmap.PROT_READ)
        self._map.madvise(mmap.MADV_RANDOM)
