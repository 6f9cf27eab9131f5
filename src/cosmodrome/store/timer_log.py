"""The timer log: one unit for every timer that was set, in the order they were set."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from cosmodrome import disk
from cosmodrome.mapped_file import MappedFile, delete_for_good, find_ends, list_files
from cosmodrome.wire.record import BLANK_MAGIC

_UNIT = struct.Struct(">iqiqiqiiII")
UNIT_SIZE = _UNIT.size
# Ours, in 8 bytes that Apache's brokers write as 0 and never read.
_CRC_AT = UNIT_SIZE - 8
_CRC = struct.Struct(">II")  # mark | crc of all before both
_CRC_MARK = 0x43524331  # CRC1
_BLANK = struct.Struct(">iqI")  # bytes left in the file | 0 | magic
PREPARE_BYTES = 64 * 1024
NO_UNIT = -1

ROLLED = 2
DELETES = 4
_PLAIN = 1
_KNOWN_BITS = 0xF


class Unit(NamedTuple):
    """One timer: the record it belongs to, and the unit before it that is due in the same second."""

    previous: int
    magic: int
    set_at_ms: int
    due_ms: int
    physical_offset: int
    size: int
    topic_hash: int
    is_sealed: bool = False  # it has a checksum, and matches it

    @property
    def is_rolled(self) -> bool:
        """Its second is not that of delivery, but one at which it is put behind the others again."""
        return bool(self.magic & ROLLED)

    @property
    def is_deletion(self) -> bool:
        """It takes another timer back."""
        return bool(self.magic & DELETES)


class TimerLog:
    """Files of units, addressed by their position in all of them.

        | 52 4 | previous 8 | magic 4 | set at 8 | due, from then 4 | record offset 8 | record size 4 |
        | hash of the topic 4 | CRC1 4 | crc of all before 4 |        the last two are 0 in units of Apache's

    A file that has no room for a unit and a blank mark ends with that mark. Bytes behind `end` are zero.
    """

    def __init__(self, directory: Path, file_size: int) -> None:
        self._directory = directory
        self._file_size = file_size
        self._files = list_files(directory, file_size)
        for file in self._files:
            file.open()
            file.position = file_size
        find_ends(self._files)
        self.end = self._files[-1].end if self._files else 0
        self.reads = 0

    @property
    def start(self) -> int:
        return self._files[0].start if self._files else 0

    def append(self, unit: Unit) -> int:
        """Put one unit behind the last; returns its position. OSError when the disk has no room for it."""
        file = self._files[-1] if self._files else self._create(0)
        if file.position + UNIT_SIZE + _BLANK.size > file.size:
            file = self._roll(file)
        position = file.position
        end = position + UNIT_SIZE
        if end > file.prepared:
            file.prepare(end, PREPARE_BYTES)
        file.view[position:end] = _packed(unit)
        file.position = end
        file.dirty = True
        self.end = file.end
        return file.start + position

    def find(self, position: int) -> Unit | None:
        """The unit at a position, or None when there is none."""
        self.reads += 1
        if not self._files or not self.start <= position < self.end:
            return None
        file = self._files[(position - self.start) // self._file_size]
        at = position - file.start
        return _unit_at(file, at) if at + UNIT_SIZE <= file.position else None

    def chain(self, last: int) -> Iterator[tuple[int, Unit]]:
        """The units of one slot with their positions, from the last back to the first that is still here."""
        position = last
        while (unit := self.find(position)) is not None:
            yield position, unit
            if unit.previous >= position:  # only damage makes a chain turn round
                return
            position = unit.previous

    def units(self, begin: int) -> Iterator[tuple[int, Unit]]:
        """The units from `begin` on, in order, with their positions; ends at the first bytes that are not a unit."""
        for file in self._files:
            if file.end <= begin:
                continue
            at = max(begin - file.start, 0)
            at -= at % UNIT_SIZE
            while at + UNIT_SIZE <= file.position:
                unit = _unit_at(file, at)
                if unit is None:
                    if _is_blank(file, at):
                        break
                    return
                yield file.start + at, unit
                at += UNIT_SIZE

    def damage(self, is_true: Callable[[Unit], bool]) -> str | None:
        """Read every unit, and say where the first one is that is none; None if all are sound.

        A unit of Apache's has no checksum: `is_true` asks the record it speaks of, and then it gets one.
        """
        for file in self._files:
            at = 0
            while at + UNIT_SIZE <= file.position:
                unit = _unit_at(file, at)
                if unit is None and file is not self._files[-1] and _is_blank(file, at) and _is_last_place(file, at):
                    break
                if unit is None or not (unit.is_sealed or is_true(unit)):
                    return f"{file.path} is damaged: no timer is at byte {at}, or it is not that of its message"
                if not unit.is_sealed:
                    file.view[at : at + UNIT_SIZE] = _packed(unit)
                    file.dirty = True
                at += UNIT_SIZE
        return None

    def recover(self, begin: int) -> None:
        """Find the end, given that everything before `begin` was once on disk, and cut off what is behind it."""
        end = max(min(begin, self.end), self.start)
        end -= (end % self._file_size) % UNIT_SIZE
        for position, _ in self.units(end):
            end = position + UNIT_SIZE
        self.truncate(end)

    def truncate(self, end: int) -> None:
        """Drop everything from `end` on; what is left of the last file is zero."""
        while len(self._files) > 1 and self._files[-1].start >= end:
            self._files.pop().delete()
        if self._files:
            file = self._files[-1]
            file.write_from(max(end - file.start, 0))
            if file.zero_tail():
                file.dirty = True
        self.end = self._files[-1].end if self._files else 0

    def last(self) -> Unit | None:
        """The unit behind which the next one goes."""
        if not self._files:
            return None
        file = self._files[-1]
        if file.position >= UNIT_SIZE:
            return _unit_at(file, file.position - UNIT_SIZE)
        return _last_of(self._files[-2]) if len(self._files) > 1 else None

    def take_expired(self, log_start: int) -> list[MappedFile]:
        """Forget the files all of whose records are gone from the commit log; whoever takes them deletes them."""
        expired = []
        while len(self._files) > 1:
            last = _last_of(self._files[0])
            if last is not None and last.physical_offset >= log_start:
                break
            expired.append(self._files.pop(0))
        return expired

    def sync(self) -> None:
        """Return once every unit set before is on disk. A thread may do this while others are set."""
        for file in [file for file in self._files if file.dirty]:
            file.dirty = False
            try:
                file.sync()
            except OSError:
                file.dirty = True
                raise

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _roll(self, file: MappedFile) -> MappedFile:
        following = MappedFile.create(self._directory, file.start + file.size, file.size, durable=True)
        if file.position < file.size:
            file.prepare(file.position + _BLANK.size, 1)
            _BLANK.pack_into(file.view, file.position, file.size - file.position, 0, BLANK_MAGIC)
        file.position = file.size
        file.dirty = True
        return self._adopt(following)

    def _create(self, start: int) -> MappedFile:
        disk.make_folders(self._directory)
        return self._adopt(MappedFile.create(self._directory, start, self._file_size, durable=True))

    def _adopt(self, file: MappedFile) -> MappedFile:
        file.write_from(0)
        self._files.append(file)
        return file


def delete_files(files: list[MappedFile]) -> None:
    for file in files:
        delete_for_good(file)


def _packed(unit: Unit) -> bytes:
    data = bytearray(UNIT_SIZE)
    _UNIT.pack_into(
        data,
        0,
        UNIT_SIZE,
        unit.previous,
        unit.magic | _PLAIN,
        unit.set_at_ms,
        unit.due_ms - unit.set_at_ms,
        unit.physical_offset,
        unit.size,
        unit.topic_hash,
        _CRC_MARK,
        0,
    )
    _CRC.pack_into(data, _CRC_AT, _CRC_MARK, zlib.crc32(data[:_CRC_AT]))
    return bytes(data)


def _unit_at(file: MappedFile, at: int) -> Unit | None:
    return unit_at(file.view, at)


def unit_at(view: memoryview, at: int) -> Unit | None:
    """The unit that lies there, or None if there is none or it does not match its checksum."""
    size, previous, magic, set_at_ms, delay_ms, offset, record_size, topic_hash, mark, crc = _UNIT.unpack_from(view, at)
    if size != UNIT_SIZE or magic & ~_KNOWN_BITS:
        return None
    if mark or crc:
        if mark != _CRC_MARK or crc != zlib.crc32(view[at : at + _CRC_AT]):
            return None
    elif delay_ms < 0 or set_at_ms < 0 or offset < 0:
        return None
    return Unit(previous, magic, set_at_ms, set_at_ms + delay_ms, offset, record_size, topic_hash, mark == _CRC_MARK)


def _is_blank(file: MappedFile, at: int) -> bool:
    return bool(_BLANK.unpack_from(file.view, at)[2] == BLANK_MAGIC)


def _is_last_place(file: MappedFile, at: int) -> bool:
    return is_last_place(at, file.size)


def is_last_place(at: int, file_size: int) -> bool:
    """Whether no unit lies there, but the blank mark of a full file."""
    return at + UNIT_SIZE + _BLANK.size > file_size


def _last_of(file: MappedFile) -> Unit | None:
    """The last unit of a full file."""
    at = (file.size - _BLANK.size) // UNIT_SIZE * UNIT_SIZE - UNIT_SIZE
    return _unit_at(file, at)
