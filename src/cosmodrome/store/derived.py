"""Queues and index at a store's start: what is damaged is set aside, and the start builds it again from the log.

Both are derived from the log, so no damage to them is a reason not to start. Names, sizes and gaps of their files show
at a glance. What the files hold has no checksum in Apache's formats: a rotten tag hash would hide a message from those
who filter, a zeroed page give offsets away twice. So a clean stop leaves checksums in a file of ours, `derived.sums`.
"""

from __future__ import annotations

import logging
import os
import shutil
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from cosmodrome import disk, state_file
from cosmodrome.numbers import parse_int, read_int
from cosmodrome.store.checkpoint import Checkpoint
from cosmodrome.store.consume_queue import ENTRY_SIZE
from cosmodrome.store.consume_queues import queue_folders
from cosmodrome.store.index_file import ENTRY_SIZE as INDEX_ENTRY_SIZE
from cosmodrome.store.index_file import HEADER, HEADER_SIZE, SLOT_SIZE, file_size
from cosmodrome.store.lock import AbortMark, Exit
from cosmodrome.store.mapped_file import file_start, is_log_file_name, written_end
from cosmodrome.store.paths import StorePaths, aside_folder, free_name

log = logging.getLogger(__name__)

SUMS = "derived.sums"
# Read at a start to compare checksums, the files written last first; `cosmodrome store verify` looks at everything.
MAX_READ_AT_START_BYTES = 64 * 1024 * 1024
_FORMAT = "cosmodrome-sums-1"
_CHUNK = 1024 * 1024
_PROBE_BYTES = 64 * 1024
_PLACE = struct.Struct(">q")
BROKEN = _BROKEN = -1  # in place of a checksum: what was there at the last clean stop had changed already


class Shape(NamedTuple):
    """The configured sizes: of a queue's file, and of an index file with so many slots and entries."""

    queue_file: int
    slots: int
    entries: int

    @property
    def index_file(self) -> int:
        return file_size(self.slots, self.entries)


class Sum(NamedTuple):
    """A checksum of the first `used` bytes of a file, and when the file was last written."""

    crc: int
    used: int
    mtime_ns: int


class Trouble(NamedTuple):
    """A damaged file, or the folder of the index."""

    path: Path
    what: str


class Sums:
    """`derived.sums`: `crc used mtime name` for every file; the end of the log in the first line, a crc in the last."""

    def __init__(self, paths: StorePaths) -> None:
        self._paths = paths
        self._path = paths.root / SUMS
        self.log_end = -1
        self.files: dict[str, Sum] = {}
        self._load()

    def _load(self) -> None:
        try:
            self._parse(disk.read_file(self._path))
        except FileNotFoundError:
            return
        except ValueError as error:
            self.files.clear()
            log.error("%s is damaged and is passed over: %s; the next clean stop writes it again", self._path, error)

    def _parse(self, data: bytes) -> None:
        text, _, crc = data.rstrip(b"\n").rpartition(b"\n")
        if crc != b"%08x" % zlib.crc32(text):
            raise ValueError("its own checksum does not match")
        first, *lines = text.decode().splitlines()
        name, end = first.split(" ")
        if name != _FORMAT:
            return
        for line in lines:
            number, used, mtime, place = line.split(" ", 3)
            self.files[place] = Sum(read_int(number, low=_BROKEN), read_int(used), read_int(mtime))
        self.log_end = read_int(end, low=-1)

    @staticmethod
    def damage(path: Path) -> str:
        """What is wrong with the file; nothing if it is sound."""
        text, _, crc = disk.read_file(path).rstrip(b"\n").rpartition(b"\n")
        return "" if crc == b"%08x" % zlib.crc32(text) else "its own checksum does not match"

    def save(self, log_end: int, shape: Shape) -> None:
        """Write down what every file holds now that nothing is written to them: what a clean stop leaves."""
        self._write(log_end, {place: self._sum(place, path, shape) for place, path in _files(self._paths)})

    def extend(self, log_end: int, shape: Shape) -> None:
        """Write down what queues say of the log before `log_end`, and what full index files hold. A thread may do this
        while others write behind that."""
        files: dict[str, Sum] = {}
        for place, path in _files(self._paths):
            with suppress(FileNotFoundError):  # its topic was deleted meanwhile, or its messages are gone
                found = self._extended(place, path, log_end, shape)
                if found is not None:
                    files[place] = found
        self._write(log_end, files)

    def forget(self) -> None:
        """What the files hold has changed, and rightly so: `extend` reads all of them."""
        self.files, self.log_end = {}, -1
        self.__dict__.pop("ends", None)

    def forget_topic(self, topic: str) -> None:
        """Its queues may begin again, with other messages."""
        kept = {place: one for place, one in self.files.items() if not place.startswith(f"consumequeue/{topic}/")}
        if len(kept) < len(self.files):
            self._write(self.log_end, kept)

    def full_index_files(self, shape: Shape) -> list[tuple[str, Path, int]]:
        """Name, path and checksum of the index files that nothing is written to any more."""
        known = [(place, path, self.files.get(place)) for place, path in _files(self._paths)]
        return [
            (place, path, found.crc)
            for place, path, found in known
            if place.startswith("index/") and found is not None and found.used == shape.index_file
        ]

    def mark_broken(self, place: str) -> None:
        """Have the next start build again what this file is a part of."""
        if (found := self.files.get(place)) is not None:
            self._write(self.log_end, self.files | {place: found._replace(crc=_BROKEN)})

    def has_room(self) -> bool:
        """Whether entries that are dropped can be entered again: on a full disk they could not."""
        probe = self._path.with_suffix(".probe")
        try:
            fd = disk.open_file(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                disk.write_all(fd, bytes(_PROBE_BYTES), 0)
            finally:
                os.close(fd)
                probe.unlink()
        except OSError as error:
            if error.errno not in disk.NO_ROOM:
                raise
            return False
        return True

    def _write(self, log_end: int, files: dict[str, Sum]) -> None:
        lines = (f"{one.crc} {one.used} {one.mtime_ns} {place}" for place, one in files.items())
        text = "\n".join([f"{_FORMAT} {log_end}", *lines]).encode()
        try:
            _replace(self._path, text + b"\n%08x\n" % zlib.crc32(text))
        except OSError as error:  # the one before it says less, but nothing wrong
            log.warning("%s cannot be written: %s", self._path, error)
            return
        self.files, self.log_end = files, log_end
        self.__dict__.pop("ends", None)

    def _sum(self, place: str, path: Path, shape: Shape) -> Sum:
        before, stat = self.files.get(place), path.stat()
        if before is not None and (before.mtime_ns == stat.st_mtime_ns or before.crc == _BROKEN):
            return before
        used = _index_used(path, shape) if place.startswith("index/") else _queue_used(path)
        if before is None or place.startswith("index/") or before.used > used:
            return Sum(_crc_of(path, 0, used), used, stat.st_mtime_ns)
        crc = _crc_of(path, 0, before.used)
        if crc != before.crc:
            log.error("%s has changed where it was written long ago; the next start builds it again", path)
            return Sum(_BROKEN, used, stat.st_mtime_ns)
        return Sum(_crc_of(path, before.used, used, crc), used, stat.st_mtime_ns)

    def _extended(self, place: str, path: Path, log_end: int, shape: Shape) -> Sum | None:
        before = self.files.get(place)
        if place.startswith("index/"):
            used = _index_used(path, shape)
            if used < shape.index_file or (before is not None and before.used == used):
                return before if before is not None and before.used == used else None
            return Sum(_crc_of(path, 0, used), used, 0)
        used = _queue_used(path, log_end)
        if before is None or before.used > used:
            return Sum(_crc_of(path, 0, used), used, 0)
        return before if before.used == used else Sum(_crc_of(path, before.used, used, before.crc), used, 0)

    @cached_property
    def ends(self) -> dict[tuple[str, int], int]:
        """By topic and queue id, the offset that the next message has at least: entries before it have checksums."""
        ends: dict[tuple[str, int], int] = {}
        for place, found in self.files.items():
            kind, *names = place.split("/")
            if kind == "consumequeue" and found.used:
                topic, queue_id, name = names
                key = topic, read_int(queue_id)
                ends[key] = max(ends.get(key, 0), (file_start(name) + found.used) // ENTRY_SIZE)
        return ends


class DerivedFiles:
    """The files of queues and index, as they are before anything opens them."""

    def __init__(self, paths: StorePaths, shape: Shape, exit_: Exit, *, has_index: bool) -> None:
        self._paths = paths
        self.shape = shape
        self.exit = exit_
        self._has_index = has_index
        self.left_zeros = AbortMark(paths.abort).is_ours
        self.sums = Sums(paths)

    def troubles(self) -> list[Trouble]:
        """Everything that is wrong. After a crash, some of it is what a crash leaves, and its recovery sees to that."""
        folders = list(queue_folders(self._paths.consume_queue))
        if self._has_other_size(folders):
            return []  # whoever opens the queues says so
        found = [trouble for folder in folders for trouble in self._in_queue(folder)]
        if self._has_index:
            found += self._in_index()
        wrong = {trouble.path for trouble in found}
        return found + [trouble for trouble in self._rotten() if trouble.path not in wrong]

    def _has_other_size(self, folders: list[Path]) -> bool:
        """Whether the files of all queues agree on a size that is not the configured one: then that was changed."""
        sizes: set[int] = set()
        files = 0
        for path in (path for folder in folders for path in folder.iterdir() if path.is_file()):
            sizes.add(path.stat().st_size)
            files += 1
            if len(sizes) > 1 or self.shape.queue_file in sizes:
                return False
        return files > 1 and sizes != {0} and not any(size % ENTRY_SIZE for size in sizes)

    def _in_queue(self, folder: Path) -> Iterator[Trouble]:
        size = self.shape.queue_file
        names = sorted(path.name for path in folder.iterdir() if path.is_file())
        good = [name for name in names if is_log_file_name(name) and file_start(name) % size == 0]
        for name in names:
            path = folder / name
            if name not in good:
                yield Trouble(path, f"its name is not a multiple of {size} in 20 digits")
            elif (actual := path.stat().st_size) != size and (actual or not self._may_be_empty(name, good)):
                yield Trouble(path, f"it has {actual} bytes instead of {size}")
        if self.exit in (Exit.CLEAN, Exit.KILLED):
            for before, after in reversed(list(pairwise(good))):
                if file_start(before) + size != file_start(after):
                    for name in good[: good.index(after)]:
                        yield Trouble(folder / name, f"the file between {before} and {after} is missing")
                    break

    def _may_be_empty(self, name: str, good: list[str]) -> bool:
        """A file that was being made when the process or the machine died."""
        return name == good[-1] or self.exit in (Exit.CRASH, Exit.DISK_FAILURE)

    def _in_index(self) -> Iterator[Trouble]:
        folder, size = self._paths.index, self.shape.index_file
        paths = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
        for path in paths:
            actual = path.stat().st_size
            if parse_int(path.name) is None:
                yield Trouble(path, "its name is not a time in digits")
            elif actual and actual != size:
                yield Trouble(path, f"it has {actual} bytes instead of {size}")
            elif not actual and path is not paths[-1] and self.exit in (Exit.CLEAN, Exit.KILLED):
                yield Trouble(path, "it is empty")
            elif actual and (what := self._header_trouble(path)):
                yield Trouble(path, what)

    def _header_trouble(self, path: Path) -> str:
        with disk.open_to_read(path) as file:
            begin_ms, end_ms, begin, end, used_slots, count = HEADER.unpack(file.read(HEADER_SIZE))
        if not count:  # made, and not written to
            return ""
        sound = begin_ms <= end_ms and 0 <= begin <= end and 0 <= used_slots <= count <= self.shape.entries
        return "" if sound else "its header makes no sense"

    def _rotten(self) -> Iterator[Trouble]:
        """Files that are not what they were at the last clean stop. Since then, queues have only grown; of index files,
        the last one is written everywhere."""
        is_newest = self._is_as_left
        files = [(place, path) for place, path in _files(self._paths) if place in self.sums.files]
        full = self.shape.index_file
        files = [
            one
            for one in files
            if is_newest or one[0].startswith("consumequeue/") or self.sums.files[one[0]].used == full
        ]
        yield from self._missing()
        left = MAX_READ_AT_START_BYTES
        for place, path in sorted(files, key=lambda one: -self.sums.files[one[0]].mtime_ns):
            known = self.sums.files[place]
            left -= known.used
            if known.crc == _BROKEN or (left >= 0 and _crc_of(path, 0, known.used) != known.crc):
                yield Trouble(path, "it is not what it was at the last clean stop")

    @property
    def _is_as_left(self) -> bool:
        """Whether nobody wrote since the clean stop that the checksums are of."""
        clean_end = Checkpoint(self._paths.checkpoint).clean_end
        return self.exit is Exit.CLEAN and clean_end is not None and clean_end[0] == self.sums.log_end

    def changed_since_stop(self) -> Iterator[Path]:
        """The files that are not what they were at the clean stop that was the last thing to happen; however long it
        takes to read them all."""
        for place, path in _files(self._paths) if self._is_as_left else ():
            known = self.sums.files.get(place)
            if known is not None and (known.crc == _BROKEN or _crc_of(path, 0, known.used) != known.crc):
                yield path

    def _missing(self) -> Iterator[Trouble]:
        """Queues that end before a file they had: the first files go with their messages, the last one stays."""
        ends = {folder: max(os.listdir(folder), default="") for folder in queue_folders(self._paths.consume_queue)}
        for place in self.sums.files:
            kind, *names = place.split("/")
            if kind == "consumequeue":
                folder = self._paths.consume_queue / names[0] / names[1]
                if names[2] > ends.get(folder, "~"):
                    yield Trouble(folder / names[2], "it is missing")

    def set_aside(self, troubles: list[Trouble]) -> None:
        """Keep a copy of what is damaged, and leave a store that opens. May be interrupted: the mark and the checkpoint
        say from now on that queues and index are to be built from the whole log."""
        AbortMark(self._paths.abort).distrust_memory()
        checkpoint = Checkpoint(self._paths.checkpoint)
        checkpoint.forget()
        checkpoint.save()
        for path, what in troubles:
            if path.parent == self._paths.index:
                continue
            if not path.exists():
                log.error("%s is gone; the queue is built again from the log", path)
                continue
            kept = self._keep(path)
            log.error(
                "%s is damaged: %s; a copy is kept as %s, and the queue is built again from the log", path, what, kept
            )
        self._set_index_aside([trouble for trouble in troubles if trouble.path.parent == self._paths.index])

    def _keep(self, path: Path) -> Path:
        """Copy a file of a queue aside. One that has only a wrong length is brought to its own: its first entries say
        where the queue goes on if the log has no message of it any more."""
        folder = aside_folder(self._paths.consume_queue) / path.parent.relative_to(self._paths.consume_queue)
        disk.make_folders(folder)
        kept = free_name(folder / path.name, suffix="")
        size = self.shape.queue_file
        if is_log_file_name(path.name) and file_start(path.name) % size == 0 and not self._is_before_gap(path):
            try:
                shutil.copyfile(path, kept)
            except OSError as error:
                if error.errno not in disk.NO_ROOM:
                    raise
                kept.unlink(missing_ok=True)
                log.error("%s: no room to keep a copy", path)
            os.truncate(path, size)
        else:
            path.rename(kept)
        disk.sync_folder(path.parent)
        return kept

    def _is_before_gap(self, path: Path) -> bool:
        following = path.with_name(f"{file_start(path.name) + self.shape.queue_file:020d}")
        others = [name for name in os.listdir(path.parent) if is_log_file_name(name) and name > path.name]
        return bool(others) and not following.exists()

    def _set_index_aside(self, troubles: list[Trouble]) -> None:
        if not troubles:
            return
        folder = self._paths.index
        kept = free_name(folder)
        folder.rename(kept)
        state_file.make_folder(folder)
        for path, what in troubles:
            log.error("%s is damaged: %s; the index is kept as %s and built again from the log", path, what, kept.name)


def _replace(path: Path, data: bytes) -> None:
    written = path.with_suffix(".tmp")
    fd = disk.open_file(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        disk.write_all(fd, data, 0)
        disk.sync(fd)
    finally:
        os.close(fd)
    written.replace(path)
    disk.sync_folder(path.parent)


def _files(paths: StorePaths) -> Iterator[tuple[str, Path]]:
    for folder in queue_folders(paths.consume_queue):
        place = f"consumequeue/{folder.parent.name}/{folder.name}"
        for name in sorted(os.listdir(folder)):
            if is_log_file_name(name):
                yield f"{place}/{name}", folder / name
    if paths.index.is_dir():
        for path in sorted(paths.index.iterdir()):
            if parse_int(path.name) is not None and path.is_file():
                yield f"index/{path.name}", path


def _queue_used(path: Path, log_end: int | None = None) -> int:
    """Up to the end of the last entry, or of the last that leads to a record before `log_end`."""
    fd = disk.open_file(path, os.O_RDONLY)
    try:
        used = _written(fd)
        while (
            log_end is not None and used and _PLACE.unpack(os.pread(fd, _PLACE.size, used - ENTRY_SIZE))[0] >= log_end
        ):
            used -= ENTRY_SIZE
        return used
    finally:
        os.close(fd)


def _place(fd: int, position: int) -> int:
    place: int = _PLACE.unpack(os.pread(fd, _PLACE.size, position))[0]
    return place


def _written(fd: int) -> int:
    """Up to the last entry that is not zero."""
    end = written_end(fd)
    while end > 0:
        begin = max(end - _CHUNK, 0)
        if used := len(os.pread(fd, end - begin, begin).rstrip(b"\0")):
            return -(-(begin + used) // ENTRY_SIZE) * ENTRY_SIZE
        end = begin
    return 0


def _index_used(path: Path, shape: Shape) -> int:
    with disk.open_to_read(path) as file:
        count: int = HEADER.unpack(file.read(HEADER_SIZE).ljust(HEADER_SIZE, b"\0"))[5]
    return HEADER_SIZE + shape.slots * SLOT_SIZE + min(max(count, 1), shape.entries) * INDEX_ENTRY_SIZE


def _crc_of(path: Path, begin: int, end: int, crc: int = 0) -> int:
    with disk.open_to_read(path) as file:
        file.seek(begin)
        while begin < end and (data := file.read(min(_CHUNK, end - begin))):
            crc = zlib.crc32(data, crc)
            begin += len(data)
    return crc
