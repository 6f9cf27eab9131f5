"""One file of a log, mapped into memory, and the names such files have."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from cosmodrome import disk
from cosmodrome.disk import data_ranges
from cosmodrome.errors import StoreError
from cosmodrome.numbers import parse_int, read_int

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
    def create(cls, directory: Path, start: int, size: int, *, durable: bool = False) -> MappedFile:
        """A new file of zeros. It is sparse: bytes take their place on disk when they are prepared.

        With `durable`, a crash cannot lose or shorten it any more.
        """
        file = cls(directory / f"{start:0{NAME_DIGITS}d}", start, size)
        fd = disk.open_file(file.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            try:
                os.ftruncate(fd, size)
                if durable:
                    disk.sync_new(fd)
            finally:
                os.close(fd)
            if durable:
                sync_directory(directory)
            file.open()
        except OSError:
            with suppress(OSError):  # half a file would be in the way of the next attempt
                os.unlink(file.path)
            raise
        file.is_new = not durable
        return file

    @property
    def end(self) -> int:
        """The offset behind the last byte written."""
        return self.start + self.position

    def open(self) -> mmap.mmap:
        """Map the file; StoreError unless it has exactly its size."""
        self._fd = disk.open_file(self.path, os.O_RDWR)
        try:
            actual = os.fstat(self._fd).st_size
            if actual != self.size:
                raise wrong_size(self.path, actual, self.size)
            self.map = mmap.mmap(self._fd, self.size)
        except BaseException:
            os.close(self._fd)
            raise
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
        for begin, end in data_ranges(self._fd, self.position):
            for at in range(begin, end, len(_ZEROS)):
                count = min(end - at, len(_ZEROS))
                stale = self.view[at : at + count]
                if stale != _ZEROS[:count]:
                    changed += count - bytes(stale).count(0)
                    stale[:] = _ZEROS[:count]
        return changed

    def has_data(self, position: int) -> bool:
        """Whether any byte from `position` on is not zero."""
        return any(
            self.view[at : (stop := min(at + len(_ZEROS), end))] != _ZEROS[: stop - at]
            for begin, end in data_ranges(self._fd, position)
            for at in range(begin, end, len(_ZEROS))
        )

    def write_again(self) -> None:
        """Write every byte that is there over itself: after a failed sync the system takes pages for clean that the
        disk never got."""
        for begin, end in data_ranges(self._fd, 0):
            for at in range(begin, end, len(_ZEROS)):
                os.pwrite(self._fd, bytes(self.view[at : min(at + len(_ZEROS), end)]), at)

    def write(self, data: bytes | memoryview, at: int) -> None:
        """Write where the file may have a hole. OSError when the disk has no room."""
        disk.write_all(self._fd, data, at)

    def read(self, at: int, count: int) -> bytes:
        """Read where the file may have a hole: through the map, that needs room on some file systems."""
        return os.pread(self._fd, count, at)

    def is_cut(self) -> bool:
        """Return whether another program made the file shorter, so that some of its mapped pages are gone."""
        return os.fstat(self._fd).st_size < self.size

    def written_end(self) -> int:
        return written_end(self._fd)

    def data_end(self) -> int:
        """Where the hole at the end of the file begins; its size if it has none."""
        return max((end for _, end in data_ranges(self._fd, 0)), default=0)

    def sync(self) -> None:
        """Return once all bytes, and the file's name, are on disk."""
        disk.sync_data(self._fd)
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

    def __del__(self) -> None:
        self.close()

    def delete(self) -> None:
        """Take the file away; what readers still hold of it stays readable, and takes its room until they let go."""
        self.close()
        self.path.unlink(missing_ok=True)


def written_end(fd: int) -> int:
    """Where the first hole of a file begins: what was written from its start on, without a gap, ends before.

    Reading on to find that out would fill memory with pages of zeros.
    """
    return os.lseek(fd, 0, os.SEEK_HOLE) if os.fstat(fd).st_size else 0


def find_ends(files: Sequence[MappedFile]) -> None:
    """Let the last files, which are open, end where their data does: those that were made ahead, at their start.

    What is behind it is a hole, and reads as zeros at best: in a tmpfs without room it ends the process.
    """
    for file in reversed(files):
        file.position = file.data_end()
        if file.position:
            break


def wrong_size(path: Path, actual: int, expected: int) -> StoreError:
    return StoreError(
        f"{path} has {actual} bytes instead of {expected}: it is damaged or the configured file size was changed; "
        "put the size back into the config, or see `cosmodrome store repair`"
    )


def list_files(directory: Path, size: int) -> list[MappedFile]:
    """The files of one log in order, closed; StoreError names one that cannot belong to it.

    An empty last file is what a crash leaves of a file being made: it is removed.
    """
    names = _names(directory)
    files = [_listed(directory / name, size) for name in names[:-1]]
    if names:
        last = directory / names[-1]
        if actual := os.stat(last).st_size:
            files.append(_listed(last, size, actual))
        else:
            last.unlink()
    for before, after in pairwise(files):
        if before.start + size != after.start:
            raise StoreError(f"{directory}: the file between {before.path.name} and {after.path.name} is missing")
    return files


def remove_unsure_files(directory: Path, size: int) -> None:
    """Of files that were not synced in order, a crash may keep a later one and lose, or empty, the one before it.

    Only for what can be built anew: from the first such place on, all are removed.
    """
    names = _names(directory)
    if not all(map(is_log_file_name, names)):
        return  # `list_files` says what is wrong with it
    before = None
    for number, name in enumerate(names):
        if _is_empty(directory / name) or (before is not None and file_start(before) + size != file_start(name)):
            for unsure in names[number:]:
                (directory / unsure).unlink()
            break
        before = name


def _names(directory: str | Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(directory) if entry.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_empty(path: Path) -> bool:
    return path.stat().st_size == 0


def log_file_names(directory: str | Path) -> list[str]:
    """What has the name of a file of a log, in order."""
    return [name for name in _names(directory) if is_log_file_name(name)]


def is_log_file_name(name: str) -> bool:
    return len(name) == NAME_DIGITS and parse_int(name) is not None


def file_start(name: str) -> int:
    """Return where in its log a file begins, as its name says."""
    return read_int(name)


def _listed(path: Path, size: int, actual: int | None = None) -> MappedFile:
    if not is_log_file_name(path.name) or file_start(path.name) % size:
        raise StoreError(
            f"{path} is not a file of this log: its name is not a multiple of {size} in {NAME_DIGITS} digits"
        )
    actual = os.stat(path).st_size if actual is None else actual
    if actual != size:
        raise wrong_size(path, actual, size)
    return MappedFile(path, file_start(path.name), size)


def delete_for_good(file: MappedFile) -> None:
    """As `delete`, and return once it is gone from the disk too: without that, a power cut could bring the first of
    two deleted files back but not the second."""
    file.delete()
    with suppress(FileNotFoundError):  # its topic was deleted meanwhile
        sync_directory(file.path.parent)


def sync_path(path: str | Path) -> None:
    """As `sync`, for a file that others may close meanwhile. A file deleted meanwhile needs no sync."""
    try:
        fd = disk.open_file(path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        disk.sync_data(fd)
    finally:
        os.close(fd)


def sync_directory(directory: str | Path) -> None:
    """Return once the names in the directory are on disk."""
    disk.sync_folder(directory)
