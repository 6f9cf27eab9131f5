"""Queues and index at a store's start: what is damaged is set aside, and the start builds it again from the log.

Both are derived from the log, so no damage to them is a reason not to start. Names, sizes and gaps of their files show
at a glance. What the files hold has no checksum in Apache's formats: a rotten tag hash would hide a message from those
who filter, a zeroed page give offsets away twice. So a clean stop leaves checksums in a file of ours, `derived.sums`.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

from cosmodrome import disk
from cosmodrome.mapped_file import file_start, is_log_file_name, written_end
from cosmodrome.numbers import parse_int, read_int
from cosmodrome.store.checkpoint import Checkpoint
from cosmodrome.store.consume_queue import ENTRY_SIZE
from cosmodrome.store.consume_queues import queue_folders
from cosmodrome.store.index_file import ENTRY_SIZE as INDEX_ENTRY_SIZE
from cosmodrome.store.index_file import HEADER, HEADER_SIZE, SLOT_SIZE, file_size
from cosmodrome.store.lock import AbortMark, Exit
from cosmodrome.store.paths import StorePaths, aside_folder, free_name

log = logging.getLogger(__name__)

SUMS = "derived.sums"
# Read at a start to compare checksums, the files written last first; `cosmodrome store verify` looks at everything.
MAX_READ_AT_START_BYTES = 64 * 1024 * 1024
_FORMAT = "cosmodrome-sums-1"
_CHUNK = 1024 * 1024
_TAIL_CHUNK = 16 * 1024  # read at once in search of the last entry: it lies in the last pages written
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


FileSizes = dict[str, int]  # by name, in order
Queues = Mapping[Path, FileSizes]  # by folder


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
        # From where on files were changed by those who may: what was summed up there does not count. The loop adds to
        # it at any time.
        self.rewritten: dict[Path, int] = {}
        self._writing = threading.Lock()
        self._forgotten: set[str] = set()  # topics deleted since the last `extend` began
        self._cuts = 0  # how often everything was forgotten
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
        rewritten = self._take_rewritten()
        known = self._known(rewritten)
        sums = {place: _sum(known.get(place), place, path, shape) for place, path in _files(self._paths)}
        if not self._write(log_end, sums):
            self.rewritten.update(rewritten)

    def extend(self, log_end: int, shape: Shape) -> None:
        """Write down what queues say of the log before `log_end`, and what full index files hold. A thread may do this
        while others write behind that."""
        self._forgotten.clear()
        cuts, rewritten = self._cuts, self._take_rewritten()
        known, files = self._known(rewritten), dict[str, Sum]()
        for place, path in _files(self._paths):
            with suppress(FileNotFoundError):  # its topic was deleted meanwhile, or its messages are gone
                found = _extended(known.get(place), place, path, log_end, shape)
                if found is not None:
                    files[place] = found
        with self._writing:
            if cuts != self._cuts:  # what was read is cut by now
                return
            for topic in self._forgotten:
                files = _without_topic(files, topic)
            broken = (place for place, one in self.files.items() if one.crc == _BROKEN and place.startswith("index/"))
            files |= {place: self.files[place] for place in broken if place in files}
            is_written = self._write_locked(log_end, files)
        if not is_written:
            self.rewritten.update(rewritten)

    def _take_rewritten(self) -> dict[Path, int]:
        taken: dict[Path, int] = {}
        while self.rewritten:  # one by one, for the loop adds to it meanwhile
            path, position = self.rewritten.popitem()
            taken[path] = position
        return taken

    def _known(self, rewritten: Mapping[Path, int]) -> dict[str, Sum]:
        """The checksums that still count."""
        known = dict(self.files)
        for path, position in rewritten.items():
            place = "/".join(("consumequeue", *path.parts[-3:]))
            if place in known and position < known[place].used:
                del known[place]
        return known

    def forget_all(self) -> None:
        """Return once nothing on disk speaks of what the files held: the log is no more, or is about to be cut."""
        with self._writing:
            self._cuts += 1
            if self._path.exists():
                self._path.unlink()
                disk.sync_folder(self._path.parent)
            self.files, self.log_end = {}, -1
            self.__dict__.pop("ends", None)

    def forget_topic(self, topic: str) -> None:
        """Its queues may begin again, with other messages."""
        with self._writing:
            self._forgotten.add(topic)
            kept = _without_topic(self.files, topic)
            if len(kept) < len(self.files):
                self._write_locked(self.log_end, kept)

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
        with self._writing:
            if (found := self.files.get(place)) is not None:
                self._write_locked(self.log_end, self.files | {place: found._replace(crc=_BROKEN)})

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

    def _write(self, log_end: int, files: dict[str, Sum]) -> bool:
        with self._writing:
            return self._write_locked(log_end, files)

    def _write_locked(self, log_end: int, files: dict[str, Sum]) -> bool:
        """Return whether it is on disk. The loop and threads come here, one at a time."""
        lines = (f"{one.crc} {one.used} {one.mtime_ns} {place}" for place, one in files.items())
        text = "\n".join([f"{_FORMAT} {log_end}", *lines]).encode()
        try:
            _replace(self._path, text + b"\n%08x\n" % zlib.crc32(text))
        except OSError as error:  # the one before it says less, but nothing wrong
            log.warning("%s cannot be written: %s", self._path, error)
            return False
        self.files, self.log_end = files, log_end
        self.__dict__.pop("ends", None)
        return True

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
        queues = {folder: _file_sizes(folder) for folder in queue_folders(self._paths.consume_queue)}
        if self._has_other_size(queues.values()):
            return []  # whoever opens the queues says so
        found = [trouble for folder, sizes in queues.items() for trouble in self._in_queue(folder, sizes)]
        if self._has_index:
            found += self._in_index()
        wrong = {trouble.path for trouble in found}
        return found + [trouble for trouble in self._rotten(queues) if trouble.path not in wrong]

    def _has_other_size(self, queues: Iterable[FileSizes]) -> bool:
        """Whether the files of all queues agree on a size that is not the configured one: then that was changed."""
        sizes: set[int] = set()
        files = 0
        for size in chain.from_iterable(queue.values() for queue in queues):
            sizes.add(size)
            files += 1
            if len(sizes) > 1 or self.shape.queue_file in sizes:
                return False
        return files > 1 and sizes != {0} and not any(size % ENTRY_SIZE for size in sizes)

    def _in_queue(self, folder: Path, sizes: FileSizes) -> Iterator[Trouble]:
        size = self.shape.queue_file
        good = [name for name in sizes if is_log_file_name(name) and file_start(name) % size == 0]
        for name, actual in sizes.items():
            disk.refuse_link(folder / name)
            if name not in good:
                yield Trouble(folder / name, f"its name is not a multiple of {size} in 20 digits")
            elif actual != size and (actual or not self._may_be_empty(name, good)):
                yield Trouble(folder / name, f"it has {actual} bytes instead of {size}")
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
            disk.refuse_link(path)
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
        # The times may fall: the machine's clock may have been set back between the two.
        sound = min(begin_ms, end_ms) >= 0 and 0 <= begin <= end and 0 <= used_slots <= count <= self.shape.entries
        return "" if sound else "its header makes no sense"

    def _rotten(self, queues: Queues) -> Iterator[Trouble]:
        """Files that are not what they were at the last clean stop. Since then, queues have only grown; of index files,
        the last one is written everywhere."""
        is_newest = self._is_as_left
        full = self.shape.index_file
        files = [
            (place, known)
            for place, known in self.sums.files.items()
            if is_newest or place.startswith("consumequeue/") or known.used == full
        ]
        yield from self._missing(queues)
        left = MAX_READ_AT_START_BYTES
        for place, known in sorted(files, key=lambda one: -one[1].mtime_ns):
            if known.crc != _BROKEN and left < known.used:
                left = 0
                continue
            path = self._path_of(place)
            if not path.exists():  # its messages are gone, or `_missing` has named it
                continue
            left -= known.used
            if known.crc == _BROKEN or _crc_of(path, 0, known.used) != known.crc:
                yield Trouble(path, "it is not what it was at the last clean stop")

    def _path_of(self, place: str) -> Path:
        kind, _, rest = place.partition("/")
        return (self._paths.index if kind == "index" else self._paths.consume_queue) / rest

    @property
    def _is_as_left(self) -> bool:
        """Return whether the store is as the clean stop left it that the checksums are of."""
        clean_end = Checkpoint(self._paths.checkpoint).clean_end
        return self.exit is Exit.CLEAN and clean_end is not None and clean_end[0] == self.sums.log_end

    def changed_since_stop(self) -> Iterator[Path]:
        """The files that are not what they were at the clean stop that was the last thing to happen; however long it
        takes to read them all."""
        for place, path in _files(self._paths) if self._is_as_left else ():
            known = self.sums.files.get(place)
            if known is not None and (known.crc == _BROKEN or _crc_of(path, 0, known.used) != known.crc):
                yield path

    def _missing(self, queues: Queues) -> Iterator[Trouble]:
        """Queues that end before a file they had: the first files go with their messages, the last one stays."""
        ends = {
            f"consumequeue/{folder.parent.name}/{folder.name}": max(sizes, default="")
            for folder, sizes in queues.items()
        }
        for place in self.sums.files:
            folder, _, name = place.rpartition("/")
            if name > ends.get(folder, "~"):
                yield Trouble(self._path_of(place), "it is missing")

    def set_aside(self, troubles: list[Trouble]) -> None:
        """Keep a copy of what is damaged, and leave a store that opens. May be interrupted: the mark and the checkpoint
        say from now on that queues and index are to be built from the whole log."""
        AbortMark(self._paths.abort).distrust_memory()
        checkpoint = Checkpoint(self._paths.checkpoint)
        checkpoint.forget_derived()
        if self._paths.checkpoint.exists():  # else it says no more as it is, and a full disk could not hold it
            checkpoint.save()
        self.sums.rewritten.update((path, 0) for path, _ in troubles)
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
        place = path.relative_to(self._paths.consume_queue)
        kept = aside_folder(self._paths.consume_queue) / place
        try:
            disk.make_folders(kept.parent)
            kept = free_name(kept, suffix="")
        except OSError as error:
            if error.errno not in disk.NO_ROOM:
                raise
            kept = free_name(self._paths.root / "-".join(place.parts))  # a name needs no room where a folder does
        size = self.shape.queue_file
        if is_log_file_name(path.name) and file_start(path.name) % size == 0 and not self._is_before_gap(path):
            try:
                disk.copy(path, kept)
            except OSError as error:
                if error.errno not in disk.NO_ROOM:
                    raise
                kept.unlink(missing_ok=True)
                log.error("%s: no room to keep a copy", path)
            disk.set_size(path, size)
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
        new = folder.with_name(folder.name + ".new")
        try:
            if folder.is_mount():  # it cannot be renamed, and Apache's brokers start with no folder in it
                raise OSError(errno.EBUSY, "a disk is mounted on it")
            new.mkdir(disk.folder_mode(), exist_ok=True)
        except OSError as error:
            if error.errno not in (*disk.NO_ROOM, errno.EBUSY):
                raise
            for path, what in troubles:
                log.error("%s is damaged: %s; the index cannot be kept (%s), it is built again", path, what, error)
            for path in folder.iterdir():
                if path.is_file():
                    path.unlink()
            return
        folder.rename(kept)
        new.rename(folder)
        disk.sync_folder(folder.parent)
        for path, what in troubles:
            log.error("%s is damaged: %s; the index is kept as %s and built again from the log", path, what, kept.name)


def _file_sizes(folder: Path) -> FileSizes:
    with os.scandir(folder) as entries:
        return dict(sorted((entry.name, entry.stat().st_size) for entry in entries if entry.is_file()))


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


def _sum(before: Sum | None, place: str, path: Path, shape: Shape) -> Sum:
    """The checksum of all that a file holds."""
    stat = path.stat()
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


def _extended(before: Sum | None, place: str, path: Path, log_end: int, shape: Shape) -> Sum | None:
    """The checksum of what a file says about the log before `log_end`; None for an index file that is not full."""
    is_index = place.startswith("index/")
    full = shape.index_file if is_index else shape.queue_file
    if before is not None and before.used == full:  # nothing is written to it any more
        return before
    used = _index_used(path, shape) if is_index else _queue_used(path, log_end)
    if before is not None and before.used == used:
        return before
    if is_index and used < full:
        return None
    mtime_ns = path.stat().st_mtime_ns if used == full else 0  # a clean stop need not read a full one again
    if before is None or before.used > used or is_index:
        return Sum(_crc_of(path, 0, used), used, mtime_ns)
    return Sum(_crc_of(path, before.used, used, before.crc), used, mtime_ns)


def _without_topic(files: dict[str, Sum], topic: str) -> dict[str, Sum]:
    return {place: one for place, one in files.items() if not place.startswith(f"consumequeue/{topic}/")}


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
        begin = max(end - _TAIL_CHUNK, 0)
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
