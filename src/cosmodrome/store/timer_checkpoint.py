"""How far timers have been set and delivered, as of the last time someone wrote it down: `config/timercheck`."""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cosmodrome.model import DataVersion
from cosmodrome.state_file import make_folder
from cosmodrome.store.mapped_file import sync_directory

FILE_SIZE = 4096
_BODY = struct.Struct(">7q")
# Ours, in bytes that Apache's brokers leave alone. It counts only with the time it was written with.
_DELIVERED_AT = 2048
_DELIVERED = struct.Struct(">8sqqI")  # mark | read time | units delivered | crc of all before
_DELIVERED_MARK = b"COSMOTIM"


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """Everything due before `read_ms` is delivered, and so are the first `delivered` units of that second.

        | read time 8 | timer log on disk up to 8 | queue offset 8 | the master's queue offset 8 | data version 3 × 8 |

    Every message of the timer topic below `queue_offset` is in the timer log, or was delivered at once.
    """

    read_ms: int = 0
    log_end: int = 0
    queue_offset: int = 0
    delivered: int = 0
    version: DataVersion = field(default_factory=DataVersion)

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """The one on disk, or None."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        if len(data) < _BODY.size:
            return None
        data = data.ljust(FILE_SIZE, b"\0")
        read_ms, log_end, queue_offset, _, state, timestamp, counter = _BODY.unpack_from(data)
        mark, written_with, delivered, crc = _DELIVERED.unpack_from(data, _DELIVERED_AT)
        sound = mark == _DELIVERED_MARK and crc == _crc(data) and written_with == read_ms
        version = DataVersion(timestamp, counter, state)
        return cls(read_ms, log_end, queue_offset, delivered if sound else 0, version)

    def encoded(self) -> bytes:
        """The part that Apache's brokers know: also what a replica asks for."""
        version = self.version
        return _BODY.pack(
            self.read_ms,
            self.log_end,
            self.queue_offset,
            self.queue_offset,  # of the master, which is this broker
            version.state_version,
            version.timestamp,
            version.counter,
        )

    def save(self, path: Path) -> None:
        """Write it over the old one: each part lies within one sector, so it is the old or the new one."""
        data = bytearray(FILE_SIZE)
        data[: _BODY.size] = self.encoded()
        _DELIVERED.pack_into(data, _DELIVERED_AT, _DELIVERED_MARK, self.read_ms, self.delivered, 0)
        struct.pack_into(">I", data, _DELIVERED_AT + _DELIVERED.size - 4, _crc(data))
        is_new = not path.exists()
        make_folder(path.parent)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.pwrite(fd, data, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        if is_new:
            sync_directory(path.parent)


def _crc(data: bytes | bytearray) -> int:
    return zlib.crc32(data[_DELIVERED_AT : _DELIVERED_AT + _DELIVERED.size - 4])
