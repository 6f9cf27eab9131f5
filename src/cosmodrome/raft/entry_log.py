"""The Raft log of one member in the files of Apache's DLedger.

    data:   | entry | entry | … | blank |   | entry | …         see `entries`
    blank:  | -1 4 | bytes to the end of the file 4 |           it ends each file but the last
    index:  | magic 4 | place 8 | size 4 | index 8 | term 8 |   one unit for each entry, at index × 32

What must hold:

- Behind the end there are only zeros, on disk too, before anything is appended: else an entry of the past could follow
  a new one of the same size (rocketmq#10666). So a cut is on disk when `truncate` returns, and a start zeroes what a
  crash has torn.
- The place of an entry follows from the log before it, so it is the same at all members: at the end, or at the start
  of the next file if the entry and a blank do not fit.
- Data is synced in the order it was written (`begin_sync`); the index is derived from it, and synced with `checkpoint`.
- Nothing that `log-state` calls committed is cut off.

Everything happens on one thread, but for `run` of the jobs, which waits for the disk. A job and a change of the files
exclude each other.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cosmodrome import disk
from cosmodrome.errors import ProtocolError, StoreError
from cosmodrome.mapped_file import MappedFile
from cosmodrome.raft.entries import (
    MAGIC,
    EntryRun,
    body_size,
    entry_at,
    event_body,
    pack_head,
)
from cosmodrome.raft.entry_files import CHECKPOINT, DATA, INDEX, LOG_STATE, EntryFiles, LogState
from cosmodrome.raft.errors import Refused
from cosmodrome.raft.log import HEAD_BYTES, LogFull, decoded_members
from cosmodrome.raft.messages import Base, Entry, EntryKind, SyncPoint
from cosmodrome.raft.quorum import Membership

log = logging.getLogger(__name__)

MIB = 1024 * 1024
DATA_FILE_BYTES = 1024 * MIB
INDEX_FILE_BYTES = 5 * MIB * 32  # DLedger's
UNIT_BYTES = 32
_UNIT = struct.Struct(">iqiqq")
_PLACE_AND_SIZE = struct.Struct(">qi")
_TERM = struct.Struct(">q")
_PLACE_AT, _TERM_AT = 4, 24  # in a unit
_BLANK = struct.Struct(">ii")
BLANK_MAGIC = -1
_STEP_BYTES = MIB  # takes its place on disk ahead of what is written


class EntryTooLarge(Refused):
    """An entry that no file can hold."""


@dataclass(slots=True)
class SyncJob:
    """A part of the log on its way to disk: `run` waits for it, on any thread."""

    point: SyncPoint
    _files: list[MappedFile]
    _lock: threading.Lock

    def run(self) -> None:
        """Return once it is on disk; after an OSError the member must stop."""
        with self._lock:
            for file in self._files:
                if file.map is not None:  # closed: it was removed since, with all that it held
                    file.sync()


class CheckpointJob:
    """What lets the next start begin where the log is known to be whole."""

    def __init__(self, entry_log: EntryLog, index_files: list[MappedFile], state: LogState) -> None:
        self._log = entry_log
        self._cuts = entry_log.cuts
        self._index_files = index_files
        self.state = state

    def run(self) -> None:
        """Write it; nothing is lost without it."""
        with self._log.files_lock:
            if self._cuts != self._log.cuts or self.state.base != self._log.base:
                return  # the log was cut meanwhile, at one end or the other
            for file in self._index_files:
                if file.map is not None:
                    file.sync()
            self._log.write_state(self.state)


class EntryLog:
    """A log as the core uses it (`raft.log.Log`), and as a broker reads it.

    `files` are the data files, oldest first; the list stays the same object. `on_reset` is called when the log begins
    somewhere else.
    """

    def __init__(
        self,
        files: EntryFiles,
        members: Membership,
        *,
        file_size: int = DATA_FILE_BYTES,
        index_file_size: int = INDEX_FILE_BYTES,
        now_ms: Callable[[], int],
    ) -> None:
        """Open the log, and cut off what a crash has torn. A new one begins with these members.

        StoreError if the files cannot be those of one log, or lack what was on disk.
        """
        assert index_file_size % UNIT_BYTES == 0
        self.file_size = file_size
        self.files: list[MappedFile] = []
        self.on_reset: Callable[[], None] = lambda: None
        self.files_lock = threading.Lock()
        self._files = files
        self._index_file_size = index_file_size
        self._index_files: list[MappedFile] = []
        self._now_ms = now_ms
        self.cuts = 0  # how often it was cut, as the core counts
        self._new: list[MappedFile] = []  # for entries about to be written
        self._dirty: list[MappedFile] = []
        self._state = self._open_state(members)
        self.base = self._state.base
        self.last_index = self.base.index
        self.end = self.base.place
        self._last_term = self.base.term
        self._memberships: list[tuple[int, Membership]] = [(self.base.index, self.base.members)]
        self._synced_index = self.base.index
        self._open_files()
        self._recover()
        self.committed_index = max(min(self._state.committed, self.last_index), self.base.index)

    # --- opening

    def _open_state(self, members: Membership) -> LogState:
        raw = self._files.read(LOG_STATE)
        if raw is None:
            state = self._first_state(members)
            self._files.replace(LOG_STATE, state.encode())
            return state
        try:
            state = LogState.decode(raw)
        except (ProtocolError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(
                f"{LOG_STATE} cannot be read ({error}), so it is not known how far this member's log was on disk; "
                "put a good copy back, or remove the member from its group and add it again with an empty folder"
            ) from error
        if state.is_reset:
            self._remove_all()
            state = replace(state, is_reset=False)
            self._files.replace(LOG_STATE, state.encode())
        return state

    def _first_state(self, members: Membership) -> LogState:
        """Return the state of a new log, or of one that another program has written."""
        found = self._files.open_all(DATA, self.file_size)
        base = Base(-1, 0, members)
        if found and (first := _first_entry(found[0])) is not None:
            term = 0 if first.index == 0 else first.term  # of the entry before it, which is gone: at most this
            base = Base(first.index - 1, term, members, found[0].start)
        for file in found:
            file.close()
        return LogState(base, base.index, base.index, ())

    def _remove_all(self) -> None:
        for kind, size in ((DATA, self.file_size), (INDEX, self._index_file_size)):
            self._files.remove(kind, self._files.open_all(kind, size)[::-1])

    def _open_files(self) -> None:
        base, size = self.base, self._index_file_size
        found = self._files.open_all(DATA, self.file_size)
        gone = [file for file in found if file.start < base.place]
        self._files.remove(DATA, gone)
        self.files += found[len(gone) :]
        if self.files and self.files[0].start != base.place:
            raise StoreError(
                f"the data files begin at {self.files[0].start}, the log at {base.place}: files are missing"
            )
        first = (base.index + 1) * UNIT_BYTES // size * size
        found = self._files.open_all(INDEX, size)
        gone = [file for file in found if file.start < first]
        self._files.remove(INDEX, gone)
        self._index_files += found[len(gone) :]
        if self._index_files and self._index_files[0].start != first:  # derived: made again from the data
            self._files.remove(INDEX, self._index_files[::-1])
            self._index_files.clear()

    def _recover(self) -> None:
        """Find the end: go on from the last entry that is known to be on disk, as far as entries are whole."""
        state = self._state
        self._trust(state)
        for file in self._index_files:  # what is behind is written again as the entries are found
            file.write_from(min(max((self.last_index + 1) * UNIT_BYTES - file.start, 0), self._index_file_size))
        begin = self.last_index
        scanned_from = self.end
        reason = self._scan()
        if self.last_index < state.synced:
            raise StoreError(
                f"the log ends at entry {self.last_index} ({reason}), but entries up to {state.synced} were on disk; "
                "put the lost files back, or remove this member from its group and add it again with an empty folder"
            )
        self._cut_files(self.end)
        self._dirty = [file for file in self.files if file.end > scanned_from or file is self.files[-1]]
        self._synced_index = min(state.synced, self.last_index)
        log.info(
            "Raft log opened: first=%d last=%d term=%d scanned=%d end=%d (%s)",
            self.first_index,
            self.last_index,
            self._last_term,
            self.last_index - begin,
            self.end,
            reason,
        )

    def _trust(self, state: LogState) -> None:
        """Begin behind the last entry that was synced, if data and index agree on it; else at the start of the log."""
        if state.synced <= self.base.index:
            return
        try:
            place, size, term = self._unit(state.synced)
            entry, entry_size, _ = entry_at(self._file_at(place).view, place % self.file_size, place)
        except (ProtocolError, IndexError, struct.error, ValueError):
            log.warning("Raft log is scanned as a whole: its index does not show entry %d", state.synced)
            return
        if (entry.index, entry.term, entry_size) != (state.synced, term, size):
            log.warning("Raft log is scanned as a whole: index and data differ at entry %d", state.synced)
            return
        self._memberships += [one for one in state.memberships if one[0] > self.base.index]
        self.last_index, self._last_term, self.end = entry.index, entry.term, place + size

    def _scan(self) -> str:
        """Take every entry that follows the last one; return why there is no further."""
        place = self.end
        while self.files and place < self.files[-1].start + self.file_size:
            file = self._file_at(place)
            at = place - file.start
            magic, size = _BLANK.unpack_from(file.view, at) if at + _BLANK.size <= self.file_size else (0, 0)
            if magic == BLANK_MAGIC:
                if at + size != self.file_size:
                    return f"the blank at {place} does not end its file"
                place = file.start + self.file_size
                continue
            if magic == size == 0:
                return "the end of what was written"
            try:
                entry, size, _ = entry_at(file.view, at, place)
                if entry.index != self.last_index + 1 or entry.term < self._last_term:
                    return f"entry {entry.index} of term {entry.term} does not follow"
                members = decoded_members([entry])
            except ProtocolError as error:
                return str(error)
            self._memberships += members
            self._reserve_units(entry.index)
            self._put_unit(entry.index, place, size, entry.term)
            self.last_index, self._last_term, self.end = entry.index, entry.term, place + size
            place += size
        return "the end of the last file"

    def _cut_files(self, end: int) -> None:
        """Remove what is behind the end, durably: files, and the bytes in the last one."""
        keep = sum(file.start < end or (file.start == end == self.base.place) for file in self.files)
        self._files.remove(DATA, self.files[keep:][::-1])
        del self.files[keep:]
        for file in self.files[:-1]:
            file.write_from(self.file_size)
        if self.files:
            self.files[-1].write_from(end - self.files[-1].start)
        if self.files and self.files[-1].zero_tail():
            self.files[-1].sync()
        keep = sum(file.start <= self.last_index * UNIT_BYTES for file in self._index_files)
        self._files.remove(INDEX, self._index_files[keep:][::-1])
        del self._index_files[keep:]
        if self._index_files:
            last = self._index_files[-1]
            last.write_from(max((self.last_index + 1) * UNIT_BYTES - last.start, 0))
            last.zero_tail()

    # --- what the core asks

    @property
    def first_index(self) -> int:
        return self.base.index + 1

    def term_at(self, index: int) -> int:
        if index == self.last_index:
            return self._last_term
        if index == self.base.index:
            return self.base.term
        term: int = _TERM.unpack_from(*self._unit_at(index, _TERM_AT))[0]
        return term

    def read(self, begin: int, max_bytes: int) -> Sequence[Entry]:
        """Return entries as they lie in one file, uncopied: one, and more as long as they have at most `max_bytes`."""
        place, size, _ = self._unit(begin)
        file = self._file_at(place)
        limit = min(place + max(max_bytes, size), file.start + self.file_size)
        last = self.last_index
        if self.end_of(last) > limit:  # entries do not end behind the one that follows them
            low, high = begin, last
            while low < high:
                middle = (low + high + 1) // 2
                if self.end_of(middle) <= limit:
                    low = middle
                else:
                    high = middle - 1
            last = low
        at = place - file.start
        return EntryRun(file.view[at : self.end_of(last) - file.start].toreadonly(), last - begin + 1, place)

    def append(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        if isinstance(entries, EntryRun):
            self._append_run(entries)
            return
        sizes = [body_size(entry.kind, entry.data) for entry in entries]
        places = self.places(sizes)
        members = decoded_members(entries)
        self._reserve(places, places[-1] + HEAD_BYTES + sizes[-1], entries[-1].index)
        for entry, place in zip(entries, places, strict=True):
            self._write(entry, place)
        self._memberships += members

    def _append_run(self, run: EntryRun) -> None:
        """Write entries as another member has them on its disk: at the same place."""
        sizes, raw = run.sizes(), run.raw
        places = self.places([size - HEAD_BYTES for size in sizes])
        if places[0] != run.place or places[-1] + sizes[-1] != run.place + len(raw):
            raise ProtocolError(
                f"entry {run[0].index} and {len(run) - 1} more are at {run.place} at their sender, but would be "
                f"at {places} here: all members of a group need the same mappedFileSizeCommitLog"
            )
        members, end = decoded_members(run), run.place + len(raw)
        self._reserve(places, end, run[-1].index)
        file = self._enter(run.place)
        at = run.place - file.start
        file.view[at : at + len(raw)] = raw
        file.position = at + len(raw)
        for entry, place, size in zip(run, places, sizes, strict=True):
            self._put_unit(entry.index, place, size, entry.term)
        self.last_index, self._last_term, self.end = run[-1].index, run[-1].term, end
        self._memberships += members

    def truncate(self, last_index: int) -> None:
        """Cut off everything behind an entry; on disk when this returns."""
        assert self.base.index <= last_index <= self.last_index
        if last_index < self._state.committed:
            raise StoreError(
                f"entries behind {last_index} are to be cut off, but {self._state.committed} was committed"
            )
        if last_index == self.last_index:
            return
        with self.files_lock:
            end, term = self.end_of(last_index), self.term_at(last_index)
            log.info("Raft log cut: from=%d to=%d", self.last_index, last_index)
            self.cuts += 1
            self._synced_index = min(self._synced_index, last_index)
            while self._memberships[-1][0] > last_index:
                self._memberships.pop()
            if self._state.synced > last_index:
                self.write_state(replace(self._state, synced=last_index, memberships=self._kept(last_index)))
            self.last_index, self._last_term, self.end = last_index, term, end
            self._cut_files(end)
            self._dirty = [file for file in self._dirty if file in self.files]

    def reset(self, base: Base) -> None:
        """Begin behind `base`; on disk when this returns, and as a whole."""
        if base.place % self.file_size:
            raise ProtocolError(
                f"a new log was asked for at {base.place}, which begins no file of {self.file_size} bytes: all members "
                "of a group need the same mappedFileSizeCommitLog"
            )
        with self.files_lock:
            log.info("Raft log begins behind: index=%d term=%d place=%d", base.index, base.term, base.place)
            self.cuts += 1
            state = LogState(base, base.index, base.index, (), is_reset=True)
            self.write_state(state)
            self._files.remove(DATA, self.files[::-1])
            self._files.remove(INDEX, self._index_files[::-1])
            self.write_state(replace(state, is_reset=False))
            self.files.clear()
            self._index_files.clear()
            self._dirty = []
            self.base, self.last_index, self._last_term, self.end = base, base.index, base.term, base.place
            self._synced_index = self.committed_index = base.index
            self._memberships = [(base.index, base.members)]
        self.on_reset()

    def memberships(self) -> Sequence[tuple[int, Membership]]:
        return self._memberships

    # --- what the broker asks

    @property
    def start(self) -> int:
        """Where the oldest entry begins."""
        return self.base.place

    def places(self, sizes: Sequence[int]) -> list[int]:
        """Return where entries would begin if bodies of these sizes were appended next, in this order."""
        places, place, file_size = [], self.end, self.file_size
        for size in sizes:
            needed = HEAD_BYTES + size + _BLANK.size
            if needed > file_size:
                raise EntryTooLarge(f"an entry of {HEAD_BYTES + size} bytes does not fit into a file of {file_size}")
            room = file_size - place % file_size
            if needed > room:
                place += room
            places.append(place)
            place += HEAD_BYTES + size
        return places

    def begin_of(self, index: int) -> int:
        """Return where an entry begins."""
        return self._unit(index)[0]

    def end_of(self, index: int) -> int:
        """Return where an entry ends; for the one before the first, where the log begins."""
        if index == self.last_index:
            return self.end
        if index == self.base.index:
            return self.base.place
        place, size, _ = self._unit(index)
        return place + size

    def index_at(self, place: int) -> int:
        """Return the last entry that begins at or before a place; `first_index - 1` if there is none."""
        low, high = self.base.index, self.last_index
        while low < high:
            middle = (low + high + 1) // 2
            if self.begin_of(middle) <= place:
                low = middle
            else:
                high = middle - 1
        return low

    def take_first(self, commit: int) -> MappedFile | None:
        """Forget the oldest file and return it, for the caller to delete; None unless all its entries are committed.

        The last file stays. After a crash before the deletion, the next start deletes it.
        """
        if len(self.files) < 2:
            return None
        second = self.files[1].start
        index = self.index_at(second - 1)
        if index > min(commit, self._synced_index):
            return None
        with self.files_lock:
            members = [members for at, members in self._memberships if at <= index][-1]
            base = Base(index, self.term_at(index), members, second)
            memberships = [(index, members), *(one for one in self._memberships if one[0] > index)]
            synced, committed = max(self._state.synced, index), max(self._state.committed, index)
            if synced == index:
                kept: tuple[tuple[int, Membership], ...] = ()
            else:
                kept = tuple(one for one in self._state.memberships if one[0] > index)
            self.write_state(LogState(base, synced, committed, kept))
            self.base, self._memberships = base, memberships
            taken = self.files.pop(0)
            self._dirty = [file for file in self._dirty if file is not taken]
            first = (index + 1) * UNIT_BYTES // self._index_file_size * self._index_file_size
            gone = [file for file in self._index_files if file.start < first]
            self._files.remove(INDEX, gone)
            del self._index_files[: len(gone)]
        log.info("oldest file of the Raft log taken away: start=%d first=%d", taken.start, self.first_index)
        return taken

    # --- what the member's shell asks

    def begin_sync(self, point: SyncPoint) -> SyncJob:
        """Return the job that brings everything written so far to disk."""
        files, self._dirty = self._dirty, []
        return SyncJob(point, files, self.files_lock)

    def synced(self, point: SyncPoint) -> None:
        """Note that a job is done."""
        if point.cuts == self.cuts:
            self._synced_index = max(self._synced_index, min(point.index, self.last_index))

    def begin_checkpoint(self, commit: int) -> CheckpointJob | None:
        """Return the job that lets the next start begin here; None if nothing is new."""
        synced = self._synced_index
        committed = max(min(commit, synced), self._state.committed)
        if (synced, committed) == (self._state.synced, self._state.committed):
            return None
        state = LogState(self.base, synced, committed, self._kept(synced))
        begin = self._state.synced * UNIT_BYTES - self._index_file_size
        return CheckpointJob(self, [file for file in self._index_files if file.start >= begin], state)

    def write_state(self, state: LogState) -> None:
        """Save what the log knows of itself, with the lock on its files."""
        self._files.replace(LOG_STATE, state.encode())
        self._state = state
        self.committed_index = state.committed
        self._files.replace(CHECKPOINT, b"endIndex=%d\ncommittedIndex=%d\n" % (state.synced, state.committed))

    def close(self) -> None:
        """Close the files. What was not synced may still be lost."""
        with self.files_lock:
            for file in (*self.files, *self._index_files):
                file.close()
            self._files.close()

    def _kept(self, index: int) -> tuple[tuple[int, Membership], ...]:
        return tuple(one for one in self._memberships if self.base.index < one[0] <= index)

    # --- bytes

    def _file_at(self, place: int) -> MappedFile:
        files = self.files
        if place >= files[-1].start:
            return files[-1]
        number = (place - files[0].start) // self.file_size
        if number < 0:
            raise IndexError(place)
        return files[number]

    def _unit_at(self, index: int, at: int = 0) -> tuple[memoryview, int]:
        assert self.base.index < index, f"entry {index} is gone; the log begins at {self.first_index}"
        files, place = self._index_files, index * UNIT_BYTES
        file = files[(place - files[0].start) // self._index_file_size]
        return file.view, place - file.start + at

    def _unit(self, index: int) -> tuple[int, int, int]:
        """Return place, size and term of an entry."""
        view, at = self._unit_at(index)
        _, place, size, _, term = _UNIT.unpack_from(view, at)
        return place, size, term

    def _put_unit(self, index: int, place: int, size: int, term: int) -> None:
        view, at = self._unit_at(index)
        _UNIT.pack_into(view, at, MAGIC, place, size, index, term)

    def _reserve(self, places: Sequence[int], end: int, last_index: int) -> None:
        """Take room on disk for all that is to be written; LogFull without, and then nothing has changed."""
        try:
            self._reserve_units(last_index)
            files = self.files
            if files:
                file_end = files[-1].start + self.file_size
                rolls = end > file_end  # the blank needs room, too, behind the last entry here
                inside = sum(place < file_end for place in places)
                if not rolls:
                    files[-1].prepare(end - files[-1].start, _STEP_BYTES)
                elif inside:
                    files[-1].prepare(self.file_size, _STEP_BYTES)
                else:
                    files[-1].prepare(self.end + _BLANK.size - files[-1].start, _STEP_BYTES)
            for start in sorted({place - place % self.file_size for place in places}):
                if not files or start > files[-1].start:
                    self._new.append(self._files.create(DATA, start, self.file_size))
                    self._new[-1].prepare(min(end - start, self.file_size), _STEP_BYTES)
        except OSError as error:
            self._files.remove(DATA, self._new[::-1])
            self._new.clear()
            if error.errno in disk.NO_ROOM:
                raise LogFull("no room on the disk for more of the Raft log; free some of it") from error
            raise

    def _reserve_units(self, last_index: int) -> None:
        files, size = self._index_files, self._index_file_size
        end = (last_index + 1) * UNIT_BYTES
        while not files or files[-1].start + size < end:
            if files:
                files[-1].prepare(size, _STEP_BYTES)
                start = files[-1].start + size
            else:
                start = (self.last_index + 1) * UNIT_BYTES // size * size
            files.append(self._files.create(INDEX, start, size))
        files[-1].prepare(end - files[-1].start, _STEP_BYTES)

    def _write(self, entry: Entry, place: int) -> None:
        body = entry.data
        if entry.kind is not EntryKind.NORMAL:
            body = event_body(entry.kind, entry.data, place, self._now_ms())
        file = self._enter(place)
        at = place - file.start
        body_at = at + HEAD_BYTES
        end = body_at + len(body)
        file.view[at:body_at] = pack_head(entry.index, entry.term, place, entry.kind, body)
        file.view[body_at:end] = body
        file.position = end
        self._put_unit(entry.index, place, end - at, entry.term)
        self.last_index, self._last_term, self.end = entry.index, entry.term, file.start + end

    def _enter(self, place: int) -> MappedFile:
        """Return the file in which an entry begins; a blank ends the one before."""
        files = self.files
        if not files or place >= files[-1].start + self.file_size:
            if files:
                last = files[-1]
                rest = self.file_size - last.position
                _BLANK.pack_into(last.view, last.position, BLANK_MAGIC, rest)
                last.position = self.file_size
                self._touch(last)
            files.append(self._new.pop(0))
        self._touch(files[-1])
        return files[-1]

    def _touch(self, file: MappedFile) -> None:
        if not self._dirty or self._dirty[-1] is not file:
            self._dirty.append(file)


def _first_entry(file: MappedFile) -> Entry | None:
    try:
        return entry_at(file.view, 0, file.start)[0]
    except ProtocolError:
        return None
