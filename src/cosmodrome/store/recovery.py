"""Opening a store: where its log ends, and that queues and index say what the log says."""

from __future__ import annotations

from typing import NamedTuple

from cosmodrome.errors import ProtocolError
from cosmodrome.store.checkpoint import Checkpoint
from cosmodrome.store.commit_log import BLANK_SIZE, CommitLog
from cosmodrome.store.consume_queue import ConsumeQueues, sync_queue_files
from cosmodrome.store.dispatcher import Dispatcher
from cosmodrome.store.flusher import sync_files
from cosmodrome.store.index_file import Index
from cosmodrome.store.lock import Exit
from cosmodrome.wire.record import RecordHead, check_at, head_at


class Recovered(NamedTuple):
    """What opening found. `scanned_from` is the log's end when nothing had to be read."""

    last_exit: Exit
    scanned_from: int
    end: int
    records: int
    cut_bytes: int

    def __str__(self) -> str:
        return (
            f"after a {self.last_exit} the log ends at {self.end}: {self.records} records were read from "
            f"{self.scanned_from} on, {self.cut_bytes} bytes behind the last whole one were cut"
        )


class Recovery:
    """After it, and only after it, every part of the store agrees with the log."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        checkpoint: Checkpoint,
        dispatcher: Dispatcher,
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._dispatcher = dispatcher
        self._records = 0

    def run(self, last_exit: Exit) -> Recovered:
        if not self._log.files:
            self._forget_all()
        elif self._queues.is_empty:
            last_exit = Exit.CRASH  # someone removed the queues so that they are built anew
        if last_exit is Exit.CLEAN:
            return self._after_clean_exit()
        return self._after_kill() if last_exit is Exit.KILLED else self._after_crash()

    def _forget_all(self) -> None:
        """Without a log, nothing that was derived from it means anything."""
        for topic in self._queues.topics():
            self._queues.delete_topic(topic)
        if self._index:
            self._index.drop_all()

    def _after_clean_exit(self) -> Recovered:
        """The last broker synced and dispatched everything; only the end of the log must be found."""
        known_end = self._known_end()
        begin = self._log.files[-2:][0].start if self._log.files and known_end is None else known_end or 0
        end = self._log.scan(begin, self._log.end, self._remember, verify=True)
        cut = self._log.truncate(end)
        self._dispatcher.end = end
        return Recovered(Exit.CLEAN, begin, end, self._records, cut)

    def _known_end(self) -> int | None:
        """The end that was written down at exit, if the log bears it out: a whole record before it, zeros behind it."""
        if self._checkpoint.clean_end is None or not self._log.files:
            return None
        end, last = self._checkpoint.clean_end
        file = self._log.files[-1]
        position, limit = last - file.start, end - file.start
        if not 0 <= position < limit <= file.size or any(file.view[limit : limit + BLANK_SIZE]):
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
        self._dispatcher.timestamp = head.store_timestamp
        self._log.last, self._log.last_timestamp = head.physical_offset, head.store_timestamp

    def _after_kill(self) -> Recovered:
        """Everything is there up to the moment of death: only the last file that was dispatched from is unsure."""
        file = self._log.file_at(max(self._queues.dispatched_end() - 1, self._log.start))
        begin = file.start if file is not None else self._log.start
        return self._enter_all(Exit.KILLED, begin, begin)

    def _after_crash(self) -> Recovered:
        """Read the log from a file on that was surely on disk, enter every record, cut at the first that is broken."""
        queues_from = self._first_unsure_file()
        index_from = self._index_from(queues_from)
        file = self._log.file_at(min(queues_from, index_from))
        begin = file.start if file is not None else self._log.start
        return self._enter_all(Exit.CRASH, begin, queues_from)

    def _index_from(self, queues_from: int) -> int:
        """From where on the index must be filled again."""
        if self._index is None or (self._index.is_empty and not self._checkpoint.index_timestamp):
            return queues_from
        return self._index.drop_unfinished(self._checkpoint.index_timestamp)

    def _enter_all(self, last_exit: Exit, begin: int, queues_from: int) -> Recovered:
        end = self._rebuild(begin, queues_from)
        if self._disagrees(begin, end):
            begin, end = self._log.start, self._rebuild_all()
        cut = self._log.truncate(end)
        self._settle(begin, end)
        return Recovered(last_exit, begin, end, self._records, cut)

    def _first_unsure_file(self) -> int:
        """The start of the newest file that began before the checkpoint: everything before it is safe."""
        if self._queues.is_empty:
            return self._log.start
        safe = self._checkpoint.safe_timestamp
        for file in reversed(self._log.files):
            head = self._log.head_at(file.start)
            if head is not None and 0 < head.store_timestamp <= safe:
                return file.start
        return self._log.start

    def _rebuild(self, begin: int, queues_from: int) -> int:
        self._queues.cut_back(queues_from)
        end = self._log.scan(begin, self._log.end, self._enter, verify=True)
        if end < queues_from:
            self._queues.cut_back(end)
        return end

    def _rebuild_all(self) -> int:
        if self._index:
            self._index.drop_all()
        self._records = 0
        return self._rebuild(self._log.start, self._log.start)

    def _enter(self, head: RecordHead) -> None:
        self._remember(head)
        self._dispatcher.dispatch_record(head)

    def _disagrees(self, begin: int, end: int) -> bool:
        """Something derived was not as promised: entries are missing, or the index is ahead of the log."""
        missing = self._queues.fillers > 0 and begin > self._log.start
        return missing or (self._index is not None and self._index.last_offset >= end > 0)

    def _settle(self, begin: int, end: int) -> None:
        """Bring everything onto the disk before anyone relies on it, and only then say so."""
        self._queues.settle()
        self._dispatcher.end = end
        sync_files(self._log.files_between(begin, end))
        sync_queue_files(self._queues.take_dirty())
        self._checkpoint.log_timestamp = self._checkpoint.queues_timestamp = self._dispatcher.timestamp
        self._checkpoint.save()
