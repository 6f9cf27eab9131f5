"""Whether the queues and the log say the same, from both sides."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from cosmodrome.model import SCHEDULE_TOPIC
from cosmodrome.store.consume_queue import FILLER_SIZE, Entry
from cosmodrome.store.dispatcher import LOWEST_TAG_HASH
from cosmodrome.store.findings import Area, Findings, counted
from cosmodrome.store.survey import LogView, QueueKey, QueueView
from cosmodrome.wire.record import RecordHead

MAX_RUNS = 1000  # of one queue


@dataclass(slots=True)
class _Run:
    """Offsets that follow each other and have the same trouble."""

    first: int
    last: int
    place: int  # in the log, of the first
    trouble: str


@dataclass(slots=True)
class _Queue:
    view: QueueView | None
    next_offset: int = 0  # behind the newest record seen
    confirmed: int = 0  # entries that some record stands behind
    runs: list[_Run] = field(default_factory=list)
    unlisted: int = 0
    misnamed: set[int] = field(default_factory=set)  # offsets whose record says another one

    def add(self, queue_offset: int, place: int, trouble: str) -> None:
        last = self.runs[-1] if self.runs else None
        if last and last.last + 1 == queue_offset and last.trouble == trouble:
            last.last = queue_offset
        elif len(self.runs) < MAX_RUNS:
            self.runs.append(_Run(queue_offset, queue_offset, place, trouble))
        else:
            self.unlisted += 1

    def forget_from(self, queue_offset: int) -> None:
        """The queue was begun anew at this offset (its topic was deleted and made again): older records have lost
        their places to newer ones."""
        while self.runs and self.runs[-1].first >= queue_offset:
            self.runs.pop()
        if self.runs and self.runs[-1].last >= queue_offset:
            self.runs[-1].last = queue_offset - 1

    def names(self, queue_offset: int) -> bool:
        """The runs are in order: what is added later lies behind, or made the others forgotten."""
        before = bisect_right(self.runs, queue_offset, key=_first)
        return bool(self.unlisted) or (before > 0 and queue_offset <= self.runs[before - 1].last)


def _first(run: _Run) -> int:
    return run.first


class QueueCheck:
    """Is shown every record of the log with the entry it should have, then looks at every entry no record spoke for.

    A queue may have fillers and entries whose records are gone. A record may have no entry when its topic was deleted,
    which `topics` (the names in the broker's table, if it could be read) tells, and from `entered_end` of the log on.
    """

    def __init__(
        self,
        views: dict[QueueKey, QueueView],
        log: LogView,
        topics: frozenset[str] | None,
        entered_end: int,
        findings: Findings,
    ) -> None:
        self._log = log
        self._topics = topics
        self._findings = findings
        self._queues = {key: _Queue(view) for key, view in views.items()}
        self._entered_end = entered_end
        self._deleted = self._waiting = 0
        self._left_out: list[int] = []  # their places

    def expect(self, head: RecordHead, entry: Entry) -> None:
        key = head.topic, head.queue_id
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(None)
        queue_offset = head.queue_offset
        actual = queue.view.entry(queue_offset) if queue.view is not None else None
        if queue_offset != queue.next_offset and self._is_misnamed(queue, actual, entry):
            self._report_misnamed(queue, head)
            return
        if queue_offset < queue.next_offset and actual is not None and self._is_taken(head, actual):
            self._left_out.append(head.physical_offset)
            return
        if queue_offset < queue.next_offset:
            queue.forget_from(queue_offset)
        queue.next_offset = queue_offset + 1
        if actual == entry or (actual is not None and _means(actual, head, entry)):
            queue.confirmed += 1
        elif actual is None and head.physical_offset >= self._entered_end:
            self._waiting += 1
        else:
            queue.add(queue_offset, head.physical_offset, _trouble(actual, entry))

    @staticmethod
    def _is_misnamed(queue: _Queue, actual: Entry | None, entry: Entry) -> bool:
        """Whether the queue leads to a record as to its next one, and not as to the one that the record says it is: its
        head is damaged, for no checksum of Apache's format speaks of offsets."""
        if queue.view is None or (actual is not None and actual[:2] == entry[:2]):
            return False
        due = queue.view.entry(queue.next_offset)
        return due is not None and due[:2] == entry[:2]

    def _report_misnamed(self, queue: _Queue, head: RecordHead) -> None:
        due = queue.next_offset
        self._findings.add(
            Area.LOG,
            f"offset {head.physical_offset}, {counted(head.size, 'byte')}",
            f"the record says offset {head.queue_offset}, but {head.topic}/{head.queue_id} leads to it at {due}; "
            "its head is damaged",
        )
        queue.misnamed.add(due)
        queue.next_offset = due + 1
        queue.confirmed += 1

    def _is_taken(self, head: RecordHead, actual: Entry) -> bool:
        """Whether an earlier record has the offset that this one says: its head is damaged, too, and a start left it
        out. In a topic that was made anew, the later record has the offset."""
        if actual[0] >= head.physical_offset or (found := self._log.head_at(actual[0])) is None:
            return False
        named = (head.topic, head.queue_id, head.queue_offset, actual[1])
        return (found.topic, found.queue_id, found.queue_offset, found.size) == named

    def finish(self, log_end: int) -> None:
        for key, queue in self._queues.items():
            self._report_records(key, queue)
            if queue.view is not None:
                self._check_entries(queue.view, queue, log_end)
        if self._waiting:
            records = counted(self._waiting, "record")
            self._findings.note(f"not in the queues yet: {records} from {self._entered_end} of the log on")
        if self._left_out:
            records = counted(len(self._left_out), "record")
            self._findings.note(
                f"in no queue, as their heads are damaged and say offsets that others have: {records}, the first at "
                f"{self._left_out[0]}"
            )
        if self._deleted:
            self._findings.note(f"of topics that are no longer here: {counted(self._deleted, 'record')}")

    def _report_records(self, key: QueueKey, queue: _Queue) -> None:
        topic, queue_id = key
        if queue.view is None and self._topics is not None and topic not in self._topics:
            self._deleted += sum(run.last - run.first + 1 for run in queue.runs) + queue.unlisted
            return
        for run in queue.runs:
            where = f"{topic}/{queue_id}, {_offsets(run.first, run.last)}"
            self._findings.add(Area.QUEUES, where, f"{run.trouble} (the record is at {run.place})")
        if queue.unlisted:
            self._findings.add(Area.QUEUES, f"{topic}/{queue_id}", f"{queue.unlisted} more entries are wrong")

    def _check_entries(self, view: QueueView, queue: _Queue, log_end: int) -> None:
        live = gaps = 0
        for _, (physical_offset, size, _) in view.entries():
            if size <= 0:
                gaps += 1
            elif size != FILLER_SIZE and not 0 <= physical_offset < self._log.start:
                live += 1
        if live != queue.confirmed or gaps:
            self._name_entries(view, queue, log_end)

    def _name_entries(self, view: QueueView, queue: _Queue, log_end: int) -> None:
        """Find the entries that no record speaks for, apart from those that were named already."""
        wrong = _Queue(view)
        for queue_offset, entry in view.entries():
            trouble = self._entry_trouble(view, queue_offset, entry, log_end)
            if trouble and queue_offset not in queue.misnamed and not queue.names(queue_offset):
                wrong.add(queue_offset, entry[0], trouble)
        for run in wrong.runs:
            where = f"{view.name}, {_offsets(run.first, run.last)}"
            self._findings.add(Area.QUEUES, where, f"{run.trouble} (the entry says {run.place})")
        if wrong.unlisted:
            self._findings.add(Area.QUEUES, view.name, f"{wrong.unlisted} more entries are wrong")

    def _entry_trouble(self, view: QueueView, queue_offset: int, entry: Entry, log_end: int) -> str:
        physical_offset, size, _ = entry
        if size <= 0:
            return "the entry is empty, but others follow"
        if size == FILLER_SIZE or 0 <= physical_offset < self._log.start:
            return ""
        if physical_offset + size > log_end:
            return "the entry points behind the end of the log"
        head = self._log.head_at(physical_offset)
        named = (view.topic, view.queue_id, queue_offset, size)
        if head is None or (head.topic, head.queue_id, head.queue_offset, head.size) != named:
            return "the entry points to no record of this queue and offset"
        return ""


def _means(actual: Entry, head: RecordHead, expected: Entry) -> bool:
    """Whether an entry is right though its tags code is another: that of a filter that Apache keeps elsewhere, or a
    delivery time by other delay levels than the usual ones."""
    code = actual[2]
    return actual[:2] == expected[:2] and (
        code < LOWEST_TAG_HASH or (head.topic == SCHEDULE_TOPIC and code >= head.store_timestamp)
    )


def _trouble(actual: Entry | None, expected: Entry) -> str:
    if actual is None:
        return "a record of the log has no entry"
    if actual[1] == FILLER_SIZE:
        return "a record of the log has a filler for an entry"
    if actual[0] != expected[0]:
        return f"the entry points to {actual[0]} instead of the record"
    if actual[1] != expected[1]:
        return f"the entry says {actual[1]} bytes, the record has {expected[1]}"
    return f"the entry's tag hash or delivery time is {actual[2]} instead of {expected[2]}"


def _offsets(first: int, last: int) -> str:
    return f"offset {first}" if first == last else f"offsets {first} to {last}"
