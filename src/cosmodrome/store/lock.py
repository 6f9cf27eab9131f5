"""Two small files beside the data: who uses the store, and whether its last user left in order."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path

from cosmodrome import disk
from cosmodrome.errors import StoreError
from cosmodrome.mapped_file import sync_directory

log = logging.getLogger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NOT_TRUSTED = "memory is not trusted"
_DISK_FAILED = "the disk failed"


class StoreLock:
    """Held while a process uses the store. A POSIX record lock, because that is what Apache's broker takes; it keeps
    other processes out, not this one."""

    def __init__(self, path: Path) -> None:
        self._fd = disk.open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(self._fd)
            raise StoreError(f"{path.parent} is in use by another broker; stop it or choose another folder") from error
        with suppress(OSError):  # the word is for people; what counts is the lock
            os.pwrite(self._fd, b"lock", 0)
        self._folders: list[int] = []

    def add_folder(self, folder: Path) -> None:
        """Keep brokers with another root out of a folder of data too. The folder itself is locked, so that no file
        appears among the data."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._folders.append(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(f"{folder} is in use by another broker; give each broker a folder of its own") from error

    def release_folders(self) -> None:
        while self._folders:
            os.close(self._folders.pop())

    def release(self) -> None:
        self.release_folders()
        os.close(self._fd)


class Exit(StrEnum):
    """How the last user of a store left it."""

    CLEAN = "clean exit"
    KILLED = "kill"  # the process died, the machine did not: what it wrote to mapped files is there
    CRASH = "crash"  # only what was synced is sure
    DISK_FAILURE = "failure of the disk"  # as a crash, but memory still shows what the disk may not have


marks_in_use: set[AbortMark] = set()  # of the stores that this process has open, unless their disk failed


class AbortMark:
    """There while the store is in use; still there at the next start if the process died.

    Apache writes its process id. We add on a second line which run of the machine it was: as long as that lasts,
    the page cache holds everything that a killed process wrote.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def last_exit(self) -> Exit:
        try:
            lines = disk.read_file(self._path).decode(errors="replace").splitlines()
        except FileNotFoundError:
            return Exit.CLEAN
        if lines[1:2] == [_boot_id()]:
            return Exit.KILLED
        return Exit.DISK_FAILURE if lines[1:] == [_DISK_FAILED] else Exit.CRASH

    @property
    def is_ours(self) -> bool:
        """The last user was not Apache's broker, whose log may be followed by what it cut off once."""
        try:
            return len(disk.read_file(self._path).splitlines()) >= 2
        except FileNotFoundError:
            return False

    @property
    def last_words(self) -> str | None:
        """Why the last user died, if it could say so."""
        try:
            lines = disk.read_file(self._path).decode(errors="replace").splitlines()
        except OSError:
            return None
        return lines[2] if len(lines) > 2 else None

    def note_death(self, reason: str) -> None:
        """The process dies now, and not of a kill. What it wrote to mapped files is there."""
        with suppress(OSError):
            self._write(f"{os.getpid()}\n{_boot_id()}\n{reason}")

    def set(self) -> None:
        """OSError if that is not possible: without the mark, a crash would look like a clean exit. On a full disk an
        older mark may stay, or an empty one: either makes the next start trust no more than it may."""
        with self._room_or_not():
            self._write(f"{os.getpid()}\n{_boot_id()}", synced=True)  # whose log it is counts after a power cut, too
        marks_in_use.add(self)
        sync_directory(self._path.parent)

    def distrust_memory(self) -> None:
        """Have the next start read everything that was not surely on disk.

        A mark that says so already stays as it is. One of ours still says that the log is ours.
        """
        last_exit = self.last_exit()
        if last_exit in (Exit.CLEAN, Exit.KILLED):
            owner = [] if last_exit is Exit.CLEAN else [_NOT_TRUSTED, *filter(None, [self.last_words])]
            with self._room_or_not():
                self._write("\n".join([str(os.getpid()), *owner]))
        sync_directory(self._path.parent)

    def keep(self) -> None:
        """Return once the mark that is there is on disk: it must outlive whatever is repaired because of it."""
        sync_directory(self._path.parent)

    def note_failure(self) -> None:
        """The disk failed: what memory shows may never have reached it."""
        marks_in_use.discard(self)
        try:
            self._write(f"{os.getpid()}\n{_DISK_FAILED}")
        except OSError as error:
            log.error("cannot write %s: %s", self._path, error)

    def _write(self, text: str, *, synced: bool = False) -> None:
        """Over what is there, cut to size only then: that needs no room on most full disks."""
        fd = disk.open_file(self._path, os.O_RDWR | os.O_CREAT)
        try:
            os.pwrite(fd, text.encode(), 0)
            os.ftruncate(fd, len(text.encode()))
            if synced:
                disk.sync(fd)
        finally:
            os.close(fd)

    @contextmanager
    def _room_or_not(self) -> Iterator[None]:
        """Let a full disk pass, if there is a mark all the same."""
        try:
            yield
        except OSError as error:
            if error.errno not in disk.NO_ROOM or not self._path.exists():
                raise
            log.warning("%s is as it was: %s", self._path, error)

    def clear(self) -> None:
        marks_in_use.discard(self)
        self._path.unlink(missing_ok=True)
        sync_directory(self._path.parent)


def _boot_id() -> str:
    """Names this run of the machine; "" where nobody knows."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
