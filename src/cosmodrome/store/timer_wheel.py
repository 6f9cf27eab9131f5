"""The timer wheel: for each second, which units of the timer log are due in it."""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from cosmodrome import disk
from cosmodrome.disk import data_ranges
from cosmodrome.mapped_file import sync_directory

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
_SLOTS_AT_ONCE = 4_096
_NUMBER_SIZE = 8
_NO_NUMBERS = bytes(_SLOTS_AT_ONCE * _NUMBER_SIZE)


# A number for each slot, by its index.
SlotNumbers = memoryview


def numbers_of_slots() -> SlotNumbers:
    """Return a zero for each slot. Memory is taken with the pages that are written: few seconds have timers."""
    return memoryview(mmap.mmap(-1, SLOTS * _NUMBER_SIZE)).cast("q")


def filled(numbers: SlotNumbers) -> Iterator[tuple[int, int]]:
    """Yield (index, number) of the numbers that are not 0. Runs of zeros cost little."""
    for begin in range(0, SLOTS, _SLOTS_AT_ONCE):
        part = numbers[begin : begin + _SLOTS_AT_ONCE]
        if part.tobytes() != _NO_NUMBERS[: part.nbytes]:
            yield from ((index, number) for index, number in enumerate(part, begin) if number)


class Slot(NamedTuple):
    """The units due in one second: they form a chain in the timer log, from the last back to the first."""

    first: int
    last: int
    units: int


class WheelDamaged(Exception):
    """A slot does not match its checksum, or lies where it cannot belong."""


class WheelFull(Exception):
    """The disk has no room for the slots of the units from `position` on."""

    def __init__(self, text: str, position: int) -> None:
        super().__init__(f"{text}: none from unit {position} of the timer log on")
        self.position = position


class TimerWheel:
    """Second → slot, at `second % SLOTS`; a slot that speaks of another second is empty.

        | second 8 | first position 8 | last position 8 | units 4 | crc 4 |        38 MB, most of them holes

    Apache's brokers leave the crc as it is, whatever they write before it. So `agree` comes before everything else.

    The file is made with the first slot that is filled. It is read and written by calls that can say that the disk is
    full, where touching a hole of a mapped file would kill the process. Times are in milliseconds.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self.reads = 0
        self.dirty = False
        self.lacks_units = False  # a pending slot speaks of units before the log's beginning

    @property
    def exists(self) -> bool:
        return self._fd >= 0

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
        if not self.exists:
            return None
        second = time_ms // 1_000
        data = self._read(second % SLOTS, 1)
        found, first, last, count, crc = _SLOT.unpack(data)
        if found != second or last < 0 or not second:
            return None
        if crc != zlib.crc32(data[:_CRC_AT]):
            raise WheelDamaged(f"{self._path} is damaged: the slot of second {second} does not match its checksum")
        return Slot(first, last, count)

    def next_filled(self, time_ms: int, until_ms: int) -> int:
        """The first second of [time, until) in which something is due, or `until`; WheelDamaged if a slot before it
        lies where it cannot belong."""
        second, until = time_ms // 1_000, until_ms // 1_000
        while self.exists and second < until:
            index = second % SLOTS
            count = min(until - second, SLOTS - index, _SLOTS_AT_ONCE)
            self.reads += count
            entries = self._read(index, count)
            for wanted, (found, _, last, _, _) in enumerate(_SLOT.iter_unpack(entries), second):
                if found == wanted and last >= 0:
                    return wanted * 1_000
                if found and (found - wanted) % SLOTS:
                    raise WheelDamaged(f"{self._path} is damaged: second {found} lies in the slot of {wanted}")
            second += count
        return until_ms

    def _read(self, index: int, count: int) -> bytes:
        """The bytes of slots that lie side by side."""
        return os.pread(self._fd, count * SLOT_SIZE, index * SLOT_SIZE)

    def _parts(self) -> Iterator[tuple[int, bytes]]:
        """Every part of the file that is no hole: the index of its first slot, and its bytes."""
        for low, high in data_ranges(self._fd, 0) if self.exists else ():
            for index in range(low // SLOT_SIZE, high // SLOT_SIZE, _SLOTS_AT_ONCE):
                yield index, self._read(index, min(high // SLOT_SIZE - index, _SLOTS_AT_ONCE))

    def agree(self, units: Iterable[tuple[int, int, int]], read_ms: int, log_start: int, sure_end: int) -> int:
        """Let every slot from `read_ms` on say what the units of the log say: (time, position, 1 or -1) in their order.

        Return how many slots were wrong that speak of units below `sure_end` only: damage, and not what a kill left.
        WheelFull says from which unit on there is no room.
        """
        firsts, lasts, counts = numbers_of_slots(), numbers_of_slots(), numbers_of_slots()
        for time_ms, position, count in units:
            index = time_ms // 1_000 % SLOTS
            if not lasts[index]:
                firsts[index] = position
            lasts[index] = position + 1
            counts[index] += count
        wrong = self._clear_wrong(read_ms // 1_000, log_start, firsts, lasts, counts)
        damaged = 0
        without_room: list[int] = []
        begin = read_ms // 1_000
        for index, last in filled(lasts):
            second = begin + (index - begin) % SLOTS
            try:
                self.put(second * 1_000, Slot(firsts[index], last - 1, counts[index]))
            except OSError as error:
                if error.errno not in disk.NO_ROOM:
                    raise
                without_room.append(firsts[index])
            damaged += last <= sure_end
        if without_room:
            raise WheelFull(f"{self._path} has no room for all slots", min(without_room))
        return max(damaged, wrong)

    def _clear_wrong(
        self, begin: int, log_start: int, firsts: SlotNumbers, lasts: SlotNumbers, counts: SlotNumbers
    ) -> int:
        """Forget what is right in `lasts`; empty the slots of which the log knows nothing, and return their number."""
        wrong = 0
        for begin_at, data in self._parts():
            for index, (second, first, last, count, crc) in enumerate(_SLOT.iter_unpack(data), begin_at):
                if not second and last == first == count == 0:
                    continue
                if second % SLOTS == index and second < begin:
                    continue
                if lasts[index] and second == begin + (index - begin) % SLOTS and last == lasts[index] - 1:
                    at = (index - begin_at) * SLOT_SIZE
                    self.lacks_units |= first < log_start
                    if (first, count) == (firsts[index], counts[index]) or first < log_start:
                        if crc != zlib.crc32(data[at : at + _CRC_AT]):
                            self.put(second * 1_000, Slot(first, last, count))  # by Apache's broker
                        lasts[index] = 0
                elif not lasts[index] and last >= 0:
                    os.pwrite(self._fd, _EMPTY_SLOT, index * SLOT_SIZE)
                    self.dirty = True
                    wrong += 1
        return wrong

    def put(self, time_ms: int, slot: Slot) -> None:
        """Let `slot` be what is due in this second. OSError when the disk has no room; then nothing has changed."""
        if not self.exists:
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
                disk.sync_data(self._fd)
            except OSError:
                self.dirty = True
                raise

    def close(self) -> None:
        if self.exists:
            os.close(self._fd)
            self._fd = -1

    def _create(self) -> None:
        fd = disk.open_file(self._path, os.O_RDWR | os.O_CREAT)
        try:
            os.ftruncate(fd, FILE_SIZE)
            disk.sync_new(fd)
        finally:
            os.close(fd)
        sync_directory(self._path.parent)
        self._open()

    def _open(self) -> None:
        self._fd = disk.open_file(self._path, os.O_RDWR)


def raw_slots(path: Path, view: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """Number, second, first and last unit, and the count of units, of every slot of a file that is not zero."""
    fd = disk.open_file(path, os.O_RDONLY)
    try:
        ranges = data_ranges(fd, 0)
    finally:
        os.close(fd)
    for low, high in ranges:
        low, high = low - low % SLOT_SIZE, high - high % SLOT_SIZE
        for index, (second, first, last, count, _) in enumerate(_SLOT.iter_unpack(view[low:high]), low // SLOT_SIZE):
            if second or first or last or count:
                yield index, second, first, last, count
