"""A store folder as it lies there, for those who only look: nothing is created, removed, locked or written.

Files are taken as they are found, of whatever size, so that a damaged store, a store in use and a store that another
broker wrote can be looked at. What is wrong with them is for `verification` to say.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from cosmodrome import disk
from cosmodrome.errors import ProtocolError, StoreError
from cosmodrome.mapped_file import NAME_DIGITS
from cosmodrome.numbers import MAX_INT, parse_int
from cosmodrome.store.checkpoint import Checkpoint
from cosmodrome.store.consume_queue import ENTRY, ENTRY_SIZE, FILLER_SIZE, Entry
from cosmodrome.store.consume_queues import is_topic
from cosmodrome.store.index_file import HEADER as INDEX_HEADER
from cosmodrome.store.paths import StorePaths
from cosmodrome.wire.record import RecordHead, head_at

# Each mapping holds a descriptor; most systems allow a process 1024.
MAX_MAPPED_FILES = 256
_CHUNK = 1024 * 1024
_ZEROS = bytes(_CHUNK)

QueueKey = tuple[str, int]  # topic, queue id

# Queues of Apache's whose messages are stored under another topic.
LIGHT_QUEUE_PREFIX = "%LMQ%"


class FoundFile(NamedTuple):
    """A file of a log or a queue. `start` is its name: the offset of its first byte."""

    path: Path
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class Maps:
    """Files mapped for reading, of which the least recently used is let go when there are many."""

    def __init__(self) -> None:
        self.view: Callable[[Path], memoryview] = lru_cache(MAX_MAPPED_FILES)(_map_file)


def _map_file(path: Path) -> memoryview:
    fd = disk.open_file(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        return memoryview(disk.map_to_read(fd, size) if size else b"")
    finally:
        os.close(fd)


def data_ranges(path: Path, begin: int) -> list[tuple[int, int]]:
    """The ranges of a file behind `begin` that are not holes."""
    fd = disk.open_file(path, os.O_RDONLY)
    try:
        return disk.data_ranges(fd, begin)
    finally:
        os.close(fd)


def data_end(path: Path, view: memoryview, begin: int) -> int:
    """Behind the last byte of a file, from `begin` on, that is not zero; `begin` when all are."""
    for low, high in reversed(data_ranges(path, begin)):
        while low < high:
            chunk = view[max(low, high - _CHUNK) : high]
            if chunk != _ZEROS[: len(chunk)]:
                return high - len(chunk) + len(bytes(chunk).rstrip(b"\0"))
            high -= len(chunk)
    return begin


class LogView:
    """The commit log's files, read only."""

    def __init__(self, files: Sequence[FoundFile], file_size: int, maps: Maps) -> None:
        self.files = files
        self.file_size = file_size
        self._starts = [file.start for file in files]
        self._maps = maps

    @property
    def start(self) -> int:
        return self._starts[0] if self._starts else 0

    @property
    def files_end(self) -> int:
        """Where the last file ends; the log ends in it or before."""
        return self.files[-1].end if self.files else 0

    def view(self, file: FoundFile) -> memoryview:
        return self._maps.view(file.path)

    def file_at(self, offset: int) -> FoundFile | None:
        """The file that holds this byte."""
        index = bisect_right(self._starts, offset) - 1
        return self.files[index] if index >= 0 and offset < self.files[index].end else None

    def file_after(self, offset: int) -> FoundFile | None:
        """The first file that begins behind `offset`."""
        index = bisect_right(self._starts, offset)
        return self.files[index] if index < len(self.files) else None

    def head_at(self, offset: int) -> RecordHead | None:
        """The head of the record that begins there, or None when none does."""
        file = self.file_at(offset)
        if file is None:
            return None
        view = self.view(file)
        try:
            head = head_at(view, offset - file.start, len(view))
        except ProtocolError:
            return None
        return head if head.physical_offset == offset else None


class QueueView:
    """One consume queue's files, read only."""

    __slots__ = ("_maps", "_starts", "directory", "files", "queue_id", "topic")

    def __init__(self, directory: Path, topic: str, queue_id: int, files: Sequence[FoundFile], maps: Maps) -> None:
        self.directory = directory
        self.topic = topic
        self.queue_id = queue_id
        self.files = files
        self._starts = [file.start for file in files]
        self._maps = maps

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.queue_id}"

    def entry(self, queue_offset: int) -> Entry | None:
        """The entry of an offset, if a file holds it and anything was entered there."""
        index = bisect_right(self._starts, queue_offset * ENTRY_SIZE) - 1
        if index < 0:
            return None
        file = self.files[index]
        position = queue_offset * ENTRY_SIZE - file.start
        if position + ENTRY_SIZE > file.size:
            return None
        entry: Entry = ENTRY.unpack_from(self._maps.view(file.path), position)
        return entry if entry[1] > 0 else None

    def entries(self) -> Iterator[tuple[int, Entry]]:
        """Every entry with its queue offset, up to the last that is not zero."""
        for file in self.files:
            view = self._maps.view(file.path)
            used = -(-data_end(file.path, view, 0) // ENTRY_SIZE) * ENTRY_SIZE
            whole = view[: min(used, file.size - file.size % ENTRY_SIZE)]
            yield from enumerate(ENTRY.iter_unpack(whole), file.start // ENTRY_SIZE)

    @property
    def first_offset(self) -> int:
        return self._starts[0] // ENTRY_SIZE if self._starts else 0

    @property
    def max_offset(self) -> int:
        """The offset behind the last entry; found by halving, as zeros follow the entries of a sound queue."""
        for file in reversed(self.files):
            if used := _used_entries(self._maps.view(file.path)):
                return file.start // ENTRY_SIZE + used
        return self.first_offset

    def min_offset(self, log_start: int, max_offset: int) -> int:
        """The first offset whose record is still in the log."""
        first = next((offset for offset, entry in self.entries() if entry[1] != FILLER_SIZE), max_offset)
        return first + bisect_left(range(first, max_offset), log_start, key=self._physical_offset)

    def _physical_offset(self, queue_offset: int) -> int:
        """For a filler, that of the entry before it: so the numbers never fall, and can be searched by halving."""
        entry = self.entry(queue_offset)
        while entry is not None and entry[1] == FILLER_SIZE:
            queue_offset -= 1
            entry = self.entry(queue_offset)
        return -1 if entry is None else entry[0]


def _used_entries(view: memoryview) -> int:
    positions = range(0, len(view) - ENTRY_SIZE + 1, ENTRY_SIZE)
    return bisect_left(positions, True, key=lambda position: ENTRY.unpack_from(view, position)[1] <= 0)


class IndexView(NamedTuple):
    """The header of an index file. `next_entry` is a number; the first entry has number 1."""

    path: Path
    size: int
    begin_timestamp: int
    end_timestamp: int
    begin_offset: int
    end_offset: int
    used_slots: int
    next_entry: int

    @property
    def entries(self) -> int:
        return max(self.next_entry - 1, 0)


@dataclass(frozen=True, slots=True)
class Survey:
    """Everything found in a store folder.

    `strays` are files that no broker puts where they lie, and that keep one from starting; `passed_over` are those
    that brokers pass over. Apache may keep queues in other forms, which are not looked at: all of them in RocksDB, or
    those of `batch_topics` in a folder of their own.
    """

    paths: StorePaths
    maps: Maps
    log: LogView
    queues: dict[QueueKey, QueueView]
    queue_file_size: int
    index: list[IndexView]
    checkpoint: Checkpoint | None
    aborted: bool
    strays: list[Path]
    passed_over: list[Path]
    in_rocksdb: bool
    batch_topics: frozenset[str]

    @property
    def root(self) -> Path:
        return self.paths.root

    @property
    def own_queues(self) -> dict[QueueKey, QueueView]:
        """The queues that hold the messages of their topic."""
        return {key: queue for key, queue in self.queues.items() if not queue.topic.startswith(LIGHT_QUEUE_PREFIX)}

    @property
    def light_queues(self) -> int:
        return len(self.queues) - len(self.own_queues)

    def has_other_queues(self, topic: str) -> bool:
        return self.in_rocksdb or topic in self.batch_topics


def survey(root: Path, paths: StorePaths | None = None) -> Survey:
    """Look at the folder; StoreError when there is no store in it. `paths` are needed if parts of it lie elsewhere."""
    if not root.is_dir():
        raise StoreError(f"there is no folder {root}")
    paths = paths or StorePaths.of(root)
    if not paths.commit_log.is_dir():
        raise StoreError(_no_log(paths))
    strays: list[Path] = []
    passed_over: list[Path] = []
    maps = Maps()
    log_files = list_log_files(paths.commit_log, strays)
    in_rocksdb = (paths.consume_queue / "CURRENT").is_file()
    queues = {} if in_rocksdb else _list_queues(paths.consume_queue, maps, strays, passed_over)
    checkpoint = paths.checkpoint
    return Survey(
        paths=paths,
        maps=maps,
        log=LogView(log_files, agreed_size([log_files]), maps),
        queues=queues,
        queue_file_size=agreed_size(queue.files for queue in queues.values()),
        index=list_index_files(paths.index, strays),
        checkpoint=Checkpoint(checkpoint) if checkpoint.exists() else None,
        aborted=paths.abort.exists(),
        strays=strays,
        passed_over=passed_over,
        in_rocksdb=in_rocksdb,
        batch_topics=frozenset(entry.name for entry in _scan(root / "batchconsumequeue")),
    )


def list_own_queues(folder: Path) -> dict[QueueKey, QueueView]:
    """Look at the queues of a folder that hold the messages of their topic; without a survey of the rest."""
    queues = _list_queues(folder, Maps(), [], [])
    return {key: queue for key, queue in queues.items() if not queue.topic.startswith(LIGHT_QUEUE_PREFIX)}


def _no_log(paths: StorePaths) -> str:
    if paths.commit_log.parent != paths.root:
        return f"there is no commit log in {paths.commit_log}; is its disk mounted?"
    hint = _stores_below(paths.root) or "; if storePathCommitLog puts it elsewhere, give the broker's -c broker.conf"
    return f"{paths.root} is not a store: it has no folder {paths.commit_log.name}{hint}"


def _stores_below(root: Path) -> str:
    """A hint for whoever named the folder of several brokers."""
    stores = [entry.path for entry in _scan(root) if Path(entry.path, "commitlog").is_dir()]
    return f"; did you mean {' or '.join(stores)}?" if stores else ""


def list_log_files(directory: Path, strays: list[Path]) -> list[FoundFile]:
    """The files named after an offset, in order; any other goes to `strays`."""
    files = []
    for entry in _scan(directory):
        if entry.is_dir():
            continue  # Apache passes over folders here
        if entry.is_file() and len(entry.name) == NAME_DIGITS and (start := parse_int(entry.name)) is not None:
            files.append(FoundFile(Path(entry.path), start, entry.stat().st_size))
        else:
            strays.append(Path(entry.path))
    return files


def _list_queues(root: Path, maps: Maps, strays: list[Path], passed_over: list[Path]) -> dict[QueueKey, QueueView]:
    queues = {}
    for topic in _scan(root):
        if not topic.is_dir() or not is_topic(topic.name):
            passed_over.append(Path(topic.path))
            continue
        for queue in _scan(Path(topic.path)):
            if not queue.is_dir() or (queue_id := parse_int(queue.name, high=MAX_INT)) is None:
                passed_over.append(Path(queue.path))
                continue
            path = Path(queue.path)
            view = QueueView(path, topic.name, queue_id, list_log_files(path, strays), maps)
            queues[view.topic, view.queue_id] = view
    return dict(sorted(queues.items()))


def list_index_files(directory: Path, strays: list[Path]) -> list[IndexView]:
    """The files named after a time, in order; any other goes to `strays`."""
    files = []
    for entry in _scan(directory):
        if entry.is_file() and parse_int(entry.name) is not None:
            files.append(_index_view(Path(entry.path)))
        elif entry.is_file():
            strays.append(Path(entry.path))
    return files


def _index_view(path: Path) -> IndexView:
    with os.fdopen(disk.open_file(path, os.O_RDONLY), "rb") as file:
        header = file.read(INDEX_HEADER.size).ljust(INDEX_HEADER.size, b"\0")
        size = os.fstat(file.fileno()).st_size
    begin_time, end_time, begin_offset, end_offset, used_slots, next_entry = INDEX_HEADER.unpack(header)
    return IndexView(path, size, begin_time, end_time, begin_offset, end_offset, used_slots, max(next_entry, 1))


def _scan(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def agreed_size(chains: Iterable[Sequence[FoundFile]]) -> int:
    """The file size that lengths and names speak for most often; 0 when there are no files."""
    votes: Counter[int] = Counter()
    for files in chains:
        votes.update(file.size for file in files if file.size)
        votes.update(after.start - before.start for before, after in pairwise(files))
    return max(votes, key=lambda size: (votes[size], size), default=0)
