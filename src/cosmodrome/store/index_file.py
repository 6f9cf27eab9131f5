"""The key index: message key → places in the commit log."""

from __future__ import annotations

import mmap
import os
import struct
import time
from functools import lru_cache
from pathlib import Path

from cosmodrome.clock import Clock
from cosmodrome.errors import StoreError
from cosmodrome.store.mapped_file import sync_directory, sync_path, wrong_size
from cosmodrome.wire.java import java_hash

_HEADER = struct.Struct(">qqqqii")
_SLOT = struct.Struct(">i")
_ENTRY = struct.Struct(">iqii")  # key hash | log offset | seconds since the file's first message | entry before
HEADER_SIZE = _HEADER.size
SLOT_SIZE = _SLOT.size
ENTRY_SIZE = _ENTRY.size

MAX_RESULTS = 64
_PREPARE_BYTES = 64 * 1024
_MAX_UNSAVED = 65_536  # entries; a header is saved after every batch, and no batch has that many keys
_MAX_SECONDS = 2**31 - 1
_NAME_FORMAT = "%Y%m%d%H%M%S"
_NAME_DIGITS = 17


def file_size(slots: int, entries: int) -> int:
    return HEADER_SIZE + slots * SLOT_SIZE + entries * ENTRY_SIZE


class IndexFile:
    """A hash table in a file: slots, each with the number of the newest entry of its chain.

        | begin time 8 | end time 8 | begin offset 8 | end offset 8 | used slots 4 | next entry 4 |
        | slot 4 | slot 4 | …          0: empty
        | key hash 4 | log offset 8 | seconds 4 | entry before 4 | …          entry 0 is never used

    Only hashes are kept: whoever finds a place reads the message there to be sure of its key. The file is derived.
    """

    def __init__(self, path: Path, slots: int, entries: int) -> None:
        self.path = path
        self._slots = slots
        self._entries = entries
        self._entries_at = HEADER_SIZE + slots * SLOT_SIZE
        self._size = file_size(slots, entries)
        self._map = _map_file(path, self._size)
        header: tuple[int, ...] = _HEADER.unpack_from(self._map)
        self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset = header[:4]
        self._used_slots, self.count = header[4], max(header[5], 1)
        self._prepared = self._entries_at + self.count * ENTRY_SIZE
        self._unsaved = False

    @property
    def is_full(self) -> bool:
        return self.count >= self._entries

    def seed(self, timestamp: int, offset: int) -> None:
        """Begin where the file before ended."""
        self.begin_timestamp = self.end_timestamp = timestamp
        self.begin_offset = self.end_offset = offset
        self._unsaved = True
        self.save_header()

    def put(self, key_hash: int, offset: int, timestamp: int) -> None:
        """Enter one key; `save_header` must follow. The file is not full."""
        number = self.count
        entry_at = self._entries_at + number * ENTRY_SIZE
        if entry_at + ENTRY_SIZE > self._prepared:
            self._prepare(entry_at + ENTRY_SIZE)
        slot_at = HEADER_SIZE + key_hash % self._slots * SLOT_SIZE
        (before,) = _SLOT.unpack_from(self._map, slot_at)
        if before >= number:
            before = self._entry_before(before, number)
        if before <= 0:
            before = 0
            self._used_slots += 1
        seconds = (timestamp - self.begin_timestamp) // 1000 if self.begin_timestamp > 0 else 0
        if not 0 <= seconds <= _MAX_SECONDS:
            seconds = 0 if seconds < 0 else _MAX_SECONDS
        _ENTRY.pack_into(self._map, entry_at, key_hash, offset, seconds, before)
        _SLOT.pack_into(self._map, slot_at, number)
        if number == 1:
            self.begin_timestamp, self.begin_offset = timestamp, offset
        self.end_timestamp, self.end_offset = timestamp, offset
        self.count = number + 1
        self._unsaved = True

    def _entry_before(self, number: int, limit: int) -> int:
        """The newest entry below `limit` of a chain whose head a killed process wrote without saving the header."""
        for _ in range(_MAX_UNSAVED):
            if not limit <= number < self._entries:
                return number if number < limit else 0
            number = _ENTRY.unpack_from(self._map, self._entries_at + number * ENTRY_SIZE)[3]
        return 0

    def _prepare(self, end: int) -> None:
        """Give the entries up to `end`, and some more, their place on disk; OSError when it has no room."""
        count = min(_PREPARE_BYTES, self._size - self._prepared)
        fd = os.open(self.path, os.O_RDWR)
        try:
            os.posix_fallocate(fd, self._prepared, count)
        finally:
            os.close(fd)
        self._prepared += count
        assert end <= self._prepared, "entries are smaller than the step"

    def save_header(self) -> None:
        """Write down what the puts since the last time changed."""
        if not self._unsaved:
            return
        self._unsaved = False
        _HEADER.pack_into(
            self._map,
            0,
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self._used_slots,
            self.count,
        )

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        return self.begin_timestamp <= end_ms and begin_ms <= self.end_timestamp

    def find(self, key_hash: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Places of up to `limit` messages whose key has this hash, newest first."""
        found: list[int] = []
        (number,) = _SLOT.unpack_from(self._map, HEADER_SIZE + key_hash % self._slots * SLOT_SIZE)
        while 0 < number <= self.count and len(found) < limit:
            entry_hash, offset, seconds, before = _ENTRY.unpack_from(self._map, self._entries_at + number * ENTRY_SIZE)
            time_ms = self.begin_timestamp + seconds * 1000
            # The entry's time lost its milliseconds: a message may be up to a second younger than it says.
            if time_ms + 999 < begin_ms:
                break
            if entry_hash == key_hash and time_ms <= end_ms:
                found.append(offset)
            if before >= number:  # a chain leads back only; anything else is damage
                break
            number = before
        return found

    def last_entries_of(self, offset: int) -> int:
        """How many entries at the end belong to the message at `offset`."""
        number = self.count - 1
        while number > 0 and _ENTRY.unpack_from(self._map, self._entries_at + number * ENTRY_SIZE)[1] == offset:
            number -= 1
        return self.count - 1 - number

    def sync(self) -> None:
        sync_path(self.path)

    def close(self) -> None:
        self._map.close()

    def delete(self) -> None:
        self._map.close()
        self.path.unlink(missing_ok=True)


def _map_file(path: Path, size: int) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR)
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

    def __init__(self, directory: Path, slots: int, entries: int, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._slots = slots
        self._entries = entries
        directory.mkdir(parents=True, exist_ok=True)
        self._files = [IndexFile(path, slots, entries) for path in _list_index_files(directory)]
        self._last = self._files[-1] if self._files else None
        self.indexed = self.last_offset if self._files else -1  # the last message with any key in it
        self._filled: list[IndexFile] = []

    @property
    def is_empty(self) -> bool:
        return not self._files

    @property
    def last_timestamp(self) -> int:
        return self._files[-1].end_timestamp if self._files else 0

    @property
    def last_offset(self) -> int:
        return self._files[-1].end_offset if self._files else 0

    def put(self, topic: str, keys: list[str], offset: int, timestamp: int) -> None:
        """Enter the keys of a message that are not in yet; `save_header` must follow."""
        if offset <= self.indexed:
            keys = self._missing(keys, offset)
        for key in keys:
            file = self._last
            if file is None or file.count >= self._entries:
                file = self._create()
            file.put(key_hash(topic, key), offset, timestamp)
            self.indexed = offset

    def _missing(self, keys: list[str], offset: int) -> list[str]:
        """Of the last message, a broker that died may have entered only some keys; those before it are complete."""
        if offset < self.indexed:
            return []
        entered = 0
        for file in reversed(self._files):
            count = file.last_entries_of(offset)
            entered += count
            if count < file.count - 1:
                break
        return keys[entered:]

    def save_header(self) -> None:
        if self._last is not None:
            self._last.save_header()

    def _create(self) -> IndexFile:
        path = self._directory / self._next_name(self._clock.now_ms())
        _create_file(path, file_size(self._slots, self._entries), HEADER_SIZE + self._slots * SLOT_SIZE)
        file = IndexFile(path, self._slots, self._entries)
        if self._files:
            before = self._files[-1]
            before.save_header()
            self._filled.append(before)
            file.seed(before.end_timestamp, before.end_offset)
        self._files.append(file)
        self._last = file
        return file

    def _next_name(self, now_ms: int) -> str:
        """The local time, or a little later: names must rise."""
        name = time.strftime(_NAME_FORMAT, time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"
        if self._files and name <= self._files[-1].path.name:
            return f"{int(self._files[-1].path.name) + 1:0{_NAME_DIGITS}d}"
        return name

    def find(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int) -> list[int]:
        """Places of up to `limit` messages that may have this key, oldest first; the newest are preferred."""
        limit = min(limit, MAX_RESULTS)
        wanted = key_hash(topic, key)
        found: list[int] = []
        for file in reversed(self._files):
            if len(found) >= limit:
                break
            if file.overlaps(begin_ms, end_ms):
                found += file.find(wanted, begin_ms, end_ms, limit - len(found))
        return sorted(set(found))

    def drop_unfinished(self, timestamp: int) -> int:
        """Remove the files that a crash may have left half written: those not full, or full after `timestamp`.

        Returns from which log offset on the index must be filled again.
        """
        for position, file in enumerate(self._files):
            if not file.is_full or file.end_timestamp > timestamp:
                for dropped in self._files[position:]:
                    dropped.delete()
                del self._files[position:]
                break
        self._last = self._files[-1] if self._files else None
        self.indexed = self.last_offset if self._files else -1
        return self.last_offset

    def drop_all(self) -> None:
        self.drop_unfinished(-1)

    def take_filled(self) -> list[IndexFile]:
        """The files that became full since the last time; whoever takes them syncs them."""
        taken, self._filled = self._filled, []
        return taken

    def sync(self) -> None:
        """Return once everything is on disk."""
        for file in self._files:
            file.sync()
        sync_directory(self._directory)

    def close(self) -> None:
        for file in self._files:
            file.close()


def _create_file(path: Path, size: int, prepared: int) -> None:
    """A sparse file whose header and slots have their place on disk, so that touching a slot cannot fail."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.ftruncate(fd, size)
        os.posix_fallocate(fd, 0, prepared)
    finally:
        os.close(fd)


def _list_index_files(directory: Path) -> list[Path]:
    paths = sorted(Path(entry.path) for entry in os.scandir(directory) if entry.is_file())
    for path in paths:
        if not (path.name.isascii() and path.name.isdigit()):
            raise StoreError(f"{path} is not an index file: its name is not a time in digits")
    if paths and paths[-1].stat().st_size == 0:  # what a crash leaves of a file being made
        paths.pop().unlink()
    return paths


_CACHED_TOPICS = 16_384
_DIGITS = b"0123456789abcdefghijklmnopqrstu"
_LOW = bytes(_DIGITS[code % 31] for code in range(256))
_HIGH = bytes(_DIGITS[code // 31] for code in range(256))
_MAX_DIGITS = 1000  # int() refuses longer numbers some way above this


@lru_cache(maxsize=_CACHED_TOPICS)
def topic_hash(topic: str) -> int:
    """The hash of what stands before each key of a topic."""
    return java_hash(topic + "#")


_POWERS = [pow(31, length, 2**32) for length in range(_MAX_DIGITS + 1)]


def key_hash(topic: str, key: str) -> int:
    """abs(hashCode) of "topic#key", and 0 where Java's abs has no answer.

    31·h + c over ASCII characters is a number written in base 31 whose digits may exceed 30. Written as two numbers
    with proper digits (c // 31 and c % 31), `int` reads it six times faster than a loop.
    """
    if key.isascii() and 0 < len(key) <= _MAX_DIGITS:
        raw = key.encode()
        code = int(raw.translate(_HIGH), 31) * 31 + int(raw.translate(_LOW), 31)
        code = (topic_hash(topic) * _POWERS[len(key)] + code) & 0xFFFFFFFF
    else:
        code = java_hash(f"{topic}#{key}") & 0xFFFFFFFF
    return code if code < 0x8000_0000 else (0x1_0000_0000 - code) & 0x7FFF_FFFF
