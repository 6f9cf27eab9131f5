"""From the commit log into queues and index."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count

from cosmodrome.config import DEFAULT_DELAY_LEVELS, parse_delays
from cosmodrome.mapped_file import MappedFile
from cosmodrome.model import SCHEDULE_TOPIC, Property
from cosmodrome.native import store as _native
from cosmodrome.numbers import MAX_LONG, parse_int
from cosmodrome.store.consume_queue import PREPARE_BYTES, ConsumeQueue, Entry
from cosmodrome.store.consume_queues import ConsumeQueues, is_topic
from cosmodrome.store.index_file import Index, IndexFile, Key, PlacedKey, topic_hash
from cosmodrome.store.skipped import SkippedRecords
from cosmodrome.wire.java import java_hash
from cosmodrome.wire.properties import find
from cosmodrome.wire.record import RecordHead, SysFlag

log = logging.getLogger(__name__)

# A tag hash is a 32-bit number; anything below is the address of a filter that Apache keeps elsewhere.
LOWEST_TAG_HASH = -(2**31)
DEFAULT_DELAYS_MS = parse_delays(DEFAULT_DELAY_LEVELS)
_UNKNOWN_DELAY_MS = 1_000
_NO_QUEUE = "in no queue: its topic or queue id can be none"
_NO_OFFSET = "its queue cannot have had this offset: its head is damaged"

_CACHED_TAGS = 4096
_WORTH_A_RUN = 3  # records: fewer are entered one by one
# Of a batch, what is entered in one step: some milliseconds, if the pages of the index are to be fetched first.
MESSAGES_STEP = 2_000
KEYS_STEP = 1_000

_TRANSACTION = SysFlag.TRANSACTION_MASK
_ROLLBACK = SysFlag.ROLLBACK
_QUEUED = (0, SysFlag.COMMIT)  # the transaction states that have a place in a queue

if _native is not None:
    _native.know(ConsumeQueue, MappedFile, Index, IndexFile, PREPARE_BYTES)

Arrival = Callable[[str, int, int, int], None]  # topic, queue id, next offset, tags code


class _Run:
    """Records behind one another that are entered together."""

    __slots__ = ("arrived", "entries", "heads", "keys")

    def __init__(self) -> None:
        self.heads: list[RecordHead] = []
        self.keys: list[PlacedKey] = []
        self.entries: dict[ConsumeQueue, list[Entry]] = {}
        self.arrived: dict[tuple[ConsumeQueue, int], int] = {}  # queue and tag → the offset behind the last of them


class Dispatcher:
    """Enters each record into its queue and its keys into the index, in the order of the log.

    The same steps serve a message just appended and a record found by a scan, so both give the same bytes. Entering
    a record twice changes nothing. `end` is how far the log is dispatched; `timestamp` is its last record's.
    """

    def __init__(
        self,
        queues: ConsumeQueues,
        index: Index | None,
        delays_ms: Sequence[int] = DEFAULT_DELAYS_MS,
        skipped: SkippedRecords | None = None,
    ) -> None:
        self._skipped = skipped
        self._queues = queues
        self._index = index
        self._delays_ms = delays_ms
        self.deleted: Mapping[str, int] = {}  # topic → records below this offset are in no queue any more
        self.on_arrival: Arrival | None = None
        self._doubtful: dict[ConsumeQueue, RecordHead] = {}
        # What is entered now was found in a log that may be damaged, or comes from another broker's.
        self.is_recovering = False
        self.end = 0
        self.timestamp = 0

    def dispatch(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        physical_offset: int,
        size: int,
        sys_flag: int,
        store_timestamp: int,
        properties: str,
    ) -> None:
        """Enter one record. A half message of old kind (PREPARED) is in no queue, a ROLLBACK nowhere.

        The index comes first: after a kill, what is in its queue is taken to be in the index too.
        """
        transaction = sys_flag & _TRANSACTION
        index = self._index
        if _native is not None and transaction in _QUEUED and queue.topic != SCHEDULE_TOPIC:
            tags_code: int | None = _native.enter(
                index, queue, queue_offset, physical_offset, size, store_timestamp, properties
            )
            if tags_code is not None:
                if self.on_arrival is not None:
                    self.on_arrival(queue.topic, queue.queue_id, queue_offset + 1, tags_code)
                self.end = physical_offset + size
                self.timestamp = store_timestamp
                return
        if index is not None and _KEY in properties and transaction != _ROLLBACK and physical_offset >= index.indexed:
            keys = _keys(properties, physical_offset)
            if keys:
                index.put(queue.topic, keys, store_timestamp)
        if transaction in _QUEUED:
            code = _tags_code(queue.topic, properties, store_timestamp, self._delays_ms)
            queue.put(queue_offset, physical_offset, size, code)
            if self.on_arrival is not None:
                self.on_arrival(queue.topic, queue.queue_id, queue_offset + 1, code)
        self.end = physical_offset + size
        self.timestamp = store_timestamp

    def dispatching_batch(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        bounds: Sequence[int],
        sys_flag: int,
        store_timestamp: int,
        properties: Sequence[str],
    ) -> Iterator[None]:
        """Enter records that lie side by side, from `queue_offset` on; record i is [bounds[i], bounds[i + 1]).

        In steps: after each, all of a message is entered or nothing. Nothing else may be entered before the last.
        """
        if _native is not None and sys_flag & _TRANSACTION in _QUEUED and queue.topic != SCHEDULE_TOPIC:
            codes: list[int] | None = _native.enter_batch(
                self._index, queue, queue_offset, bounds, store_timestamp, properties
            )
            if codes is not None:
                self._batch_arrived(queue, queue_offset, codes)
                self.end = bounds[-1]
                self.timestamp = store_timestamp
                return
        keys: list[Key] = []
        first, last = 0, len(properties) - 1
        for number, raw in enumerate(properties):
            if _KEY in raw:
                keys += _keys(raw, bounds[number])
            if number == last or len(keys) >= KEYS_STEP or number - first + 1 == MESSAGES_STEP:
                places, parts = bounds[first : number + 2], properties[first : number + 1]
                self._dispatch_part(queue, queue_offset + first, places, sys_flag, store_timestamp, parts, keys)
                first, keys = number + 1, []
                if number < last:
                    yield

    def _dispatch_part(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        bounds: Sequence[int],
        sys_flag: int,
        store_timestamp: int,
        properties: Sequence[str],
        keys: list[Key],
    ) -> None:
        transaction = sys_flag & _TRANSACTION
        if self._index is not None and transaction != _ROLLBACK and keys:
            self._index.put(queue.topic, keys, store_timestamp)
        if transaction in _QUEUED:
            codes = [_tags_code(queue.topic, raw, store_timestamp, self._delays_ms) for raw in properties]
            queue.put_batch(queue_offset, bounds, codes)
            self._batch_arrived(queue, queue_offset, codes)
        self.end = bounds[-1]
        self.timestamp = store_timestamp

    def _batch_arrived(self, queue: ConsumeQueue, queue_offset: int, codes: Sequence[int]) -> None:
        """Tell of new messages, once for each code: of its messages the last tells enough."""
        if self.on_arrival is not None:
            for tags_code, next_offset in dict(zip(codes, count(queue_offset + 1), strict=False)).items():
                self.on_arrival(queue.topic, queue.queue_id, next_offset, tags_code)

    def dispatch_record(self, head: RecordHead) -> None:
        """Enter a record that a scan found. One whose topic or queue could never be a folder is left out."""
        if head.physical_offset < self.deleted.get(head.topic, 0):
            self._dispatch_keys(head)
            return
        queue = self._queues.find(head.topic, head.queue_id)
        if queue is None:
            if head.queue_id < 0 or not is_topic(head.topic):
                self._note(head.topic, head.queue_id, head.queue_offset, head.physical_offset, _NO_QUEUE)
                return
            queue = self._queues.queue(head.topic, head.queue_id)
        if self.is_recovering and not self._may_enter(queue, head):
            self._dispatch_keys(head)
            return
        if head.is_lost_message:
            queue.lose(head.queue_offset, head.physical_offset)
            self.end = head.physical_offset + head.size
            self.timestamp = head.store_timestamp
            return
        at, size, sys_flag, timestamp = head.physical_offset, head.size, head.sys_flag, head.store_timestamp
        try:
            self.dispatch(queue, head.queue_offset, at, size, sys_flag, timestamp, head.properties)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # ours; one record must not end a start, nor be missing from its queue
            self.dispatch_bare(queue, head.queue_offset, at, size, sys_flag, timestamp, error)

    def dispatch_records(self, heads: Sequence[RecordHead]) -> None:
        """Enter records that a scan found, in the order of the log, as `dispatch_record` would one by one.

        Those that go on with their queues are entered together: their keys in one write, and then each queue in one.
        """
        if _native is not None or len(heads) < _WORTH_A_RUN:  # compiled code is quicker one by one
            for head in heads:
                self.dispatch_record(head)
            return
        run = _Run()
        for head in heads:
            if not self._joins(run, head):
                self._enter_run(run)
                run = _Run()
                if not self._joins(run, head):
                    self.dispatch_record(head)
        self._enter_run(run)

    def _joins(self, run: _Run, head: RecordHead) -> bool:
        """Return whether a record belongs to a run, and add it: it is the next of its queue, and new to the index."""
        size, topic, queue_id, queue_offset, at, sys_flag, timestamp, _, _, _, _, _, properties = head
        queue = self._queues.find(topic, queue_id)
        if queue is None or sys_flag & _TRANSACTION not in _QUEUED or self._doubtful or topic in self.deleted:
            return False
        entries = run.entries.get(queue)
        if queue_offset != queue.max_offset + (len(entries) if entries is not None else 0):
            return False
        index = self._index
        if index is not None and at <= index.indexed:
            return False
        try:
            keys = _keys(properties, at) if _KEY in properties and index is not None else ()
            code = _tags_code(topic, properties, timestamp, self._delays_ms)
        except Exception:  # ours; `dispatch_record` notes it
            return False
        if keys:
            seed = topic_hash(topic)
            run.keys += [(seed, key, at, timestamp) for key, _ in keys]
        if entries is None:
            entries = run.entries[queue] = []
        entries.append((at, size, code))
        run.heads.append(head)
        run.arrived[queue, code] = queue_offset + 1
        return True

    def _enter_run(self, run: _Run) -> None:
        """The index comes first, as in `dispatch`."""
        if not run.heads:
            return
        try:
            if run.keys and self._index is not None:
                self._index.put_run(run.keys)
            for queue, entries in run.entries.items():
                queue.put_run(queue.max_offset, entries)
        except (OSError, MemoryError):
            raise
        except Exception:  # ours; each must be in its queue, and what is in already does no harm
            log.exception("records from %d on cannot be entered at once", run.heads[0].physical_offset)
            for head in run.heads:
                self.dispatch_record(head)
            return
        last = run.heads[-1]
        self.end, self.timestamp = last.physical_offset + last.size, last.store_timestamp
        if self.on_arrival is not None:  # once for each tag of a queue: of its messages the last tells enough
            for (queue, code), next_offset in run.arrived.items():
                self.on_arrival(queue.topic, queue.queue_id, next_offset, code)

    def cut(self, end: int) -> None:
        """The log was cut at `end`."""
        self.end = min(self.end, end)
        self._doubtful.clear()

    def _may_enter(self, queue: ConsumeQueue, head: RecordHead) -> bool:
        """Whether a record in a log that may be damaged can have the offset that its head says.

        One that says an offset once more is in doubt; it is believed when the next one of its queue goes on from there.
        """
        offset = head.queue_offset
        doubtful = self._doubtful.pop(queue, None)
        if doubtful is not None and offset == doubtful.queue_offset + 1:
            code = _tags_code(queue.topic, doubtful.properties, doubtful.store_timestamp, self._delays_ms)
            queue.put(doubtful.queue_offset, doubtful.physical_offset, doubtful.size, code)
        if offset == queue.max_offset or head.sys_flag & _TRANSACTION not in _QUEUED:
            return True
        if queue.may_take(offset, head.physical_offset):
            return True
        if 0 <= offset < queue.max_offset:
            self._doubtful[queue] = head
        self._note(head.topic, head.queue_id, offset, head.physical_offset, _NO_OFFSET)
        return False

    def dispatch_bare(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        physical_offset: int,
        size: int,
        sys_flag: int,
        store_timestamp: int,
        error: Exception,
    ) -> None:
        """Enter a record without its keys and its tag, because `error` came of reading them."""
        self._note(queue.topic, queue.queue_id, queue_offset, physical_offset, f"keys and tag left out: {error!r}")
        if sys_flag & _TRANSACTION in _QUEUED:
            try:
                queue.put(queue_offset, physical_offset, size, 0)
            except (OSError, MemoryError):
                raise
            except Exception as second:
                log.exception("record at %d cannot be entered into its queue", physical_offset)
                self._note(queue.topic, queue.queue_id, queue_offset, physical_offset, f"in no queue: {second!r}")
            if self.on_arrival is not None:
                self.on_arrival(queue.topic, queue.queue_id, queue_offset + 1, 0)
        self.end = physical_offset + size
        self.timestamp = store_timestamp

    def _note(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int, reason: str) -> None:
        if self._skipped is not None:
            self._skipped.add("dispatch", topic, queue_id, queue_offset, physical_offset, reason)

    def entry_of(self, head: RecordHead) -> Entry | None:
        """The queue entry of a record; None if it is in no queue."""
        if head.sys_flag & _TRANSACTION not in _QUEUED or head.physical_offset < self.deleted.get(head.topic, 0):
            return None
        code = _tags_code(head.topic, head.properties, head.store_timestamp, self._delays_ms)
        return head.physical_offset, head.size, code

    def _dispatch_keys(self, head: RecordHead) -> None:
        """A record of a deleted topic is in no queue, but can be found by its keys as before."""
        index = self._index
        if index is not None and head.sys_flag & _TRANSACTION != _ROLLBACK and head.physical_offset >= index.indexed:
            keys = _keys(head.properties, head.physical_offset)
            if keys:
                index.put(head.topic, keys, head.store_timestamp)
        self.end = head.physical_offset + head.size
        self.timestamp = head.store_timestamp


_KEY = "KEY"  # a part of both names below: most properties without a key need but one look


def _keys(properties: str, offset: int) -> list[Key]:
    """What the message at `offset` can be found by: its unique id and its keys."""
    unique = find(properties, "UNIQ_KEY")
    keys = [] if unique is None else [(unique, offset)]
    named = find(properties, "KEYS")
    if named is not None:
        keys += [(key, offset) for key in named.split(" ") if key]
    return keys


def _tags_code(topic: str, properties: str, store_timestamp: int, delays_ms: Sequence[int]) -> int:
    tags = find(properties, "TAGS")
    tags_code = 0 if tags is None else _tag_hash(tags)
    return tags_code if topic != SCHEDULE_TOPIC else _due_time(properties, store_timestamp, tags_code, delays_ms)


_tag_hash = lru_cache(maxsize=_CACHED_TAGS)(java_hash)


def _due_time(properties: str, store_timestamp: int, tags_code: int, delays_ms: Sequence[int]) -> int:
    """What the queue entry of a delayed message says instead of its tag: when it is due."""
    level = find(properties, Property.DELAY)
    return tags_code if level is None else min(store_timestamp + _delay_ms(level, delays_ms), MAX_LONG)


def _delay_ms(level: str, delays_ms: Sequence[int]) -> int:
    number = parse_int(level, low=1)
    return _UNKNOWN_DELAY_MS if number is None else delays_ms[min(number, len(delays_ms)) - 1]
