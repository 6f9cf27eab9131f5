"""The commit log: every message of every topic, one behind the other."""

from __future__ import annotations

import errno
import logging
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from cosmodrome import disk
from cosmodrome.errors import MessageIllegal, ProtocolError, ServiceNotAvailable
from cosmodrome.mapped_file import MappedFile, find_ends, list_files, sync_directory
from cosmodrome.store.paths import aside_folder, free_name
from cosmodrome.wire.record import BLANK_MAGIC, RecordHead, check_at, head_at, head_size, heads_between, magic_at

log = logging.getLogger(__name__)

BLANK = struct.Struct(">iI")  # bytes left in the file | magic
BLANK_SIZE = BLANK.size
BEGIN_BYTES = 8  # a record's size and magic
PREPARE_BYTES = 64 * 1024
PIECE_BYTES = 64 * 1024  # whose heads are held at once
MAX_ROLL_SECONDS = 5  # how long an append waits for a file that is being made

Visit = Callable[[RecordHead], None]


class CommitLog:
    """Files of one size; a record never crosses from one into the next.

    A file that has no room for a record ends with a blank one, so it always keeps room for that mark. Bytes behind
    `end` are zero: a scan after a crash cannot take what was cut off once for records. One writer; readers get
    slices of the mapped files and copy nothing.
    """

    def __init__(self, directory: Path, file_size: int) -> None:
        self.directory = directory
        self.file_size = file_size
        disk.make_folders(directory)
        self.files = list_files(directory, file_size)
        for file in self.files:
            file.open()
            file.position = file_size
        find_ends(self.files)
        self._next: MappedFile | None = None  # made ahead, behind the last of `files`
        self._making = threading.Lock()  # held while a file is made, ahead or in place
        self._closed = False
        self.on_roll: Callable[[], None] = _nothing
        self.end = self.files[-1].end if self.files else 0
        self.room = 0  # the size of the largest record that the last file still takes
        self.last = -1  # where the last record begins, if it is known
        self.last_timestamp = 0

    @property
    def start(self) -> int:
        """The offset of the oldest byte that is still here."""
        return self.files[0].start if self.files else 0

    def write(self, data: bytes, timestamp: int, last_at: int = 0) -> int:
        """Put one record behind the last, or several of which the last begins at `last_at`; returns their place.

        They fit into `room`, and the first says that its place is `end`. Of several, the first bytes are written last:
        copying may stop anywhere when the process is killed, and a start must see that they are not all there.
        """
        file = self.files[-1]
        position = file.position
        end = position + len(data)
        if end > file.prepared:
            file.prepare(end, PREPARE_BYTES)
        if last_at:
            file.view[position + BEGIN_BYTES : end] = memoryview(data)[BEGIN_BYTES:]
            file.view[position : position + BEGIN_BYTES] = data[:BEGIN_BYTES]
        else:
            file.view[position:end] = data
        file.position = end  # publish last: a reader sees a whole record or none
        offset = self.end
        assert offset == file.start + position, "the log has no holes"
        self.end = file.start + end
        self.room = file.size - end - BLANK_SIZE
        self.last = offset + last_at
        self.last_timestamp = timestamp
        return offset

    def write_batch(self, data: bytes, bounds: list[int], timestamp: int) -> list[int]:
        """Put several records behind the last; return where each begins and the last ends, as `bounds` says already."""
        self.write(data, timestamp, bounds[-2] - bounds[0])
        return bounds

    def roll(self, size: int) -> None:
        """Begin the next file, for something of `size` bytes that the last has no room for.

        ServiceNotAvailable when there can be no next file; then nothing has changed: smaller ones may still fit.
        """
        if size + BLANK_SIZE > self.file_size:
            raise MessageIllegal(f"{size} bytes do not fit into a commit log file of {self.file_size} bytes")
        self._begin_file()

    def _begin_file(self) -> None:
        if not self._making.acquire(timeout=MAX_ROLL_SECONDS):
            raise _no_next_file(f"it was not made within {MAX_ROLL_SECONDS} s")
        try:
            file = self._next = self._next or self._make()
            if self.files:
                self._append_blank(self.files[-1])
            file.write_from(0)
            self.files.append(file)
            self._next = None
        finally:
            self._making.release()
        self.room = file.size - BLANK_SIZE
        self.on_roll()

    def file_to_extend(self) -> MappedFile:
        """The file that the byte at `end` goes into, made if the one before is full. Fails as `roll` does."""
        if not self.files or self.files[-1].position == self.files[-1].size:
            self._begin_file()
        return self.files[-1]

    def begin_at(self, start: int) -> None:
        """Let the log, which holds no byte, begin with the file of this offset."""
        assert self.end == self.start, "only an empty log can begin elsewhere"
        with self._making:
            while self.files:
                self.files.pop().delete()
            if self._next is not None and self._next.start != start:
                self._next.delete()
                self._next = None
            sync_directory(self.directory)
            self.end = start
        self.last = -1

    def extended(self, file: MappedFile, position: int) -> None:
        """Bytes were written to the last file, up to `position`: they belong to the log from now on."""
        file.position = position
        file.prepared = max(file.prepared, position)
        self.end = file.end
        self.room = file.size - position - BLANK_SIZE

    def retract(self, end: int) -> None:
        """Cut off the last bytes, which lie in the last file; on disk they are zero when this returns."""
        file = self.files[-1]
        file.write_from(end - file.start)
        if file.zero_tail():
            file.sync()
        self.end = end
        self.room = file.size - file.position - BLANK_SIZE

    @property
    def _next_start(self) -> int:
        return self.files[-1].start + self.file_size if self.files else self.end

    def _make(self) -> MappedFile:
        """Durable, so that a crash leaves no file behind one that is missing."""
        try:
            return MappedFile.create(self.directory, self._next_start, self.file_size, durable=True)
        except OSError as error:
            if error.errno == errno.EIO:  # the disk is broken, not only full or in use
                raise
            raise _no_next_file(str(error)) from error

    def make_next(self) -> None:
        """Make the file that comes after the last, unless it is there. A thread may do this; fails as `roll` does."""
        with self._making:
            if self._next is None and self.files and not self._closed:
                self._next = self._make()

    def drop_next(self) -> None:
        """Take away what was made ahead, and make no more."""
        with self._making:
            self._closed = True
            if self._next is not None:
                self._next.delete()
                self._next = None

    def take_first(self) -> MappedFile | None:
        """Forget the oldest file, which is not the only one; the caller deletes it. None if it has to stay."""
        assert len(self.files) > 1, "the last file is never deleted"
        return self.files.pop(0)

    def _append_blank(self, file: MappedFile) -> None:
        position = file.position
        if position < file.size:
            file.prepare(position + BLANK_SIZE, 1)
            BLANK.pack_into(file.view, position, file.size - position, BLANK_MAGIC)
        file.position = file.size
        self.end = file.end

    def slice(self, begin: int, end: int) -> memoryview:
        """These bytes of the log, which lie in one file."""
        file = self.files[(begin - self.files[0].start) // self.file_size]
        return file.view[begin - file.start : end - file.start]

    def head_at(self, physical_offset: int) -> RecordHead | None:
        """The head of the record that begins there, or None when none does."""
        file = self.file_at(physical_offset)
        if file is None or physical_offset >= self.end:
            return None
        try:
            head = head_at(file.view, physical_offset - file.start, file.position)
        except ProtocolError:
            return None
        return head if head.physical_offset == physical_offset else None

    def is_blank_at(self, physical_offset: int) -> bool:
        """Whether the blank record that closes a file is there."""
        file = self.file_at(physical_offset)
        return file is not None and _is_blank(file, physical_offset - file.start, verify=True)

    def file_at(self, physical_offset: int) -> MappedFile | None:
        index = (physical_offset - self.start) // self.file_size
        return self.files[index] if 0 <= index < len(self.files) else None

    def next_file_start(self, physical_offset: int) -> int:
        return (physical_offset // self.file_size + 1) * self.file_size

    def files_between(self, begin: int, end: int) -> list[MappedFile]:
        """The files that hold any byte of [begin, end)."""
        return [file for file in self.files if file.start < end and file.start + file.size > begin]

    def heads(self, begin: int) -> Iterator[RecordHead]:
        """The heads of the records from `begin` on, up to the first place where none lies."""
        while begin < self.end:
            head = self.head_at(begin)
            if head is not None:
                yield head
                begin += head.size
            elif self.is_blank_at(begin):
                begin = self.next_file_start(begin)
            else:
                return

    def scan(self, begin: int, end: int, visit: Visit, *, verify: bool) -> int:
        """Show every whole record of [begin, end) to `visit`; returns where the last of them ends.

        The scan stops at the first bytes that are not a record in its right place. With `verify`, what its sizes
        do not tell is looked at too: whether it was written to its end.
        """
        while begin < end:
            file = self.file_at(begin)
            assert file is not None, "a scan stays in the log"
            stopped = _scan_file(file, begin - file.start, min(end - file.start, file.position), visit, verify=verify)
            begin = file.start + stopped
            if stopped < file.size:
                break
        return begin

    def scan_together(self, begin: int, end: int, visit: Callable[[list[RecordHead]], None]) -> int:
        """Do the same without `verify`, and show records in pieces of the log instead of one by one."""
        while begin < end:
            file = self.file_at(begin)
            assert file is not None, "a scan stays in the log"
            position, limit = begin - file.start, min(end - file.start, file.position)
            while position < limit:
                for piece_end in (min(position + PIECE_BYTES, limit), limit):  # a record may be longer than a piece
                    heads, stopped = heads_between(file.view, position, piece_end, file.start + position)
                    if heads:
                        break
                else:
                    if _is_blank(file, position, verify=False):
                        position = file.size
                    break
                visit(heads)
                position = stopped
            begin = file.start + position
            if position < file.size:
                break
        return begin

    def truncate(self, end: int) -> int:
        """Cut the log at `end` for good: what lay behind is zero on disk when this returns. Returns the bytes cut."""
        later = [file for file in self.files if file.start > end or (file.start == end and file is not self.files[0])]
        cut = 0
        with self._making:
            if later and self._next is not None:  # it would not come next any more
                self._next.delete()
                self._next = None
                sync_directory(self.directory)
            for file in reversed(later):
                cut += _used(file)
                self._remove(file)
                sync_directory(self.directory)  # one after the other: a crash in between leaves no hole
        if self.files:
            file = self.files[-1]
            file.write_from(end - file.start)
            self.room = file.size - file.position - BLANK_SIZE
            zeroed = file.zero_tail()
            if zeroed:
                file.sync()
            cut += zeroed
        self.end = end
        if later:
            self.on_roll()
        return cut

    def _remove(self, file: MappedFile) -> None:
        """Take a file behind the cut away. One that holds anything is kept aside for whoever wants to look."""
        self.files.remove(file)
        if file.has_data(0):
            aside = aside_folder(self.directory)
            disk.make_folders(aside)
            file.close()
            file.path.replace(free_name(aside / file.path.name, suffix=""))
            sync_directory(aside)
            log.error("%s lies behind the place where the log was cut; it is now in %s", file.path.name, aside)
        else:
            file.delete()

    def has_data_behind(self, end: int) -> bool:
        """Whether any byte at or behind `end` is not zero."""
        return any(file.has_data(max(end - file.start, 0)) for file in self.files if file.start + file.size > end)

    def sync(self) -> None:
        """Return once all files and their names are on disk."""
        for file in self.files:
            file.sync()
        sync_directory(self.directory)

    def write_again(self, begin: int) -> None:
        """Let the next sync bring everything from `begin` on onto the disk, even what the system believes is there."""
        for file in self.files_between(begin, self.end):
            file.write_again()

    def close(self) -> None:
        for file in (*self.files, *filter(None, [self._next])):
            file.close()


def _nothing() -> None:
    pass


def _no_next_file(reason: str) -> ServiceNotAvailable:
    return ServiceNotAvailable(f"service not available now: create mapped file failed: {reason}")


def _used(file: MappedFile) -> int:
    return file.size if any(file.read(0, BLANK_SIZE)) else 0


def _scan_file(file: MappedFile, position: int, limit: int, visit: Visit, *, verify: bool) -> int:
    """Where the last whole record of one file ends; the file's size when a blank record closes it."""
    view = file.view
    while position < limit:
        try:
            head = head_at(view, position, limit)
        except ProtocolError:
            return file.size if _is_blank(file, position, verify=verify) else position
        if head.physical_offset != file.start + position or (verify and not is_complete(view, head)):
            return position
        visit(head)
        position += head.size
    return position


def _is_blank(file: MappedFile, position: int, *, verify: bool) -> bool:
    if position + BLANK_SIZE > file.position:
        return False
    try:
        size, magic = magic_at(file.view, position)
    except ProtocolError:
        return False
    return magic == BLANK_MAGIC and (not verify or size == file.size - position)


def is_complete(view: memoryview, head: RecordHead) -> bool:
    """Whether a record with fitting sizes was written to its end, and matches its checksums. Unwritten bytes are zero,
    and neither a topic nor properties end so: unless it is sealed, only the body has a checksum."""
    if "\0" in head.topic or head.properties.endswith("\0"):
        return False
    begin = head.body_at - head_size(head.sys_flag)
    try:
        check_at(view, begin, begin + head.size)
    except ProtocolError:
        return False
    return True
