"""Whether the index files hang together, and whether they say what the log says."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from cosmodrome.store.expected import Expected
from cosmodrome.store.findings import Area, Findings, counted
from cosmodrome.store.index_file import ENTRY, ENTRY_SIZE, HEADER_SIZE, MAX_SECONDS, key_hash
from cosmodrome.store.index_shape import IndexShape, find_shape
from cosmodrome.store.survey import IndexView, LogView, Maps
from cosmodrome.wire.record import RecordHead


class _Placed(NamedTuple):
    """One entry and where it stands."""

    file: IndexView
    number: int
    key_hash: int
    offset: int
    seconds: int


class IndexCheck:
    """Is shown how many keys each record of the log has; then reads every entry of every file.

    Apache loses the newest index files in a crash and fills them again only in part. So keys may be missing between
    files, but not from the range of a file, and behind the last only until the next start after a crash.
    """

    def __init__(self, files: list[IndexView], log: LogView, maps: Maps, aborted: bool, findings: Findings) -> None:
        self._empty = [file for file in files if not file.entries]
        self._files = [file for file in files if file.entries]
        self._begins = [file.begin_offset for file in self._files]
        self._log = log
        self._maps = maps
        self._aborted = aborted
        self._findings = findings
        self._expected = Expected()
        self._void_begins: list[int] = []
        self._void_ends: list[int] = []
        self._keys_covered = self._keys_elsewhere = self._keys_found = 0
        self.shape: IndexShape | None = None

    def expect(self, offset: int, keys: int) -> None:
        """The record at `offset` has so many keys."""
        number = bisect_right(self._begins, offset) - 1
        if number >= 0 and (offset <= self._files[number].end_offset or self._must_follow(number)):
            self._keys_covered += keys
        else:
            self._keys_elsewhere += keys

    def _must_follow(self, number: int) -> bool:
        """Whether the keys behind this file should be in it too."""
        return number == len(self._files) - 1 and not self._aborted

    def forgive(self, begin: int, end: int) -> None:
        """Keys may still lead to [begin, end): what lay there was lost to damage."""
        self._void_begins.append(begin)
        self._void_ends.append(end)

    def _is_void(self, offset: int) -> bool:
        number = bisect_right(self._void_begins, offset) - 1
        return number >= 0 and offset < self._void_ends[number]

    def finish(self, log_end: int) -> None:
        self.shape = self._find_shape()
        if self._files and self.shape is None:
            self._add(self._files[0], "slots and entries do not fit together in any way")
            return
        for file in self._files:
            self._check_file(file)
        for file in self._empty:
            self._check_empty(file)
        self._check_meaning(log_end)
        self._count_missing()

    def _find_shape(self) -> IndexShape | None:
        shapes = (find_shape(file, self._maps.view(file.path)) for file in self._files)
        return next((shape for shape in shapes if shape is not None), None)

    def _readable(self, file: IndexView) -> bool:
        return self.shape is not None and file.size == self.shape.file_size and file.entries < self.shape.entries

    def _check_file(self, file: IndexView) -> None:
        if not self._readable(file):
            self._add(file, f"its size or its {file.entries} entries do not fit the other files")
            return
        self._check_chains(file)
        self._check_header(file)

    def _check_empty(self, file: IndexView) -> None:
        if file.size and self.shape is not None and file.size != self.shape.file_size:
            self._add(file, f"it has {file.size} bytes, the others have {self.shape.file_size}")

    def _check_chains(self, file: IndexView) -> None:
        """Each entry names the one before it in its slot, so no chain can go in circles; each slot names the last."""
        assert self.shape is not None
        slots = self.shape.slots
        newest = array("i", bytes(slots * 4))
        for number, (hashed, _, _, before) in enumerate(self._entries(file), 1):
            slot = hashed % slots
            if before != newest[slot]:
                circle = ", which goes in circles" if before >= number else ""
                self._add(file, f"the chain leads from entry {number} to {before}, not to {newest[slot]}{circle}")
            newest[slot] = number
        self._check_slots(file, newest)

    def _check_slots(self, file: IndexView, newest: array[int]) -> None:
        found = array("i", bytes(self._maps.view(file.path)[HEADER_SIZE : HEADER_SIZE + len(newest) * 4]))
        if sys.byteorder == "little":
            found.byteswap()
        if found != newest:
            for slot, (said, right) in enumerate(zip(found, newest, strict=True)):
                if said != right:
                    self._add(file, f"slot {slot} leads to entry {said} instead of {right}")
        used = len(newest) - newest.count(0)
        if not used <= file.used_slots <= file.entries:  # old brokers count every entry
            self._add(file, f"the header counts {file.used_slots} used slots, there are {used}")

    def _check_header(self, file: IndexView) -> None:
        entries = self._entries(file)
        first = next(entries)[1]
        last = ENTRY.unpack_from(self._maps.view(file.path), self._entry_at(file.entries))[1]
        if (file.begin_offset, file.end_offset) != (first, last):
            said = f"{file.begin_offset} to {file.end_offset}"
            self._add(file, f"the header speaks of offsets {said}, the entries of {first} to {last}")

    def _check_meaning(self, log_end: int) -> None:
        """Every entry whose record is still in the log belongs to one of its keys."""
        previous = -1
        for offset, group in groupby(self._all_entries(), key=itemgetter(3)):
            placed = list(group)
            if offset < previous:
                self._add_entry(placed[0], f"it points to {offset}, those before it already to {previous}")
            previous = offset
            if 0 <= offset < self._log.start:
                continue
            if self._is_void(offset):
                continue
            head = self._log.head_at(offset) if offset < log_end else None
            if head is None:
                self._add_entry(placed[0], f"it points to {offset}, where no record begins")
            else:
                self._check_group(placed, head)

    def _check_group(self, placed: list[_Placed], head: RecordHead) -> None:
        keys = self._expected.traces(head).keys
        hashes = {key_hash(head.topic, key) for key in keys}
        self._keys_found += min(len(placed), len(keys))
        for entry in placed:
            if entry.key_hash not in hashes:
                self._add_entry(entry, f"no key of the record at {entry.offset} has the hash {entry.key_hash}")
            elif entry.number > 1 and entry.seconds != _seconds(entry.file, head):
                # The first entry's is counted from the end of the file before: Apache does so.
                self._add_entry(entry, f"its time does not match the record at {entry.offset}")

    def _count_missing(self) -> None:
        missing = self._keys_covered - self._keys_found
        if missing > 0:
            self._findings.add(Area.INDEX, "index", f"it lacks {counted(missing, 'key')} of the log's records")
        if self._keys_elsewhere:
            what = "of records outside the range of the index" if self._files else "but there is no index"
            self._findings.note(f"the log has {counted(self._keys_elsewhere, 'key')}, {what}")

    def _all_entries(self) -> Iterator[_Placed]:
        for file in filter(self._readable, self._files):
            for number, (hashed, offset, seconds, _) in enumerate(self._entries(file), 1):
                yield _Placed(file, number, hashed, offset, seconds)

    def _entries(self, file: IndexView) -> Iterator[tuple[int, int, int, int]]:
        view = self._maps.view(file.path)
        return ENTRY.iter_unpack(view[self._entry_at(1) : self._entry_at(file.next_entry)])

    def _entry_at(self, number: int) -> int:
        assert self.shape is not None
        return self.shape.entries_at + number * ENTRY_SIZE

    def _add(self, file: IndexView, what: str) -> None:
        self._findings.add(Area.INDEX, f"index/{file.path.name}", what)

    def _add_entry(self, entry: _Placed, what: str) -> None:
        self._findings.add(Area.INDEX, f"index/{entry.file.path.name}, entry {entry.number}", what)


def _seconds(file: IndexView, head: RecordHead) -> int:
    if file.begin_timestamp <= 0:
        return 0
    return min(max((head.store_timestamp - file.begin_timestamp) // 1000, 0), MAX_SECONDS)
