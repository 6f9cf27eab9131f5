"""The door of the store."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from cosmodrome import state_file
from cosmodrome.clock import Clock
from cosmodrome.config import KIB, MIB, StoreConfig
from cosmodrome.errors import MessageIllegal, ProtocolError, ServiceNotAvailable, StoreError
from cosmodrome.model import Property
from cosmodrome.store.checkpoint import Checkpoint
from cosmodrome.store.cleaner import Cleaner, DiskUsed, disk_used
from cosmodrome.store.commit_log import CommitLog
from cosmodrome.store.consume_queue import ENTRY_SIZE, ConsumeQueue, Entry
from cosmodrome.store.consume_queues import ConsumeQueues, sync_queue_files
from cosmodrome.store.deleted_topics import DELETED_TOPICS, DeletedTopics
from cosmodrome.store.derived import DerivedFiles, Shape
from cosmodrome.store.dispatcher import Arrival, Dispatcher
from cosmodrome.store.epochs import EVERYTHING, LOG_EPOCHS, Epochs
from cosmodrome.store.flusher import Flusher, sync_files
from cosmodrome.store.gate import NO_ROOM, Gate
from cosmodrome.store.index_file import Index, sync_index_files
from cosmodrome.store.lock import AbortMark, Exit, StoreLock
from cosmodrome.store.log_cut import cut_derived, keep_aside, promise_less, record_boundary
from cosmodrome.store.lost_log import check_log
from cosmodrome.store.message import (
    Appended,
    AppendedBatch,
    Durability,
    StoreMessage,
)
from cosmodrome.store.open_files import OpenFiles, open_files_limit
from cosmodrome.store.paths import StorePaths, aside_folder
from cosmodrome.store.preallocation import Preallocator
from cosmodrome.store.queue_floors import QUEUE_FLOORS, QueueFloors
from cosmodrome.store.queue_reader import QueueReader
from cosmodrome.store.raft_log import Entries, RaftCommitLog
from cosmodrome.store.raft_store import Commits, CommittedRecovery
from cosmodrome.store.raw_log import RawLog
from cosmodrome.store.recovery import Recovered, Recovery, safe_offsets
from cosmodrome.store.rot import MessageDamaged, QueueMender, Rot, sound_head
from cosmodrome.store.scrub import SCRUB_FILE, Scrub
from cosmodrome.store.skipped import SKIPPED_RECORDS, SkippedRecords
from cosmodrome.store.timeline import Timeline
from cosmodrome.wire.batch import BatchItem
from cosmodrome.wire.properties import find
from cosmodrome.wire.record import RecordHead, SysFlag, encode_record, encode_records

log = logging.getLogger(__name__)

# What properties may not end with: after a kill, recovery could not tell them from a record not written to its end.
_TORN = "\0"


class MessageStore:
    """Everything on disk: append, read, find.

    One event loop uses it. Appends and reads run to their end where they are called: they touch memory only, apart
    from the rare new file. What must wait for the disk is `durable`, and `flusher.run` does that waiting in a thread.
    With SYNC_FLUSH no reader sees a message before it is on disk: it enters its queue after the flush.

    A store either leads or follows: it takes messages (`append`), or another broker's log as it is (`append_raw`).
    """

    def __init__(
        self, paths: StorePaths, config: StoreConfig, clock: Clock, entries: Callable[[], Entries] | None = None
    ) -> None:
        self.paths = paths
        self._config = config
        self._clock = clock
        self._group_log = RaftCommitLog(paths.commit_log, entries()) if entries is not None else None
        self._log = self._group_log or CommitLog(paths.commit_log, config.mapped_file_size_commit_log)
        self._abort = AbortMark(paths.abort)
        self._last_exit = self._abort.last_exit()
        self.epochs = Epochs(paths.config / LOG_EPOCHS)
        if self.epochs.cut_to is not None and self._last_exit is not Exit.DISK_FAILURE:
            self._last_exit = Exit.CRASH  # of log, queues and index, any may be cut
        after_crash = self._last_exit in (Exit.CRASH, Exit.DISK_FAILURE)
        files = OpenFiles(open_files_limit())
        queue_file_size = config.mapped_file_size_consume_queue
        self._queues = ConsumeQueues(paths.consume_queue, queue_file_size, files, self._log, after_crash=after_crash)
        self._index = _open_index(paths.index, config, clock, after_crash) if config.message_index_enable else None
        self._checkpoint = Checkpoint(paths.checkpoint)
        self._deleted = DeletedTopics(paths.config / DELETED_TOPICS)
        self._floors = QueueFloors(paths.config / QUEUE_FLOORS)
        self._queues.floors = self._floors.floors
        self.skipped = SkippedRecords(paths.config / SKIPPED_RECORDS, clock)
        self._dispatcher = Dispatcher(self._queues, self._index, config.delays_ms, self.skipped)
        self.rot = Rot()
        self._mender = QueueMender(self._log, self.rot, self._dispatcher.entry_of)
        self._reader = QueueReader(self._log, self._queues, config, self._mender)
        self.read = self._reader.read
        self._gate = Gate()
        self._busy_ms = config.os_page_cache_busy_time_out_mills
        self.on_stall: Callable[[], None] | None = None
        self.on_cut: Callable[[], None] = lambda: None  # after a copy of another log was cut
        self.append_ms = 0  # how long the last append took
        self._max_body_size = config.max_message_size
        self._is_sealing = config.enabled_append_prop_crc
        self._closed = False
        self.on_append: Callable[[], None] | None = None  # messages were appended; others may copy them
        self.on_safe: Callable[[], None] | None = None  # more of the log is on disk
        self._raw: RawLog | None = None  # while the store follows
        self._arrived: list[RecordHead] = []  # records of a master that are not in their queues yet
        self._batch: Iterator[None] | None = None  # the steps that still enter one into queues and index
        self.was_following = False  # before this start
        self._checkpoint_lock = threading.Lock()
        self._cuts = 0  # of the log; a checkpoint that was taken before one says too much
        self._recovered_behind = False  # the last start found no room for all entries; nothing was appended since
        self.cleaner: Cleaner
        self.recovered: Recovered  # what the start found
        self.messages_put = 0
        self.bytes_put = 0
        self.puts_failed = 0

    @classmethod
    def open(
        cls,
        root: Path,
        config: StoreConfig,
        clock: Clock,
        on_arrival: Arrival | None = None,
        used: DiskUsed = disk_used,
        *,
        follows: bool = False,
        entries: Callable[[], Entries] | None = None,
    ) -> Self:
        """Take the folder, make everything in it agree, and be ready; StoreError says what is in the way.

        With `follows`, the log is to be a copy of another broker's; `lead` and `follow` change that later. With
        `entries`, which opens it, it is the log of a Raft group.
        Parts that the config places elsewhere lie there. Nothing is changed before it is known that the log is there.
        """
        paths = StorePaths.of(root, config)
        state_file.make_folder(root)
        lock = _locked(paths)
        try:
            derived = _derived_files(paths, config)
            troubles = derived.troubles()
            known = Checkpoint(paths.checkpoint)
            if troubles:
                derived.set_aside(troubles)
            store = cls(paths, config, clock, entries)
            store._start(lock, on_arrival, derived, known if troubles else None, follows)
            store.cleaner = store._cleaner(used)
        except BaseException as error:
            if isinstance(error, OSError) and not isinstance(error, StoreError) and error.errno not in NO_ROOM:
                AbortMark(paths.abort).note_failure()
            lock.release()
            raise
        return store

    def _start(
        self,
        lock: StoreLock,
        on_arrival: Arrival | None,
        derived: DerivedFiles,
        known: Checkpoint | None,
        follows: bool,
    ) -> None:
        """Recover. If a derived file was damaged, `known` is what the checkpoint said before that was mended."""
        if (words := self._abort.last_words) is not None:
            log.error("the last process that used this store died: %s", words)
        self._derived = derived
        self._queues.rewritten.update(derived.sums.rewritten)
        derived.sums.rewritten = self._queues.rewritten
        if not self._log.files:  # what they say is of a log that is no more
            derived.sums.forget_all()
            self._floors.update({})
            self._queues.floors = self._floors.floors
        last_exit = self._last_exit
        if (cut_to := self.epochs.cut_to) is not None:
            self._abort.distrust_memory()
            if cut_to < self._log.end:
                self._log.truncate(cut_to)
        if known is not None:  # the mark was made before anything was changed
            self._checkpoint, self._last_exit = known, derived.exit
        elif self._last_exit is Exit.CLEAN and self._queues.is_empty and self._log.files:
            self._abort.distrust_memory()  # someone removed the queues so that they are built anew
            self._last_exit = Exit.CRASH
        elif self._last_exit is not Exit.CLEAN:
            self._abort.keep()
        is_marked = self._last_exit is not Exit.CLEAN or known is not None
        recovery = (Recovery if self._group_log is None else CommittedRecovery)(
            self._log,
            self._queues,
            self._index,
            self._checkpoint,
            self._dispatcher,
            self._abort.keep if is_marked else self._abort.distrust_memory,
            left_zeros=derived.left_zeros,
            sums=derived.sums,
            is_copy=follows or self.epochs.is_following,
        )
        self._dispatcher.deleted = self._deleted.ends
        self.recovered = recovered = recovery.run(self._last_exit, rebuild=known is not None)
        self._fit(recovery, last_exit, follows=follows)
        self._queues.entry_of = self._dispatcher.entry_of
        self._queues.refill()
        for topic, end in self._deleted.ends.items():
            self._queues.delete_older(topic, end)
        if known is not None:
            for (topic, queue_id), queue_offset in derived.sums.ends.items():
                if topic not in self._deleted.ends:
                    self._queues.reserve(topic, queue_id, queue_offset)
        if is_marked or derived.sums.log_end < 0 or derived.sums.rewritten:
            derived.sums.extend(self._dispatcher.end, derived.shape)
        self._floors.update(self._queues.reserved())
        self._queues.floors = self._floors.floors
        log.log(logging.ERROR if recovered.is_damaged else logging.INFO, "%s", recovered)
        self._lock = lock
        self._reader.written_from = self._log.end
        self.timeline = Timeline.open(
            self.paths.config / "timeline.json",
            self._clock,
            lambda: self._log.end,
            self._log.last_timestamp,
            foreign_end=self.epochs.own_begin if self._group_log is None else EVERYTHING,
        )
        self._checkpoint.clean_end = None
        self._dispatcher.on_arrival = on_arrival
        self.flusher = self._new_flusher()
        self.group_commit = self.flusher.group_commit
        self.preallocator = Preallocator(self._log, self._clock)
        self.scrub = Scrub(
            self._log,
            self._queues,
            self._dispatcher,
            self._mender,
            self.rot,
            self._config,
            self.paths.config / SCRUB_FILE,
            self._clock,
            self._derived,
        )
        self._abort.set()
        if recovery.stuck is not None:
            self._recovered_behind = True
            self._gate.set_behind(f"the disk has no room: {recovery.stuck}")
        if self._group_log is not None:
            self._group_log.limit = None
            self._gate.set_following(True)
        elif follows:
            self._follow()

    def _new_flusher(self) -> Flusher:
        config, clock = self._config, self._clock
        if (group_log := self._group_log) is None:
            return Flusher(
                self._log,
                config,
                clock,
                on_flushed=self._showing,
                on_safe=self._told_safe,
                on_failed=self._refuse,
                checkpoint=self._take_checkpoint,
            )
        self._commits = commits = Commits(
            group_log,
            config,
            clock,
            on_flushed=self._showing,
            on_safe=self._told_safe,
            on_failed=self._refuse,
            checkpoint=self._take_checkpoint,
        )
        group_log.on_proposed = commits.proposed
        return commits

    def _fit(self, recovery: Recovery, last_exit: Exit, *, follows: bool) -> None:
        """Let the tables that speak of places in the log speak of the one that was found."""
        start, end = self._log.start, self._log.end
        try:
            self._deleted.fit(start, end)
            if self.epochs.cut_to is not None:
                self.epochs.cut_done()
            self.was_following = self.epochs.is_following
            if self._group_log is not None:
                return
            if follows:
                self.epochs.follow(start, end)
            else:
                self.epochs.lead(start, end, is_continued=last_exit is Exit.CLEAN)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            recovery.stuck = recovery.stuck or error

    def _cleaner(self, used: DiskUsed) -> Cleaner:
        return Cleaner(
            self.paths,
            self._config,
            self._clock,
            self._log,
            self._queues,
            self._index,
            settled=lambda: min(self.flusher.flushed, self._dispatcher.end),
            on_disk_full=self._disk_measured,
            used=used,
            redated=self.timeline.redated,
            gap_ms=self.timeline.gap_ms,
        )

    # Writing

    def append(self, message: StoreMessage) -> Appended:
        """Put a message behind all others. It is in the log when this returns; `durable` says when it is on disk."""
        if self._batch is not None:
            self._enter_batch()
        if self._gate.is_shut:
            self._check_gate()
        if len(message.body) > self._max_body_size or message.properties[-1:] == _TORN:
            raise self._illegal()
        queue = self._queues.queue(message.topic, message.queue_id)
        now_ms = self._clock.now_ms()
        if now_ms < self._log.last_timestamp:
            self.timeline.look()
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
            if self.on_append is not None:
                self.on_append()
            if self.group_commit:
                self.flusher.wake()
            else:
                try:
                    self._dispatcher.dispatch(
                        queue, queue_offset, offset, size, message.sys_flag, now_ms, message.properties
                    )
                except OSError as error:
                    self._failed_to_enter(error)
                except MemoryError:
                    raise
                except Exception as error:  # ours; the message is in the log, so it must be in its queue
                    self._dispatcher.dispatch_bare(queue, queue_offset, offset, size, message.sys_flag, now_ms, error)
            self.append_ms = self._clock.now_ms() - now_ms
            if not 0 <= self.append_ms <= self._busy_ms:
                self._took_long()
        except OSError as error:
            raise self._failed(error) from error
        except (ProtocolError, UnicodeEncodeError) as error:
            raise self._illegal() from error
        return _new_tuple(Appended, (offset, size, queue_offset, now_ms, message.store_host))

    def append_batch(self, message: StoreMessage, items: Sequence[BatchItem]) -> AppendedBatch:
        """Put several messages behind all others in one write; they share all of `message` but what an item has.

        They get consecutive queue offsets, and either all of them are in the log or none. The last of many may not
        be in their queue yet: `entering_batch` brings them there.
        """
        if self._batch is not None:
            self._enter_batch()
        if self._gate.is_shut:
            self._check_gate()
        _, bodies, properties = zip(*items, strict=True) if items else ((), (), ())
        is_torn = [raw for raw in properties if raw[-1:] == _TORN]
        if not items or sum(map(len, bodies)) > self._max_body_size or is_torn:
            raise self._illegal()
        queue = self._queues.queue(message.topic, message.queue_id)
        now_ms = self._clock.now_ms()
        if now_ms < self._log.last_timestamp:
            self.timeline.look()
        queue_offset = queue.next_offset
        try:
            data, bounds = self._encode_batch(message, items, queue, queue_offset, now_ms)
            if len(data) > self._log.room:
                self._log.roll(len(data))
                data, bounds = self._encode_batch(message, items, queue, queue_offset, now_ms)
            bounds = self._log.write_batch(data, bounds, now_ms)
            queue.next_offset = queue_offset + len(items)
            self.messages_put += len(items)
            self.bytes_put += len(data)
            if self.on_append is not None:
                self.on_append()
            if self.group_commit:
                self.flusher.wake()
            else:
                self._batch = self._dispatcher.dispatching_batch(
                    queue, queue_offset, bounds, message.sys_flag, now_ms, properties
                )
                self._step_batch()
            self.append_ms = self._clock.now_ms() - now_ms
            if not 0 <= self.append_ms <= self._busy_ms:
                self._took_long()
        except OSError as error:
            raise self._failed(error) from error
        except (ProtocolError, UnicodeEncodeError) as error:
            raise self._illegal() from error
        return AppendedBatch(tuple(bounds[:-1]), bounds[-1], queue_offset, now_ms, message.store_host)

    @property
    def is_entering_batch(self) -> bool:
        return self._batch is not None

    def entering_batch(self) -> Iterator[None]:
        """Enter what is left of a batch, in steps of a few milliseconds, the first after the first turn.

        It is in the log already, so a start after a kill enters it. Whatever else is put into the log does so before.
        """
        while self._batch is not None:
            yield
            try:
                self._step_batch()
            except OSError as error:
                raise self._failed(error) from error

    def _enter_batch(self) -> None:
        try:
            while self._batch is not None:
                self._step_batch()
        except OSError as error:
            raise self._failed(error) from error

    def _step_batch(self) -> None:
        steps = self._batch
        if steps is None:
            return
        try:
            next(steps)
        except StopIteration:
            self._batch = None
        except OSError as error:
            self._batch = None
            self._failed_to_enter(error)
        except MemoryError:
            raise
        except Exception:  # ours; the messages are in the log, so they must be in their queue, one by one
            log.exception("a batch cannot be entered at once")
            self._enter(self._log.end)

    def _encode(self, message: StoreMessage, queue: ConsumeQueue, queue_offset: int, now_ms: int) -> bytes:
        return encode_record(
            queue.topic_bytes,
            message.body,
            message.properties.encode(),
            message.queue_id,
            message.flag,
            message.sys_flag,
            message.born_timestamp,
            message.born_host,
            now_ms,
            message.store_host,
            queue_offset,
            self._log.end,
            message.reconsume_times,
            message.prepared_transaction_offset,
            sealed=self._is_sealing,
        )

    def _encode_batch(
        self, message: StoreMessage, items: Sequence[BatchItem], queue: ConsumeQueue, queue_offset: int, now_ms: int
    ) -> tuple[bytes, list[int]]:
        """All records, and where each begins and the last ends."""
        return encode_records(
            queue.topic_bytes,
            items,
            message.queue_id,
            message.sys_flag,
            message.born_timestamp,
            message.born_host,
            now_ms,
            message.store_host,
            queue_offset,
            self._log.end,
            message.reconsume_times,
            sealed=self._is_sealing,
        )

    def _illegal(self) -> MessageIllegal:
        self.puts_failed += 1
        limit = self._config.max_message_size
        return MessageIllegal(
            "the message is illegal, maybe msg body or properties length not matched. "
            f"msg body length limit {limit}B, msg properties length limit 32KB."
        )

    def _check_gate(self) -> None:
        """Refuse the message, unless what stood against it is over."""
        if self._gate.is_behind:
            self._catch_up()
        refusal = self._gate.refusal()
        if refusal is not None:
            self.puts_failed += 1
            raise refusal

    def _failed(self, error: OSError) -> ServiceNotAvailable:
        """A full disk passes. After any other failure nothing is written again."""
        self.puts_failed += 1
        if error.errno not in NO_ROOM:
            self._refuse(f"the disk failed: {error}")
        return ServiceNotAvailable(self._gate.reason or f"service not available now: the disk has no room: {error}")

    def _refuse(self, reason: str) -> None:
        """From now on nothing is written and nothing is called durable: what is on disk is no longer known."""
        if self._gate.failure is None:
            self._gate.fail(reason)
            self.flusher.fail(str(self._gate.failure))
            self._abort.note_failure()
            log.critical("%s", self._gate.failure)

    def memory_failed(self) -> None:
        """The system could not read mapped bytes that were to be sent. Whoever touches them dies of SIGBUS; a socket
        only says EFAULT, and names no file."""
        cut = (file.path for file in self._log.files if file.map is not None and file.is_cut())
        path = next(cut, None)
        what = f"{path} was cut by another program" if path else f"a file in {self.paths.commit_log} cannot be read"
        self._refuse(f"the disk failed: {what}")

    def _disk_measured(self, full: str | None) -> None:
        """Take no messages on a disk that is too full; take them again when it is not."""
        if self._gate.is_behind:
            self._catch_up()
        self._gate.set_full(full)

    def _took_long(self) -> None:
        """See whether it was the append or the date that went so far; only then it is worth another look at a clock."""
        before_ms = self.timeline.shift_ms
        self.timeline.look()
        self.append_ms = max(self.append_ms - (self.timeline.shift_ms - before_ms), 0)
        if self.append_ms > self._busy_ms:
            self._stalled()

    def _stalled(self) -> None:
        """Writing to memory took so long that the disk cannot keep up; those who wait already are turned away."""
        log.warning("an append took %d ms: the disk is too slow for what is sent", self.append_ms)
        if self.on_stall is not None:
            self._gate.set_busy(True)
            self.on_stall()

    @property
    def is_page_cache_busy(self) -> bool:
        """The last append stalled, and `calm` was not called since. Messages are refused meanwhile."""
        return self._gate.is_busy

    def calm(self) -> None:
        """Whoever waited when an append stalled has been answered."""
        self._gate.set_busy(False)

    def durable(self, end: int, *, wait: bool = True) -> Coroutine[Any, Any, Durability]:
        """The promise: return once everything below `end` is as safe as the configured flush says, or time is up."""
        return self.flusher.durable(end, wait=wait)

    def _flushed(self, end: int, timestamp: int) -> None:
        """The log is on disk up to `end`; in group commit that makes its messages visible."""
        for _ in self._showing(end, timestamp):
            pass
        self._told_safe()

    def _showing(self, end: int, timestamp: int) -> Iterator[None]:
        """Do the same in steps; then others are to be told that it is safe."""
        self._checkpoint.log_timestamp = timestamp
        if self.group_commit:
            try:
                yield from self._entering(end)
            except OSError as error:
                self._failed_to_enter(error)
        elif self._batch is not None:
            self._enter_batch()

    def _told_safe(self) -> None:
        if self.on_safe is not None:
            self.on_safe()

    def _entering(self, end: int) -> Iterator[None]:
        """Enter what the log holds below `end`, in steps."""
        step = _ENTERED_BYTES
        while (begin := self._dispatcher.end) < end:
            self._enter(min(begin + step, end))
            if self._dispatcher.end > begin:
                step = _ENTERED_BYTES
                yield
            elif begin + step >= end:
                break
            else:  # the record is longer
                step *= 2

    def _enter(self, end: int) -> None:
        """Enter what the log holds below `end` into queues and index; of a copy, no unfinished record."""
        self._batch = None
        if self._raw is not None:
            end = min(end, self._raw.whole_end)
        self._dispatcher.end = self._log.scan_together(self._dispatcher.end, end, self._dispatcher.dispatch_records)

    def _failed_to_enter(self, error: OSError) -> None:
        """A full disk passes, and what is in the log is stored: whoever were told else would send it again."""
        if error.errno not in NO_ROOM:
            raise error
        self._gate.set_behind(f"the disk has no room: {error}")

    def _catch_up(self) -> None:
        """Enter what the disk had no room for."""
        try:
            self._deleted.save_if_changed()
            self.epochs.save_if_changed()
            self._enter(self.flusher.flushed if self.group_commit else self._log.end)
            if self._recovered_behind:
                self._queues.settle()
                self._recovered_behind = False
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._refuse(f"the disk failed: {error}")
        else:
            self._gate.set_behind(None)

    def _take_checkpoint(self) -> Callable[[], None]:
        """What a thread must do so that the checkpoint may speak of everything dispatched so far."""
        queue_files = self._queues.take_dirty()
        index_files = self._index.take_filled() if self._index else []
        timestamp, end = self._dispatcher.timestamp, self._dispatcher.end
        safe = safe_offsets(end, self._index)
        derived, cuts = self._derived, self._cuts
        extends = end - derived.sums.log_end >= min(self._config.mapped_file_size_commit_log, _SUMS_EVERY_BYTES)

        def work() -> None:
            sync_queue_files(queue_files)
            sync_index_files(index_files)
            with self._checkpoint_lock:
                if cuts != self._cuts:
                    return
                self._checkpoint.queues_timestamp = timestamp
                if index_files:
                    self._checkpoint.index_timestamp = index_files[-1].end_timestamp
                self._checkpoint.safe = safe
                self._checkpoint.save_if_room()
                if extends:
                    derived.sums.extend(end, derived.shape)

        return work

    # Being a copy

    @property
    def is_follower(self) -> bool:
        return self._gate.is_following

    def fence(self, reason: str | None) -> None:
        """Refuse messages for a reason that is not the disk's: another broker is the master. None: take them again."""
        self._gate.set_fenced(reason)

    def follow(self) -> None:
        """Take no messages any more, but another broker's log. OSError when the disk refuses to note it; then the store
        goes on as it was."""
        if self._group_log is not None:
            self._stop_leading()
        elif self._raw is None:
            self._enter_batch()
            with self.epochs.all_or_nothing():
                self.epochs.follow(self._log.start, self._log.end)
            self._follow()

    # Being a member of a Raft group: `lead` and `follow`, as the group decides, and what it tells

    def commit_to(self, end: int) -> None:
        """Show readers what the group has committed, up to this position of its log."""
        self._commits.commit_to(end)

    def log_begun_again(self) -> None:
        """Forget everything: the group no longer has what comes next, and this member's log begins behind that."""
        start = self._log.start
        for topic in self._queues.topics():
            self._queues.delete_topic(topic)
        if self._index is not None:
            self._index.drop_all()
        self._derived.sums.forget_all()
        self._floors.update({})
        self._queues.floors = self._floors.floors
        self._cuts += 1
        self._dispatcher.end = start
        self._commits.begin_at(start)
        log.warning("log begun again: at=%d; the group no longer has what came before", start)

    @property
    def is_caught_up(self) -> bool:
        """Whether everything in the group's log is committed, and in its queue."""
        end = self._log.end
        return self._commits.committed >= end and self._dispatcher.end >= end

    def _stop_leading(self) -> None:
        self._gate.set_following(True)
        self._dispatcher.is_recovering = True
        self._commits.stop_leading()

    def _lead_group(self) -> None:
        """Take messages: each queue goes on behind what is committed, and nothing else is in the log."""
        assert self.is_caught_up, "the offsets of what is not in its queue are not known"
        self._dispatcher.is_recovering = False
        self._dispatcher.cut(self._log.end)
        self._queues.settle()
        self._commits.lead()
        self._gate.set_following(False)

    # Being a copy

    def _follow(self) -> None:
        self._raw = RawLog(self._log)
        self._dispatcher.is_recovering = True
        self.timeline.foreign_end = EVERYTHING
        self._gate.set_following(True)

    def lead(self, above: int = 0) -> None:
        """Take messages again, behind the last whole record; they begin an epoch of a new term, which is higher than
        `above`. OSError as `follow`."""
        if self._group_log is not None:
            self._lead_group()
            return
        if self._raw is None:
            return
        self.settle()
        if self.group_commit:
            self._flush_now()
        with self.epochs.all_or_nothing():
            self.epochs.begin(self._log.start, self._log.end, new_term=True, above=above)
        self.timeline.foreign_end = self.epochs.own_begin
        self._raw = None
        self._dispatcher.is_recovering = False
        self._dispatcher.cut(self._log.end)
        self._queues.settle()
        self._recovered_behind = self._gate.is_behind
        self._gate.set_following(False)

    def _flush_now(self) -> None:
        """Let readers see everything: the messages to come get their offsets behind it."""
        end = self._log.end
        with self.flusher.cutting(end):
            sync_files(self._log.files_between(self.flusher.flushed, end))
        self.flusher.flushed = end
        self._flushed(end, self._log.last_timestamp)

    @property
    def safe_end(self) -> int:
        """Up to where this copy of the log is as safe as the configured flush says; that may be within a record."""
        return self.flusher.flushed if self.group_commit else self._log.end

    def log_bytes(self, begin: int, size: int) -> memoryview | None:
        """Up to `size` bytes of the log from `begin` on, all of one file; None where it holds none."""
        file = self._log.file_at(begin)
        if file is None or begin >= self._log.end:
            return None
        position = begin - file.start
        return file.view[position : min(position + size, file.position)]

    def append_raw(self, offset: int, data: bytes | memoryview) -> None:
        """Put a master's bytes, which all lie in one file of its log, behind our own.

        Records become visible with the next `enter_raw`: what the master waits for does not wait for queues.
        LogDiverged where the bytes do not continue the log: what stands before that is kept. ServiceNotAvailable when
        the disk takes nothing, or the store does not follow.
        """
        raw = self._raw
        if raw is None or self._gate.failure is not None:
            raise ServiceNotAvailable(self._gate.failure or "service not available now: this broker is no slave")
        if not data:
            return
        try:
            heads, wrong = raw.append(offset, data)
            if self._dispatcher.end < self._log.start:  # that was the first packet
                self._dispatcher.end = self.flusher.flushed = self._log.start
                self._queues.log_moved()
            if self.group_commit:
                self.flusher.wake()
            elif self._gate.is_behind:
                self._catch_up()
            else:
                self._arrived += heads
        except OSError as error:
            raise self._failed(error) from error
        if wrong is not None:
            raise wrong

    def enter_raw(self) -> None:
        """Let readers see the records that `append_raw` completed, unless group commit still waits for the disk."""
        arrived, self._arrived = self._arrived, []
        raw, dispatcher = self._raw, self._dispatcher
        if raw is None or self.group_commit or self._gate.failure is not None or dispatcher.end >= raw.whole_end:
            return
        try:
            if arrived and arrived[0].physical_offset == dispatcher.end:
                dispatcher.dispatch_records(arrived)
                dispatcher.end = raw.whole_end
            elif not self._gate.is_behind:
                self._enter(raw.whole_end)
        except OSError as error:
            if error.errno in NO_ROOM:
                self._failed_to_enter(error)
            else:
                raise self._failed(error) from error

    def settle(self) -> int:
        """Cut the unfinished record off that a copy may end with, for good; returns the log's end."""
        raw = self._raw
        if raw is not None:
            self.enter_raw()
        if raw is None or not raw.has_unfinished:
            return self._log.end
        try:
            with self.flusher.cutting(raw.whole_end):
                return raw.settle()
        except OSError as error:
            raise self._cut_failed(error) from error

    def truncate_log(self, end: int) -> None:
        """Cut a copy's log at `end`, or before the record that goes over it; what is cut is kept aside.

        Queues and index say nothing of it any more, and it is gone from the disk, when this returns. A start that finds
        it half done finishes it. StoreError or ServiceNotAvailable when there is no room to keep it; then nothing is
        changed.
        """
        assert self._raw is not None, (
            "only a copy is cut: a leader may have given offsets to messages not in queues yet"
        )
        if end < self._log.start:
            raise StoreError(
                f"the log begins at {self._log.start} and cannot be cut at {end}: nothing would be left. Move the "
                "store's folder away to make this broker's copy again"
            )
        self.settle()
        if end >= self._log.end:
            return
        end, before = record_boundary(self._log, end), self._log.end
        with self._checkpoint_lock, self.flusher.cutting(end):
            try:
                keep_aside(self._log, end)
                self._cuts += 1
                promise_less(self._checkpoint, self._log, end)
                self._derived.sums.forget_all()
                self.epochs.cut(end)
            except OSError as error:
                raise self._failed(error) from error
            try:
                self._cut(end)
            except OSError as error:
                raise self._cut_failed(error) from error
        log.error(
            "log cut: from=%d to=%d bytes=%d copy=%s", end, before, before - end, aside_folder(self._log.directory)
        )
        self.on_cut()

    def _cut(self, end: int) -> None:
        assert self._raw is not None
        self._log.truncate(end)
        self._log.last = -1
        self._raw.whole_end = end
        cut_derived(self._log, self._queues, self._index, self._dispatcher, end)
        self._log.last_timestamp = self._dispatcher.timestamp = self._checkpoint.log_timestamp
        self._deleted.fit(self._log.start, end)
        self.epochs.cut_done()

    def _cut_failed(self, error: OSError) -> ServiceNotAvailable:
        """Memory and disk disagree about where the log ends."""
        self._refuse(f"the disk failed: {error}")
        return ServiceNotAvailable(self._gate.reason or str(error))

    # Reading

    def entry(self, topic: str, queue_id: int, queue_offset: int) -> Entry | None:
        """Where the message at a queue offset lies, its size and its tags code; None when there is none.

        An entry whose bytes have changed is rebuilt if its record is to be found.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        return self._entry(queue, queue_offset)

    def _entry(self, queue: ConsumeQueue, queue_offset: int) -> Entry:
        entry = queue.entry(queue_offset)
        if self._mender.leads(queue, queue_offset, entry) or self._mender.is_gone(queue, queue_offset, entry):
            return entry
        return self._mender.mended(queue, queue_offset, entry) or entry

    def record_at(self, physical_offset: int) -> memoryview | None:
        """The whole record that begins there, or None when none does; MessageDamaged if its checksums do not match.

        Whoever copies a record goes through here: a copy of a damaged one would look sound.
        """
        if physical_offset >= self._dispatcher.end:
            return None
        head = sound_head(self._log, self.rot, physical_offset)
        return self._log.slice(physical_offset, physical_offset + head.size) if head is not None else None

    def _head_at(self, physical_offset: int) -> RecordHead | None:
        return self._log.head_at(physical_offset) if physical_offset < self._dispatcher.end else None

    def find_by_key(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[memoryview]:
        """Records of the topic with this key, unique id or both, stored in [begin, end]; in the order of the log."""
        found: list[memoryview] = []
        for _ in self.finding_by_key(topic, key, max_count, begin_ms, end_ms, found):
            pass
        return found

    def finding_by_key(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, found: list[memoryview]
    ) -> Iterator[None]:
        """The same in steps; the last adds all that there is to `found`."""
        if self._index is None:
            return
        places: list[int] = []
        runs_back = self._runs_back
        yield from self._index.finding(topic, key, max_count, begin_ms, end_ms, places, runs_back)
        for offset in sorted(set(places)):
            head = self._head_at(offset)
            if head and head.topic == topic and begin_ms <= head.store_timestamp <= end_ms and _has_key(head, key):
                try:
                    sound_head(self._log, self.rot, offset)
                except MessageDamaged:
                    continue
                found.append(self._log.slice(offset, offset + head.size))

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
        store_time, stretches = self._store_time(queue), self._rising(queue)
        if not upper:
            firsts = (offsets[0] + bisect_left(offsets, timestamp, key=store_time) for offsets in stretches)
            pairs = zip(firsts, stretches, strict=True)
            return next((first for first, offsets in pairs if first < offsets.stop), queue.max_offset)
        for offsets in reversed(stretches):
            if count := bisect_right(offsets, timestamp, key=store_time):
                return offsets[count - 1]
        return queue.min_offset

    def _rising(self, queue: ConsumeQueue) -> list[range]:
        """The queue's offsets, in stretches within which store times rise: a clock that is set back begins another."""
        offsets = range(queue.min_offset, queue.max_offset)
        cuts = [bisect_left(offsets, place, key=lambda offset: queue.entry(offset)[0]) for place in self._may_fall()]
        edges = [0, *cuts, len(offsets)]
        return [offsets[begin:end] for begin, end in pairwise(edges) if begin < end]

    def _may_fall(self) -> list[int]:
        """Places in the log where dates may fall: our clock was set back, or another broker's goes on."""
        falls = self.timeline.falls()
        if len(self.epochs.list) > 1:
            falls = sorted({*falls, *(epoch.begin for epoch in self.epochs.list[1:])})
        return falls

    def _runs_back(self, first: int, last: int) -> bool:
        return any(first < place <= last for place in self._may_fall())

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """When the queue's first message was stored; -1 when it has none."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or queue.min_offset >= queue.max_offset:
            return -1
        return self._store_time(queue)(queue.min_offset)

    def _store_time(self, queue: ConsumeQueue) -> Callable[[int], int]:
        def store_time(queue_offset: int) -> int:
            for offset in range(queue_offset, min(queue_offset + _ASKED_FOR_TIME, queue.max_offset)):
                if (head := self._log.head_at(self._entry(queue, offset)[0])) is not None:
                    return head.store_timestamp
            return -1

        return store_time

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """When the message at a queue offset was stored; -1 when there is none."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return -1
        return self._store_time(queue)(queue_offset)

    def is_young(self, topic: str, queue_id: int) -> bool:
        """Return whether a group new to the queue begins at 0: it has had no message yet, or its very first one is
        there and not so far back that it has left memory."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or queue.max_offset == 0:
            return True
        return queue.min_offset <= 0 and self._reader.is_in_memory(queue.entry(0)[0])

    def topics(self) -> list[str]:
        """Every topic that has had a message."""
        return self._queues.topics()

    def queues(self, topic: str) -> list[int]:
        """The ids of the topic's queues that have had a message."""
        return self._queues.ids(topic)

    def delete_topic(self, topic: str) -> None:
        """Forget the topic's queues; a topic of that name made later begins at 0."""
        for _ in self.deleting_topic(topic):
            pass

    def deleting_topic(self, topic: str) -> Iterator[None]:
        """The same in steps, the first of which makes it certain: after a crash in between, the start deletes the rest.
        Until the last step nobody may send to the topic."""
        self._enter_batch()
        self._deleted.add(topic, self._log.end if self._raw is None else self._raw.whole_end)
        self._floors.drop_topic(topic)
        self._queues.floors = self._floors.floors
        yield from self._queues.deleting_topic(topic)
        self._derived.sums.forget_topic(topic)

    def forget_topic(self, topic: str, below: int) -> None:
        """Forget what the topic had below that place of the log: a slave's part of what `delete_topic` is at a master.

        Queues stay that have messages behind it: the topic was made again.
        """
        self._deleted.add(topic, max(below, self._deleted.ends.get(topic, 0)))
        self._queues.delete_older(topic, below)
        if topic not in self._queues.topics():
            self._floors.drop_topic(topic)
            self._queues.floors = self._floors.floors
            self._derived.sums.forget_topic(topic)

    @property
    def log_file_size(self) -> int:
        return self._config.mapped_file_size_commit_log

    @property
    def min_physical_offset(self) -> int:
        return self._log.start

    @property
    def first_timestamp(self) -> int:
        """When the oldest message that is still here was stored; -1 if there is none."""
        if self._dispatcher.end <= self._log.start:
            return -1
        head = next(self._log.heads(self._log.start), None)
        return -1 if head is None else head.store_timestamp

    @property
    def max_physical_offset(self) -> int:
        return self._log.end

    @property
    def dispatch_behind_bytes(self) -> int:
        """How much of the log readers do not see yet."""
        return self._log.end - self._dispatcher.end

    @property
    def failure(self) -> str | None:
        """Why nothing can be written before the next start, or None."""
        return self._gate.failure

    @property
    def refusal(self) -> str | None:
        """Why nothing can be written, or None."""
        return self._gate.reason

    # The end

    def close(self) -> None:
        """Bring everything onto the disk and leave the folder. Stop the flusher first. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._gate.failure is not None:
                self._abort.note_failure()  # again: when the disk failed, it may have refused this, too
            else:
                self.settle()
                self._gate.fail("the store is closed")
                if self._group_log is not None:
                    self._group_log.limit = self._commits.committed
                self._log.drop_next()
                self._sync_all()
                if self.timeline.unsaved and not self.timeline.was_never_set:
                    self.timeline.save()
                self.paths.sync_names()
                self._abort.clear()
        except OSError as error:
            if error.errno not in NO_ROOM:  # else it is as after a kill: what is in the log is safe
                self._abort.note_failure()
            raise
        finally:
            self._log.close()
            self._queues.close()
            if self._index:
                self._index.close()
            self.skipped.close()
            self._lock.release()

    def _sync_all(self) -> None:
        """What the log holds is in queues and index, all of it is on disk, and the checkpoint says so."""
        end, timestamp = self._log.end, self._log.last_timestamp
        sync_files(self._log.files_between(self.flusher.flushed, end))
        self._checkpoint.log_timestamp = timestamp
        self._enter(end)
        work = self._take_checkpoint()
        if self._index:
            self._index.sync()
        work()
        self._checkpoint.queues_timestamp = timestamp
        self._checkpoint.index_timestamp = self._index.last_timestamp if self._index else 0
        self._checkpoint.clean_end = (end, self._log.last) if self._log.last >= 0 else None
        self._derived.sums.save(end, self._derived.shape)
        self._checkpoint.save()


_ENTERED_BYTES = 32 * KIB  # of the log, entered in one step
_SUMS_EVERY_BYTES = 64 * MIB  # of the log: what the start after a kill enters again
_new_tuple = tuple.__new__  # half the time of calling the NamedTuple
_TRANSACTION = SysFlag.TRANSACTION_MASK
_QUEUED = (0, SysFlag.COMMIT)
# How many messages from an offset on are asked for their store times: some may be damaged.
_ASKED_FOR_TIME = 16


def _locked(paths: StorePaths) -> StoreLock:
    """Keep other brokers out, and make the folders that are missing once it is known that none should be there."""
    lock = StoreLock(paths.lock)
    try:
        paths.refuse_links()
        paths.check_nothing_left_behind()
        check_log(paths)
        paths.make_parents()
        for folder in paths.outside:
            state_file.make_folder(folder)
            lock.add_folder(folder)
    except BaseException:
        lock.release()
        raise
    return lock


def _has_key(head: RecordHead, key: str) -> bool:
    return find(head.properties, Property.UNIQ_KEY) == key or key in (find(head.properties, Property.KEYS) or "").split(
        " "
    )


def _derived_files(paths: StorePaths, config: StoreConfig) -> DerivedFiles:
    queue_file = -(-config.mapped_file_size_consume_queue // ENTRY_SIZE) * ENTRY_SIZE
    shape = Shape(queue_file, config.max_hash_slot_num, config.max_index_num)
    return DerivedFiles(paths, shape, AbortMark(paths.abort).last_exit(), has_index=config.message_index_enable)


def _open_index(directory: Path, config: StoreConfig, clock: Clock, after_crash: bool) -> Index:
    return Index(directory, config.max_hash_slot_num, config.max_index_num, clock, after_crash=after_crash)
