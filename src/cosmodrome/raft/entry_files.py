"""The files of an entry log: data and index as DLedger has them, and one file that says what they hold.

data/       entries, in files of one size; a file's name is the place of its first byte
index/      a unit of 32 bytes for each entry, at index × 32
checkpoint  the last and the committed entry, for Apache's brokers
log-state   what the log begins behind, how far it is on disk, and its members: JSON behind a CRC-32 in hexadecimal
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cosmodrome import disk
from cosmodrome.errors import ProtocolError, StoreError
from cosmodrome.mapped_file import MappedFile, list_files, remove_unsure_files, sync_directory
from cosmodrome.raft.messages import Base
from cosmodrome.raft.quorum import Membership

DATA, INDEX = "data", "index"
LOG_STATE = "log-state"
CHECKPOINT = "checkpoint"
SPARE = "spare"  # room for a small file on a full disk
SPARE_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class LogState:
    """What a log knows of itself at its next start."""

    base: Base
    synced: int  # everything up to this entry is on disk, in data and index
    committed: int
    memberships: tuple[tuple[int, Membership], ...]  # of the entries up to `synced`
    is_reset: bool = False  # the files are those of an earlier log, and to be removed

    def encode(self) -> bytes:
        base = self.base
        body = json.dumps(
            {
                "index": base.index,
                "term": base.term,
                "place": base.place,
                "members": base.members.encode().decode(),
                "synced": self.synced,
                "committed": self.committed,
                "memberships": [[index, members.encode().decode()] for index, members in self.memberships],
                "isReset": self.is_reset,
            }
        ).encode()
        return b"%08x\n%b\n" % (zlib.crc32(body), body)

    @classmethod
    def decode(cls, data: bytes) -> LogState:
        """Return the state that `encode` wrote; ProtocolError for anything else."""
        crc, _, body = data.partition(b"\n")
        body = body.removesuffix(b"\n")
        if crc != b"%08x" % zlib.crc32(body):
            raise ProtocolError("its checksum does not match")
        fields = json.loads(body)
        members = Membership.decode(fields["members"].encode())
        return cls(
            Base(fields["index"], fields["term"], members, fields["place"]),
            fields["synced"],
            fields["committed"],
            tuple((index, Membership.decode(one.encode())) for index, one in fields["memberships"]),
            fields["isReset"],
        )


class EntryFiles(Protocol):
    """The folder of an entry log, as far as the log needs it."""

    def open_all(self, kind: str, size: int) -> list[MappedFile]:
        """Return the files of data or index in order, open."""
        ...

    def create(self, kind: str, start: int, size: int) -> MappedFile:
        """Return a new file of zeros that no crash can lose; OSError without room."""
        ...

    def remove(self, kind: str, files: list[MappedFile]) -> None:
        """Remove files for good, one after the other."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return what a small file holds, or None if there is none."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Replace a small file: once this returns, no crash brings the old one back."""
        ...

    def close(self) -> None: ...


class DiskFiles:
    """The folder of one member, for one process."""

    def __init__(self, folder: Path) -> None:
        """Make the folder if it is missing, and lock it; StoreError if another process has it."""
        self.folder = folder
        for kind in (DATA, INDEX):
            disk.make_folders(folder / kind)
        for made in (folder, folder.parent):
            sync_directory(made)
        self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise StoreError(f"{folder} is in use by another broker; give each member a folder of its own") from error
        self._keep_spare()

    def open_all(self, kind: str, size: int) -> list[MappedFile]:
        if kind == INDEX:
            remove_unsure_files(self.folder / kind, size)
        files = list_files(self.folder / kind, size)
        for file in files:
            file.open()
        return files

    def create(self, kind: str, start: int, size: int) -> MappedFile:
        return MappedFile.create(self.folder / kind, start, size, durable=True)

    def remove(self, kind: str, files: list[MappedFile]) -> None:
        for file in files:
            file.delete()
            sync_directory(self.folder / kind)

    def read(self, name: str) -> bytes | None:
        try:
            return disk.read_file(self.folder / name)
        except FileNotFoundError:
            return None

    def replace(self, name: str, data: bytes) -> None:
        aside = self.folder / f"{name}.tmp"
        try:
            self._write(aside, data)
        except OSError as error:
            if error.errno not in disk.NO_ROOM:
                raise
            (self.folder / SPARE).unlink(missing_ok=True)  # a full disk must not keep old files from going
            self._write(aside, data)
        os.replace(aside, self.folder / name)
        sync_directory(self.folder)

    def _write(self, aside: Path, data: bytes) -> None:
        fd = disk.open_file(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            disk.write_all(fd, data, 0)
            disk.sync_new(fd)
        finally:
            os.close(fd)

    def _keep_spare(self) -> None:
        """Take room for a small file, which is needed when there is no more."""
        with suppress(OSError):
            self._write(self.folder / SPARE, bytes(SPARE_BYTES))

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._lock)
