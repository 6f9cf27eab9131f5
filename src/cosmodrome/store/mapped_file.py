"""One file of a log, mapped into memory, and the names such files have."""

from __future__ import annotations

import mmap
import os
from itertools import pairwise
from pathlib import Path

from cosmodrome.errors import StoreError

NAME_DIGITS = 20
_PAGE = mmap.PAGESIZE
_ZEROS = memoryview(bytes(64 * 1024))


class MappedFile:
    """A file of fixed size whose bytes are memory.

    `start` is the offset of its first byte in its log and also its name; `position` is where the next byte goes,
    counted in this file. Everything between `position` and `prepared` is zero and has its place on disk: writing
    there can neither fail nor wait for the disk. A closed file keeps its numbers and may be opened again.
    """

    __slots__ = ("_fd", "dirty", "is_new", "map", "path", "position", "prepared", "size", "start", "used", "view")

    def __init__(self, path: Path, start: int, size: int) -> None:
        self.path = path
        self.start = start
        self.size = size
        self.position = 0
        self.prepared = 0
        self.map: mmap.mmap | None = None
        self.view = memoryview(b"")
        self.is_new = False
        self.dirty = False
        self.used = False
        self._fd = -1

    @classmethod
    def create(cls, directory: Path, start: int, size: int) -> MappedFile:
        """A new file of zeros. It is sparse: bytes take their place on disk when they are prepared."""
        file = cls(directory / f"{start:0{NAME_DIGITS}d}", start, size)
        fd = os.open(file.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.ftruncate(fd, size)
        finally:
            os.close(fd)
        file.is_new = True
        file.open()
        return file

    @property
    def end(self) -> int:
        """The offset behind the last byte written."""
        return self.start + self.position

    def open(self) -> mmap.mmap:
        """Map the file; StoreError unless it has exactly its size."""
        self._fd = os.open(self.path, os.O_RDWR)
        actual = os.fstat(self._fd).st_size
        if actual != self.size:
            os.close(self._fd)
            raise wrong_size(self.path, actual, self.size)
        self.map = mmap.mmap(self._fd, self.size)
        self.view = memoryview(self.map)
        return self.map

    def write_from(self, position: int) -> None:
        """Let writing go on at `position`; what lies behind it counts as unprepared."""
        self.position = self.prepared = position
        if self.map is not None and position < self.size:
            # The pages to come are holes: reading ahead into them costs milliseconds and brings zeros.
            page = position - position % _PAGE
            self.map.madvise(mmap.MADV_RANDOM, page, self.size - page)

    def prepare(self, end: int, step: int) -> None:
        """Zero up to `end`, rounded up to a multiple of `step`. OSError when the disk has no room.

        A write() takes disk space at once and can say no; touching a hole of a mapped file on a full disk kills
        the process. It also brings in the pages more cheaply than faults would.
        """
        target = min(-(-end // step) * step, self.size)
        while self.prepared < target:
            count = min(target - self.prepared, len(_ZEROS))
            self.prepared += os.pwrite(self._fd, _ZEROS[:count], self.prepared)

    def zero_tail(self) -> int:
        """Make every byte from `position` to the end of the file zero; returns how many were not."""
        changed = 0
        for begin, end in self._data_ranges(self.position):
            for at in range(begin, end, len(_ZEROS)):
                count = min(end - at, len(_ZEROS))
                stale = self.view[at : at + count]
                if stale != _ZEROS[:count]:
                    changed += count - bytes(stale).count(0)
                    stale[:] = _ZEROS[:count]
        return changed

    def _data_ranges(self, position: int) -> list[tuple[int, int]]:
        """The ranges behind `position` that are not holes."""
        ranges = []
        while position < self.size:
            try:
                begin = os.lseek(self._fd, position, os.SEEK_DATA)
            except OSError:  # ENXIO: only a hole is left
                break
            position = os.lseek(self._fd, begin, os.SEEK_HOLE)
            ranges.append((begin, position))
        return ranges

    def sync(self) -> None:
        """Return once all bytes, and the file's name, are on disk. Unlike mmap.flush, fdatasync lets go of the GIL."""
        os.fdatasync(self._fd)
        if self.is_new:
            sync_directory(self.path.parent)
            self.is_new = False

    def close(self) -> None:
        if self.map is None:
            return
        self.view.release()
        try:
            self.map.close()
        except BufferError:
            pass  # a reader still holds a slice: the mapping goes with it
        self.map = None
        os.close(self._fd)

    def delete(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)


def wrong_size(path: Path, actual: int, expected: int) -> StoreError:
    return StoreError(
        f"{path} has {actual} bytes instead of {expected}: it is damaged or the configured file size was changed"
    )


def list_files(directory: Path, size: int) -> list[MappedFile]:
    """The files of one log in order, closed; StoreError names one that cannot belong to it.

    An empty last file is what a crash leaves of a file being made: it is removed.
    """
    names = sorted(entry.name for entry in os.scandir(directory) if entry.is_file()) if directory.is_dir() else []
    if names and (directory / names[-1]).stat().st_size == 0:
        (directory / names.pop()).unlink()
    files = [_listed(directory / name, size) for name in names]
    for before, after in pairwise(files):
        if before.start + size != after.start:
            raise StoreError(f"{directory}: the file between {before.path.name} and {after.path.name} is missing")
    return files


def _listed(path: Path, size: int) -> MappedFile:
    if not (len(path.name) == NAME_DIGITS and path.name.isascii() and path.name.isdigit()) or int(path.name) % size:
        raise StoreError(
            f"{path} is not a file of this log: its name is not a multiple of {size} in {NAME_DIGITS} digits"
        )
    actual = path.stat().st_size
    if actual != size:
        raise wrong_size(path, actual, size)
    return MappedFile(path, int(path.name), size)


def sync_path(path: Path) -> None:
    """As `sync`, for a file that others may close meanwhile. A file deleted meanwhile needs no sync."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def sync_directory(directory: Path) -> None:
    """Return once the names in the directory are on disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
