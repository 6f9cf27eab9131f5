"""The key index: message key → places in the commit log."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from cosmodrome import disk
from cosmodrome.clock import Clock
from cosmodrome.errors import StoreError
from cosmodrome.mapped_file import sync_directory, sync_path, wrong_size
from cosmodrome.numbers import parse_int, read_int
from cosmodrome.wire.java import java_hash

HEADER = struct.Struct(">qqqqii")
_SLOT = struct.Struct(">i")
ENTRY = struct.Struct(">iqii")  # key hash | log offset | seconds since the file's first message | entry before
HEADER_SIZE = HEADER.size
SLOT_SIZE = _SLOT.size
ENTRY_SIZE = ENTRY.size
_COUNTS_AT = 32
_pack_range, _pack_counts = struct.Struct(">qqqq").pack, struct.Struct(">ii").pack  # the two parts of a header
_read_slot, _pack_number, _write_entry = _SLOT.unpack_from, _SLOT.pack, ENTRY.pack_into

WALK_STEP = 5_000  # entries of a chain in one step
MAX_RESULTS = 64
_PREPARE_BYTES = 64 * 1024
_MAX_UNSAVED = 65_536  # entries between two saves of the header
_MAX_HASH = 2**31 - 1
MAX_SECONDS = 2**31 - 1
_NAME_FORMAT = "%Y%m%d%H%M%S"
_NAME_DIGITS = 17

Key = tuple[str, int]  # a key and the log offset of its message
PlacedKey = tuple[int, str, int, int]  # `topic_hash`, key, and the log offset and store time of its message


def file_size(slots: int, entries: int) -> int:
    return HEADER_SIZE + slots * SLOT_SIZE + entries * ENTRY_SIZE


class IndexFile:
    """A hash table in a file: slots, each with the number of the newest entry of its chain.

        | begin time 8 | end time 8 | begin offset 8 | end offset 8 | used slots 4 | next entry 4 |
        | slot 4 | slot 4 | …          0: empty
        | key hash 4 | log offset 8 | seconds 4 | entry before 4 | …          entry 0 is never used

    Only hashes are kept: whoever finds a place reads the message there to be sure of its key. The file is derived.
    """

    __slots__ = (
        "_entries",
        "_entries_at",
        "_is_copy",
        "_map",
        "_prepared",
        "_size",
        "_slots",
        "_used_slots",
        "begin_offset",
        "begin_timestamp",
        "count",
        "end_offset",
        "end_timestamp",
        "is_synced",
        "is_untouched",
        "path",
    )

    def __init__(self, path: Path, slots: int, entries: int) -> None:
        self.path = path
        self._slots = slots
        self._entries = entries
        self._entries_at = HEADER_SIZE + slots * SLOT_SIZE
        self._size = file_size(slots, entries)
        self._prepared = 0  # up to here no byte is a hole; an earlier broker may have left some
        self._is_copy = False
        self._map = self._open_map()
        header: tuple[int, ...] = HEADER.unpack_from(self._map)
        self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset = header[:4]
        self._used_slots, self.count = header[4], max(header[5], 1)
        self.is_untouched = header[5] == 0
        self.is_synced = False  # it is full, and on disk as it is

    @property
    def is_full(self) -> bool:
        return self.count >= self._entries

    @property
    def last_entered(self) -> int:
        """The message of the last entry; there is one. The header may say more: whoever wrote it was killed halfway."""
        number = min(self.count, self._entries) - 1
        offset: int = ENTRY.unpack_from(self._map, self._entries_at + number * ENTRY_SIZE)[1]
        return offset

    def seed(self, timestamp: int, offset: int) -> None:
        """Begin where the file before ended."""
        self.begin_timestamp = self.end_timestamp = timestamp
        self.begin_offset = self.end_offset = offset
        self._save_header()

    def put(self, seed: int, keys: list[Key], timestamp: int) -> None:
        """Enter keys of a topic whose `topic_hash` is `seed`; they fit into the file, and there is at least one.

        One loop over locals: every message comes through here at least once.
        """
        data, slots, number, used_slots = self._map, self._slots, self.count, self._used_slots
        entry_at = self._entries_at + number * ENTRY_SIZE
        if entry_at + len(keys) * ENTRY_SIZE > self._prepared:
            self._prepare(entry_at + len(keys) * ENTRY_SIZE)
            data = self._map
        begin = self.begin_timestamp
        seconds = (timestamp - begin) // 1000 if 0 < begin < timestamp else 0
        if seconds > MAX_SECONDS:
            seconds = MAX_SECONDS
        for key, offset in keys:
            key_hash = abs(java_hash(key, seed)) & _MAX_HASH
            slot_at = HEADER_SIZE + key_hash % slots * SLOT_SIZE
            (before,) = _read_slot(data, slot_at)
            if before >= number:
                before = self._entry_before(before, number)
            if before <= 0:
                before = 0
                used_slots += 1
            _write_entry(data, entry_at, key_hash, offset, seconds, before)
            # After its entry, and in one step (pack_into would clear the slot first): whoever is killed here leaves no
            # chain that leads nowhere.
            data[slot_at : slot_at + SLOT_SIZE] = _pack_number(number)
            if number == 1:
                self.begin_timestamp, self.begin_offset, seconds = timestamp, offset, 0
            number += 1
            entry_at += ENTRY_SIZE
        self.count, self._used_slots = number, used_slots
        self.end_timestamp, self.end_offset = timestamp, offset
        self._save_header()

    def put_run(self, keys: Sequence[PlacedKey]) -> None:
        """Enter keys of any messages, in the order of the log, as `put` would one message after the other."""
        data, slots, number, used_slots = self._map, self._slots, self.count, self._used_slots
        entry_at = self._entries_at + number * ENTRY_SIZE
        if entry_at + len(keys) * ENTRY_SIZE > self._prepared:
            self._prepare(entry_at + len(keys) * ENTRY_SIZE)
            data = self._map
        begin = self.begin_timestamp
        for seed, key, offset, timestamp in keys:
            key_hash = abs(java_hash(key, seed)) & _MAX_HASH
            slot_at = HEADER_SIZE + key_hash % slots * SLOT_SIZE
            (before,) = _read_slot(data, slot_at)
            if before >= number:
                before = self._entry_before(before, number)
            if before <= 0:
                before = 0
                used_slots += 1
            seconds = min((timestamp - begin) // 1000, MAX_SECONDS) if 0 < begin < timestamp else 0
            _write_entry(data, entry_at, key_hash, offset, seconds, before)
            data[slot_at : slot_at + SLOT_SIZE] = _pack_number(number)  # after its entry, as in `put`
            if number == 1:
                begin = self.begin_timestamp = timestamp
                self.begin_offset = offset
            number += 1
            entry_at += ENTRY_SIZE
        self.count, self._used_slots = number, used_slots
        self.end_timestamp, self.end_offset = timestamp, offset
        self._save_header()

    def _entry_before(self, number: int, limit: int) -> int:
        """The newest entry below `limit` of a chain whose head a killed process wrote without saving the header."""
        for _ in range(_MAX_UNSAVED):
            if not limit <= number < self._entries:
                return number if number < limit else 0
            number = ENTRY.unpack_from(self._map, self._entries_at + number * ENTRY_SIZE)[3]
        return 0

    def _prepare(self, end: int) -> None:
        """Give the file up to `end`, and some more, its place on disk; OSError when it has no room."""
        count = min(max(end - self._prepared, _PREPARE_BYTES), self._size - self._prepared)
        fd = disk.open_file(self.path, os.O_RDWR)
        try:
            os.posix_fallocate(fd, self._prepared, count)
        finally:
            os.close(fd)
        self._prepared += count
        if self._is_copy:
            self._map, self._is_copy = _map_file(self.path, self._size), False

    def _open_map(self) -> mmap.mmap:
        """Map the file, or read it where looking at its holes would need room that is not there."""
        fd = disk.open_file(self.path, os.O_RDWR)
        try:
            if os.fstat(fd).st_size == self._size and disk.is_unsafe_to_map(fd, self._size):
                count = HEADER.unpack(os.pread(fd, HEADER_SIZE, 0))[5]
                used = self._entries_at + min(max(count, 1), self._entries) * ENTRY_SIZE
                try:
                    os.posix_fallocate(fd, 0, used)
                    self._prepared = used
                except OSError as error:
                    if error.errno not in disk.NO_ROOM:
                        raise
                    self._is_copy = True
                    return disk.map_to_read(fd, self._size)
        finally:
            os.close(fd)
        return _map_file(self.path, self._size)

    def _save_header(self) -> None:
        """The counts last and in one step: they say which entries there are, whatever a kill leaves of the rest."""
        self._map[:_COUNTS_AT] = _pack_range(
            self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset
        )
        self._map[_COUNTS_AT:HEADER_SIZE] = _pack_counts(self._used_slots, self.count)

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        return self.begin_timestamp <= end_ms and begin_ms <= self.end_timestamp

    def find(self, key_hash: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Places of up to `limit` messages whose key has this hash, newest first."""
        found: list[int] = []
        for _ in self.finding(key_hash, begin_ms, end_ms, limit, found):
            pass
        return found

    def finding(self, key_hash: int, begin_ms: int, end_ms: int, limit: int, found: list[int]) -> Iterator[None]:
        """The same in steps, which add to `found`: a chain has as many entries as senders like."""
        steps = 0
        (number,) = _read_slot(self._map, HEADER_SIZE + key_hash % self._slots * SLOT_SIZE)
        number = self._entry_before(number, self.count)
        while number > 0 and len(found) < limit:
            entry_hash, offset, seconds, before = ENTRY.unpack_from(self._map, self._entries_at + number * ENTRY_SIZE)
            time_ms = self.begin_timestamp + seconds * 1000
            # The entry's time lost its milliseconds: a message may be up to a second younger than it says.
            if time_ms + 999 < begin_ms:
                break
            if entry_hash == key_hash and time_ms <= end_ms:
                found.append(offset)
            if before >= number:  # a chain leads back only; anything else is damage
                break
            number = before
            steps += 1
            if steps % WALK_STEP == 0:
                yield
                if self._map.closed:  # its messages are gone
                    break

    def last_entries_of(self, offset: int) -> int:
        """How many entries at the end belong to the message at `offset`."""
        number = self.count - 1
        while number > 0 and ENTRY.unpack_from(self._map, self._entries_at + number * ENTRY_SIZE)[1] == offset:
            number -= 1
        return self.count - 1 - number

    def cut(self, end: int, time_of: Callable[[int], int]) -> bool:
        """Drop the entries of messages at or behind `end`, the newest first: each is the head of its chain. Returns
        whether there were any; `time_of` says when the message at an offset was stored."""
        number = before_cut = self.count - 1
        if self._is_copy and number > 0:
            self._prepare(self._entries_at + self.count * ENTRY_SIZE)
        data, offset = self._map, 0
        while number > 0:
            at = self._entries_at + number * ENTRY_SIZE
            entry_hash, offset, _, before = ENTRY.unpack_from(data, at)
            if offset < end:
                break
            slot_at = HEADER_SIZE + entry_hash % self._slots * SLOT_SIZE
            if _read_slot(data, slot_at)[0] == number:
                data[slot_at : slot_at + SLOT_SIZE] = _pack_number(max(before, 0))
                self._used_slots -= before <= 0
            data[at : at + ENTRY_SIZE] = bytes(ENTRY_SIZE)
            number -= 1
        if number == before_cut:
            return False
        self.count, self.is_synced = number + 1, False
        if number > 0:
            self.end_offset, self.end_timestamp = offset, time_of(offset)
        self._save_header()
        return True

    @property
    def is_closed(self) -> bool:
        return self._map.closed

    def sync(self) -> None:
        sync_path(self.path)

    def close(self) -> None:
        self._map.close()

    def delete(self) -> None:
        self._map.close()
        self.path.unlink(missing_ok=True)


def _map_file(path: Path, size: int) -> mmap.mmap:
    fd = disk.open_file(path, os.O_RDWR)
    try:
        actual = os.fstat(fd).st_size
        if actual != size:
            raise wrong_size(path, actual, size)
        data = mmap.mmap(fd, size)
        data.madvise(mmap.MADV_RANDOM)  # a hash table: what lies beside a slot is of no interest
        return data
    finally:
        os.close(fd)


class Index:
    """The index files, oldest first. Only the last grows."""

    __slots__ = ("_clock", "_directory", "_entries", "_files", "_last", "_slots", "indexed")

    def __init__(self, directory: Path, slots: int, entries: int, clock: Clock, *, after_crash: bool = False) -> None:
        self._directory = directory
        self._clock = clock
        self._slots = slots
        self._entries = entries
        disk.make_folders(directory)
        self._files = [IndexFile(path, slots, entries) for path in _list_index_files(directory, after_crash)]
        self._last: IndexFile | None = None
        self.indexed = -1  # the last message with any key in it
        self._drop([file for file in self._files[-1:] if file.is_untouched])  # whoever made it died before its header

    @property
    def is_empty(self) -> bool:
        return not self._files

    @property
    def last_timestamp(self) -> int:
        return self._files[-1].end_timestamp if self._files else 0

    @property
    def last_offset(self) -> int:
        return self._files[-1].end_offset if self._files else 0

    def put(self, topic: str, keys: list[Key], timestamp: int) -> None:
        """Enter those keys that are not in yet. Their offsets never fall, and all their messages have this time."""
        if keys[0][1] <= self.indexed:
            keys = self._missing(keys)
        file = self._last
        if file is not None and 0 < len(keys) <= self._entries - file.count and len(keys) <= _MAX_UNSAVED:
            file.put(topic_hash(topic), keys, timestamp)
            self.indexed = file.end_offset
        elif keys:
            self._put_over_files(topic_hash(topic), keys, timestamp)

    def put_run(self, keys: Sequence[PlacedKey]) -> None:
        """Enter the keys of messages behind all that are in, in the order of the log."""
        file = self._last
        if file is not None and len(keys) <= min(self._entries - file.count, _MAX_UNSAVED):
            file.put_run(keys)
            self.indexed = file.end_offset
            return
        for (seed, offset, timestamp), of_message in groupby(keys, itemgetter(0, 2, 3)):
            self._put_over_files(seed, [(key, offset) for _, key, _, _ in of_message], timestamp)

    def _put_over_files(self, seed: int, keys: list[Key], timestamp: int) -> None:
        """Enter what may need new files, or more than one save of the header."""
        while keys:
            file = self._last
            if file is None or file.is_full:
                file = self._create()
            room = min(self._entries - file.count, _MAX_UNSAVED)
            file.put(seed, keys[:room], timestamp)
            self.indexed = file.end_offset
            keys = keys[room:]

    def _missing(self, keys: list[Key]) -> list[Key]:
        """Of the last message, a broker that died may have entered only some keys; those before it are complete."""
        entered = 0
        for file in reversed(self._files):
            count = file.last_entries_of(self.indexed)
            entered += count
            if count < file.count - 1:
                break
        of_last = [key for key in keys if key[1] == self.indexed]
        return of_last[entered:] + [key for key in keys if key[1] > self.indexed]

    def _create(self) -> IndexFile:
        path = self._directory / self._next_name(self._clock.now_ms())
        _create_file(path, file_size(self._slots, self._entries), HEADER_SIZE + self._slots * SLOT_SIZE)
        file = IndexFile(path, self._slots, self._entries)
        if self._files:
            before = self._files[-1]
            file.seed(before.end_timestamp, before.end_offset)
        self._files.append(file)
        self._last = file
        return file

    def _next_name(self, now_ms: int) -> str:
        """The local time, or a little later: names must rise."""
        name = time.strftime(_NAME_FORMAT, time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"
        if self._files and name <= self._files[-1].path.name:
            return f"{read_int(self._files[-1].path.name) + 1:0{_NAME_DIGITS}d}"
        return name

    def find(
        self,
        topic: str,
        key: str,
        limit: int,
        begin_ms: int,
        end_ms: int,
        runs_back: Callable[[int, int], bool] = lambda _first, _last: False,
    ) -> list[int]:
        """Places of up to `limit` messages that may have this key, oldest first; the newest are preferred. Where dates
        fall in the log, as `runs_back` says of two places, the index does not know the times of messages."""
        found: list[int] = []
        for _ in self.finding(topic, key, limit, begin_ms, end_ms, found, runs_back):
            pass
        return sorted(set(found))

    def finding(
        self,
        topic: str,
        key: str,
        limit: int,
        begin_ms: int,
        end_ms: int,
        found: list[int],
        runs_back: Callable[[int, int], bool] = lambda _first, _last: False,
    ) -> Iterator[None]:
        """The same in steps, which add to `found`, in no order and perhaps twice."""
        limit = min(limit, MAX_RESULTS)
        wanted = key_hash(topic, key)
        for file in self._files[::-1]:
            if len(found) >= limit:
                break
            if file.is_closed:
                continue
            if runs_back(file.begin_offset, file.end_offset):
                yield from file.finding(wanted, 0, 2**63 - 1, MAX_RESULTS, found)
            elif file.overlaps(begin_ms, end_ms):
                yield from file.finding(wanted, begin_ms, end_ms, limit, found)

    def trust(self, offset: int, timestamp: int) -> None:
        """Take the first files, as far as they are full and end at or before both, for synced."""
        for file in self._files:
            if not file.is_full or file.end_offset > offset or file.end_timestamp > timestamp:
                break
            file.is_synced = True

    def drop_unsynced(self) -> int:
        """Remove the files that a crash may have left half written; returns where the last one left ends."""
        self._drop([file for file in self._files if not file.is_synced])
        return self.last_offset

    def drop_all(self) -> None:
        self._drop(self._files[:])

    def _drop(self, files: list[IndexFile]) -> None:
        for file in files:
            self._files.remove(file)
            file.delete()
        self._last = self._files[-1] if self._files else None
        self.indexed = next((file.last_entered for file in reversed(self._files) if file.count > 1), -1)

    def cut(self, end: int, time_of: Callable[[int], int]) -> list[IndexFile]:
        """Drop what leads to messages at or behind `end`; returns the files that changed and are to be synced."""
        changed: list[IndexFile] = []
        emptied: list[IndexFile] = []
        for file in reversed(self._files):
            if not file.cut(end, time_of) and file.count > 1:
                break
            (changed if file.count > 1 else emptied).append(file)
        self._drop(emptied)
        return changed

    def take_expired(self, log_start: int) -> list[IndexFile]:
        """Forget the files whose messages are all gone, but never the last; whoever takes them deletes them."""
        expired = [file for file in self._files[:-1] if file.end_offset < log_start]
        for file in expired:
            self._files.remove(file)
        return expired

    def take_filled(self) -> list[IndexFile]:
        """The full files that are not on disk for sure; whoever takes them syncs them, and their names."""
        taken = [file for file in self._files if file.is_full and not file.is_synced]
        for file in taken:
            file.is_synced = True
        return taken

    @property
    def synced_offset(self) -> int:
        """The last message in those files that are on disk; 0 if there are none."""
        return max((file.end_offset for file in self._files if file.is_synced), default=0)

    def sync(self) -> None:
        """Return once everything is on disk."""
        sync_index_files(self._files)

    def close(self) -> None:
        for file in self._files:
            file.close()


def sync_index_files(files: list[IndexFile]) -> None:
    """Return once these and their names are on disk."""
    for file in files:
        file.sync()
    if files:
        sync_directory(files[0].path.parent)


def _create_file(path: Path, size: int, prepared: int) -> None:
    """A sparse file whose header and slots have their place on disk, so that touching a slot cannot fail."""
    fd = disk.open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        os.ftruncate(fd, size)
        os.posix_fallocate(fd, 0, prepared)
    except OSError:
        with suppress(OSError):  # half a file would keep the store from opening
            os.unlink(path)
        raise
    finally:
        os.close(fd)


def _list_index_files(directory: Path, after_crash: bool) -> list[Path]:
    """The files in order. An empty one is what a crash leaves of a file being made; those behind it are as young."""
    paths = sorted(Path(entry.path) for entry in os.scandir(directory) if entry.is_file())
    for path in paths:
        if parse_int(path.name) is None:
            raise StoreError(f"{path} is not an index file: its name is not a time in digits")
    empty = next((at for at, path in enumerate(paths) if path.stat().st_size == 0), len(paths))
    if empty < len(paths) - 1 and not after_crash:
        raise StoreError(f"{paths[empty]} is empty, but not the last: see `cosmodrome store verify`")
    for path in paths[empty:]:
        path.unlink()
    return paths[:empty]


_CACHED_TOPICS = 16_384


@lru_cache(maxsize=_CACHED_TOPICS)
def topic_hash(topic: str) -> int:
    """The hash of what stands before each key of a topic."""
    return java_hash(topic + "#")


def key_hash(topic: str, key: str) -> int:
    """abs(hashCode) of "topic#key", and 0 where Java's abs has no answer."""
    return abs(java_hash(key, topic_hash(topic))) & _MAX_HASH
