"""Files as a broker wants them: readable for few, never behind a link, and either on disk or failed."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO

from cosmodrome.errors import StoreError

# A write that says so has changed nothing, and may succeed later. A sync never says so: see `sync`.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

# Of these, reading a hole through a mapping takes room; where there is none, the process dies by SIGBUS.
_MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
_MOUNTS = Path("/proc/self/mountinfo")

_COPY_BYTES = 1024 * 1024

DEFAULT_FILE_MODE = 0o640
_file_mode = DEFAULT_FILE_MODE


class LinkRefused(StoreError, OSError):
    """A symbolic link stands in the place of a file: what it leads to may be anybody's."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(
            f"{path} is a symbolic link to {os.readlink(path)}; no file of a store is opened through a link: put what "
            "it leads to there. Only the folders that the configuration names may be links"
        )


def use_file_mode(mode: int) -> None:
    """Give every file that this process makes from now on this mode, and every folder the same with the right to enter.

    For programs, not for libraries: the process's umask is set. The default leaves a stricter one as it is.
    """
    global _file_mode
    _file_mode = mode
    refused = 0o777 & ~folder_mode()
    before = os.umask(refused)
    if mode == DEFAULT_FILE_MODE:
        os.umask(refused | before)


def folder_mode() -> int:
    """The mode of new folders: who may read the files may enter."""
    return _file_mode | (_file_mode & 0o444) >> 2


def make_folders(folder: Path) -> None:
    """Make a folder, and those above it that are missing."""
    if not folder.is_dir():
        make_folders(folder.parent)
        folder.mkdir(folder_mode(), exist_ok=True)


def open_file(path: str | Path, flags: int) -> int:
    """Open a file and return its descriptor; LinkRefused where a symbolic link stands in its place."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, _file_mode)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise LinkRefused(path) from error
        raise


def open_to_read(path: str | Path) -> BinaryIO:
    """Open a file as `open` does; FileNotFoundError if there is none, LinkRefused for a link."""
    return os.fdopen(open_file(path, os.O_RDONLY), "rb")


def read_file(path: str | Path) -> bytes:
    """Return what a small file holds; FileNotFoundError if there is none, LinkRefused for a link."""
    with open_to_read(path) as file:
        return file.read()


def refuse_link(path: str | Path) -> None:
    """LinkRefused for a symbolic link, wherever it leads."""
    if os.path.islink(path):
        raise LinkRefused(path)


def copy(path: Path, target: Path) -> None:
    """Copy the bytes of a file to a new one, which others may read no more than any of ours."""
    with open_to_read(path) as source:
        fd = open_file(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            at = 0
            while data := source.read(_COPY_BYTES):
                write_all(fd, data, at)
                at += len(data)
        finally:
            os.close(fd)


def set_size(path: Path, size: int) -> None:
    """Cut a file to `size` bytes, or lengthen it with a hole; LinkRefused for a link."""
    fd = open_file(path, os.O_WRONLY)
    try:
        os.ftruncate(fd, size)
    finally:
        os.close(fd)


def sync(fd: int) -> None:
    """Return once a file, or the names in a folder, are on disk.

    OSError means that what was written is lost and that a second attempt proves nothing. So it never has an errno of
    NO_ROOM, which callers take for a write that was refused, even if that is what the system says.
    """
    try:
        os.fsync(fd)
    except OSError as error:
        raise _lost(fd, error) from error


def sync_new(fd: int) -> None:
    """As `sync`, for a file that nobody relies on yet: without room, nothing is lost, and its maker removes it."""
    os.fsync(fd)


def sync_data(fd: int) -> None:
    """As `sync`, for the bytes of a file. Unlike mmap.flush, fdatasync lets go of the GIL."""
    try:
        os.fdatasync(fd)
    except OSError as error:
        raise _lost(fd, error) from error


def _lost(fd: int, error: OSError) -> OSError:
    code = errno.EIO if error.errno in NO_ROOM or error.errno is None else error.errno
    path = os.readlink(f"/proc/self/fd/{fd}") if os.path.islink(f"/proc/self/fd/{fd}") else error.filename
    return OSError(code, f"what was written did not reach the disk: {error.strerror}", path)


def sync_folder(folder: str | Path) -> None:
    """Return once the names in a folder are on disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
    """Write every byte; OSError if there is no room for the last of them, too."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, at)
        rest, at = rest[written:], at + written


def data_ranges(fd: int, begin: int) -> list[tuple[int, int]]:
    """The ranges of a file behind `begin` that are not holes."""
    ranges = []
    size = os.fstat(fd).st_size
    while begin < size:
        try:
            begin = os.lseek(fd, begin, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole is left
            break
        end = os.lseek(fd, begin, os.SEEK_HOLE)
        ranges.append((begin, end))
        begin = end
    return ranges


def map_to_read(fd: int, size: int, access: int = mmap.ACCESS_READ) -> mmap.mmap:
    """Map a file whose holes may be read, wherever it lies."""
    if is_unsafe_to_map(fd, size):
        return _copied(fd, size)
    return mmap.mmap(fd, size, access=access)


def is_unsafe_to_map(fd: int, size: int) -> bool:
    """Whether the first `size` bytes have holes that cannot be read through a mapping when the disk is full."""
    return os.lseek(fd, 0, os.SEEK_HOLE) < size and _lies_in_memory(os.fstat(fd).st_dev)


def _copied(fd: int, size: int) -> mmap.mmap:
    """The file in memory of its own; holes cost nothing there."""
    copy = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE)
    for begin, end in data_ranges(fd, 0):
        for at in range(begin, min(end, size), _COPY_BYTES):
            data = os.pread(fd, min(_COPY_BYTES, min(end, size) - at), at)
            copy[at : at + len(data)] = data
    return copy


@cache
def _lies_in_memory(device: int) -> bool:
    """Whether a file system keeps its files in memory; the list of mounts says so in the words behind the dash."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = [line.split() for line in _MOUNTS.read_text(errors="replace").splitlines()]
    except OSError:
        return False
    return any(words[2] == number and _type(words) in _MEMORY_FILE_SYSTEMS for words in mounts if len(words) > 2)


def _type(words: Sequence[str]) -> str:
    dash = words.index("-") if "-" in words else len(words)
    return words[dash + 1] if dash + 1 < len(words) else ""
