"""All queues of a store."""

from __future__ import annotations

import logging
import os
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

from cosmodrome import disk
from cosmodrome.errors import InvalidParameter
from cosmodrome.mapped_file import (
    MappedFile,
    list_files,
    log_file_names,
    remove_unsure_files,
    sync_directory,
    sync_path,
    written_end,
)
from cosmodrome.model import check_topic
from cosmodrome.numbers import MAX_INT, parse_int
from cosmodrome.store.commit_log import CommitLog
from cosmodrome.store.consume_queue import ENTRY, ENTRY_SIZE, FILLER_SIZE, ConsumeQueue, Entry, Holds
from cosmodrome.store.open_files import OpenFiles
from cosmodrome.wire.record import MIN_SIZE, RecordHead

log = logging.getLogger(__name__)

# How many records are looked at for those of a queue that lost entries: some seconds at a start.
MAX_LOOKED_AT = 1_000_000
_MANY_FILES = 64
_THREADS = 16  # that wait for the disk at once, when many files are to be read or synced

T = TypeVar("T")
QueueKey = tuple[str, int]  # topic, queue id
DELETED_STEP = 20  # queues deleted in one step: each is some calls to the file system


class ConsumeQueues:
    """Every queue of a store. A queue is looked at when it is first asked for, and its files are opened on demand."""

    def __init__(
        self, root: Path, file_size: int, open_files: OpenFiles, log: CommitLog, *, after_crash: bool = False
    ) -> None:
        self.root = root
        self._file_size = -(-file_size // ENTRY_SIZE) * ENTRY_SIZE
        self._open_files = open_files
        self._log = log
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._dirty: list[MappedFile] = []
        self.rewritten: dict[Path, int] = {}  # from where on files have changed that were written before
        self._log_start = log.start
        self._shortened: list[ConsumeQueue] = []  # by damaged entries
        self.entry_of: Callable[[RecordHead], Entry | None] | None = None  # once the log is recovered
        self.settled_end = 0  # below it, the last broker entered everything that is in the log
        self.floors: Mapping[QueueKey, int] = {}  # what the next messages of some queues get at least
        self._names = _queue_names(root)
        if after_crash:
            for path in [self._path(topic, queue_id) for topic, ids in self._names.items() for queue_id in ids]:
                remove_unsure_files(path, self._file_size)
        self._check_file_size()

    def _check_file_size(self) -> None:
        """A changed size shows in any file: one look now saves a surprise later."""
        for topic, ids in self._names.items():
            list_files(self._path(topic, min(ids)), self._file_size)
            break

    @property
    def is_empty(self) -> bool:
        return not self._names

    def topics(self) -> list[str]:
        return sorted(self._names)

    def ids(self, topic: str) -> list[int]:
        return sorted(self._names.get(topic, ()))

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, unless nothing was ever put into it."""
        queue = self._queues.get((topic, queue_id))
        if queue is None and queue_id in self._names.get(topic, ()):
            queue = self._open(topic, queue_id)
            if queue.load(self._log.start, self._holds(topic, queue_id)):
                self._shortened.append(queue)
                if self.entry_of is not None:
                    self.refill()
        elif queue is not None and queue.log_start < self._log_start:
            queue.correct_min(self._log_start)
        return queue

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made if it is not there. Its folder comes with the first message."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self.find(topic, queue_id) or self._open(topic, queue_id)
        return queue

    def _open(self, topic: str, queue_id: int) -> ConsumeQueue:
        path = self._path(topic, queue_id)
        queue = ConsumeQueue(path, topic, queue_id, self._file_size, self._open_files, self._dirty, self.rewritten)
        queue.reserved = queue.next_offset = self.floors.get((topic, queue_id), 0)
        queue.holds = partial(self._is_there, topic, queue_id)
        self._queues[topic, queue_id] = queue
        self._names.setdefault(topic, set()).add(queue_id)
        return queue

    def _path(self, topic: str, queue_id: int) -> Path:
        if not 0 <= queue_id <= MAX_INT:
            raise InvalidParameter(f"{topic} has no queue {queue_id}")
        return self.root / f"{check_topic(topic)}/{queue_id}"

    def _holds(self, topic: str, queue_id: int) -> Holds:
        def holds(physical_offset: int, size: int, queue_offset: int) -> bool:
            head = self._log.head_at(physical_offset)
            is_settled = physical_offset + size <= self.settled_end
            if head is None:
                return is_settled and size >= MIN_SIZE  # a damaged record keeps its number
            if head.size != size or head.is_lost_message:
                return False
            return is_settled or (head.topic, head.queue_id, head.queue_offset) == (topic, queue_id, queue_offset)

        return holds

    def _is_there(self, topic: str, queue_id: int, physical_offset: int, size: int, queue_offset: int) -> bool:
        """Return whether the log has the record of this queue offset there."""
        head = self._log.head_at(physical_offset)
        wanted = size, topic, queue_id, queue_offset
        return head is not None and (head.size, head.topic, head.queue_id, head.queue_offset) == wanted

    def cut_back(self, physical_offset: int) -> None:
        """Drop, in every queue on disk, what is damaged or points at or behind `physical_offset`."""
        for topic, queue_id in self._keys():
            queue = self._queues.get((topic, queue_id)) or self._open(topic, queue_id)
            if queue.cut_back(physical_offset) and queue not in self._shortened:
                self._shortened.append(queue)
            queue.correct_min(self._log.start)

    def cut_to(self, physical_offset: int) -> None:
        """The log was cut there: drop what leads behind it, while the store is in use."""
        for topic, queue_id in self._keys():
            queue = self._queues.get((topic, queue_id))
            end = queue.last_physical_end if queue is not None else _claimed_end(str(self._path(topic, queue_id)))
            if end is not None and end <= physical_offset and (end or queue is None):
                continue
            queue = queue or self._open(topic, queue_id)
            if queue.cut_back(physical_offset) and queue not in self._shortened:
                self._shortened.append(queue)
            queue.correct_min(self._log.start)
            queue.recovered_end = queue.max_offset
            if queue.is_unused:
                self._forget(queue)
        self.settled_end = min(self.settled_end, physical_offset)
        self.refill()

    def _forget(self, queue: ConsumeQueue) -> None:
        """Remove a queue that has never had a message, and its topic with the last of its queues."""
        queue.close()
        key = queue.topic, queue.queue_id
        del self._queues[key]
        self._shortened = [other for other in self._shortened if other is not queue]
        self._names[queue.topic].discard(queue.queue_id)
        folder = self._path(*key)
        if folder.exists():
            shutil.rmtree(folder)
            sync_directory(folder.parent)  # else a crash brings back what leads to other messages by then
        if not self._names[queue.topic]:
            del self._names[queue.topic]
            with suppress(OSError):
                folder.parent.rmdir()

    def refill(self) -> None:
        """Enter again what the log has of queues that lost entries because one of them was damaged."""
        assert self.entry_of is not None, "not while the log is recovered"
        shortened, self._shortened = self._shortened, []
        for queue in shortened:
            next_offset = queue.next_offset
            while queue.last_physical_end and not self._leads(queue):
                queue.cut(queue.max_offset - 1)  # it may be the damaged one itself
            before, begin = queue.max_offset, max(queue.last_physical_end, self._log.start)
            for number, head in enumerate(self._log.heads(begin)):
                if number >= MAX_LOOKED_AT:
                    log.error(
                        "queue not filled again, stop the broker and run `cosmodrome store repair`: topic=%s queue=%d "
                        "offset=%d log_offset=%d",
                        queue.topic,
                        queue.queue_id,
                        queue.max_offset,
                        head.physical_offset,
                    )
                    break
                # An offset that the records in between leave no room for is damaged.
                is_next = queue.max_offset <= head.queue_offset <= before + number
                is_of_queue = (head.topic, head.queue_id) == (queue.topic, queue.queue_id)
                if is_of_queue and is_next and (entry := self.entry_of(head)) is not None:
                    queue.put(head.queue_offset, *entry)
            queue.correct_min(self._log.start)
            queue.recovered_end = queue.max_offset
            queue.next_offset = max(queue.max_offset, next_offset)
            if queue.max_offset > before:
                log.error(
                    "queue entries rebuilt from the log: topic=%s queue=%d offsets=%d to %d",
                    queue.topic,
                    queue.queue_id,
                    before,
                    queue.max_offset - 1,
                )

    def _leads(self, queue: ConsumeQueue) -> bool:
        """Whether a queue's last entry leads to its record, or to one that is gone with its file."""
        physical_offset, size, _ = queue.entry(queue.max_offset - 1)
        if 0 <= physical_offset < self._log.start and size != FILLER_SIZE:
            return True
        head = self._log.head_at(physical_offset)
        wanted = (queue.topic, queue.queue_id, queue.max_offset - 1)
        return head is not None and (head.topic, head.queue_id, head.queue_offset) == wanted

    def claimed_ends(self) -> dict[QueueKey, int | None]:
        """Where the last record ends that is in each queue, if what the queues say can be believed; None: unknown."""
        return _claimed_ends(self.root, self._keys())

    def _keys(self) -> list[QueueKey]:
        return [(topic, queue_id) for topic in self.topics() for queue_id in self.ids(topic)]

    def distrust(self, physical_offset: int) -> None:
        """Have everything synced that speaks of records at or behind `physical_offset`, whoever wrote it."""
        for queue in self._queues.values():
            queue.distrust(physical_offset)

    def settle(self) -> None:
        """What was entered by a scan is all there is: the next messages come behind it."""
        for queue in self._queues.values():
            queue.recovered_end = queue.max_offset
            queue.next_offset = max(queue.max_offset, queue.reserved)
            if queue.fillers or queue.log_start != self._log.start:
                queue.correct_min(self._log.start)

    def reserve(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Let the next message of a queue have at least this offset: those before it were given away."""
        queue = self.find(topic, queue_id)
        if queue is not None:
            queue.reserved = max(queue.reserved, queue_offset)
            queue.next_offset = max(queue.next_offset, queue_offset)

    def reserved(self) -> dict[QueueKey, int]:
        """The floors that still count: of queues that end with lost messages."""
        floors = {key: queue.reserved for key, queue in self._queues.items() if queue.reserved > queue.max_offset}
        return floors | {key: floor for key, floor in self.floors.items() if key not in self._queues}

    @property
    def fillers(self) -> int:
        return sum(queue.fillers for queue in self._queues.values())

    def log_moved(self) -> None:
        """The log begins later than it did; each queue finds its own beginning again when it is next asked for."""
        self._log_start = self._log.start

    def take_expired(self, topic: str, queue_id: int, log_start: int) -> list[MappedFile]:
        """The files of one queue whose messages are all gone; whoever takes them deletes them, in this order."""
        if (topic, queue_id) not in self._queues and not self._has_several_files(topic, queue_id):
            return []
        queue = self.find(topic, queue_id)
        return queue.take_expired(log_start) if queue is not None else []

    def _has_several_files(self, topic: str, queue_id: int) -> bool:
        return len(log_file_names(self._path(topic, queue_id))) > 1

    def delete_topic(self, topic: str) -> None:
        """Forget the topic's queues and remove their files; its messages stay in the log until it is cleaned."""
        for queue_id in self.ids(topic):
            queue = self._queues.pop((topic, queue_id), None)
            if queue is not None:
                queue.close()
        if self._names.pop(topic, None):
            shutil.rmtree(self.root / check_topic(topic), ignore_errors=True)

    def deleting_topic(self, topic: str) -> Iterator[None]:
        """The same in steps. Until the last nobody may send to the topic: the message could go with the old queue."""
        for number, queue_id in enumerate(self.ids(topic), 1):
            queue = self._queues.pop((topic, queue_id), None)
            if queue is not None:
                queue.close()
            self._names[topic].discard(queue_id)
            shutil.rmtree(self._path(topic, queue_id), ignore_errors=True)
            if number % DELETED_STEP == 0:
                yield
        if topic in self._names and not self._names[topic]:
            del self._names[topic]
            with suppress(OSError):
                (self.root / check_topic(topic)).rmdir()

    def delete_older(self, topic: str, physical_offset: int) -> None:
        """Remove those queues of the topic that hold nothing at or behind `physical_offset`."""
        for queue_id in self.ids(topic):
            queue = self.queue(topic, queue_id)
            if queue.last_physical_end <= physical_offset:
                queue.close()
                del self._queues[topic, queue_id]
                self._names[topic].remove(queue_id)
                shutil.rmtree(self._path(topic, queue_id), ignore_errors=True)
        if not self._names.get(topic, True):
            del self._names[topic]

    def take_dirty(self) -> list[MappedFile]:
        """The files written since the last time; whoever takes them syncs them."""
        taken, self._dirty[:] = self._dirty[:], []
        for file in taken:
            file.dirty = False
        return taken

    def close(self) -> None:
        self._open_files.close()


def claimed_ends(root: Path) -> Iterator[tuple[QueueKey, int | None]]:
    """Yield for each queue in a folder where its last record ends, None if unknown. No file stays open."""
    keys = [(topic, queue_id) for topic, ids in sorted(_queue_names(root).items()) for queue_id in sorted(ids)]
    yield from _claimed_ends(root, keys).items()


def _claimed_ends(root: Path, keys: Sequence[QueueKey]) -> dict[QueueKey, int | None]:
    paths = [f"{root}/{topic}/{queue_id}" for topic, queue_id in keys]
    return dict(zip(keys, in_threads(_claimed_end, paths), strict=True))


def _claimed_end(directory: str) -> int | None:
    """Where the last record of a queue ends. Nothing is mapped, for this is done with all queues of a store."""
    for name in reversed(log_file_names(directory)):
        fd = disk.open_file(f"{directory}/{name}", os.O_RDONLY)
        try:
            written = range(0, written_end(fd) - ENTRY_SIZE + 1, ENTRY_SIZE)
            used = bisect_left(written, True, key=partial(_is_unused, fd))
            if used:
                physical_offset, size, _ = ENTRY.unpack(os.pread(fd, ENTRY_SIZE, written[used - 1]))
                return None if size == FILLER_SIZE else physical_offset + size
        finally:
            os.close(fd)
    return None


def _is_unused(fd: int, position: int) -> bool:
    size: int = ENTRY.unpack(os.pread(fd, ENTRY_SIZE, position))[1]
    return size <= 0


def in_threads(work: Callable[[str], T], paths: Sequence[str]) -> list[T]:
    """The results of `work`, which mostly waits for the disk; with many paths, of several at a time."""
    if len(paths) <= _MANY_FILES:
        return [work(path) for path in paths]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="store-queues") as threads:
        chunks = [paths[at : at + _MANY_FILES] for at in range(0, len(paths), _MANY_FILES)]
        return list(chain.from_iterable(threads.map(lambda chunk: [work(path) for path in chunk], chunks)))


def sync_queue_files(files: list[MappedFile]) -> None:
    """Return once the files are on disk, and the folders of new ones too. OSError if any could not be written."""
    if len(files) > _MANY_FILES:
        os.sync()  # one pass instead of a journal commit for each; what went wrong still shows below
    in_threads(sync_path, [str(file.path) for file in files])
    new = [file for file in files if file.is_new]
    folders = {os.path.dirname(file.path) for file in new}  # the queue's, the topic's, and the one of all topics
    for _ in range(2):
        folders |= {os.path.dirname(folder) for folder in folders}
    in_threads(_sync_folder, sorted(folders))
    for file in new:
        file.is_new = False


def _sync_folder(folder: str) -> None:
    with suppress(FileNotFoundError):  # its topic was deleted meanwhile
        sync_directory(folder)


def _queue_names(root: Path) -> dict[str, set[int]]:
    """Topic → queue ids, as the folders say. What cannot be a topic or a queue is left alone; LinkRefused for a link
    that could be one."""
    names: dict[str, set[int]] = {}
    if not root.is_dir():
        return names
    for topic in _entries(root):
        if topic.is_dir() and is_topic(topic.name):
            disk.refuse_link(topic.path)
            for queue in _entries(topic):
                if (number := parse_int(queue.name, high=MAX_INT)) is not None:
                    disk.refuse_link(queue.path)
                    names.setdefault(topic.name, set()).add(number)
    return names


def _entries(folder: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)


def queue_folders(root: Path) -> Iterator[Path]:
    """The folder of every queue, in order."""
    for topic, ids in sorted(_queue_names(root).items()):
        yield from (root / topic / str(queue_id) for queue_id in sorted(ids))


def is_topic(name: str) -> bool:
    try:
        check_topic(name)
    except InvalidParameter:
        return False
    return True
