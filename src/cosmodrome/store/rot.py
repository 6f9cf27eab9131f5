"""Records and queue entries whose bytes have changed: noticed, named once in the log, counted, and rebuilt."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from pathlib import Path

from cosmodrome.errors import MessageIllegal, ProtocolError
from cosmodrome.store.commit_log import CommitLog
from cosmodrome.store.consume_queue import FILLER_SIZE, ConsumeQueue, Entry
from cosmodrome.wire.record import MAGIC_V1, MAGIC_V2, RecordHead, check_at

log = logging.getLogger(__name__)

# What is known to be damaged is named in the log once, and not looked for again; the oldest is forgotten first.
MAX_KNOWN = 10_000
# How far from a rotten entry others are asked where its record may lie, and how many records are looked at: the event
# loop stands still meanwhile, about 0.1 s.
NEIGHBOURS = 64
MAX_LOOKED_AT = 50_000

# Size, magic, queue id, queue offset and physical offset of a record.
PLACE = struct.Struct(">iI4xi4xqq")
_MAGICS = (MAGIC_V1, MAGIC_V2)


class MessageDamaged(MessageIllegal):
    """A stored record that is not what was written: it is neither shown nor copied."""


class Rot:
    """What was found to be damaged since the store was opened."""

    def __init__(self) -> None:
        self.records = 0
        self.entries = 0
        self.rebuilt = 0
        self.index_files = 0
        self._known: dict[object, None] = {}

    def is_news(self, thing: object) -> bool:
        """Remember what was found; False if it is known."""
        if thing in self._known:
            return False
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[thing] = None
        return True

    def record(self, physical_offset: int, reason: str, where: str = "") -> None:
        """Count a damaged record."""
        if self.is_news(physical_offset):
            self.records += 1
            log.error("record damaged: place=%d %sreason=%s", physical_offset, f"{where} " if where else "", reason)

    def entry(self, queue: ConsumeQueue, offset: int, entry: Entry) -> None:
        """Count a queue entry that leads to no record and cannot be rebuilt."""
        if self.is_news((queue.topic, queue.queue_id, offset, entry)):
            self.entries += 1
            log.error(
                "queue entry leads to no record, its message is passed over: topic=%s queue=%d offset=%d place=%d",
                queue.topic,
                queue.queue_id,
                offset,
                entry[0],
            )

    def rebuilt_entry(self, queue: ConsumeQueue, offset: int, before: Entry | None, entry: Entry) -> None:
        """Count a queue entry that was wrong and is right again."""
        self.entries += 1
        self.rebuilt += 1
        log.error(
            "queue entry rebuilt from the log: topic=%s queue=%d offset=%d was=%s is=%s",
            queue.topic,
            queue.queue_id,
            offset,
            before,
            entry,
        )

    def index_file(self, path: Path) -> None:
        """Count an index file that is not what it was when it was full."""
        self.index_files += 1
        log.error("index file damaged, some keys may not be found: the next start builds the index again: %s", path)


class QueueMender:
    """Follows queue entries to their records. Where none lies there, it looks for the record and rebuilds the entry."""

    def __init__(self, commit_log: CommitLog, rot: Rot, entry_of: Callable[[RecordHead], Entry | None]) -> None:
        self._log = commit_log
        self._rot = rot
        self._entry_of = entry_of

    def leads(self, queue: ConsumeQueue, offset: int, entry: Entry) -> bool:
        """Whether the head of this queue's record at this offset lies where an entry says."""
        physical_offset, size, _ = entry
        file = self._log.file_at(physical_offset)
        if file is None or size < PLACE.size or physical_offset + size > min(file.start + file.position, self._log.end):
            return False
        found = PLACE.unpack_from(file.view, physical_offset - file.start)
        return found[1] in _MAGICS and found == (size, found[1], queue.queue_id, offset, physical_offset)

    def is_gone(self, queue: ConsumeQueue, offset: int, entry: Entry) -> bool:
        """Whether an entry is a filler, or its record was deleted with its file: then all before it are gone, too."""
        if entry[1] == FILLER_SIZE:
            return True
        if not 0 <= entry[0] < self._log.start or entry[1] <= 0:
            return False
        return offset <= queue.min_offset or queue.entry(offset - 1)[0] < self._log.start

    def mended(self, queue: ConsumeQueue, offset: int, entry: Entry) -> Entry | None:
        """Return the entry of a record that is there, rebuilt if need be; None if its record is not to be found."""
        if self.leads(queue, offset, entry):
            return entry
        if not self._rot.is_news(("sought", queue.topic, queue.queue_id, offset, entry)):
            return None
        head = self._sought(queue, offset, entry)
        found = self._entry_of(head) if head is not None else None
        if found is None:
            self._rot.entry(queue, offset, entry)
            return None
        queue.rewrite(offset, found)
        self._rot.rebuilt_entry(queue, offset, entry, found)
        return found

    def sound(self, queue: ConsumeQueue, offset: int, entry: Entry) -> Entry | None:
        """`mended`, and None as well if the record does not match its checksums."""
        found = self.mended(queue, offset, entry)
        if found is None:
            return None
        file = self._log.file_at(found[0])
        assert file is not None, "it leads there"
        position = found[0] - file.start
        try:
            check_at(file.view, position, position + found[1], topic=queue.topic_bytes)
        except ProtocolError as error:
            self._rot.record(found[0], str(error), f"topic={queue.topic} queue={queue.queue_id} offset={offset}")
            return None
        return found

    def _sought(self, queue: ConsumeQueue, offset: int, entry: Entry) -> RecordHead | None:
        """The record that a rotten entry should lead to: where the entry says, one bit beside it, or between others."""
        for place in (entry[0], entry[0] & 2**63 - 1, *(entry[0] ^ 1 << bit for bit in range(63))):
            head = self._log.head_at(place)
            if head is not None and _is_of(head, queue, offset):
                return head
        begin, end = self._end_before(queue, offset), self._begin_after(queue, offset)
        for number, head in enumerate(self._log.heads(begin)):
            if head.physical_offset >= end or number >= MAX_LOOKED_AT:
                break
            if _is_of(head, queue, offset):
                return head
        return None

    def _end_before(self, queue: ConsumeQueue, offset: int) -> int:
        for before in range(offset - 1, max(queue.min_offset, offset - NEIGHBOURS) - 1, -1):
            entry = queue.entry(before)
            if self.leads(queue, before, entry):
                return entry[0] + entry[1]
        return self._log.start

    def _begin_after(self, queue: ConsumeQueue, offset: int) -> int:
        for later in range(offset + 1, min(queue.max_offset, offset + NEIGHBOURS)):
            entry = queue.entry(later)
            if self.leads(queue, later, entry):
                return entry[0]
        return self._log.end


def _is_of(head: RecordHead, queue: ConsumeQueue, offset: int) -> bool:
    return (head.topic, head.queue_id, head.queue_offset) == (queue.topic, queue.queue_id, offset)


def sound_head(commit_log: CommitLog, rot: Rot, physical_offset: int) -> RecordHead | None:
    """The head of the sound record that begins there, None if none begins there; MessageDamaged if it has rotted."""
    head = commit_log.head_at(physical_offset)
    if head is None:
        return None
    file = commit_log.file_at(physical_offset)
    assert file is not None, "its head is there"
    position = physical_offset - file.start
    try:
        check_at(file.view, position, position + head.size)
    except ProtocolError as error:
        text = str(error)
    else:
        return head
    rot.record(physical_offset, text, f"topic={head.topic} queue={head.queue_id} offset={head.queue_offset}")
    raise MessageDamaged(
        f"the message at {physical_offset} of the log is damaged and is not passed on: {text}; "
        "see `cosmodrome store verify`"
    )
