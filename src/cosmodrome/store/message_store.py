"""The door of the store."""

from __future__ import annotations

import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from cosmodrome.clock import Clock
from cosmodrome.config import KIB, MIB, StoreConfig
from cosmodrome.errors import MessageIllegal, ProtocolError, ServiceNotAvailable
from cosmodrome.model import Property
from cosmodrome.store.checkpoint import Checkpoint
from cosmodrome.store.commit_log import CommitLog
from cosmodrome.store.consume_queue import ENTRY_SIZE, ConsumeQueue, ConsumeQueues, Entry, sync_queue_files
from cosmodrome.store.dispatcher import Arrival, Dispatcher
from cosmodrome.store.flusher import Flusher, sync_files
from cosmodrome.store.index_file import Index
from cosmodrome.store.lock import AbortMark, StoreLock
from cosmodrome.store.message import (
    Appended,
    AppendedBatch,
    BatchItem,
    Durability,
    GetStatus,
    ReadResult,
    StoreMessage,
)
from cosmodrome.store.open_files import OpenFiles, open_files_limit
from cosmodrome.store.recovery import Recovery
from cosmodrome.wire.properties import find
from cosmodrome.wire.record import RecordHead, SysFlag, encode_record

log = logging.getLogger(__name__)

MAX_PULL_BYTES = 128 * MIB
_MIN_PULL_BYTES = 100
# Limits of one read once it must go to the disk, instead of maxTransfer…OnMessageInMemory.
_DISK_BYTES = 64 * KIB
_DISK_COUNT = 8
# A tag hash is a 32-bit number; anything below is the address of a filter that Apache keeps elsewhere.
_LOWEST_TAG_HASH = -(2**31)


class MessageStore:
    """Everything on disk: append, read, find.

    One event loop uses it. Appends and reads run to their end where they are called: they touch memory only, apart
    from the rare new file. What must wait for the disk is `durable`, and `flusher.run` does that waiting in a thread.
    With SYNC_FLUSH no reader sees a message before it is on disk: it enters its queue after the flush.
    """

    def __init__(self, root: Path, config: StoreConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._log = CommitLog(root / "commitlog", config.mapped_file_size_commit_log)
        files = OpenFiles(open_files_limit())
        self._queues = ConsumeQueues(root / "consumequeue", config.mapped_file_size_consume_queue, files, self._log)
        self._index = _open_index(root / "index", config, clock) if config.message_index_enable else None
        self._checkpoint = Checkpoint(root / "checkpoint")
        self._abort = AbortMark(root / "abort")
        self._dispatcher = Dispatcher(self._queues, self._index)
        self._memory_bytes = _physical_memory() * config.access_message_in_memory_max_ratio // 100
        self._refusal: str | None = None
        self._max_body_size = config.max_message_size
        self._closed = False
        self.messages_put = 0
        self.bytes_put = 0

    @classmethod
    def open(cls, root: Path, config: StoreConfig, clock: Clock, on_arrival: Arrival | None = None) -> Self:
        """Take the folder, make everything in it agree, and be ready; StoreError says what is in the way."""
        root.mkdir(parents=True, exist_ok=True)
        lock = StoreLock(root / "lock")
        try:
            store = cls(root, config, clock)
            store._start(lock, on_arrival)
        except BaseException:
            lock.release()
            raise
        return store

    def _start(self, lock: StoreLock, on_arrival: Arrival | None) -> None:
        recovery = Recovery(self._log, self._queues, self._index, self._checkpoint, self._dispatcher)
        recovered = recovery.run(self._abort.last_exit())
        log.info("%s", recovered)
        self._lock = lock
        self._checkpoint.clean_end = None
        self._dispatcher.on_arrival = on_arrival
        self.flusher = Flusher(
            self._log,
            self._config,
            self._clock,
            on_flushed=self._flushed,
            on_failed=self._refuse,
            checkpoint=self._take_checkpoint,
        )
        self.group_commit = self.flusher.group_commit
        self._abort.set()

    # Writing

    def append(self, message: StoreMessage) -> Appended:
        """Put a message behind all others. It is in the log when this returns; `durable` says when it is on disk."""
        if self._refusal is not None:
            raise ServiceNotAvailable(self._refusal)
        if len(message.body) > self._max_body_size:
            raise self._illegal()
        queue = self._queues.queue(message.topic, message.queue_id)
        now_ms = self._clock.now_ms()
        queued = message.sys_flag & _TRANSACTION in _QUEUED
        queue_offset = queue.next_offset if queued else 0
        try:
            data = self._encode(message, queue, queue_offset, now_ms)
            size = len(data)
            if size > self._log.room:
                self._log.roll(size)
                data = self._encode(message, queue, queue_offset, now_ms)
            offset = self._log.write(data, now_ms)
            if queued:
                queue.next_offset = queue_offset + 1
            self.messages_put += 1
            self.bytes_put += size
            if self.group_commit:
                self.flusher.wake()
            else:
                self._dispatcher.dispatch(
                    queue, queue_offset, offset, size, message.sys_flag, now_ms, message.properties
                )
        except OSError as error:
            raise self._failed(error) from error
        except (ProtocolError, UnicodeEncodeError) as error:
            raise self._illegal() from error
        return _new_tuple(Appended, (offset, size, queue_offset, now_ms, message.store_host))

    def append_batch(self, message: StoreMessage, items: Sequence[BatchItem]) -> AppendedBatch:
        """Put several messages behind all others in one write; they share all of `message` but what an item has.

        They get consecutive queue offsets, and either all of them are in the log or none.
        """
        if self._refusal is not None:
            raise ServiceNotAvailable(self._refusal)
        if not items or sum([len(item.body) for item in items]) > self._max_body_size:
            raise self._illegal()
        queue = self._queues.queue(message.topic, message.queue_id)
        now_ms = self._clock.now_ms()
        queue_offset = queue.next_offset
        try:
            data, bounds = self._encode_batch(message, items, queue, queue_offset, now_ms)
            if len(data) > self._log.room:
                self._log.roll(len(data))
                data, bounds = self._encode_batch(message, items, queue, queue_offset, now_ms)
            self._log.write(data, now_ms, bounds[-2] - bounds[0])
            queue.next_offset = queue_offset + len(items)
            self.messages_put += len(items)
            self.bytes_put += len(data)
            if self.group_commit:
                self.flusher.wake()
            else:
                properties = [item.properties for item in items]
                self._dispatcher.dispatch_batch(queue, queue_offset, bounds, message.sys_flag, now_ms, properties)
        except OSError as error:
            raise self._failed(error) from error
        except (ProtocolError, UnicodeEncodeError) as error:
            raise self._illegal() from error
        return AppendedBatch(tuple(bounds[:-1]), bounds[-1], queue_offset, now_ms, message.store_host)

    def _encode(self, message: StoreMessage, queue: ConsumeQueue, queue_offset: int, now_ms: int) -> bytes:
        return encode_record(
            queue.topic_bytes,
            message.body,
            message.properties.encode(),
            queue_id=message.queue_id,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_timestamp=now_ms,
            store_host=message.store_host,
            queue_offset=queue_offset,
            physical_offset=self._log.end,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
        )

    def _encode_batch(
        self, message: StoreMessage, items: Sequence[BatchItem], queue: ConsumeQueue, queue_offset: int, now_ms: int
    ) -> tuple[bytes, list[int]]:
        """All records, and where each begins and the last ends."""
        topic, queue_id, sys_flag = queue.topic_bytes, message.queue_id, message.sys_flag
        born_timestamp, born_host, store_host = message.born_timestamp, message.born_host, message.store_host
        reconsume_times = message.reconsume_times
        offset = self._log.end
        records, bounds = [], [offset]
        for item in items:
            data = encode_record(
                topic,
                item.body,
                item.properties.encode(),
                queue_id=queue_id,
                flag=item.flag,
                sys_flag=sys_flag,
                born_timestamp=born_timestamp,
                born_host=born_host,
                store_timestamp=now_ms,
                store_host=store_host,
                queue_offset=queue_offset,
                physical_offset=offset,
                reconsume_times=reconsume_times,
            )
            queue_offset += 1
            offset += len(data)
            records.append(data)
            bounds.append(offset)
        return b"".join(records), bounds

    def _illegal(self) -> MessageIllegal:
        limit = self._config.max_message_size
        return MessageIllegal(
            "the message is illegal, maybe msg body or properties length not matched. "
            f"msg body length limit {limit}B, msg properties length limit 32KB."
        )

    def _failed(self, error: OSError) -> ServiceNotAvailable:
        self._refuse(f"the disk failed: {error}")
        return ServiceNotAvailable(str(self._refusal))

    def _refuse(self, reason: str) -> None:
        """From now on nothing is written and nothing is called durable: what is on disk is no longer known."""
        if self._refusal is None:
            self._refusal = f"service not available now: {reason}"
            self.flusher.fail(self._refusal)
            self._abort.distrust_memory()
            log.critical("%s", self._refusal)

    async def durable(self, end: int, *, wait: bool = True) -> Durability:
        """The promise: return once everything below `end` is as safe as the configured flush says, or time is up."""
        return await self.flusher.durable(end, wait=wait)

    def _flushed(self, end: int, timestamp: int) -> None:
        """The log is on disk up to `end`; in group commit that makes its messages visible."""
        self._checkpoint.log_timestamp = timestamp
        if self.group_commit:
            self._dispatcher.end = self._log.scan(
                self._dispatcher.end, end, self._dispatcher.dispatch_record, verify=False
            )

    def _take_checkpoint(self) -> Callable[[], None]:
        """What a thread must do so that the checkpoint may speak of everything dispatched so far."""
        queue_files = self._queues.take_dirty()
        index_files = self._index.take_filled() if self._index else []
        timestamp = self._dispatcher.timestamp

        def work() -> None:
            sync_queue_files(queue_files)
            self._checkpoint.queues_timestamp = timestamp
            for file in index_files:
                file.sync()
                self._checkpoint.index_timestamp = file.end_timestamp
            self._checkpoint.save()

        return work

    # Reading

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int = MAX_PULL_BYTES,
        codes: frozenset[int] | None = None,
    ) -> ReadResult:
        """Messages of one queue from `offset` on, only those whose tag hash is among `codes` if there are any.

        At least one is returned if there is one, however large. Bodies are neither copied nor looked at.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return ReadResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            return ReadResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return ReadResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset >= high:
            status = GetStatus.OFFSET_OVERFLOW_ONE if offset == high else GetStatus.OFFSET_OVERFLOW_BADLY
            return ReadResult(status, high, low, high)
        entries = queue.entries(offset, max(self._config.max_filter_message_size // ENTRY_SIZE, max_count))
        if entries is None:
            return ReadResult(GetStatus.OFFSET_FOUND_NULL, queue.next_file_offset(offset), low, high)
        return self._read_entries(entries, offset, low, high, max_count, max_bytes, codes)

    def _read_entries(
        self,
        entries: Iterator[Entry],
        offset: int,
        low: int,
        high: int,
        max_count: int,
        max_bytes: int,
        codes: frozenset[int] | None,
    ) -> ReadResult:
        commit_log = self._log
        log_start, log_end = commit_log.start, commit_log.end
        views: list[memoryview] = []
        count = size = skip_below = physical_offset = count_limit = byte_limit = 0
        run_begin = run_end = -1  # records that lie side by side and go out as one slice
        for physical_offset, entry_size, code in entries:
            if count and (count >= count_limit or size + entry_size > byte_limit):
                break
            offset += 1
            if physical_offset < skip_below or (codes and code not in codes and code >= _LOWEST_TAG_HASH):
                continue
            if physical_offset < log_start or physical_offset + entry_size > log_end:
                skip_below = commit_log.next_file_start(physical_offset)
                continue
            if physical_offset != run_end:
                if count:
                    views.append(commit_log.slice(run_begin, run_end))
                else:
                    count_limit, byte_limit = self._limits(log_end - physical_offset, max_count, max_bytes)
                run_begin = run_end = physical_offset
            run_end += entry_size
            size += entry_size
            count += 1
        if count:
            views.append(commit_log.slice(run_begin, run_end))
        slow = log_end - physical_offset > self._memory_bytes
        status = _FOUND if count else GetStatus.MESSAGE_WAS_REMOVING if skip_below else GetStatus.NO_MATCHED_MESSAGE
        return ReadResult(status, offset, low, high, count, size, tuple(views), slow)

    def _limits(self, distance: int, max_count: int, max_bytes: int) -> tuple[int, int]:
        """How many messages and bytes one read may bring that begins so far from the end of the log."""
        max_bytes = max(max_bytes, _MIN_PULL_BYTES)
        if distance > self._memory_bytes:
            return min(max_count, _DISK_COUNT), min(max_bytes, _DISK_BYTES)
        config = self._config
        return (
            min(max_count, config.max_transfer_count_on_message_in_memory),
            min(max_bytes, config.max_transfer_bytes_on_message_in_memory),
        )

    def record_at(self, physical_offset: int) -> memoryview | None:
        """The whole record that begins there, or None when none does."""
        head = self._head_at(physical_offset)
        return self._log.slice(physical_offset, physical_offset + head.size) if head is not None else None

    def _head_at(self, physical_offset: int) -> RecordHead | None:
        return self._log.head_at(physical_offset) if physical_offset < self._dispatcher.end else None

    def find_by_key(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[memoryview]:
        """Records of the topic with this key, unique id or both, stored in [begin, end]; in the order of the log."""
        if self._index is None:
            return []
        found = []
        for offset in self._index.find(topic, key, max_count, begin_ms, end_ms):
            head = self._head_at(offset)
            if head and head.topic == topic and begin_ms <= head.store_timestamp <= end_ms and _has_key(head, key):
                found.append(self._log.slice(offset, offset + head.size))
        return found

    @property
    def last_indexed(self) -> tuple[int, int]:
        """Store time and physical offset of the last message in the index."""
        return (self._index.last_timestamp, self._index.last_offset) if self._index else (0, 0)

    # Queues and their offsets

    def max_offset(self, topic: str, queue_id: int) -> int:
        """What the next message that readers see will get; 0 for a queue that has never had one."""
        queue = self._queues.find(topic, queue_id)
        return queue.max_offset if queue else 0

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.find(topic, queue_id)
        return queue.min_offset if queue else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, *, upper: bool = False) -> int:
        """The first offset stored at or after `timestamp`, or the queue's end; `upper`: the last one not after it."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        offsets = range(queue.min_offset, queue.max_offset)
        if not upper:
            return queue.min_offset + bisect_left(offsets, timestamp, key=self._store_time(queue))
        return queue.min_offset + max(bisect_right(offsets, timestamp, key=self._store_time(queue)) - 1, 0)

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """When the queue's first message was stored; -1 when it has none."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or queue.min_offset >= queue.max_offset:
            return -1
        return self._store_time(queue)(queue.min_offset)

    def _store_time(self, queue: ConsumeQueue) -> Callable[[int], int]:
        def store_time(queue_offset: int) -> int:
            head = self._log.head_at(queue.entry(queue_offset)[0])
            return head.store_timestamp if head else -1

        return store_time

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """When the message at a queue offset was stored; -1 when there is none."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return -1
        return self._store_time(queue)(queue_offset)

    def is_young(self, topic: str, queue_id: int) -> bool:
        """The queue's very first message is still there, and not so far back that it has left memory."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or queue.min_offset > 0 or queue.max_offset == 0:
            return False
        return self._log.end - queue.entry(0)[0] <= self._memory_bytes

    def topics(self) -> list[str]:
        """Every topic that has had a message."""
        return self._queues.topics()

    def queues(self, topic: str) -> list[int]:
        """The ids of the topic's queues that have had a message."""
        return self._queues.ids(topic)

    def delete_topic(self, topic: str) -> None:
        """Forget the topic's queues; a topic of that name made later begins at 0."""
        self._queues.delete_topic(topic)

    @property
    def min_physical_offset(self) -> int:
        return self._log.start

    @property
    def max_physical_offset(self) -> int:
        return self._log.end

    @property
    def refusal(self) -> str | None:
        """Why nothing can be written any more, or None."""
        return self._refusal

    # The end

    def close(self) -> None:
        """Bring everything onto the disk and leave the folder. Stop the flusher first. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._refusal is None:
                self._refusal = "service not available now: the store is closed"
                self._sync_all()
                self._abort.clear()
        finally:
            self._log.close()
            self._queues.close()
            if self._index:
                self._index.close()
            self._lock.release()

    def _sync_all(self) -> None:
        """What the log holds is in queues and index, all of it is on disk, and the checkpoint says so."""
        end, timestamp = self._log.end, self._log.last_timestamp
        sync_files(self._log.files_between(self.flusher.flushed, end))
        self._flushed(end, timestamp)
        work = self._take_checkpoint()
        if self._index:
            self._index.sync()
        work()
        self._checkpoint.queues_timestamp = timestamp
        self._checkpoint.index_timestamp = self._index.last_timestamp if self._index else 0
        self._checkpoint.clean_end = (end, self._log.last) if self._log.last >= 0 else None
        self._checkpoint.save()


_FOUND = GetStatus.FOUND
_new_tuple = tuple.__new__  # half the time of calling the NamedTuple
_TRANSACTION = SysFlag.TRANSACTION_MASK
_QUEUED = (0, SysFlag.COMMIT)


def _has_key(head: RecordHead, key: str) -> bool:
    return find(head.properties, Property.UNIQ_KEY) == key or key in (find(head.properties, Property.KEYS) or "").split(
        " "
    )


def _open_index(directory: Path, config: StoreConfig, clock: Clock) -> Index:
    return Index(directory, config.max_hash_slot_num, config.max_index_num, clock)


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
