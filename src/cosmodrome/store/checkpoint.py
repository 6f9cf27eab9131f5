"""How far the store was safely on disk, as of the last time someone wrote it down."""

from __future__ import annotations

import logging
import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from cosmodrome import disk

log = logging.getLogger(__name__)

FILE_SIZE = 4096
_TIMES = struct.Struct(">qqq")
# Ours, in bytes that Apache's brokers leave alone. Each counts only with the times it was written with: any broker that
# appended since has changed those.
# Where the log ended at a clean exit, so that the next start need not walk the last file to find out.
_END_AT = 2048
_END = struct.Struct(">8sqqqqqI")  # mark | log end | last record | the three times | crc of all before
_END_MARK = b"COSMOEND"
# What the times say, as offsets: a clock that was set back, or many records of one millisecond, make times unsure.
_SAFE_AT = 2560
_SAFE = struct.Struct(">8sqqqqqqI")  # mark | the three offsets | the three times | crc of all before
_SAFE_MARK = b"COSMOSAF"

SAFETY_MS = 3_000


class Safe(NamedTuple):
    """What is on disk for sure: the log and its queues below `log`, full index files whose last entry is not behind
    `indexed`. No record below `keyless` has a key."""

    log: int
    indexed: int
    keyless: int


class Checkpoint:
    """Store times of the last record that is on disk in the log, the queues and the index.

        | log 8 | queues 8 | index 8 | … 4096 bytes

    Written only after the files it speaks for are synced, so it may be behind but never ahead.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.log_timestamp = self.queues_timestamp = self.index_timestamp = 0
        self.clean_end: tuple[int, int] | None = None  # where the log ends, and where its last record begins
        self.safe: Safe | None = None
        self.damage = ""  # what of it does not match its checksum; a start then reads more of the log
        if path.exists():
            self._load(disk.read_file(path).ljust(FILE_SIZE, b"\0"))
        self._saved: Safe | None = self.safe  # what is on disk

    def _load(self, data: bytes) -> None:
        parts = (("the log's end", _END_AT, _END), ("what is on disk", _SAFE_AT, _SAFE))
        wrong = [what for what, at, shape in parts if not _is_sealed(data[at : at + shape.size])]
        self.damage = f"what it says about {' and '.join(wrong)} does not match its checksum" if wrong else ""
        times: tuple[int, int, int] = _TIMES.unpack_from(data)
        mark, end, last, *written_with, crc = _END.unpack_from(data, _END_AT)
        sound = mark == _END_MARK and crc == _crc(data, _END_AT, _END) and tuple(written_with) == times
        self.clean_end = (end, last) if sound else None
        mark, log, indexed, keyless, *written_with, crc = _SAFE.unpack_from(data, _SAFE_AT)
        sound = mark == _SAFE_MARK and crc == _crc(data, _SAFE_AT, _SAFE)
        self.safe = Safe(log, indexed, keyless) if sound and tuple(written_with) == times else None
        if sound and _may_be_rot(tuple(written_with), times):
            self.damage = self.damage or "one bit of its times is not what it was"
            times = min(times[0], written_with[0]), min(times[1], written_with[1]), min(times[2], written_with[2])
        self.log_timestamp, self.queues_timestamp, self.index_timestamp = times

    @property
    def safe_timestamp(self) -> int:
        """Every record stored before this is in the log and in its queue, on disk."""
        return max(min(self.log_timestamp, self.queues_timestamp) - SAFETY_MS, 0)

    def forget(self) -> None:
        """Nothing is on disk for sure."""
        self.log_timestamp = self.queues_timestamp = self.index_timestamp = 0
        self.clean_end = self.safe = None

    def forget_derived(self) -> None:
        """Nothing but the log is on disk for sure. That must not be forgotten: what is damaged below its end would be
        taken for a part that the disk never got."""
        end = max(self.safe.log if self.safe else 0, self.clean_end[0] if self.clean_end else 0)
        self.forget()
        self.clean_end = (end, end) if end else None  # no record begins at its end: no start takes it for a clean one

    def save(self) -> None:
        """Write it over the old one: each part lies within one sector, so it is the old or the new one."""
        data = bytearray(FILE_SIZE)
        times = (self.log_timestamp, self.queues_timestamp, self.index_timestamp)
        _TIMES.pack_into(data, 0, *times)
        if self.clean_end:
            _END.pack_into(data, _END_AT, _END_MARK, *self.clean_end, *times, 0)
            struct.pack_into(">I", data, _END_AT + _END.size - 4, _crc(data, _END_AT, _END))
        if self.safe:
            _SAFE.pack_into(data, _SAFE_AT, _SAFE_MARK, *self.safe, *times, 0)
            struct.pack_into(">I", data, _SAFE_AT + _SAFE.size - 4, _crc(data, _SAFE_AT, _SAFE))
        fd = disk.open_file(self._path, os.O_RDWR | os.O_CREAT)
        try:
            disk.write_all(fd, data, 0)
            disk.sync(fd)
        finally:
            os.close(fd)
        self._saved = self.safe

    def save_if_room(self) -> None:
        """As `save`, but where the disk has no room, let the old one stand: it says less, but nothing wrong."""
        try:
            self.save()
        except OSError as error:
            is_ahead = self._saved is not None and (self.safe is None or self._saved.log > self.safe.log)
            if error.errno not in disk.NO_ROOM or is_ahead:
                raise
            log.warning("%s is not written: %s; after a crash more of the log is read", self._path, error)


def _may_be_rot(written_with: tuple[int, ...], times: tuple[int, ...]) -> bool:
    """Whether one flipped bit lies between the times and those that our part was written with.

    No checksum speaks of the times; another broker that appended changes more of them.
    """
    return sum((one ^ other).bit_count() for one, other in zip(written_with, times, strict=True)) == 1


def _crc(data: bytes | bytearray, at: int, shape: struct.Struct) -> int:
    return zlib.crc32(data[at : at + shape.size - 4])


def _is_sealed(part: bytes) -> bool:
    """Whether the last 4 bytes are the checksum of those before; nothing at all is what other brokers leave there."""
    return not any(part) or zlib.crc32(part[:-4]) == int.from_bytes(part[-4:])
