"""The timer wheel: for each second, which units of the timer log are due in it."""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cosmodrome.store.mapped_file import data_ranges, sync_directory

DAY_SECONDS = 86_400
WHEEL_DAYS = 7
# Twice the days that a timer may lie ahead: a broker that was down for a week still finds every slot its own.
SLOTS = 2 * WHEEL_DAYS * DAY_SECONDS
TURN_MS = SLOTS * 1_000

_SLOT = struct.Struct(">qqqiI")  # second | first unit | last unit | units | crc of all before
_CRC_AT = _SLOT.size - 4
_EMPTY_SLOT = bytes(_SLOT.size)
SLOT_SIZE = _SLOT.size
FILE_SIZE = SLOTS * SLOT_SIZE


class Slot(NamedTuple):
    """The units due in one second: they form a chain in the timer log, from the last back to the first."""

    first: int
    last: int
    units: int


class WheelDamaged(Exception):
    """A slot does not match its checksum, or lies where it cannot belong."""


class TimerWheel:
    """Second → slot, at `second % SLOTS`; a slot that speaks of another second is empty.

        | second 8 | first position 8 | last position 8 | units 4 | crc 4 |        38 MB, most of them holes

    Apache's brokers leave the crc as it is, whatever they write before it. So `agree` comes before everything else.

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
        """What is due in this second, or None; WheelDamaged if the slot is."""
        self.reads += 1
        if self._map is None:
            return None
        second = time_ms // 1_000
        at = second % SLOTS * SLOT_SIZE
        found, first, last, count, crc = _SLOT.unpack_from(self._map, at)
        if found != second or last < 0 or not second:
            return None
        if crc != zlib.crc32(self._map[at : at + _CRC_AT]):
            raise WheelDamaged(f"{self._path} is damaged: the slot of second {second} does not match its checksum")
        return Slot(first, last, count)

    def next_filled(self, time_ms: int, until_ms: int) -> int:
        """The first second of [time, until) in which something is due, or `until`; WheelDamaged if a slot before it
        lies where it cannot belong."""
        second, until = time_ms // 1_000, until_ms // 1_000
        while self._map is not None and second < until:
            index = second % SLOTS
            count = min(until - second, SLOTS - index)
            self.reads += count
            entries = self._map[index * SLOT_SIZE : (index + count) * SLOT_SIZE]
            for wanted, (found, _, last, _, _) in enumerate(_SLOT.iter_unpack(entries), second):
                if found == wanted and last >= 0:
                    return wanted * 1_000
                if found and (found - wanted) % SLOTS:
                    raise WheelDamaged(f"{self._path} is damaged: second {found} lies in the slot of {wanted}")
            second += count
        return until_ms

    def agree(self, units: Iterable[tuple[int, int, int]], read_ms: int, log_start: int, sure_end: int) -> int:
        """Let every slot from `read_ms` on say what the units of the log say: (time, position, 1 or -1) in their order.

        Return how many slots were wrong that speak of units below `sure_end` only: damage, and not what a kill left.
        """
        firsts, lasts, counts = (array(code, bytes(SLOTS * size)) for code, size in (("q", 8), ("q", 8), ("i", 4)))
        for time_ms, position, count in units:
            index = time_ms // 1_000 % SLOTS
            if not lasts[index]:
                firsts[index] = position
            lasts[index] = position + 1
            counts[index] += count
        wrong = self._clear_wrong(read_ms // 1_000, log_start, firsts, lasts, counts)
        damaged = 0
        begin = read_ms // 1_000
        for index, last in enumerate(lasts):
            if last:
                second = begin + (index - begin) % SLOTS
                self.put(second * 1_000, Slot(firsts[index], last - 1, counts[index]))
                damaged += last <= sure_end
        return max(damaged, wrong)

    def _clear_wrong(
        self, begin: int, log_start: int, firsts: array[int], lasts: array[int], counts: array[int]
    ) -> int:
        """Forget what is right in `lasts`; empty the slots of which the log knows nothing, and return their number."""
        wrong = 0
        if self._map is None:
            return 0
        for low, high in data_ranges(self._fd, 0):
            low, high = low - low % SLOT_SIZE, high - high % SLOT_SIZE
            entries = _SLOT.iter_unpack(memoryview(self._map)[low:high])
            for index, (second, first, last, count, crc) in enumerate(entries, low // SLOT_SIZE):
                if not second and last == first == count == 0:
                    continue
                if second % SLOTS == index and second < begin:
                    continue
                if lasts[index] and second == begin + (index - begin) % SLOTS and last == lasts[index] - 1:
                    at = index * SLOT_SIZE
                    if (first, count) == (firsts[index], counts[index]) or first < log_start:
                        if crc != zlib.crc32(self._map[at : at + _CRC_AT]):
                            self.put(second * 1_000, Slot(first, last, count))  # by Apache's broker
                        lasts[index] = 0
                elif not lasts[index] and last >= 0:
                    os.pwrite(self._fd, _EMPTY_SLOT, index * SLOT_SIZE)
                    self.dirty = True
                    wrong += 1
        return wrong

    def put(self, time_ms: int, slot: Slot) -> None:
        """Let `slot` be what is due in this second. OSError when the disk has no room; then nothing has changed."""
        if self._map is None:
            self._create()
        second = time_ms // 1_000
        data = bytearray(_SLOT.pack(second, slot.first, slot.last, slot.units, 0))
        data[_CRC_AT:] = zlib.crc32(data[:_CRC_AT]).to_bytes(4)
        os.pwrite(self._fd, data, second % SLOTS * SLOT_SIZE)
        self.dirty = True

    def add(self, time_ms: int, position: int, units: int = 1) -> None:
        """Put one more unit behind those of a second. A unit that is already there changes nothing."""
        slot = self.find(time_ms)
        if slot is None:
            self.put(time_ms, Slot(position, position, units))
        elif slot.last < position:
            self.put(time_ms, Slot(slot.first, position, slot.units + units))

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
