"""A commit log whose records lie in the entries of a Raft group, in DLedger's files.

    | magic 4 | size 4 | index 8 | term 8 | place 8 | kind 4 | 0 4 | CRC 4 | body size 4 | record |      one entry

The group owns the files: it writes, cuts and syncs them. The store reads the records in them, and puts its own by
`propose`. A record's place is behind its entry's head, and each place of the log is the beginning of an entry.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from cosmodrome.errors import MessageIllegal, ProtocolError
from cosmodrome.mapped_file import MappedFile
from cosmodrome.store.commit_log import CommitLog, Visit, is_complete
from cosmodrome.wire.record import RecordHead, head_at

log = logging.getLogger(__name__)

HEAD_BYTES = 48  # of an entry, before its record
BLANK_MAGIC = -1
NO_LIMIT = 2**62
MAX_ENTRY_BYTES = 4 * 1024 * 1024  # what Apache's members take
_BEGIN = struct.Struct(">ii")  # magic | size
_KIND = struct.Struct(">i")
_KIND_AT = 32
_MESSAGE = 0  # the kind of an entry whose record is a message; others belong to the group
_PLACE = struct.Struct(">q")
_PLACE_AT = 28  # in a record: its physical offset

HEADS_AT_ONCE = 500


class Entries(Protocol):
    """The log of a Raft group, as the store sees it; its positions count bytes."""

    files: list[MappedFile]
    file_size: int

    @property
    def start(self) -> int:
        """The position of the oldest byte."""
        ...

    @property
    def end(self) -> int:
        """The position behind the last entry, committed or not."""
        ...

    @property
    def committed_end(self) -> int:
        """The position behind the last entry that is known to be committed."""
        ...

    def places(self, sizes: Sequence[int], /) -> list[int]:
        """Return where entries with bodies of these sizes will begin if they are proposed next."""
        ...

    def propose(self, bodies: Sequence[bytes], /) -> None:
        """Append entries to the group's log; a RequestError if this member may not, and then none is appended."""
        ...

    def take_first(self) -> MappedFile | None:
        """Forget the oldest file, if all in it is committed; the caller deletes it."""
        ...


class RaftCommitLog(CommitLog):
    """The records of a group's log. It ends behind its last entry, committed or not, unless `limit` says less."""

    def __init__(self, directory: Path, entries: Entries) -> None:
        """Show the log in this folder, as far as it is known to be committed."""
        self.directory = directory
        self.entries = entries
        self.limit: int | None = entries.committed_end  # while the store starts and stops
        self.file_size = entries.file_size
        self.files = entries.files
        self.room = NO_LIMIT  # the group begins a new file by itself
        self.on_roll: Callable[[], None] = _ignore  # the group makes its files
        self.on_proposed: Callable[[int], None] = _ignore
        self.last = -1
        self.last_timestamp = 0
        self._max_record = min(self.file_size - _BEGIN.size, MAX_ENTRY_BYTES) - HEAD_BYTES

    @property
    def start(self) -> int:
        return self.entries.start

    @property
    def end(self) -> int:
        return self.entries.end if self.limit is None else self.limit

    @end.setter
    def end(self, _end: int) -> None:
        raise AssertionError("the group says where its log ends")

    # --- writing

    def write(self, data: bytes, timestamp: int, last_at: int = 0) -> int:
        """Propose one record, which says its place when this returns; RequestError if this member may not."""
        assert not last_at, "a batch is written by write_batch"
        self._check_size(len(data))
        place = self.entries.places([len(data)])[0] + HEAD_BYTES
        self.entries.propose([_placed(data, place)])
        self.on_proposed(place + len(data))
        self.last_timestamp = timestamp
        return place

    def write_batch(self, data: bytes, bounds: list[int], timestamp: int) -> list[int]:
        """Propose records that lie side by side in `data`; return where each begins in the log and the last ends."""
        first = bounds[0]
        bodies = [data[begin - first : end - first] for begin, end in pairwise(bounds)]
        self._check_size(max(map(len, bodies)))
        places = [place + HEAD_BYTES for place in self.entries.places(list(map(len, bodies)))]
        self.entries.propose(list(map(_placed, bodies, places)))
        self.on_proposed(places[-1] + len(bodies[-1]))
        self.last_timestamp = timestamp
        return [*places, places[-1] + len(bodies[-1])]

    def _check_size(self, size: int) -> None:
        if size > self._max_record:
            raise MessageIllegal(
                f"a record of {size} bytes is too large for the log of a Raft group, whose entries take "
                f"{self._max_record}; send smaller messages"
            )

    def truncate(self, end: int) -> int:
        """Return 0: the group alone cuts its log, and nothing that is committed."""
        assert end == self.end, "what is committed is not cut"
        return 0

    def take_first(self) -> MappedFile | None:
        return self.entries.take_first()

    def make_next(self) -> None:
        """Leave the next file to the group."""

    def drop_next(self) -> None:
        """Leave the next file to the group."""

    def sync(self) -> None:
        for file in self.files:
            file.sync()

    def close(self) -> None:
        """Leave the files to the group, which closes them."""

    # --- reading

    def is_blank_at(self, physical_offset: int) -> bool:
        file = self.file_at(physical_offset)
        return file is not None and _is_filled(file, physical_offset - file.start)

    def heads(self, begin: int) -> Iterator[RecordHead]:
        return (head for _, _, head in self._walk(begin, self.end) if head is not None)

    def scan(self, begin: int, end: int, visit: Visit, *, verify: bool) -> int:
        """Show the record of every message in [begin, end) to `visit`; return where the last whole entry ends.

        An entry whose record cannot be read is passed over: the heads of entries lead on to the next.
        """
        scanned = begin
        for place, scanned, head in self._walk(begin, end):  # noqa: B007, it is where the last one ends
            if head is None:
                continue
            file = self.file_at(place)
            if verify and file is not None and not is_complete(file.view, head):
                log.error("record passed over, its checksum is wrong: entry=%d folder=%s", place, self.directory)
                continue
            self.last = max(self.last, head.physical_offset)
            visit(head)
        return scanned

    def scan_together(self, begin: int, end: int, visit: Callable[[list[RecordHead]], None]) -> int:
        heads: list[RecordHead] = []

        def collect(head: RecordHead) -> None:
            heads.append(head)
            if len(heads) == HEADS_AT_ONCE:
                visit(heads[:])
                heads.clear()

        stopped = self.scan(begin, end, collect, verify=False)
        visit(heads)
        return stopped

    def _walk(self, begin: int, end: int) -> Iterator[tuple[int, int, RecordHead | None]]:
        """Yield each whole entry of [begin, end): its place, where the next one is, and the head of its message."""
        while begin < end:
            file = self.file_at(begin)
            if file is None:
                return
            place, position = begin, begin - file.start
            begin, head = file.start + file.size, None
            if not _is_filled(file, position):
                magic, size = _BEGIN.unpack_from(file.view, position)
                if magic <= 0 or not HEAD_BYTES <= size <= file.size - position:
                    log.error("the rest of a file is passed over, an entry is damaged: entry=%d %s", place, file.path)
                elif place + size > end:
                    return
                else:
                    begin = place + size
                    if _KIND.unpack_from(file.view, position + _KIND_AT)[0] == _MESSAGE:
                        head = _head(file, position + HEAD_BYTES, position + size)
            yield place, begin, head


def _ignore(*_: int) -> None:
    pass


def _head(file: MappedFile, position: int, limit: int) -> RecordHead | None:
    try:
        head = head_at(file.view, position, limit)
        if head.physical_offset == file.start + position:
            return head
        reason = f"it says that it lies at {head.physical_offset}"
    except ProtocolError as error:
        reason = str(error)
    log.error("record passed over, it is damaged: place=%d %s: %s", file.start + position, file.path, reason)
    return None


def _is_filled(file: MappedFile, position: int) -> bool:
    """Return whether no entry begins here, nor behind it in this file."""
    return position + _BEGIN.size > file.size or _BEGIN.unpack_from(file.view, position)[0] == BLANK_MAGIC


def _placed(record: bytes, place: int) -> bytes:
    """Return the record with its place in the log, which is known now."""
    return record[:_PLACE_AT] + _PLACE.pack(place) + record[_PLACE_AT + _PLACE.size :]
