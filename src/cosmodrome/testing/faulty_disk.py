"""A disk that fails: it loses what was not synced when the power goes, and it refuses what it is told to refuse.

    with FaultyDisk(folder) as disk:
        …                                        # anything that keeps files in `folder`
    for moment in disk.moments:                  # every time at which the power could have failed
        moment.materialise(target, Random(7))    # a folder as a machine may find it after that

What survives for sure is what `fsync` or `fdatasync` covered: bytes by a sync of their file, names by a sync of their
folder. Everything else is up to the seed. Of a page that was written after the last sync, any version may have
reached the disk, in any order among pages, or a mix of two, torn at sectors; a file may have any length it had since;
and each creation, rename or removal may have happened or not, whole.
"""

from __future__ import annotations

import io
import os
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, NamedTuple, Self

PAGE_BYTES = 4096
SECTOR_BYTES = 512

_FOLDER = -1  # what a name leads to when it is no file
_TORN_SHARE = 0.3  # of the pages whose versions differ, under Mood.MIXED

Call = Callable[..., Any]


class Kind(StrEnum):
    """What a program asks of a disk."""

    CREATE = "create"
    OPEN = "open"
    WRITE = "write"
    RESIZE = "resize"
    ALLOCATE = "allocate"
    SYNC = "sync"
    RENAME = "rename"
    REMOVE = "remove"
    FOLDER = "make folder"
    PAUSE = "pause"  # nothing was asked, but memory that is mapped to files may have changed


_NAMING = (Kind.CREATE, Kind.RENAME, Kind.REMOVE, Kind.FOLDER)


class Mood(StrEnum):
    """What becomes of all that was not synced."""

    KEPT = "kept"
    DROPPED = "dropped"
    MIXED = "mixed"


class Killed(BaseException):
    """The process that asked died there."""


@dataclass
class Fault:
    """The `number`-th operation (from 0) of these kinds fails with `errno`, and with `lasting` all that follow.

    With `errno` None the process dies there: the operation and all that follow raise `Killed`.
    """

    number: int
    errno: int | None
    lasting: bool = False
    kinds: frozenset[Kind] = frozenset(Kind) - {Kind.PAUSE}
    seen: int = field(default=0, init=False)

    @property
    def has_struck(self) -> bool:
        """Whether its moment has come, and gone."""
        return self.seen > self.number

    def strikes(self, kind: Kind) -> bool:
        """Count one more operation, and say whether it is hit."""
        if kind not in self.kinds:
            return False
        self.seen += 1
        return self.seen == self.number + 1 or ((self.lasting or self.errno is None) and self.has_struck)


class _FileState(NamedTuple):
    """A file at one moment. Of `pages` and `sizes` the first version is on disk for sure, the last is the newest."""

    image: bytes
    pages: Mapping[int, tuple[bytes, ...]]
    sizes: tuple[int, ...]

    def after_crash(self, mood: Mood, random: Random) -> bytes:
        if mood is Mood.KEPT or (not self.pages and len(self.sizes) == 1):
            return self.image
        data = bytearray(self.image)
        for number, versions in self.pages.items():
            at = number * PAGE_BYTES
            data[at : at + PAGE_BYTES] = versions[0] if mood is Mood.DROPPED else _mixed(versions, random)
        size = self.sizes[0] if mood is Mood.DROPPED else random.choice(self.sizes)
        return bytes(data[:size].ljust(size, b"\0"))


def _mixed(versions: tuple[bytes, ...], random: Random) -> bytes:
    one, other = random.choice((versions[0], versions[-1])), random.choice(versions)
    if random.random() >= _TORN_SHARE:
        return other
    sectors = range(0, PAGE_BYTES, SECTOR_BYTES)
    return b"".join(random.choice((one, other))[at : at + SECTOR_BYTES] for at in sectors)


class _File:
    """A file as its programs and its disk see it."""

    def __init__(self) -> None:
        self._image = b""
        self._pages: dict[int, tuple[bytes, ...]] = {}
        self._sizes: tuple[int, ...] = (0,)
        self._doubtful: set[int] = set()
        self._state: _FileState | None = None

    def see(self, data: bytes) -> None:
        """What programs read there now."""
        before = self._image
        if data == before:
            return
        self._image, self._state = data, None
        if len(data) != len(before):
            self._sizes += (len(data),)
        for at in range(0, max(len(data), len(before)), PAGE_BYTES):
            old, new = before[at : at + PAGE_BYTES], data[at : at + PAGE_BYTES]
            if old != new:
                self._see_page(at // PAGE_BYTES, old.ljust(PAGE_BYTES, b"\0"), new.ljust(PAGE_BYTES, b"\0"))

    def _see_page(self, number: int, old: bytes, new: bytes) -> None:
        self._doubtful.discard(number)  # it is dirty again, so the next sync writes it again
        self._pages[number] = (*self._pages.get(number, (old,)), new)

    def sync(self) -> None:
        """All that was seen is on disk, apart from pages that a failed sync let go of."""
        self._pages = {number: self._pages[number] for number in self._doubtful}
        self._sizes = self._sizes[-1:]
        self._state = None

    def write_again(self, begin: int, end: int) -> None:
        """These bytes were written, changed or not: the next sync takes care of their pages."""
        self._doubtful.difference_update(range(begin // PAGE_BYTES, -(-end // PAGE_BYTES)))

    def fail_sync(self) -> None:
        """As Linux does it: the pages count as clean from now on, whether they reached the disk or not."""
        self._doubtful.update(self._pages)

    def state(self) -> _FileState:
        if self._state is None:
            self._state = _FileState(self._image, dict(self._pages), self._sizes)
        return self._state


class _Change(NamedTuple):
    """Names that changed together: each leads to a file or a folder, or (None) nowhere any more."""

    names: tuple[tuple[str, int | None], ...]

    def apply(self, names: dict[str, int]) -> None:
        for path, target in self.names:
            if target is not None:
                names[path] = target
                continue
            was = names.pop(path, None)
            if was == _FOLDER:
                for below in [name for name in names if name.startswith(path + "/")]:
                    del names[below]

    def touches(self, folder: str) -> bool:
        return any(_parent(path) == folder for path, _ in self.names)


@dataclass(frozen=True, slots=True)
class Moment:
    """A time at which the power may fail: just before what `label` says."""

    label: str
    _names: dict[str, int]
    _changes: tuple[_Change, ...]
    _files: dict[int, _FileState]

    def materialise(self, target: Path, random: Random, mood: Mood | None = None) -> Mood:
        """Fill the empty folder `target` with one of the states a crash may leave; returns which kind it is."""
        mood = mood or random.choice((Mood.KEPT, Mood.DROPPED, *[Mood.MIXED] * 6))
        names = self._names_after_crash(mood, random)
        folders = {""}
        for path in sorted(names):
            if _parent(path) not in folders:
                continue
            if names[path] == _FOLDER:
                folders.add(path)
                (target / path).mkdir()
            else:
                _write(target / path, self._files[names[path]].after_crash(mood, random))
        return mood

    def _names_after_crash(self, mood: Mood, random: Random) -> dict[str, int]:
        names = dict(self._names)
        for change in self._changes_after_crash(mood, random):
            change.apply(names)
        return names

    def _changes_after_crash(self, mood: Mood, random: Random) -> Iterable[_Change]:
        """All, none, the first ones (as journals do it), or any."""
        if mood is Mood.KEPT:
            return self._changes
        if mood is Mood.DROPPED:
            return ()
        if random.random() < 0.5:
            return self._changes[: random.randint(0, len(self._changes))]
        return [change for change in self._changes if random.random() < 0.5]


def _write(path: Path, data: bytes) -> None:
    """Zeros at the end become a hole, as they are in a file that was made larger and not written."""
    with open(path, "wb") as file:
        file.write(data.rstrip(b"\0"))
        file.truncate(len(data))


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


class FaultyDisk:
    """Everything below one folder, from `__enter__` to `__exit__`.

    Meanwhile the functions of `os` that change files, and `io.open` that `pathlib` uses, are replaced for the whole
    process; other folders are not affected. What goes past them (writes to mapped memory or to file objects) is
    found by comparing. Syncs are only noted, never done, so they cost nothing. The folder and what it holds at the
    beginning are on disk. With `watch=False` no moments are kept: that leaves faults and free syncs.
    """

    def __init__(self, folder: Path, *, watch: bool = True) -> None:
        self.moments: list[Moment] = []
        self.fault: Fault | None = None
        self._folder = folder
        self._watch = watch
        self._lock = threading.RLock()
        self._original: dict[tuple[Any, str], Call] = {}
        self._files: list[_File] = []
        self._descriptors: dict[int, int] = {}
        self._live: dict[str, int] = {}
        self._by_inode: dict[int, int] = {}
        self._synced: dict[str, int] = {}
        self._changes: list[_Change] = []

    def __enter__(self) -> Self:
        self._device = self._folder.stat().st_dev
        if self._watch:
            self._see_names()
            self._look()
            self._sync_everything()
        self._replace_functions()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for (module, name), original in self._original.items():
            setattr(module, name, original)
        self._original.clear()
        if self._watch:
            self.mark("the end")
        for fd in self._descriptors.values():
            os.close(fd)
        self._descriptors.clear()

    def mark(self, label: str) -> None:
        """A moment of its own: between two operations memory may change many times."""
        with self._lock:
            self._look()
            names, changes = dict(self._synced), tuple(self._changes)
            reachable = {*names.values(), *[to for change in changes for _, to in change.names if to is not None]}
            files = {number: self._files[number].state() for number in reachable - {_FOLDER}}
            self.moments.append(Moment(label, names, changes, files))

    # What is asked of the disk

    def _replace_functions(self) -> None:
        self._replace(os, "open", self._open)
        self._replace(io, "open", self._io_open)
        for name, kind in (("ftruncate", Kind.RESIZE), ("posix_fallocate", Kind.ALLOCATE)):
            self._replace(os, name, self._on_descriptor(kind))
        self._replace(os, "pwrite", self._pwrite)
        for name in ("rename", "replace"):
            self._replace(os, name, self._on_path(Kind.RENAME))
        for name in ("unlink", "remove", "rmdir"):
            self._replace(os, name, self._on_path(Kind.REMOVE))
        self._replace(os, "mkdir", self._on_path(Kind.FOLDER))
        for name in ("fsync", "fdatasync"):
            self._replace(os, name, self._sync)
        self._replace(os, "sync", self._sync_all)

    def _replace(self, module: Any, name: str, replacement: Call) -> None:
        original = getattr(module, name)
        self._original[module, name] = original

        def replaced(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        setattr(module, name, replaced)

    def _open(self, original: Call, path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        if "dir_fd" in kwargs or not self._is_mine(path) or flags & os.O_DIRECTORY:
            return original(path, flags, *args, **kwargs)
        kind = Kind.CREATE if flags & os.O_CREAT else Kind.OPEN
        return self._perform(kind, path, lambda: original(path, flags, *args, **kwargs))

    def _io_open(self, original: Call, path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(path, int) or not self._is_mine(path) or "r" in mode:
            return original(path, mode, *args, **kwargs)
        return self._perform(Kind.CREATE, path, lambda: original(path, mode, *args, **kwargs))

    def _on_descriptor(self, kind: Kind) -> Call:
        def call(original: Call, fd: int, *args: Any) -> Any:
            if os.fstat(fd).st_dev != self._device or not self._is_mine(_path_of(fd)):
                return original(fd, *args)
            return self._perform(kind, _path_of(fd), lambda: original(fd, *args))

        return call

    def _pwrite(self, original: Call, fd: int, data: bytes, offset: int) -> Any:
        written = self._on_descriptor(Kind.WRITE)(original, fd, data, offset)
        with self._lock:
            self._file(os.fstat(fd).st_ino).write_again(offset, offset + written)
        return written

    def _on_path(self, kind: Kind) -> Call:
        def call(original: Call, path: Any, *args: Any, **kwargs: Any) -> Any:
            folder = kwargs.get("dir_fd")
            whole = path if folder is None else os.path.join(_path_of(folder), os.fspath(path))
            if not self._is_mine(whole):
                return original(path, *args, **kwargs)
            return self._perform(kind, whole, lambda: original(path, *args, **kwargs))

        return call

    def _sync(self, original: Call, descriptor: Any) -> None:
        fd = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        path = _path_of(fd)
        if not self._is_mine(path):
            original(fd)
            return
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            self._perform(Kind.SYNC, path, lambda: self._sync_folder(path))
        else:
            inode = status.st_ino
            self._perform(Kind.SYNC, path, lambda: self._file(inode).sync(), lambda: self._file(inode).fail_sync())

    def _sync_all(self, _original: Call) -> None:
        self._perform(Kind.SYNC, self._folder, self._sync_everything)

    def _file(self, inode: int) -> _File:
        """The file with this inode; one that has no name any more is nobody's."""
        return self._files[self._by_inode[inode]] if inode in self._by_inode else _File()

    def _perform(
        self, kind: Kind, path: Any, call: Callable[[], Any], on_failure: Callable[[], None] | None = None
    ) -> Any:
        with self._lock:
            if self._watch:
                self.mark(f"{kind} {self._inside(path)}")
            if self.fault is not None and self.fault.strikes(kind):
                if self.fault.errno is None:
                    raise Killed
                if on_failure is not None:
                    on_failure()
                raise OSError(self.fault.errno, os.strerror(self.fault.errno), os.fspath(path))
            result = call()
            if self._watch and kind in _NAMING:
                self._see_names()
            return result

    def _is_mine(self, path: Any) -> bool:
        return os.path.abspath(os.fspath(path)).startswith(f"{self._folder}/") or Path(path) == self._folder

    def _inside(self, path: Any) -> str:
        inside = os.path.relpath(os.fspath(path), self._folder)
        return "" if inside == "." else inside

    # What is there

    def _look(self) -> None:
        """Notice what was written past the functions above."""
        for number in set(self._live.values()) - {_FOLDER}:
            fd = self._descriptors[number]
            self._files[number].see(os.pread(fd, os.fstat(fd).st_size, 0))

    def _see_names(self) -> None:
        names = self._walk()
        removed = [(path, None) for path in self._live if path not in names]
        added = [(path, number) for path, number in names.items() if self._live.get(path) != number]
        self._live = names
        changes: list[tuple[str, int | None]] = [*removed, *added]
        if changes:
            self._changes.append(_Change(tuple(changes)))

    def _walk(self) -> dict[str, int]:
        names: dict[str, int] = {}
        by_inode: dict[int, int] = {}
        pending = [""]
        while pending:
            folder = pending.pop()
            for entry in os.scandir(f"{self._folder}/{folder}"):
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    names[path] = _FOLDER
                    pending.append(path)
                else:
                    names[path] = by_inode[entry.inode()] = self._number(entry)
        self._by_inode = by_inode  # an inode without a name may come back as another file
        return names

    def _number(self, entry: os.DirEntry[str]) -> int:
        if entry.inode() in self._by_inode:
            return self._by_inode[entry.inode()]
        self._files.append(_File())
        number = len(self._files) - 1
        self._descriptors[number] = self._original.get((os, "open"), os.open)(entry.path, os.O_RDONLY)
        return number

    def _sync_folder(self, path: str) -> None:
        if not self._watch:
            return
        folder = self._inside(path)
        for change in [change for change in self._changes if change.touches(folder)]:
            change.apply(self._synced)
            self._changes.remove(change)

    def _sync_everything(self) -> None:
        for change in self._changes:
            change.apply(self._synced)
        self._changes.clear()
        for file in self._files:
            file.sync()


def _path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")
