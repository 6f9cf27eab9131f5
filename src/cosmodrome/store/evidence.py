"""What the queues say about the log: the witness against bytes that only look like a record.

A message body may hold a whole record, with a right checksum and its right place. No sender can make a queue lead to
it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cached_property, partial
from typing import NamedTuple

from cosmodrome.store.consume_queue import ENTRY_SIZE, FILLER_SIZE
from cosmodrome.store.survey import FoundFile, QueueKey, QueueView
from cosmodrome.wire.record import MIN_SIZE, RecordHead, SysFlag

# How much of the log is asked about at once: each time, every queue is searched by halving.
WINDOW_BYTES = 16 * 1024 * 1024
# Up to so many entries of a file are read one by one: after a power cut, empty pages may lie among them.
_LINEAR_ENTRIES = 4096
_MAX_PLACE = 2**63 - 1


class Claim(NamedTuple):
    """A queue says that its message `queue_offset` lies here."""

    place: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int

    @property
    def end(self) -> int:
        return self.place + self.size


class Verdict(Enum):
    """What a record's queue says to it. UNKNOWN: nothing; it has no entry for this offset, or the record needs none."""

    CONFIRMED = 1
    UNKNOWN = 2
    REFUTED = 3


class Evidence:
    """The entries of all queues, asked for by their places in the log."""

    def __init__(self, queues: Mapping[QueueKey, QueueView]) -> None:
        self._queues = queues
        self._window = -1
        self._claims: list[Claim] = []
        self._firsts: dict[FoundFile, int] = {}

    @property
    def is_empty(self) -> bool:
        """No queue says anything."""
        return all(queue.max_offset == queue.first_offset for queue in self._queues.values())

    @cached_property
    def entered_end(self) -> int:
        """Where the last record ends that is in a queue; 0 if none is."""
        last = (queue.entry(queue.max_offset - 1) for queue in self._queues.values())
        return max((entry[0] + entry[1] for entry in last if entry is not None and entry[1] != FILLER_SIZE), default=0)

    def verdict(self, head: RecordHead) -> Verdict:
        """Whether the record's queue leads to it."""
        queue = self._queues.get((head.topic, head.queue_id))
        if queue is None or head.queue_offset < 0 or not is_queued(head):
            return Verdict.UNKNOWN
        entry = queue.entry(head.queue_offset)
        if entry is None:
            return Verdict.UNKNOWN
        return Verdict.CONFIRMED if entry[:2] == (head.physical_offset, head.size) else Verdict.REFUTED

    def next_offset(self, topic: str, queue_id: int, place: int) -> int:
        """The queue offset behind the last entry that leads below `place`; 0 if none does."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        first = queue.first_offset
        offsets = range(first, queue.max_offset)
        return first + bisect_left(offsets, place, key=partial(_place, queue, first))

    def claims(self, begin: int, end: int) -> Iterator[Claim]:
        """What the queues say lies in [begin, end), in the order of the log."""
        while begin < end:
            window = begin // WINDOW_BYTES
            if window != self._window:
                self._claims = self._load(window * WINDOW_BYTES, (window + 1) * WINDOW_BYTES)
                self._window = window
            claims = self._claims
            for number in range(bisect_left(claims, (begin,)), len(claims)):
                if claims[number].place >= end:
                    return
                yield claims[number]
            begin = (window + 1) * WINDOW_BYTES

    def _load(self, begin: int, end: int) -> list[Claim]:
        found: list[Claim] = []
        for queue in self._queues.values():
            for file in reversed(queue.files):
                first = self._first_place(queue, file)
                if first < end:
                    found += _claims_of(queue, file, begin, end)
                if first < begin:
                    break  # the files before lead further back
        return sorted(found)

    def _first_place(self, queue: QueueView, file: FoundFile) -> int:
        """Where the first entry of a file leads; behind everything if it has none."""
        if file not in self._firsts:
            offset = file.start // ENTRY_SIZE
            entry = queue.entry(offset)
            while entry is not None and entry[1] == FILLER_SIZE:
                offset += 1
                entry = queue.entry(offset)
            self._firsts[file] = _MAX_PLACE if entry is None else entry[0]
        return self._firsts[file]


def is_queued(head: RecordHead) -> bool:
    """A half message of old kind and what was rolled back have no place in a queue."""
    return head.sys_flag & SysFlag.TRANSACTION_MASK in (0, SysFlag.COMMIT)


def _claims_of(queue: QueueView, file: FoundFile, begin: int, end: int) -> Iterator[Claim]:
    first, count = file.start // ENTRY_SIZE, file.size // ENTRY_SIZE
    offsets = range(first, first + count)

    is_short = count <= _LINEAR_ENTRIES
    for offset in offsets if is_short else offsets[bisect_left(offsets, begin, key=partial(_place, queue, first)) :]:
        entry = queue.entry(offset)
        if entry is not None and entry[1] != FILLER_SIZE and begin <= entry[0] < end and entry[1] >= MIN_SIZE:
            yield Claim(entry[0], entry[1], queue.topic, queue.queue_id, offset)
        elif not is_short and (entry is None or (entry[1] != FILLER_SIZE and entry[0] >= end)):
            return


def _place(queue: QueueView, first: int, queue_offset: int) -> int:
    """Where an entry leads; for a filler, where the entry before it does, down to `first`. Such numbers never fall."""
    entry = queue.entry(queue_offset)
    while entry is not None and entry[1] == FILLER_SIZE and queue_offset > first:
        queue_offset -= 1
        entry = queue.entry(queue_offset)
    if entry is None:
        return _MAX_PLACE
    return -1 if entry[1] == FILLER_SIZE else entry[0]
