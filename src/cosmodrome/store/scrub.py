"""The scrub: reads the whole log now and then, so that rot is found while there is still something to do about it.

    every `scrubIntervalHours`   read each record, look at its checksums, compare its queue entry with it; then the
                                 index files that are full, which have checksums in `derived.sums`
    at most `scrubMebibytesPerSecond`, and for at most a tenth of the time
    `config/scrub.json`          how far it is, so that a round goes on after a restart

A thread reads and checks a slice of the log; files are read, not mapped, so that nobody waits for the disk meanwhile.
What it found is then compared with the queues on the loop, some records at a time.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from cosmodrome import disk, state_file
from cosmodrome.clock import Clock
from cosmodrome.config import KIB, MIB, StoreConfig
from cosmodrome.errors import ProtocolError
from cosmodrome.mapped_file import MappedFile
from cosmodrome.model import SCHEDULE_TOPIC
from cosmodrome.store.commit_log import CommitLog
from cosmodrome.store.consume_queues import ConsumeQueues
from cosmodrome.store.derived import BROKEN, DerivedFiles
from cosmodrome.store.dispatcher import LOWEST_TAG_HASH, Dispatcher
from cosmodrome.store.rot import QueueMender, Rot
from cosmodrome.wire.record import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, MIN_SIZE, RecordHead, check_at, head_at, magic_at

log = logging.getLogger(__name__)

SCRUB_FILE = "scrub.json"
HOUR_MS = 3_600_000
# What is read at once, unless one record is larger: a thread checks it within some milliseconds.
SLICE_BYTES = 256 * KIB
# No record is larger: one that says so is damaged.
MAX_RECORD_BYTES = 16 * MIB
# So many records are compared with the queues before others have their turn.
RECORDS_IN_A_ROW = 64
# Of the time, the scrub works one part and rests so many.
RESTS = 9
# A place is saved after so much was read: as much is read again after a kill.
SAVE_EVERY_BYTES = 256 * MIB
MAX_SLEEP_MS = HOUR_MS
RETRY_MS = 60_000


class DamagedPart(NamedTuple):
    """Bytes of the log that are no sound record."""

    begin: int
    end: int
    reason: str


@dataclass(slots=True)
class Slice:
    """What was found in a part of the log, and where the next one begins."""

    end: int
    heads: list[RecordHead] = field(default_factory=list)
    damage: list[DamagedPart] = field(default_factory=list)


class ScrubState:
    """How far the scrub is; `place` is None between two rounds."""

    def __init__(self, path: Path, now_ms: int) -> None:
        self._path = path
        self.place: int | None = None
        self.last_end_ms = now_ms  # a new store has nothing that could have rotted
        self.rounds = 0
        state_file.load_expendable(path, self._read, "the scrub begins a new interval")

    def _read(self, data: bytes) -> bool:
        fields = json.loads(data)
        place, last_end_ms, rounds = fields["place"], fields["lastEnd"], fields["rounds"]
        if not all(type(number) is int for number in (place, last_end_ms, rounds)):
            raise ProtocolError(f"{self._path.name} holds no numbers")
        self.place, self.last_end_ms, self.rounds = (None if place < 0 else place), last_end_ms, rounds
        return True

    def save(self) -> None:
        """OSError when the disk refuses."""
        place = -1 if self.place is None else self.place
        fields = {"place": place, "lastEnd": self.last_end_ms, "rounds": self.rounds}
        state_file.save(self._path, json.dumps(fields).encode())


class Scrub:
    """Looks for rot in a store that is in use. It repairs queue entries; damaged records it can only name and count."""

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        dispatcher: Dispatcher,
        mender: QueueMender,
        rot: Rot,
        config: StoreConfig,
        path: Path,
        clock: Clock,
        derived: DerivedFiles,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._dispatcher = dispatcher
        self._mender = mender
        self._rot = rot
        self._clock = clock
        self._derived = derived
        self._interval_ms = config.scrub_interval_hours * HOUR_MS
        self._bytes_per_second = config.scrub_mebibytes_per_second * MIB
        self.state = ScrubState(path, clock.now_ms())

    async def run(self) -> None:
        """Begin a round when one is due, for ever. What goes wrong is logged, and tried again."""
        try:
            await self._run()
        finally:
            with suppress(OSError):  # then as much is read again
                self.state.save()

    async def _run(self) -> None:
        while self._interval_ms:
            wait_ms = self._due_in_ms()
            if wait_ms > 0:
                await self._clock.sleep(min(wait_ms, MAX_SLEEP_MS))
                continue
            try:
                await self.round()
            except OSError as error:
                log.error("the scrub cannot go on: %s; trying again in a minute", error)
                await self._clock.sleep(RETRY_MS)
            except Exception:  # ours; it must not end the broker
                log.exception("the scrub cannot go on; trying again in a minute")
                await self._clock.sleep(RETRY_MS)

    def _due_in_ms(self) -> int:
        """A clock that was set back does not put a round off for longer than an interval."""
        if self.state.place is not None:
            return 0
        return min(self.state.last_end_ms + self._interval_ms - self._clock.now_ms(), self._interval_ms)

    async def round(self) -> None:
        """Read the log from where the last round stopped, up to where it ends now."""
        state, end = self.state, self._dispatcher.end
        place = unsaved = self._log.start if state.place is None else state.place
        log.info("scrub begins: from=%d to=%d", max(place, self._log.start), end)
        before = self._rot.records, self._rot.entries
        while (place := max(place, self._log.start)) < min(end, self._dispatcher.end):  # the log may be cut meanwhile
            began = monotonic()
            file = self._log.file_at(place)
            assert file is not None, "the log has no holes"
            is_last = file is self._log.files[-1]
            found = await asyncio.to_thread(read_slice, file, place, min(file.start + file.size, end), is_last=is_last)
            await self._compare(found)
            spent_ms = (monotonic() - began) * 1_000
            read_ms = (found.end - place) * 1_000 // self._bytes_per_second
            state.place = place = found.end
            if place - unsaved >= SAVE_EVERY_BYTES:
                await asyncio.to_thread(state.save)
                unsaved = place
            await self._clock.sleep(max(read_ms, round(spent_ms * RESTS), 1))
        await self._check_index()
        state.place, state.last_end_ms = None, self._clock.now_ms()
        state.rounds += 1
        await asyncio.to_thread(state.save)
        records, entries = self._rot.records - before[0], self._rot.entries - before[1]
        level = logging.ERROR if records or entries else logging.INFO
        log.log(level, "scrub ended: to=%d damaged_records=%d damaged_queue_entries=%d", end, records, entries)

    async def _check_index(self) -> None:
        """Compare full index files with their checksums; where one has rotted, the next start builds the index."""
        for place, path, wanted in self._derived.sums.full_index_files(self._derived.shape):
            crc = position = 0
            while wanted != BROKEN:
                data = await asyncio.to_thread(_read_part, path, position)
                if not data:
                    break
                crc, position = zlib.crc32(data, crc), position + len(data)
                await self._clock.sleep(max(len(data) * 1_000 // self._bytes_per_second, 1))
            if wanted not in (BROKEN, crc) and path.exists():
                self._rot.index_file(path)
                await asyncio.to_thread(self._derived.sums.mark_broken, place)

    async def _compare(self, found: Slice) -> None:
        for part in found.damage:
            if self._log.start <= part.begin and part.end <= self._dispatcher.end:
                self._rot.record(part.begin, part.reason, f"to={part.end}")
        for number, head in enumerate(found.heads):
            if number % RECORDS_IN_A_ROW == 0:
                await asyncio.sleep(0)
            if head.physical_offset >= self._log.start:
                self._compare_entry(head)

    def _compare_entry(self, head: RecordHead) -> None:
        expected = self._dispatcher.entry_of(head)
        queue = self._queues.find(head.topic, head.queue_id) if expected is not None else None
        offset = head.queue_offset
        if expected is None or queue is None or not queue.min_offset <= offset < queue.max_offset:
            return
        actual = queue.entry(offset)
        if actual == expected:
            return
        leads = self._mender.leads(queue, offset, actual)
        # Of two records with one offset the later counts; and another tags code may be right all the same.
        if leads and (actual[:2] != expected[:2] or _may_mean(actual[2], head)):
            return
        queue.rewrite(offset, expected)
        self._rot.rebuilt_entry(queue, offset, actual, expected)


def _may_mean(code: int, head: RecordHead) -> bool:
    """Whether a tags code is that of a filter which Apache keeps elsewhere, or a time by other delay levels."""
    return code < LOWEST_TAG_HASH or (head.topic == SCHEDULE_TOPIC and code >= head.store_timestamp)


# --- in a thread


def _read_part(path: Path, position: int) -> bytes:
    """The next part of a file that retention may have deleted meanwhile."""
    try:
        with disk.open_to_read(path) as file:
            file.seek(position)
            return file.read(SLICE_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        log.error("the disk cannot read %s at %d: %s", path, position, error)
        return b""  # the checksum of what comes before is not that of all


def read_slice(file: MappedFile, place: int, limit: int, *, is_last: bool) -> Slice:
    """Check what lies in a file of the log from `place` on; one that retention has deleted meanwhile is passed over."""
    try:
        fd = disk.open_file(file.path, os.O_RDONLY)
    except FileNotFoundError:
        return Slice(file.start + file.size)
    try:
        for size in (SLICE_BYTES, MAX_RECORD_BYTES):
            try:
                data = os.pread(fd, min(size, limit - place), place - file.start)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                end = min(place + SLICE_BYTES, limit)
                return Slice(end, damage=[DamagedPart(place, end, f"the disk cannot read it: {error}")])
            is_all = size == MAX_RECORD_BYTES or place + len(data) >= limit
            found = check_slice(data, place, file.start + file.size, is_all=is_all)
            if found.end > place:
                break
        if not is_last:  # it was not read for a consumer
            os.posix_fadvise(fd, place - file.start, max(found.end - place, 0), os.POSIX_FADV_DONTNEED)
        return found if found.end > place else Slice(limit)
    finally:
        os.close(fd)


def check_slice(data: bytes, place: int, file_end: int, *, is_all: bool) -> Slice:
    """Check the records of a part of the log that begins at `place`; nothing follows it if it `is_all` there is.

    A record that the part cuts off is left to the next part.
    """
    found = Slice(place)
    position, size = 0, len(data)
    while position < size:
        try:
            if _is_blank(data, position, file_end - place - position):
                found.end = file_end
                return found
            head = head_at(data, position, size)
            if head.physical_offset != place + position:
                raise ProtocolError(f"a record that says that its place is {head.physical_offset}")
        except ProtocolError as error:
            if not is_all and _may_be_cut_off(data, position, file_end - place):
                break
            next_position = _next_record(data, place, position + 1)
            found.damage.append(DamagedPart(place + position, place + next_position, str(error)))
            position = next_position
            continue
        try:
            check_at(data, position, size)
            found.heads.append(head)
        except ProtocolError as error:
            found.damage.append(DamagedPart(place + position, place + position + head.size, _named(head, error)))
        position += head.size
    found.end = place + position
    return found


def _named(head: RecordHead, error: ProtocolError) -> str:
    return f"{error} (topic={head.topic} queue={head.queue_id} offset={head.queue_offset})"


def _is_blank(data: bytes, position: int, left: int) -> bool:
    try:
        return magic_at(data, position) == (left, BLANK_MAGIC)
    except ProtocolError:
        return False


def _may_be_cut_off(data: bytes, position: int, file_size: int) -> bool:
    """Whether what begins here may be a record that goes on behind the data."""
    if position + MIN_SIZE > len(data):
        return True
    size, magic = magic_at(data, position)
    is_plausible = magic in (MAGIC_V1, MAGIC_V2) and size <= MAX_RECORD_BYTES
    return is_plausible and len(data) < position + size <= file_size


_MAGIC_AT, _PLACE_AT = 4, 28
_MAGICS: Iterable[bytes] = (MAGIC_V1.to_bytes(4), MAGIC_V2.to_bytes(4))


def _next_record(data: bytes, place: int, begin: int) -> int:
    """The first position from `begin` on at which a record says that it lies there; else the end of the data."""
    candidates = [len(data)]
    for magic in _MAGICS:
        at = data.find(magic, begin + _MAGIC_AT)
        while at >= 0:
            says = data[at - _MAGIC_AT + _PLACE_AT :][:8]
            if (place + at - _MAGIC_AT).to_bytes(8).startswith(says):
                candidates.append(at - _MAGIC_AT)
                break
            at = data.find(magic, at + 1)
    return min(candidates)
