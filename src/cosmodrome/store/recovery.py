"""Opening a store: where its log ends, and that queues and index say what the log says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import NamedTuple

from cosmodrome import disk
from cosmodrome.config import MIB
from cosmodrome.errors import ProtocolError
from cosmodrome.store.checkpoint import Checkpoint, Safe
from cosmodrome.store.commit_log import BLANK_SIZE, CommitLog, Visit
from cosmodrome.store.consume_queues import ConsumeQueues, QueueKey, sync_queue_files
from cosmodrome.store.derived import Sums
from cosmodrome.store.dispatcher import Dispatcher
from cosmodrome.store.index_file import Index
from cosmodrome.store.lock import Exit
from cosmodrome.store.mending import Known, LogMender, Mended
from cosmodrome.wire.record import RecordHead, check_at, head_at

_ANY_TIME = 2**63 - 1
MAX_INDEXED_AGAIN_BYTES = 64 * MIB  # of the log, after a kill


class Recovered(NamedTuple):
    """What opening found. `scanned_from` is the log's end when nothing had to be read.

    Damaged parts lay before the end; what was lost with them is `lost_messages`, as far as anyone knows. Whole records
    in the bytes cut, which nothing vouched for, are counted as `kept_aside_bytes`.
    """

    last_exit: Exit
    scanned_from: int
    end: int
    records: int
    cut_bytes: int
    damaged_parts: int = 0
    damaged_bytes: int = 0
    lost_messages: int = 0
    kept_aside_bytes: int = 0

    def __str__(self) -> str:
        text = (
            f"after a {self.last_exit} the log ends at {self.end}: {self.records} records were read from "
            f"{self.scanned_from} on, {self.cut_bytes} bytes behind the last whole one were cut"
        )
        if self.damaged_parts:
            text += (
                f"; {self.damaged_parts} damaged parts ({self.damaged_bytes} bytes, {self.lost_messages} messages) "
                f"were passed over"
            )
        if self.kept_aside_bytes:
            text += f"; {self.kept_aside_bytes} of the bytes cut held whole records, and are kept aside"
        return text

    @property
    def is_damaged(self) -> bool:
        return bool(self.damaged_parts or self.kept_aside_bytes)


class Recovery:
    """After it, and only after it, every part of the store agrees with the log."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        checkpoint: Checkpoint,
        dispatcher: Dispatcher,
        before_mending: Callable[[], None] = lambda: None,
        *,
        left_zeros: bool = False,
        sums: Sums | None = None,
        is_copy: bool = False,
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._dispatcher = dispatcher
        self._left_zeros = left_zeros
        self._is_copy = is_copy
        self._before_mending = before_mending
        self._records = 0
        self._sums = sums
        self._mended = Mended(0)
        # Why records from the dispatcher's end on are not in queues and index: the disk has no room for their entries.
        self.stuck: OSError | None = None

    def run(self, last_exit: Exit, *, rebuild: bool = False) -> Recovered:
        """Make everything agree. With `rebuild`, queues and index are built from the whole log."""
        self._dispatcher.is_recovering = True
        try:
            return self._run(last_exit, rebuild=rebuild)
        finally:
            self._dispatcher.is_recovering = False

    def _run(self, last_exit: Exit, *, rebuild: bool) -> Recovered:
        self._unsure = self._log.start if rebuild else self._first_unsure_file()
        if not self._log.files:
            self._forget_all()
        if rebuild:
            return self._after_crash(last_exit)
        if last_exit is Exit.CLEAN:
            return self._after_clean_exit()
        return self._after_kill() if last_exit is Exit.KILLED else self._after_crash(last_exit)

    def _forget_all(self) -> None:
        """Without a log, nothing that was derived from it means anything."""
        for topic in self._queues.topics():
            self._queues.delete_topic(topic)
        if self._index:
            self._index.drop_all()

    def _after_clean_exit(self) -> Recovered:
        """The last broker synced and dispatched everything; only the end of the log must be found."""
        if self._index:
            self._index.trust(self._log.end, _ANY_TIME)
        known_end = self._known_end()
        if known_end is not None or not self._log.files:
            begin = end = known_end or 0
            cut = self._log.truncate(end)
            self._dispatcher.end = self._queues.settled_end = end
            return self._recovered(Exit.CLEAN, begin, end, cut)
        begin = self._log.files[-2:][0].start
        end, _ = self._mend(begin, Exit.CLEAN, self._remember)
        self._queues.settled_end = self._log.end
        if self._mended.is_damaged:  # queues lead to what is no more
            self._records = 0
            self._scan(begin, end, self._log.end)
            return self._finish(Exit.CLEAN, begin, end)
        cut = self._log.truncate(end)
        self._dispatcher.end = self._queues.settled_end = end
        return self._recovered(Exit.CLEAN, begin, end, cut)

    def _mend(self, begin: int, last_exit: Exit, visit: Visit | None = None) -> tuple[int, int]:
        """Look for damage from `begin` on, and mend it while the queues can still tell what it was.

        Returns where the log ends, and up to where its records were shown to `visit`.
        """
        is_complete = last_exit in (Exit.CLEAN, Exit.KILLED)
        known = Known(self._safe_end, is_complete, self._left_zeros, dict(self._dispatcher.deleted), self._is_copy)
        mender = LogMender(self._log, self._queues.root, known, self._before_mending)
        self._mended = self._mended.joined(mender.mend(begin, visit))
        return self._mended.end, mender.looked_to

    @property
    def _safe_end(self) -> int:
        """Up to where the checkpoint says that the log was on disk; 0 if it does not say."""
        safe, clean_end = self._checkpoint.safe, self._checkpoint.clean_end
        return max(safe.log if safe else 0, clean_end[0] if clean_end else 0)

    def _recovered(self, last_exit: Exit, begin: int, end: int, cut: int) -> Recovered:
        mended = self._mended
        return Recovered(
            last_exit, begin, end, self._records, cut, mended.parts, mended.bytes, mended.messages, mended.cut_bytes
        )

    def _known_end(self) -> int | None:
        """The end that was written down at exit, if the log bears it out: a whole record before it, zeros behind it."""
        if self._checkpoint.clean_end is None or not self._log.files:
            return None
        end, last = self._checkpoint.clean_end
        file = self._log.files[-1]
        position, limit = last - file.start, end - file.start
        if not 0 <= position < limit <= file.size or any(file.read(limit, BLANK_SIZE)):
            return None
        try:
            sound = check_at(file.view, position, limit) == limit - position
        except ProtocolError:
            return None
        self._remember(head_at(file.view, position, limit))
        self._records = 0
        return end if sound else None

    def _remember(self, head: RecordHead) -> None:
        self._records += 1
        if self.stuck is None:
            self._dispatcher.timestamp = head.store_timestamp
        self._log.last, self._log.last_timestamp = head.physical_offset, head.store_timestamp

    def _after_kill(self) -> Recovered:
        """Everything is there up to the moment of death: only what came after the last record that is in a queue may
        have to be entered, and a queue's last entry may be torn. Queues are looked at when a record leads to them."""
        ends = self._queues.claimed_ends()
        dispatched_end = max((end for end in ends.values() if end is not None), default=0)
        sure_end = self._sure_end
        index_from = self._drop_unsure_index()
        file = self._log.file_at(max(min(dispatched_end - 1, sure_end, index_from), self._log.start))
        begin = file.start if file is not None else self._log.start
        self._queues.settled_end = self._log.end
        end, _ = self._mend(begin, Exit.KILLED)  # while the queues still tell all they know
        self._cut_to_checksums(ends)
        self._scan(begin, end, dispatched_end)
        for queue, claimed in ends.items():
            if claimed is None or claimed > self._unsure:
                self._queues.find(*queue)  # so that it is synced with the rest
        return self._finish(Exit.KILLED, begin, end)

    @cached_property
    def _has_room(self) -> bool:
        return self._sums is not None and self._sums.has_room()

    @property
    def _sure_end(self) -> int:
        """From where on the log must be entered again, for no checksum vouches for the entries of what lies behind.

        On a full disk, too: a start that was killed may have dropped some of them.
        """
        if self._sums is None or not self._log.start <= self._sums.log_end <= self._log.end:
            return self._log.end
        return self._sums.log_end

    def _cut_to_checksums(self, ends: Mapping[QueueKey, int | None]) -> None:
        """Drop the entries that no checksum vouches for, if there is room to enter them again."""
        if self._sums is None or self._sure_end != self._sums.log_end or not self._has_room:
            return
        for (topic, queue_id), claimed in ends.items():
            if claimed is None or claimed > self._sums.log_end:
                queue = self._queues.find(topic, queue_id)
                known = self._sums.ends.get((topic, queue_id), 0)
                if queue is not None and known < queue.max_offset:
                    queue.cut(known)
                    queue.correct_min(self._log.start)

    def _drop_unsure_index(self) -> int:
        """Have the last index files filled again if little of the log lies behind them, for they have no checksums;
        return from where on that must be done."""
        if self._index is None:
            return self._log.end
        self._trust_index(self._index)  # `_index_from` does so too
        if not self._has_room or self._log.end - self._index.synced_offset > MAX_INDEXED_AGAIN_BYTES:
            return self._log.end
        return self._index_from(self._log.end)

    def _after_crash(self, last_exit: Exit) -> Recovered:
        """Read the log from a file on that was surely on disk, enter every record, cut at the first that is broken."""
        queues_from = self._unsure
        index_from = self._index_from(queues_from)
        file = self._log.file_at(min(queues_from, index_from))
        begin = file.start if file is not None else self._log.start
        if last_exit is Exit.DISK_FAILURE:
            self._log.write_again(begin)
        end, _ = self._mend(begin, last_exit)
        # What the checkpoint vouches for stays: after another power cut, only queues can tell what a damaged log held.
        safe = self._checkpoint.safe
        if safe is not None and queues_from <= safe.log <= end:
            queues_from = safe.log
        self._queues.cut_back(queues_from)
        return self._finish(last_exit, begin, self._scan(begin, end, queues_from))

    def _index_from(self, queues_from: int) -> int:
        """From where on the index must be filled again."""
        if self._index is None:
            return queues_from
        self._trust_index(self._index)
        indexed = self._index.drop_unsynced()
        safe = self._checkpoint.safe
        return max(safe.keyless, indexed) if safe else indexed

    def _trust_index(self, index: Index) -> None:
        safe = self._checkpoint.safe
        if safe:
            index.trust(safe.indexed, _ANY_TIME)
        else:
            index.trust(self._log.end, self._checkpoint.index_timestamp)

    def _finish(self, last_exit: Exit, begin: int, end: int) -> Recovered:
        if self._disagrees(begin, end):
            begin, end = self._log.start, self._rebuild_all(last_exit)
        cut = self._log.truncate(end)
        self._settle(end)
        return self._recovered(last_exit, begin, end, cut)

    def _first_unsure_file(self) -> int:
        """The start of the newest file that began before the checkpoint: everything before it is safe."""
        if self._queues.is_empty or not self._log.files:
            return self._log.start
        if self._checkpoint.safe:
            file = self._log.file_at(self._checkpoint.safe.log) or self._log.files[-1]
            return file.start if file.start <= self._checkpoint.safe.log else self._log.start
        safe = self._checkpoint.safe_timestamp
        for file in reversed(self._log.files):
            head = self._log.head_at(file.start)
            if head is not None and 0 < head.store_timestamp <= safe:
                return file.start
        return self._log.start

    def _scan(self, begin: int, end: int, queues_end: int) -> int:
        """Enter every record from `begin` to `end`, and return that. Queues lead nowhere behind it."""
        scanned = self._log.scan(begin, end, self._enter, verify=False)
        assert scanned == end, "what was mended has no damage"
        if end < queues_end:
            self._queues.cut_back(end)
        return end

    def _rebuild_all(self, last_exit: Exit) -> int:
        if self._index:
            self._index.drop_all()
        self._records, self.stuck = 0, None
        end, _ = self._mend(self._log.start, last_exit)
        self._queues.cut_back(self._log.start)
        return self._scan(self._log.start, end, self._log.start)

    def _enter(self, head: RecordHead) -> None:
        """Enter a record. On a full disk, look only for the end: what could not be entered waits in the log, for none
        may overtake it."""
        before = self._dispatcher.timestamp
        self._remember(head)
        if self.stuck is not None:
            return
        self._dispatcher.end = head.physical_offset
        try:
            self._dispatcher.dispatch_record(head)
        except OSError as error:
            if error.errno not in disk.NO_ROOM:
                raise
            self.stuck, self._dispatcher.timestamp = error, before

    def _disagrees(self, begin: int, end: int) -> bool:
        """Something derived was not as promised: entries are missing, or the index is ahead of the log."""
        missing = self._queues.fillers > 0 and begin > self._log.start
        return missing or (self._index is not None and self._index.last_offset >= end > 0)

    def _settle(self, end: int) -> None:
        """Bring everything onto the disk before anyone relies on it, and only then say so.

        What the dead process wrote before the last file may not be there yet either; what is there costs nothing.
        """
        self._queues.settle()
        self._queues.distrust(self._unsure)
        if self.stuck is None:
            self._dispatcher.end = end
        self._queues.settled_end = self._dispatcher.end
        self._log.sync()
        sync_queue_files(self._queues.take_dirty())
        self._checkpoint.log_timestamp = self._checkpoint.queues_timestamp = self._dispatcher.timestamp
        self._checkpoint.safe = safe_offsets(self._dispatcher.end, self._index)
        self._checkpoint.save_if_room()


def safe_offsets(end: int, index: Index | None) -> Safe:
    """What a checkpoint may say once log and queues are on disk up to `end`."""
    if index is None:
        return Safe(end, 0, 0)
    return Safe(end, index.synced_offset, end if index.is_empty else 0)
