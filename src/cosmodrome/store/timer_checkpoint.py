"""How far timers have been set and delivered, as of the last time someone wrote it down: `config/timercheck`."""

from __future__ import annotations

import dataclasses
import logging
import os
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from cosmodrome import disk
from cosmodrome.errors import ProtocolError
from cosmodrome.mapped_file import sync_directory
from cosmodrome.model import DataVersion
from cosmodrome.state_file import make_folder

FILE_SIZE = 4096
_BODY = struct.Struct(">7q")
# Ours, in bytes that Apache's brokers leave alone. It counts only with the time it was written with.
_DELIVERED_AT = 2048
_DELIVERED = struct.Struct(">8sqqI")  # mark | read time | units delivered | crc of all before
_DELIVERED_MARK = b"COSMOTIM"
# All of it once more, for Apache's part has no checksum. Where they differ, an Apache broker wrote since, or it rotted.
_COPY_AT = 2560
_COPY = struct.Struct(">8s56sqI")  # mark | Apache's part | units delivered | crc of all before
_COPY_MARK = b"COSMOTCP"
_SECOND_MS = 1_000

log = logging.getLogger(__name__)


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
    def load(cls, path: Path) -> TimerCheckpoint | None:
        """The one on disk, or None. What is rotten is mended from its copy, or else from `.bak`, which may be older."""
        checkpoint, problems = cls.look(path)
        for problem in problems:
            log.error("%s/%s", path.parent, problem)
        return checkpoint

    @classmethod
    def look(cls, path: Path) -> tuple[TimerCheckpoint | None, list[str]]:
        """What `load` returns, and what is wrong with the file and its `.bak`."""
        found, what = cls._read(path)
        backup, what_else = cls._read(_backup(path))
        problems = [f"{path.name} is damaged: {what}"] if what else []
        if what_else:
            problems.append(f"{_backup(path).name} is damaged: {what_else}")
        if found is not None and found.is_sure:
            return found.checkpoint, problems
        if backup is not None and backup.is_sure and (found is None or found.differs_from(backup)):
            problems.append(f"{path.name}: its .bak is taken instead, timers of the last moments may come again")
            return backup.checkpoint, problems
        return found.checkpoint if found is not None else None, problems

    @classmethod
    def _read(cls, path: Path) -> tuple[_Found | None, str]:
        """What a file says, and what is wrong with it."""
        try:
            data = disk.read_file(path)
        except FileNotFoundError:
            return None, ""
        if len(data) < _BODY.size or not any(data):
            return None, "it is empty, or cut short"
        data = data.ljust(FILE_SIZE, b"\0")
        found = cls._decoded(data[: _BODY.size])
        mark, body, delivered, crc = _COPY.unpack_from(data, _COPY_AT)
        if mark == _COPY_MARK and crc == _crc(data, _COPY_AT, _COPY):
            copy = dataclasses.replace(cls._decoded(body), delivered=delivered)
            part = data[_DELIVERED_AT : _DELIVERED_AT + _DELIVERED.size]
            is_rotten = any(part) and int.from_bytes(part[-4:]) != _crc(data, _DELIVERED_AT, _DELIVERED)
            what = "what it says about delivered timers does not match its checksum" if is_rotten else ""
            if found._follows(copy):
                return _Found(found, True), what
            same = body == data[: _BODY.size]
            return _Found(copy, True), what if same else "its first bytes are not those of their copy, which is taken"
        what = "the copy in it does not match its checksum" if any(data[_COPY_AT : _COPY_AT + _COPY.size]) else ""
        mark, written_with, delivered, crc = _DELIVERED.unpack_from(data, _DELIVERED_AT)
        if mark == _DELIVERED_MARK and crc == _crc(data, _DELIVERED_AT, _DELIVERED) and written_with == found.read_ms:
            found = dataclasses.replace(found, delivered=delivered)
        return (_Found(found, False), what) if found._is_plausible else (None, "it makes no sense")

    @classmethod
    def _decoded(cls, body: bytes) -> Self:
        read_ms, log_end, queue_offset, _, state, timestamp, counter = _BODY.unpack(body)
        return cls(read_ms, log_end, queue_offset, version=DataVersion(timestamp, counter, state))

    @classmethod
    def of_master(cls, body: bytes) -> Self:
        """Return the checkpoint in a master's answer to its slave; ProtocolError if that is none."""
        if len(body) < _BODY.size:
            raise ProtocolError(f"a timer checkpoint has {_BODY.size} bytes, not {len(body)}")
        found = cls._decoded(body[: _BODY.size])
        return dataclasses.replace(found, read_ms=found.read_ms - found.read_ms % _SECOND_MS)

    @property
    def _is_plausible(self) -> bool:
        """No single flipped bit leaves a time a whole second."""
        return self.read_ms > 0 and self.read_ms % _SECOND_MS == 0 and min(self.log_end, self.queue_offset) >= 0

    def _follows(self, copy: TimerCheckpoint) -> bool:
        """Whether an Apache broker, which leaves the copy alone, wrote this later: its time always moves."""
        moved = self.read_ms > copy.read_ms and self._is_plausible
        return moved and self.log_end >= copy.log_end and self.queue_offset >= copy.queue_offset

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
        """Write it over the old one and over the copy beside it, one after the other: each part lies within one sector,
        so it is the old or the new one."""
        data = bytearray(FILE_SIZE)
        body = self.encoded()
        data[: _BODY.size] = body
        _DELIVERED.pack_into(data, _DELIVERED_AT, _DELIVERED_MARK, self.read_ms, self.delivered, 0)
        _seal(data, _DELIVERED_AT, _DELIVERED)
        _COPY.pack_into(data, _COPY_AT, _COPY_MARK, body, self.delivered, 0)
        _seal(data, _COPY_AT, _COPY)
        make_folder(path.parent)
        for place in (path, _backup(path)):
            _overwrite(place, data)


class _Found(NamedTuple):
    """What a file says, and whether a checksum says so too."""

    checkpoint: TimerCheckpoint
    is_sure: bool

    def differs_from(self, other: _Found) -> bool:
        return self.checkpoint.encoded() != other.checkpoint.encoded()


def _overwrite(path: Path, data: bytearray) -> None:
    is_new = not path.exists()
    fd = disk.open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        disk.write_all(fd, data, 0)
        disk.sync(fd)
    finally:
        os.close(fd)
    if is_new:
        sync_directory(path.parent)


def _backup(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def _seal(data: bytearray, at: int, shape: struct.Struct) -> None:
    struct.pack_into(">I", data, at + shape.size - 4, _crc(data, at, shape))


def _crc(data: bytes | bytearray, at: int, shape: struct.Struct) -> int:
    return zlib.crc32(data[at : at + shape.size - 4])
