"""Consume queues: queue offset → place in the commit log."""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, starmap
from operator import sub
from pathlib import Path

from cosmodrome import disk
from cosmodrome.mapped_file import MappedFile, list_files
from cosmodrome.store.open_files import OpenFiles
from cosmodrome.wire.record import MIN_SIZE

ENTRY = struct.Struct(">qiq")
ENTRY_SIZE = ENTRY.size
_pack_entry = ENTRY.pack
# What fills a queue whose first message is not its message 0: no record is that large, so none is ever found.
FILLER_SIZE = 0x7FFFFFFF
_FILLER = ENTRY.pack(0, FILLER_SIZE, 0)

PREPARE_BYTES = 4096
_CHUNK_BYTES = 200 * ENTRY_SIZE

Entry = tuple[int, int, int]  # physical offset, size, tags code
Holds = Callable[[int, int, int], bool]  # does the record at (physical offset, size) have this queue offset?


class ConsumeQueue:
    """Where each message of one queue lies in the commit log.

        | log offset 8 | size 4 | tag hash 8 |        entry i belongs to queue offset i

    Finding an entry is a multiplication, not a search. The queue is derived: after a crash it is cut back to the
    commit log and rebuilt, so it may be flushed lazily. Every entry points below the log's end. `max_offset` is what
    readers see; `next_offset`, what the next message gets, runs ahead of it while messages wait for the disk.
    """

    __slots__ = (
        "_directory",
        "_dirty",
        "_file_size",
        "_files",
        "_open_files",
        "_rewritten",
        "fillers",
        "holds",
        "log_start",
        "lost",
        "max_offset",
        "min_offset",
        "next_offset",
        "queue_id",
        "recovered_end",
        "reserved",
        "topic",
        "topic_bytes",
    )

    def __init__(
        self,
        directory: Path,
        topic: str,
        queue_id: int,
        file_size: int,
        open_files: OpenFiles,
        dirty: list[MappedFile],
        rewritten: dict[Path, int],
    ) -> None:
        """`dirty` collects files that are to be synced, `rewritten` from where on others have changed
        that were written before."""
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.queue_id = queue_id
        self.min_offset = self.max_offset = self.next_offset = 0
        self.recovered_end = 0  # `max_offset` when the store was opened; what is behind it came since
        self.log_start = 0  # what `min_offset` was last corrected for
        self.fillers = 0  # entries made up since the queue was opened, because the log does not have their messages
        self.lost: set[int] = set()  # of messages that damage took, and that no filler stands for yet
        self.reserved = 0  # the next message gets this offset at least: those before it had one
        self.holds: Holds | None = None  # whether the log has a record; others are entered again
        self._directory = directory
        self._file_size = file_size
        self._open_files = open_files
        self._dirty = dirty
        self._rewritten = rewritten
        self._files = list_files(directory, file_size)
        for file in self._files:
            file.position = file.prepared = file_size

    def put(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> None:
        """Enter the message with this queue offset. The log is right: entering it again changes nothing, and of two
        messages with one offset the later counts (its topic was deleted and made anew)."""
        if queue_offset != self.max_offset and not self._go_to(queue_offset, physical_offset):
            self._mend(queue_offset, (physical_offset, size, tags_code))
            return
        file = self._files[-1] if self._files else self._begin(queue_offset)
        if file.position == file.size:
            file = self._create(file.start + file.size)
        self._write(file, _pack_entry(physical_offset, size, tags_code))
        self.max_offset = queue_offset + 1

    def put_batch(self, queue_offset: int, bounds: Sequence[int], tags_codes: Sequence[int]) -> None:
        """Enter messages that lie side by side, from `queue_offset` on; message i is [bounds[i], bounds[i + 1])."""
        count = len(tags_codes)
        sizes = list(map(sub, bounds[1:], bounds))
        file = self._files[-1] if self._files else None
        if file and queue_offset == self.max_offset and file.size - file.position >= count * ENTRY_SIZE:
            self._write(file, b"".join(map(_pack_entry, bounds, sizes, tags_codes)))
            self.max_offset = queue_offset + count
        else:
            for number in range(count):
                self.put(queue_offset + number, bounds[number], sizes[number], tags_codes[number])

    def put_run(self, queue_offset: int, entries: Sequence[Entry]) -> None:
        """Enter messages from `queue_offset` on, wherever they lie in the log."""
        file = self._files[-1] if self._files else None
        if file and queue_offset == self.max_offset and file.size - file.position >= len(entries) * ENTRY_SIZE:
            self._write(file, b"".join(starmap(_pack_entry, entries)))
            self.max_offset = queue_offset + len(entries)
        else:
            for number, entry in enumerate(entries, queue_offset):
                self.put(number, *entry)

    def _write(self, file: MappedFile, data: bytes) -> None:
        """Put entries behind the last one of a file that has room for them."""
        mapped = file.map
        if mapped is None:
            mapped = self._open_files.open(file)
        file.used = True
        position = file.position
        end = position + len(data)
        if end > file.prepared:
            file.prepare(end, PREPARE_BYTES)
        mapped[position:end] = data
        file.position = end
        if not file.dirty:
            self._mark(file)

    def _mark(self, file: MappedFile) -> None:
        file.dirty = True
        self._dirty.append(file)

    def may_take(self, queue_offset: int, physical_offset: int) -> bool:
        """Whether a record found in the log can have this queue offset; if not, its head is damaged.

        Between two messages of a queue lie no more records than there is room for. An offset comes again only from 0
        on, in a topic made anew, or where one entry that led too far has left nothing but fillers. It is not 0 for sure
        where one flipped bit would have made 0 of the offset that is due.
        """
        if queue_offset < self.max_offset:
            if queue_offset < 0 or physical_offset < self.last_physical_end:
                return queue_offset >= 0
            if queue_offset == self.max_offset - 1 and not self._may_lead(queue_offset, self.entry(queue_offset)):
                return True  # not the head is damaged, but the entry
            if queue_offset == 0 and self.max_offset & (self.max_offset - 1):
                return True
            if queue_offset * ENTRY_SIZE < self._files[0].start:
                return False
            between = range(queue_offset, self.max_offset - 1)
            return len(between) > 0 and all(self.entry(offset)[1] == FILLER_SIZE for offset in between)
        has_entries = bool(self._files) and self.max_offset * ENTRY_SIZE > self._files[0].start
        before = self._physical_offset(self.max_offset - 1) if has_entries else 0
        return queue_offset - self.max_offset <= (physical_offset - max(before, 0)) // MIN_SIZE

    def lose(self, queue_offset: int, physical_offset: int) -> None:
        """The message with this queue offset is lost: nothing leads to it any more, but its number stays taken."""
        if self.max_offset <= queue_offset:
            self.reserved = max(self.reserved, queue_offset + 1)
            self.lost.add(queue_offset)
        elif self._files and queue_offset * ENTRY_SIZE >= self._files[0].start:
            found = self.entry(queue_offset)
            if found[0] != physical_offset or found[1] in (0, FILLER_SIZE):
                return
            if queue_offset == self.max_offset - 1:
                self.reserved = max(self.reserved, self.max_offset)
                self.cut(self._end_of_entries(queue_offset))
            else:
                self._overwrite(queue_offset, _FILLER)

    def _end_of_entries(self, queue_offset: int) -> int:
        """`queue_offset`, or before: no filler is the last entry, for Apache's broker would take it for a place."""
        first = self._files[0].start // ENTRY_SIZE
        while queue_offset > first and self.entry(queue_offset - 1)[1] == FILLER_SIZE:
            queue_offset -= 1
        return queue_offset

    def _overwrite(self, queue_offset: int, data: bytes) -> None:
        file, position = self._locate(queue_offset)
        if file.map is None:
            self._open_files.open(file)
        file.write(data, position)
        self._note_rewritten(file, position)
        if not file.dirty:
            self._mark(file)

    def _go_to(self, queue_offset: int, physical_offset: int) -> bool:
        """Make `queue_offset` the next to be entered; False if the message is already there."""
        if queue_offset < self.max_offset:
            if physical_offset < self.last_physical_end:
                return False
            self.cut(queue_offset)
        elif self._files:
            self._fill(queue_offset)
        return True

    def _mend(self, queue_offset: int, entry: Entry) -> None:
        """Write the rest of an entry of which a killed process may have written only a part, or all of one that leads
        to no record of its message. One that leads to another record of this offset counts: it came later."""
        if queue_offset * ENTRY_SIZE < self._files[0].start:
            return
        found = self.entry(queue_offset)
        if found == entry or (found[0] != entry[0] and found[1] > 0 and self._may_lead(queue_offset, found)):
            return
        self.rewrite(queue_offset, entry)

    def _may_lead(self, queue_offset: int, entry: Entry) -> bool:
        physical_offset, size, _ = entry
        return size == FILLER_SIZE or self.holds is None or self.holds(physical_offset, size, queue_offset)

    def rewrite(self, queue_offset: int, entry: Entry) -> None:
        """Put another entry in the place of one whose bytes have changed."""
        self._overwrite(queue_offset, _pack_entry(*entry))

    def _begin(self, queue_offset: int) -> MappedFile:
        """The first file of a queue whose first entry is to be that of `queue_offset`."""
        disk.make_folders(self._directory)
        position = queue_offset * ENTRY_SIZE
        self._create(position - position % self._file_size)
        self.max_offset = self._files[0].start // ENTRY_SIZE
        self._fill(queue_offset)
        self.min_offset = queue_offset
        return self._files[-1]

    def _fill(self, queue_offset: int) -> None:
        """Fillers from the last entry up to `queue_offset`."""
        while self.max_offset < queue_offset:
            file = self._files[-1]
            if file.position == file.size:
                file = self._create(file.start + file.size)
            count = min(queue_offset - self.max_offset, (file.size - file.position) // ENTRY_SIZE)
            self._write(file, _FILLER * count)
            self.fillers += count - self._count_lost(self.max_offset, count)
            self.max_offset += count

    def _count_lost(self, queue_offset: int, count: int) -> int:
        lost = self.lost.intersection(range(queue_offset, queue_offset + count)) if self.lost else ()
        self.lost.difference_update(lost)
        return len(lost)

    def _create(self, start: int) -> MappedFile:
        file = MappedFile.create(self._directory, start, self._file_size)
        self._open_files.adopt(file)
        self._note_rewritten(file, 0)  # a file of this name may have been there before
        file.write_from(0)
        self._files.append(file)
        return file

    def entry(self, queue_offset: int) -> Entry:
        """The entry of an offset that this queue's files hold."""
        file, position = self._locate(queue_offset)
        data = file.map
        if data is None:
            data = self._open_files.open(file)
        return ENTRY.unpack_from(data, position)

    def entries(self, queue_offset: int, count: int) -> Iterator[Entry] | None:
        """Up to `count` entries from `queue_offset` on, all of one file; None when no file holds it."""
        if not self._files or queue_offset * ENTRY_SIZE < self._files[0].start:
            return None
        file, position = self._locate(queue_offset)
        data = file.map
        if data is None:
            data = self._open_files.open(file)
        file.used = True
        return ENTRY.iter_unpack(data[position : min(position + count * ENTRY_SIZE, file.position)])

    def places(self, queue_offset: int, count: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Physical offsets and sizes of the next `count` messages; None unless one file has all their entries."""
        if not self._files or queue_offset * ENTRY_SIZE < self._files[0].start:
            return None
        file, position = self._locate(queue_offset)
        if position + count * ENTRY_SIZE > file.position:
            return None
        data = file.map
        if data is None:
            data = self._open_files.open(file)
        file.used = True
        numbers = _places(count).unpack_from(data, position)
        return numbers[::2], numbers[1::2]

    def _locate(self, queue_offset: int) -> tuple[MappedFile, int]:
        index, position = divmod(queue_offset * ENTRY_SIZE - self._files[0].start, self._file_size)
        return self._files[index], position

    def next_file_offset(self, queue_offset: int) -> int:
        """The first offset of the file after the one that holds, or would hold, `queue_offset`."""
        per_file = self._file_size // ENTRY_SIZE
        return (queue_offset // per_file + 1) * per_file

    def load(self, log_start: int, holds: Holds) -> bool:
        """Find the ends after a clean exit: the entries are all there, and zeros follow them.

        Returns whether some were dropped that lead nowhere: the log may have their messages.
        """
        self._set_max(self._count_entries())
        counted = self.max_offset
        has_rest = self._is_written_behind(counted)
        first = self._files[0].start // ENTRY_SIZE if self._files else 0
        while self.max_offset > first and not self._is_sound(self.max_offset - 1, log_start, holds):
            self.max_offset -= 1
        self.cut(self.max_offset)
        self.correct_min(log_start)
        self.recovered_end = self.max_offset
        return has_rest or self.max_offset < counted

    def _is_written_behind(self, queue_offset: int) -> bool:
        """Whether something lies behind what was counted: an entry without a size ends the count."""
        end = queue_offset * ENTRY_SIZE
        for file in self._files:
            if file.start + file.size > end:
                if file.map is None:
                    self._open_files.open(file)
                return any(file.read(max(end - file.start, 0), PREPARE_BYTES))
        return False

    def _count_entries(self) -> int:
        """The offset behind the last entry that is not zero."""
        for file in reversed(self._files):
            if used := self._used_entries(file):
                return file.start // ENTRY_SIZE + used
        return self._files[0].start // ENTRY_SIZE if self._files else 0

    def _used_entries(self, file: MappedFile) -> int:
        data = file.map or self._open_files.open(file)
        positions = range(0, file.written_end() - ENTRY_SIZE + 1, ENTRY_SIZE)
        return bisect_left(positions, True, key=lambda position: ENTRY.unpack_from(data, position)[1] <= 0)

    def _is_sound(self, queue_offset: int, log_start: int, holds: Holds) -> bool:
        physical_offset, size, _ = self.entry(queue_offset)
        if size == FILLER_SIZE:
            return False
        if 0 <= physical_offset < log_start:
            return True
        before = self._physical_offset(queue_offset - 1) if queue_offset * ENTRY_SIZE > self._files[0].start else -1
        return before < physical_offset and holds(physical_offset, size, queue_offset)

    def cut_back(self, physical_offset: int) -> bool:
        """Keep the entries up to the first that is damaged or points at or behind `physical_offset`.

        Only the last file that begins soundly is read: those before it were full and on disk long ago. Returns whether
        entries behind a damaged one were dropped: the log may have their messages.
        """
        for file in reversed(self._files):
            data = file.map or self._open_files.open(file)
            count = _sound_entries(data, file.written_end(), physical_offset)
            if count or file is self._files[0]:
                kept = file.start // ENTRY_SIZE + count
                dropped = (self.entry(offset)[0] for offset in range(kept, self._count_entries()))
                is_shortened = any(0 <= place < physical_offset for place in dropped)
                self.cut(kept)
                return is_shortened
        return False

    def cut(self, queue_offset: int) -> None:
        """Drop the entries from `queue_offset` on, and their bytes."""
        while self._files and self._files[-1].start > queue_offset * ENTRY_SIZE:
            self._delete(self._files.pop())
        if self._files:
            file = self._files[-1]
            if file.map is None:
                self._open_files.open(file)
            file.write_from(queue_offset * ENTRY_SIZE - file.start)
            if file.zero_tail():
                self._note_rewritten(file, file.position)
                if not file.dirty:
                    self._mark(file)
        self._set_max(queue_offset)
        self.min_offset = min(self.min_offset, queue_offset)

    def _note_rewritten(self, file: MappedFile, position: int) -> None:
        self._rewritten[file.path] = min(position, self._rewritten.get(file.path, position))

    def _set_max(self, queue_offset: int) -> None:
        self.max_offset = queue_offset
        self.next_offset = max(queue_offset, self.reserved)

    def _delete(self, file: MappedFile) -> None:
        self._note_rewritten(file, 0)
        self._open_files.forget(file)
        file.delete()
        self._distrust(file)  # until its folder is synced, a crash may bring it back

    def distrust(self, physical_offset: int) -> None:
        """Have those files synced that hold entries at or behind `physical_offset`, whoever wrote them."""
        for file in reversed(self._files):
            if physical_offset <= self.log_start:
                self._distrust(file)  # no need to open it
                continue
            end = min(self.max_offset, (file.start + file.size) // ENTRY_SIZE)
            if end * ENTRY_SIZE > file.start and 0 <= self._physical_offset(end - 1) < physical_offset:
                break
            self._distrust(file)

    def _distrust(self, file: MappedFile) -> None:
        file.is_new = True
        if not file.dirty:
            self._mark(file)

    def correct_min(self, log_start: int) -> None:
        """Let `min_offset` be the first entry whose record is still in the log."""
        first = self._first_entered()
        self.min_offset = first + bisect_left(range(first, self.max_offset), log_start, key=self._physical_offset)
        self.log_start = log_start

    def take_expired(self, log_start: int) -> list[MappedFile]:
        """Forget the files whose messages are all gone, but never the last: it tells where the queue goes on.

        They are closed; whoever takes them deletes them, in this order.
        """
        expired: list[MappedFile] = []
        while len(self._files) > 1 and self._physical_offset(self._files[1].start // ENTRY_SIZE - 1) < log_start:
            file = self._files.pop(0)
            self._open_files.forget(file)
            expired.append(file)
        if expired:
            self.correct_min(log_start)
        return expired

    def _first_entered(self) -> int:
        """The first offset whose entry is no filler; `max_offset` if there is none."""
        offset = self._files[0].start // ENTRY_SIZE if self._files else 0
        while offset < self.max_offset:
            for _, size, _ in self.entries(offset, self.max_offset - offset) or ():
                if size != FILLER_SIZE:
                    return offset
                offset += 1
        return self.max_offset

    def _physical_offset(self, queue_offset: int) -> int:
        """For a filler, that of the entry before it, so the numbers never fall and can be searched by halving.

        -1 when nothing but fillers is left before it.
        """
        first = self._files[0].start // ENTRY_SIZE
        for offset in range(queue_offset, first - 1, -1):
            physical_offset, size, _ = self.entry(offset)
            if size != FILLER_SIZE:
                return physical_offset
        return -1

    @property
    def is_unused(self) -> bool:
        """It has no entry, and none has expired."""
        return self.max_offset == 0 and not self.reserved

    @property
    def last_physical_end(self) -> int:
        """Where the record of the last entry ends; 0 for an empty queue."""
        if not self._files or self.max_offset * ENTRY_SIZE <= self._files[0].start:
            return 0
        physical_offset, size, _ = self.entry(self.max_offset - 1)
        return physical_offset + size

    def close(self) -> None:
        for file in self._files:
            self._open_files.forget(file)


def _sound_entries(data: mmap.mmap, written: int, physical_end: int) -> int:
    """How many entries in the first `written` bytes could be true: each points behind the one before and below the
    end."""
    before, sound = -1, 0
    written -= written % ENTRY_SIZE
    chunks = (data[at : min(at + _CHUNK_BYTES, written)] for at in range(0, written, _CHUNK_BYTES))
    entries = chain.from_iterable(map(ENTRY.iter_unpack, chunks))
    for number, (physical_offset, size, _) in enumerate(entries, 1):
        if size == FILLER_SIZE:
            continue  # counts only if a true entry follows
        if size <= 0 or not before < physical_offset < physical_end:
            break
        before, sound = physical_offset, number
    return sound


@lru_cache(maxsize=64)
def _places(count: int) -> struct.Struct:
    """So many entries without their tag hashes."""
    return struct.Struct(">" + "qi8x" * count)
