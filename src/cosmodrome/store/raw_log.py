"""The end of a log that is a copy: bytes arrive as the master sends them, cut anywhere."""

from __future__ import annotations

import struct

from cosmodrome.errors import ProtocolError, StoreError
from cosmodrome.mapped_file import MappedFile
from cosmodrome.store.commit_log import CommitLog
from cosmodrome.wire.record import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, MIN_SIZE, RecordHead, head_at, heads_between

_SIZE = struct.Struct(">i")
_PREFIX = struct.Struct(">iI")
_PLACE = struct.Struct(">q")
_PLACE_AT = 28


class LogDiverged(StoreError):
    """A master's bytes that do not continue this log; nothing from the wrong place on was appended."""


class RawLog:
    """Appends a master's bytes to a log, and knows up to where they are whole records.

        whole_end               the log's end
        | ... record | record | first part of a record
                              ^ nothing from here on is dispatched, and `settle` cuts it off

    No record crosses from one file into the next, so the unfinished part lies in the last file.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self.whole_end = log.end

    def append(self, offset: int, data: bytes | memoryview) -> tuple[list[RecordHead], LogDiverged | None]:
        """Append bytes that belong at `offset`; return the records that they complete.

        Where they stop being a log, what stands before is appended, and the error says what to do; the caller raises
        it. OSError and ServiceNotAvailable as `CommitLog.write` and `roll` raise them; then nothing is changed.
        """
        log = self._log
        if log.end == 0 != offset:
            self._begin_at(offset)
        elif offset != log.end:
            raise LogDiverged(
                f"the master sent bytes for offset {offset}, but this log ends at {log.end}; the connection must be "
                "made again"
            )
        if offset % log.file_size == 0 and self.has_unfinished:
            raise _other_size(log, f"a record at {self.whole_end} goes on behind the end of its file")
        file = log.file_to_extend()
        position = offset - file.start
        end = position + len(data)
        if end > file.size:
            raise _other_size(log, f"bytes from {offset} to {offset + len(data)} lie in one file of its log")
        try:
            file.write(data, position)
        except OSError:
            file.zero_tail()  # a part of them may be there
            raise
        heads, whole, wrong = self._walk(file, end)
        if wrong is None or whole > position:
            log.extended(file, end if wrong is None else whole)
        if wrong is not None:
            file.zero_tail()
        self.whole_end = file.start + whole
        if heads:
            log.last, log.last_timestamp = heads[-1].physical_offset, heads[-1].store_timestamp
        return heads, wrong

    def _begin_at(self, offset: int) -> None:
        """Begin an empty log where the master begins: at a file's start, or behind its first byte.

        A report of 0 asks a master for its last file only, so a slave that wants all of a log that begins at 0 asks
        for it from 1 on. The byte before is the first of a record's size, which is zero.
        """
        log = self._log
        inside = offset % log.file_size
        if inside > 1:
            raise _other_size(log, f"its log begins at {offset} for this broker")
        log.begin_at(offset - inside)
        self.whole_end = log.end

    def _walk(self, file: MappedFile, end: int) -> tuple[list[RecordHead], int, LogDiverged | None]:
        """The records between `whole_end` and `end`, where the last of them ends, and what is wrong behind that."""
        view, start = file.view[:end], file.start  # what lies behind may be a hole, which is not to be touched
        heads, at = heads_between(view, self.whole_end - start, end, self.whole_end)
        if at == end:
            return heads, at, None
        try:
            head = head_at(view, at, end)
        except ProtocolError:
            if end == file.size and _is_blank(view, at, end):
                return heads, end, None
            return heads, at, self._doubt(file, view, at)
        return heads, at, _no_record(start + at, f"a record that says its place is {head.physical_offset}")

    def _doubt(self, file: MappedFile, view: memoryview, at: int) -> LogDiverged | None:
        """Return what is wrong with the bytes from `at` on; None if they may be the first part of a record."""
        count, place = len(view) - at, file.start + at
        if count < _PREFIX.size:
            return None
        size, magic = _PREFIX.unpack_from(view, at)
        left = file.size - at
        if magic == BLANK_MAGIC:
            return None if size == left else _other_size(self._log, f"its file ends at {place + size}")
        if magic not in (MAGIC_V1, MAGIC_V2):
            return _no_record(place, f"magic {magic:#010x}")
        if size < MIN_SIZE:
            return _no_record(place, f"a record of {size} bytes")
        if size > left:
            return _other_size(self._log, f"the record at {place} ends at {place + size}")
        if count >= _PLACE_AT + _PLACE.size and (said := _PLACE.unpack_from(view, at + _PLACE_AT)[0]) != place:
            return _no_record(place, f"a record that says its place is {said}")
        return None if count < size else _no_record(place, f"a record of {size} bytes whose parts disagree")

    @property
    def has_unfinished(self) -> bool:
        return self._log.end > self.whole_end

    def settle(self) -> int:
        """Cut the unfinished record off, for good; return where the log ends."""
        if self.has_unfinished:
            self._log.retract(self.whole_end)
        return self._log.end


def _is_blank(view: memoryview, at: int, end: int) -> bool:
    return end - at >= _PREFIX.size and _PREFIX.unpack_from(view, at) == (end - at, BLANK_MAGIC)


def _no_record(place: int, what: str) -> LogDiverged:
    return LogDiverged(
        f"the master's log at {place} is no record in its place: {what}. Nothing from there on is copied. If this "
        "comes again, look for damage with cosmodrome store verify at the master"
    )


def _other_size(log: CommitLog, what: str) -> LogDiverged:
    return LogDiverged(
        f"the master's log files are not of this broker's size: {what}. Nothing was copied. Set "
        f"mappedFileSizeCommitLog, which is {log.file_size} here, to the master's value, move this broker's store away "
        "and start it again"
    )
