"""A walk over a commit log that does not stop at damage: what lies behind it may be whole."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from cosmodrome.errors import ProtocolError
from cosmodrome.store.commit_log import BEGIN_BYTES, BLANK_SIZE, is_complete
from cosmodrome.store.evidence import Evidence, Verdict, is_queued
from cosmodrome.store.survey import FoundFile, LogView, data_end, data_ranges
from cosmodrome.wire.record import (
    BLANK_MAGIC,
    CRC_MASK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_SIZE,
    RecordHead,
    body_span,
    head_at,
    magic_at,
)

_MAGICS = re.compile(b"|".join(re.escape(magic.to_bytes(4)) for magic in (MAGIC_V1, MAGIC_V2)))
_MAGIC_AT = 4
_MAX_BODY_BYTES = 16 * 1024 * 1024  # no frame, so no body, is larger; a checksum of more is not tried
_MAX_CHAIN = 1000  # records that are followed to find one that a queue leads to
_SECTOR_BYTES = 512  # what a disk writes at once, at least
_SIZE_BYTES = 4
_LEAST_ZEROS = 2  # a record without properties ends with their size
_ZEROS = bytes(_SECTOR_BYTES)
_MAX_FOLLOWED = 1_000_000  # in one search; a hostile body may be full of chains


class Damage(NamedTuple):
    """The bytes [begin, end) are no sound records, and sound ones follow."""

    begin: int
    end: int
    reason: str


class Tail(NamedTuple):
    """The log ends at `begin`. Behind `end` all is zero; between them lies what is no part of the log.

    With `holds_records`, whole records lie there: left over from before a cut, as nothing speaks of them.
    """

    begin: int
    end: int
    reason: str
    holds_records: bool


Found = RecordHead | Damage | Tail


class Proof(NamedTuple):
    """What is known about a log beside its own bytes.

    The log was on disk up to `safe_end`, as a checkpoint says. If the queues are `complete`, no power was cut since
    they were written: all but the last few records have their entries. `from_last_life` says that zeros followed the
    log when its last broker started, so that nothing is left over from before a cut. Records of a topic below its
    `deleted` offset belong to a topic that is no more.

    Of a copy of another broker's log that lost power, nothing behind a damaged place is kept that was not surely on
    disk: that broker still has it, and sends it again only if the log ends before. Pieces of records were written, so
    sectors do not tell what was lost.
    """

    queues: Evidence
    safe_end: int = 0
    complete: bool = False
    from_last_life: bool = False
    deleted: Mapping[str, int] = {}
    is_copy: bool = False


Seen = dict[tuple[str, int], tuple[int, int]]  # queue → the offset behind its last record, and that record's place


def walk(
    log: LogView, claimed_end: int, begin: int | None = None, proof: Proof | None = None, seen: Seen | None = None
) -> Iterator[Found]:
    """Every record and every damaged part from `begin` or the log's start on, in order; the tail is found last.

    A record is found only whole: in its place, with fitting sizes, and with the body its checksum speaks of.
    `claimed_end` is how far the queues or a checkpoint say the log reaches, 0 if nobody does: the first broken place at
    or behind it is the end of the log; one before it is damage, if anything sound follows. With a `proof`, each
    record that a queue leads to counts wherever it lies, and no record is taken for real behind damage that only
    looks like one. `seen` says what lies before `begin`.
    """
    place = log.start if begin is None else begin
    seen = {} if seen is None else seen
    search = _Search(log, claimed_end, proof, seen)
    while (file := log.file_at(place)) is not None:
        found = _look(file, log.view(file), place - file.start)
        if isinstance(found, RecordHead):
            if proof is not None:
                note(seen, found)
            yield found
            place += found.size
        elif found is None:
            place = file.end
        else:
            part = search.part_at(place, found)
            yield part
            if isinstance(part, Tail):
                return
            place = part.end
        if log.file_at(place) is None and (later := log.file_after(place)) is not None:
            yield Damage(place, later.start, "the file that held this part is missing or too short")
            place = later.start
    yield Tail(place, place, "", holds_records=False)


class _Search:
    """Where the log goes on behind a place at which no sound record begins.

    In this order: where the damaged record ends, as its queue or its own sizes say; the next record that a queue leads
    to; the next file, for no record crosses into one. Only where queues know nothing, bytes are believed that look
    like a record, unless its queue offset says otherwise.
    """

    def __init__(self, log: LogView, claimed_end: int, proof: Proof | None, seen: Seen) -> None:
        self._log = log
        self._queues = proof.queues if proof is not None else Evidence({})
        self._deleted = proof.deleted if proof is not None else {}
        self._believed_end = proof.safe_end if proof is not None else claimed_end
        self._safe_end = proof.safe_end if proof is not None else 0
        self._lost_power = proof is not None and not proof.complete
        self._is_cut = proof is not None and proof.is_copy and not proof.complete
        self._is_from_last_life = proof is not None and proof.from_last_life
        self._complete = proof is not None and proof.complete
        self._nobody_speaks = not self._believed_end and self._queues.is_empty
        self._believes_all = proof is None or self._nobody_speaks
        self._seen = seen
        self._data_end: int | None = None
        self._followed = 0

    def part_at(self, place: int, reason: str) -> Damage | Tail:
        data_end = self._tail_end(place)
        if place >= data_end:
            return Tail(place, place, reason, holds_records=False)
        self._followed = 0
        sound = self._next_sound(place)
        if sound is None and (proven := self._proven_end(place, data_end)) > place:
            return Damage(place, proven, reason)
        if sound is None or not self._is_kept(place, sound):
            return Tail(place, data_end, reason, sound is not None or self._holds_records(place))
        if self._is_unfinished(place):
            return Tail(place, data_end, "several records were not written to their end", holds_records=False)
        return Damage(place, sound, reason)

    def _is_unfinished(self, place: int) -> bool:
        """Return whether a broker died while it wrote several records at once, of which the first bytes come last.

        None of them was promised, and they belong together, so none is kept. `CommitLog.write` has the other half.
        """
        file = self._log.file_at(place)
        if file is None or self._believes_all or place < max(self._believed_end, self._queues.entered_end):
            return False
        position = place - file.start
        return not any(self._log.view(file)[position : position + BEGIN_BYTES])

    def _tail_end(self, place: int) -> int:
        """Behind the last byte of the log's files that is not zero; looked for once, as a walk goes one way."""
        if self._data_end is None:
            self._data_end = _tail_end(self._log, place)
        return max(self._data_end, place)

    def _proven_end(self, place: int, data_end: int) -> int:
        """Where the log ends at least, though nothing sound follows `place`."""
        end = place
        while end < data_end and not self._is_cut:  # one damaged record behind the other, each known to its queue
            claimed, file = self._claimed_end_at(end), self._log.file_at(end)
            if claimed is None or file is None or claimed > file.end:
                break
            is_short = claimed > data_end + _LEAST_ZEROS
            if self._lost_power and (is_short or self._is_unwritten(file, end) or self._has_hole(end, claimed)):
                break  # it was not written to its end
            end = claimed
        return max(end, self._safe_end)

    def _is_kept(self, place: int, sound: int) -> bool:
        """Whether what begins at `sound` belongs to the log, or was left over by a cut."""
        if place < self._believed_end:
            return True
        if self._is_cut or (self._lost_power and self._has_hole(place, sound)):
            return False  # the disk had not got there yet: what it wrote before its turn was not promised
        if self._nobody_speaks or (self._complete and self._claimed_end_at(place) is not None):
            return True
        return self._is_from_last_life or self._leads_to_queued(sound)

    def _is_unwritten(self, file: FoundFile, place: int) -> bool:
        """Return whether zeros follow to the end of the sector, as when the record before was the last one."""
        position = place - file.start
        boundary = position - position % _SECTOR_BYTES + _SECTOR_BYTES
        if boundary - position < _SIZE_BYTES or boundary > file.size:
            return False
        return self._log.view(file)[position:boundary] == _ZEROS[: boundary - position]

    def _has_hole(self, begin: int, end: int) -> bool:
        """Whether any sector of [begin, end) was never written: from where records ended, zeros reach to its end."""
        while (file := self._log.file_at(begin)) is not None and begin < end:
            view, position, limit = self._log.view(file), begin - file.start, min(end - file.start, file.size)
            if limit == file.size:
                limit = _without_blank(file, view, position)
            if begin % _SECTOR_BYTES > _SECTOR_BYTES - _SIZE_BYTES and _has_size(view, position):
                position += (
                    _SIZE_BYTES  # a size begins with zeros; those of a sector that was not written would be wrong
                )
            while position < limit:
                boundary = position - position % _SECTOR_BYTES + _SECTOR_BYTES
                is_unwritten = view[position:boundary] == _ZEROS[: boundary - position]
                if is_unwritten and boundary <= limit:
                    return True
                position = boundary
            begin = file.end
        return False

    def _leads_to_queued(self, place: int) -> bool:
        """Whether records follow from `place` on to one that a queue leads to."""
        for number, head in enumerate(records_from(self._log, place)):
            if self._queues.verdict(head) is Verdict.CONFIRMED:
                return True
            if number >= _MAX_CHAIN:
                break
        return False

    def _next_sound(self, place: int) -> int | None:
        """Where a sound record or a right blank one begins behind the damage at `place`."""
        file = self._log.file_at(place)
        if file is None:
            return None
        view = self._log.view(file)
        low = place
        while True:  # over damaged records that lie side by side
            end, low = self._end_of_record(file, view, low)
            if end is None or end + BLANK_SIZE > file.end:
                break
            if self._is_sound(end):
                return end
            low = end
        found = None if end == file.end else self._search_file(file, view, place, low)
        return found if found is not None else self._first_of_next_file(file)

    def _end_of_record(self, file: FoundFile, view: memoryview, place: int) -> tuple[int | None, int]:
        """Where the damaged record at `place` ends, if that can be known, and before where none can begin."""
        position = place - file.start
        own_end, body_end = _own_ends(view, position, place)
        low = place + 1 if body_end is None else file.start + body_end
        ends = [self._claimed_end_at(place), None if own_end is None else file.start + own_end]
        for end in ends:
            if end is not None and low <= end <= file.end and not self._holds_queued(place + 1, end):
                return end, low
        return None, low

    def _claimed_end_at(self, place: int) -> int | None:
        return next((claim.end for claim in self._queues.claims(place, place + 1)), None)

    def _holds_queued(self, begin: int, end: int) -> bool:
        """Whether a true record begins in [begin, end): then no damaged one covers all of it."""
        return self._first_queued(begin, end) is not None

    def _first_queued(self, begin: int, end: int) -> int | None:
        """The first sound record of [begin, end) that its queue leads to."""
        return next((claim.place for claim in self._queues.claims(begin, end) if self._is_true(claim.place)), None)

    def _is_true(self, place: int) -> bool:
        found = self._look(place)
        return isinstance(found, RecordHead) and self._queues.verdict(found) is Verdict.CONFIRMED

    def _is_sound(self, place: int) -> bool:
        """Whether a whole record or a right blank one begins at `place`, where one must begin."""
        return not isinstance(self._look(place), str)

    def _look(self, place: int) -> RecordHead | str | None:
        file = self._log.file_at(place)
        return "the file ends" if file is None else _look(file, self._log.view(file), place - file.start)

    def _search_file(self, file: FoundFile, view: memoryview, place: int, begin: int) -> int | None:
        """The first place in this file, at or behind `begin`, where a record is to be believed."""
        queued = self._first_queued(begin, file.end)
        end = file.end if queued is None else queued
        if not self._believes_all:  # what was on disk had its entry there too, and a killed broker entered one by one
            entered = self._queues.entered_end
            known = max(self._believed_end, entered) if self._complete else min(self._believed_end, entered)
            begin = max(begin, known)
        for head in _look_alikes(file, view, begin, end):
            if self._may_be_real(head, place):
                return head.physical_offset
        return queued

    def _holds_records(self, place: int) -> bool:
        """Whether anything behind `place` looks like a whole record."""
        return any(
            next(_look_alikes(file, self._log.view(file), max(place, file.start), file.end), None) is not None
            for file in self._log.files
            if file.end > place
        )

    def _may_be_real(self, head: RecordHead, damaged: int) -> bool:
        """Whether nothing speaks against a record that was found behind the damage at `damaged`.

        No queue leads elsewhere for it or for what follows it, and all their queue offsets are such as the lost bytes
        leave open. It may say that it belongs into no queue only where nobody would know better.
        """
        if self._believes_all:
            return True
        if not is_queued(head):
            return False
        offsets: dict[tuple[str, int], int] = {}
        for number, record in enumerate(records_from(self._log, head.physical_offset)):
            verdict = self._queues.verdict(record)
            if verdict is Verdict.CONFIRMED:
                return True
            self._followed += 1
            if verdict is Verdict.REFUTED or not self._is_in_order(record, offsets, damaged):
                return False
            if number >= _MAX_CHAIN:
                break
            if self._followed > _MAX_FOLLOWED:
                return False
        return True

    def _is_in_order(self, record: RecordHead, offsets: dict[tuple[str, int], int], damaged: int) -> bool:
        if not is_queued(record):
            return True
        key = record.topic, record.queue_id
        most = None
        if (lowest := offsets.get(key)) is None:
            lowest, place = self._seen.get(key, (0, -1))
            if place < self._deleted.get(record.topic, 0):
                lowest = 0
            elif place >= 0:
                most = lowest + (record.physical_offset - damaged) // MIN_SIZE
            lowest = max(lowest, self._queues.next_offset(*key, damaged))
        offsets[key] = record.queue_offset + 1
        return lowest <= record.queue_offset and (most is None or record.queue_offset <= most)

    def _first_of_next_file(self, file: FoundFile) -> int | None:
        later = self._log.file_after(file.start)
        while later is not None:
            if self._is_sound(later.start):
                return later.start
            found = self._search_file(later, self._log.view(later), later.start, later.start + 1)
            if found is not None:
                return found
            later = self._log.file_after(later.start)
        return None


def _look_alikes(file: FoundFile, view: memoryview, begin: int, end: int) -> Iterator[RecordHead]:
    """Whatever looks like a whole record in its place and begins in [begin, end) of a file."""
    if begin >= end:
        return
    for low, high in data_ranges(file.path, begin - file.start):
        for magic in _MAGICS.finditer(view, low, min(high + _MAGIC_AT, end - file.start + _MAGIC_AT)):
            position = magic.start() - _MAGIC_AT
            if begin <= file.start + position < end:
                found = _look(file, view, position)
                if isinstance(found, RecordHead):
                    yield found


def note(seen: Seen, head: RecordHead) -> None:
    """Remember how far the record's queue goes."""
    if is_queued(head):
        seen[head.topic, head.queue_id] = head.queue_offset + 1, head.physical_offset


def records_from(log: LogView, place: int) -> Iterator[RecordHead]:
    """The records from `place` on, up to the first place where none begins; their bodies are not looked at."""
    while (file := log.file_at(place)) is not None:
        view = log.view(file)
        try:
            head = head_at(view, place - file.start, len(view))
        except ProtocolError:
            if not _is_blank(view, place - file.start):
                return
            place = file.end
            continue
        if head.physical_offset != place:
            return
        yield head
        place += head.size


def _look(file: FoundFile, view: memoryview, position: int) -> RecordHead | str | None:
    """The whole record at `position`, None for a blank one, or what is wrong there."""
    try:
        head = head_at(view, position, len(view))
    except ProtocolError:
        return None if _is_blank(view, position) else _reason(view, position)
    if head.physical_offset != file.start + position:
        return f"the record here says that its place is {head.physical_offset}"
    if not is_complete(view, head):
        return "the record here does not match its checksum, or was not written to its end"
    return head


def _reason(view: memoryview, position: int) -> str:
    """Why no record begins here."""
    try:
        size, magic = magic_at(view, position)
    except ProtocolError:
        return "fewer than 8 bytes are left"
    if not size and not magic:
        return "nothing is written here"
    if magic == BLANK_MAGIC:
        return f"a blank record says that {size} bytes are left, not {len(view) - position}"
    if magic not in (MAGIC_V1, MAGIC_V2):
        return f"no record begins here: magic {magic:#010x}"
    return f"a record that says it has {size} bytes, but its parts disagree or the file ends"


def _is_blank(view: memoryview, position: int) -> bool:
    try:
        return magic_at(view, position) == (len(view) - position, BLANK_MAGIC)
    except ProtocolError:
        return False


def _without_blank(file: FoundFile, view: memoryview, position: int) -> int:
    """Where the damaged bytes of a file end that a blank record may have closed: zeros follow one, from within a sector
    on. Where the disk stopped writing, they follow from the end of a sector on, or from the end of a record."""
    used = data_end(file.path, view, position)
    return used if used > position and -used % _SECTOR_BYTES >= BLANK_SIZE else len(view)


def _has_size(view: memoryview, position: int) -> bool:
    """Whether the size of the record at `position` is what its other parts say, or only its first byte is at stake."""
    try:
        head_at(view, position, len(view))
    except ProtocolError:
        return position % _SECTOR_BYTES == _SECTOR_BYTES - 1
    return True


def _own_ends(view: memoryview, position: int, place: int) -> tuple[int | None, int | None]:
    """What a damaged record says about itself: where it ends, and before where no other record can begin.

    If its parts agree, only damage in two of them would make its size wrong. If not, a checksum that fits its body
    still says where the body ends: what lies in there is no record.
    """
    try:
        head = head_at(view, position, len(view))
    except ProtocolError:
        return None, _body_end(view, position, place)
    if head.physical_offset == place or is_complete(view, head):
        return position + head.size, None
    return None, None


def _body_end(view: memoryview, position: int, place: int) -> int | None:
    try:
        begin, size, crc = body_span(view, position)
    except ProtocolError:
        return None
    end = begin + size
    if not 0 < size <= _MAX_BODY_BYTES or end > len(view) or zlib.crc32(view[begin:end]) & CRC_MASK != crc:
        return None
    return end


def _tail_end(log: LogView, place: int) -> int:
    """Behind the last byte of the log's files that is not zero."""
    for file in reversed(log.files):
        if file.end <= place:
            break
        begin = max(place - file.start, 0)
        end = data_end(file.path, log.view(file), begin)
        if end > begin:
            return file.start + end
    return place
