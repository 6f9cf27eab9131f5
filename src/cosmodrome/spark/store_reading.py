"""Records straight out of store folders: which files make a task, and what is in them.

A file of a commit log begins with a record, so each can be walked alone. Whole runs of records are taken at once; only
where something is not as it should be are they looked at one by one, with the walk that `cosmodrome store verify` uses.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cosmodrome.config import MIB
from cosmodrome.errors import ConfigError, ProtocolError, StoreError
from cosmodrome.spark.decoding import Bools, Records
from cosmodrome.spark.store_options import Mode, OnDamage, StoreOptions
from cosmodrome.store.commit_log import is_complete
from cosmodrome.store.consume_queue import ENTRY_SIZE, FILLER_SIZE
from cosmodrome.store.log_walk import Damage, Tail, walk
from cosmodrome.store.survey import FoundFile, LogView, Maps, QueueView, Survey, survey
from cosmodrome.store.verification import claimed_end
from cosmodrome.wire.record import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, MIN_SIZE, RecordHead, check_at, head_at

log = logging.getLogger(__name__)

RUN_ROWS = 10_000
RUN_BYTES = 8 * MIB
ENTRIES_PER_TASK = 200_000
# Store times come from a clock that may be set back; files are passed over only when this far out of the range.
CLOCK_SLACK_MS = 3_600_000

_PLACE = struct.Struct(">iI20xq")  # size, magic, physical offset
_ENTRY = np.dtype([("at", ">i8"), ("size", ">i4"), ("tags", ">i8")])


@dataclass(frozen=True, slots=True)
class LogPart:
    """One file of a commit log. `claimed_end` is how far somebody says the log reaches."""

    path: str
    start: int
    size: int
    is_last: bool
    claimed_end: int


@dataclass(frozen=True, slots=True)
class QueuePart:
    """Offsets [begin, end) of one queue of the store `root`."""

    root: str
    topic: str
    queue_id: int
    begin: int
    end: int


Part = LogPart | QueuePart


class Found(NamedTuple):
    """Records of one file, or what is wrong there."""

    file: str
    records: Records | None
    damage: str = ""
    at: int = 0  # of damage: its place in the log


# --- planning


def parts(options: StoreOptions) -> list[list[Part]]:
    """What each task reads; StoreError when a folder is no store."""
    found: list[list[Part]] = []
    for path in options.paths:
        seen = survey(Path(path), options.places(path))
        if options.mode is Mode.LOG:
            found += [[part] for part in _log_parts(seen, options)]
        else:
            found += _queue_tasks(seen, options)
    return found


def _log_parts(seen: Survey, options: StoreOptions) -> list[Part]:
    files = list(seen.log.files)
    while files and not any(seen.log.view(files[-1])[:8]):  # made before it is needed
        files.pop()
    claimed = claimed_end(seen)
    times = [_first_time(seen.log, file) for file in files]
    wanted = [
        file
        for file, first, next_first in zip(files, times, [*times[1:], None], strict=True)
        if _may_hold(first, next_first, options)
    ]
    return [LogPart(str(file.path), file.start, file.size, file is files[-1], claimed) for file in wanted]


def _first_time(view: LogView, file: FoundFile) -> int | None:
    head = view.head_at(file.start)
    return head.store_timestamp if head is not None else None


def _may_hold(first: int | None, next_first: int | None, options: StoreOptions) -> bool:
    """Whether a file can hold records of the wanted time; one whose times are not known can."""
    begin, end = options.stored_from_ms, options.stored_before_ms
    if begin is not None and next_first is not None and next_first < begin - CLOCK_SLACK_MS:
        return False
    return end is None or first is None or first < end + CLOCK_SLACK_MS


def _queue_tasks(seen: Survey, options: StoreOptions) -> list[list[Part]]:
    if seen.in_rocksdb:
        raise ConfigError(f"{seen.root} keeps its queues in RocksDB; read its log with the option mode=log")
    tasks: list[list[Part]] = []
    room = 0
    for queue in seen.own_queues.values():
        if options.topics and queue.topic not in options.topics:
            continue
        end = queue.max_offset
        begin = queue.min_offset(seen.log.start, end)
        while begin < end:
            if room <= 0:
                tasks.append([])
                room = ENTRIES_PER_TASK
            cut = min(begin + room, end)
            tasks[-1].append(QueuePart(str(seen.root), queue.topic, queue.queue_id, begin, cut))
            room -= cut - begin
            begin = cut
    return tasks


# --- reading


def read_parts(wanted: Iterable[Part], options: StoreOptions) -> Iterator[Found]:
    """Records and damage, as the options want them. StoreError for the first damage, if they want that."""
    damages = 0
    surveys: dict[str, Survey] = {}
    for part in wanted:
        for found in _read(part, surveys, options):
            if found.records is None:
                damages += 1
                if options.on_damage is OnDamage.FAIL:
                    raise StoreError(
                        f"{found.file}, offset {found.at}: {found.damage}. Set the option onDamage to skip or report "
                        "to read on, or look with `cosmodrome store verify`"
                    )
                log.warning("%s, offset %d: %s", found.file, found.at, found.damage)
                if options.on_damage is OnDamage.REPORT:
                    yield found
            elif len(records := _wanted(found.records, options)):
                yield Found(found.file, records)
    if damages:
        log.warning("damaged parts: %d", damages)


def _read(part: Part, surveys: dict[str, Survey], options: StoreOptions) -> Iterator[Found]:
    if isinstance(part, LogPart):
        return _read_log(part)
    if part.root not in surveys:
        surveys[part.root] = survey(Path(part.root), options.places(part.root))
    return _read_queue(part, surveys[part.root])


def _wanted(records: Records, options: StoreOptions) -> Records:
    keep: Bools = np.ones(len(records), np.bool_)
    if options.stored_from_ms is not None:
        keep &= records.store_timestamps >= options.stored_from_ms
    if options.stored_before_ms is not None:
        keep &= records.store_timestamps < options.stored_before_ms
    if options.topics:
        keep &= records.is_of_topic(options.topics)
    return records.select(keep)


# --- commit log files


def _read_log(part: LogPart) -> Iterator[Found]:
    file = FoundFile(Path(part.path), part.start, part.size)
    view = LogView([file], part.size, Maps())
    data = view.view(file)
    position = 0
    while position < len(data) and not _closes(data, position):
        end = _run_end(data, position, part.start)
        records = _records(data[position:end]) if end > position else None
        if records is None:
            yield from _read_carefully(part, view, part.start + position)
            return
        yield Found(part.path, records)
        position = end


def _closes(data: memoryview, position: int) -> bool:
    """Whether the blank record that closes a file is here."""
    left = len(data) - position
    return left >= 8 and struct.unpack_from(">iI", data, position) == (left, BLANK_MAGIC)


def _run_end(data: memoryview, position: int, start: int) -> int:
    """Where a run of what look like records ends: at the first that does not, or when there are enough."""
    limit, unpack, rows = min(len(data), position + RUN_BYTES), _PLACE.unpack_from, 0
    while rows < RUN_ROWS and position + MIN_SIZE <= limit:
        size, magic, place = unpack(data, position)
        is_record = magic in (MAGIC_V1, MAGIC_V2) and place == start + position
        if not is_record or size < MIN_SIZE or position + size > len(data):
            break
        position += size
        rows += 1
    return position


def _records(data: memoryview) -> Records | None:
    """All of them, if all are whole."""
    try:
        records = Records(bytes(data))
    except ProtocolError:
        return None
    return records if records.are_complete() else None


def _read_carefully(part: LogPart, view: LogView, begin: int) -> Iterator[Found]:
    """The rest of a file, record by record."""
    run = _Run(part.path)
    for found in walk(view, part.claimed_end, begin):
        if isinstance(found, RecordHead):
            file = view.files[0]
            yield from run.add(view.view(file)[found.physical_offset - file.start :][: found.size])
        elif (text := _damage(found, part)) is not None:
            yield from run.cut()
            yield Found(part.path, None, text, found.begin)
    yield from run.cut()


def _damage(found: Damage | Tail, part: LogPart) -> str | None:
    """What is wrong, if anything is. Nobody speaks of what lies behind the end of the last file's records."""
    if isinstance(found, Damage):
        return f"{found.end - found.begin} bytes are no records: {found.reason}"
    end = part.start + part.size
    if not part.is_last and found.begin < end:
        return f"{end - found.begin} bytes up to the end of the file are no records: {found.reason}"
    if part.is_last and found.begin < part.claimed_end:
        return f"{part.claimed_end - found.begin} bytes that the queues speak of are no records: {found.reason}"
    if found.end > found.begin:
        log.warning("%s: the log ends at %d; %d bytes behind are torn", part.path, found.begin, found.end - found.begin)
    return None


class _Run:
    """Records that were looked at one by one, joined again."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._records: list[bytes] = []
        self._size = 0

    def add(self, record: memoryview) -> Iterator[Found]:
        self._records.append(bytes(record))
        self._size += len(record)
        if len(self._records) >= RUN_ROWS or self._size >= RUN_BYTES:
            yield from self.cut()

    def cut(self) -> Iterator[Found]:
        if self._records:
            yield Found(self._file, Records(b"".join(self._records)))
            self._records, self._size = [], 0


# --- queues


def _read_queue(part: QueuePart, seen: Survey) -> Iterator[Found]:
    queue = seen.queues[part.topic, part.queue_id]
    for begin in range(part.begin, part.end, RUN_ROWS):
        places = _entries(queue, seen.maps, begin, min(begin + RUN_ROWS, part.end))
        for file, group in _by_file(places, seen.log):
            yield from _read_entries(queue, seen.log, file, group)


def _entries(queue: QueueView, maps: Maps, begin: int, end: int) -> list[tuple[int, int, int]]:
    """Queue offset, place and size of every entry that is no filler."""
    found: list[tuple[int, int, int]] = []
    for file in queue.files:
        first = file.start // ENTRY_SIZE
        low, high = max(begin, first), min(end, first + file.size // ENTRY_SIZE)
        if low < high:
            data = maps.view(file.path)[(low - first) * ENTRY_SIZE : (high - first) * ENTRY_SIZE]
            entries = np.frombuffer(data, _ENTRY)
            found += zip(range(low, high), entries["at"].tolist(), entries["size"].tolist(), strict=True)
    return [entry for entry in found if entry[2] != FILLER_SIZE]


Entries = list[tuple[int, int, int]]


def _by_file(places: Entries, view: LogView) -> Iterator[tuple[FoundFile | None, Entries]]:
    """Neighbours that lie in one file of the log, and together are not too large."""
    group: Entries = []
    current: FoundFile | None = None
    size = 0
    for entry in places:
        file = view.file_at(entry[1]) if entry[2] > 0 else None
        if group and (file != current or size >= RUN_BYTES):
            yield current, group
            group, size = [], 0
        current = file
        group.append(entry)
        size += entry[2]
    if group:
        yield current, group


def _read_entries(queue: QueueView, view: LogView, file: FoundFile | None, group: Entries) -> Iterator[Found]:
    if file is None:
        for offset, at, _ in group:
            yield _lost(queue, offset, at)
        return
    data, name = view.view(file), str(file.path)
    pieces = [bytes(data[at - file.start :][:size]) for _, at, size in group]
    try:
        records = Records(b"".join(pieces))
        offsets = [offset for offset, _, _ in group]
        are_right = len(records) == len(group) and records.queue_offsets.tolist() == offsets
        if are_right and records.are_of_queue(queue.topic, queue.queue_id) and records.are_complete():
            yield Found(name, records)
            return
    except ProtocolError:
        pass
    run = _Run(name)
    for (offset, at, _), piece in zip(group, pieces, strict=True):
        if _is_whole(piece, at, (queue.topic, queue.queue_id, offset)):
            yield from run.add(memoryview(piece))
        else:
            yield from run.cut()
            yield _lost(queue, offset, at)
    yield from run.cut()


def _is_whole(piece: bytes, at: int, place: tuple[str, int, int]) -> bool:
    """Whether it is the whole record of this topic, queue and offset."""
    try:
        head = head_at(piece, 0, len(piece))
        check_at(piece, 0, len(piece))
    except ProtocolError:
        return False
    if (head.topic, head.queue_id, head.queue_offset) != place:
        return False
    return head.size == len(piece) and head.physical_offset == at and is_complete(memoryview(piece), head)


def _lost(queue: QueueView, offset: int, at: int) -> Found:
    return Found(str(queue.directory), None, f"offset {offset} of {queue.name}: no whole record is in its place", at)
