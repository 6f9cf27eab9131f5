"""A walk over a commit log that does not stop at damage: what lies behind it may be whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from cosmodrome.errors import ProtocolError
from cosmodrome.store.commit_log import is_complete
from cosmodrome.store.survey import FoundFile, LogView, data_end, data_ranges
from cosmodrome.wire.record import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, RecordHead, head_at, magic_at

_MAGICS = re.compile(b"|".join(re.escape(magic.to_bytes(4)) for magic in (MAGIC_V1, MAGIC_V2, BLANK_MAGIC)))
_MAGIC_AT = 4


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


def walk(log: LogView, claimed_end: int, begin: int | None = None) -> Iterator[Found]:
    """Every record and every damaged part from `begin` or the log's start on, in order; the tail is found last.

    A record is found only whole: in its place, with fitting sizes, and with the body its checksum speaks of.
    `claimed_end` is how far the queues or a checkpoint say the log reaches, 0 if nobody does: the first broken place at
    or behind it is the end of the log; one before it is damage, if anything sound follows.
    """
    place = log.start if begin is None else begin
    while (file := log.file_at(place)) is not None:
        found = _look(file, log.view(file), place - file.start)
        if isinstance(found, RecordHead):
            yield found
            place += found.size
        elif found is None:
            place = file.end
        else:
            sound = _next_sound(log, place)
            if sound is None or 0 < claimed_end <= place:
                yield Tail(place, _tail_end(log, place), found, sound is not None)
                return
            yield Damage(place, sound, found)
            place = sound
        if log.file_at(place) is None and (later := log.file_after(place)) is not None:
            yield Damage(place, later.start, "the file that held this part is missing or too short")
            place = later.start
    yield Tail(place, place, "", holds_records=False)


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


def _next_sound(log: LogView, place: int) -> int | None:
    """The first place behind `place` at which a whole record or a right blank one begins."""
    file = log.file_at(place)
    begin = place + 1
    while file is not None:
        position = _next_sound_in(file, log.view(file), begin - file.start)
        if position is not None:
            return file.start + position
        file = log.file_after(file.start)
        begin = file.start if file is not None else 0
    return None


def _next_sound_in(file: FoundFile, view: memoryview, begin: int) -> int | None:
    for low, high in data_ranges(file.path, begin):
        for magic in _MAGICS.finditer(view, low, min(high + _MAGIC_AT, len(view))):
            position = magic.start() - _MAGIC_AT
            if position >= begin and not isinstance(_look(file, view, position), str):
                return position
    return None


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
