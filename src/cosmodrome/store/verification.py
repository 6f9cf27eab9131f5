"""Whether everything in a store folder is whole and agrees with everything else."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from cosmodrome import disk, state_file
from cosmodrome.errors import ProtocolError, StoreError
from cosmodrome.store.consume_queue import ENTRY_SIZE, FILLER_SIZE
from cosmodrome.store.deleted_topics import DELETED_TOPICS, parse_deleted
from cosmodrome.store.derived import SUMS, DerivedFiles, Shape, Sums
from cosmodrome.store.epochs import LOG_EPOCHS
from cosmodrome.store.evidence import Evidence
from cosmodrome.store.expected import Expected
from cosmodrome.store.findings import Area, Findings, Problem, counted
from cosmodrome.store.index_check import IndexCheck
from cosmodrome.store.index_shape import DEFAULT_SHAPE, IndexShape
from cosmodrome.store.lock import AbortMark
from cosmodrome.store.log_walk import Damage, Proof, Tail, walk
from cosmodrome.store.mending import is_void
from cosmodrome.store.paths import StorePaths
from cosmodrome.store.queue_check import QueueCheck
from cosmodrome.store.queue_floors import QUEUE_FLOORS
from cosmodrome.store.skipped import read_skipped
from cosmodrome.store.survey import LIGHT_QUEUE_PREFIX, FoundFile, Survey, survey
from cosmodrome.store.timer_check import check_timers
from cosmodrome.wire import fastjson
from cosmodrome.wire.record import RecordHead

MAX_DAMAGES = 100  # kept of those found; all are counted
_MAX_NAMED = 5  # files of a note
_PROGRESS_RECORDS = 4096
_NO_TAIL = Tail(0, 0, "", holds_records=False)
# Tables that a broker reads when it starts, and does without if it must. Of other files there, nothing is known.
_TABLES = frozenset(
    {
        "topics.json",
        "brokerRole.json",
        DELETED_TOPICS,
        LOG_EPOCHS,
        "subscriptionGroup.json",
        "consumerOffset.json",
        "consumerFilter.json",
        "consumerOrderInfo.json",
        "delayOffset.json",
        "messageRequestMode.json",
        QUEUE_FLOORS,
        "scrub.json",
        "timeline.json",
        "topicQueueMapping.json",
        "timermetrics",
        "transactionMetrics",
    }
)

# Looked at in a way of their own.
_OTHER_CONFIG = frozenset({"timercheck", "skippedRecords"})
_PARTS = frozenset({"config", "timerlog", "timerwheel", "lock", "abort", "batchconsumequeue", SUMS})

Progress = Callable[[int, int], None]  # bytes of the log done, bytes to do


@dataclass(frozen=True, slots=True)
class Verification:
    """What was walked and what is wrong with it. `damages` are the parts of the log that hold no sound record."""

    folder: Path
    log_start: int
    log_end: int
    records: int
    topics: int
    queues: int
    index_files: int
    index_entries: int
    problem_count: int
    problems: list[Problem]
    notes: list[str]
    counts: dict[Area, int]
    damage_count: int
    damages: list[Damage]
    tail: Tail
    index_shape: IndexShape | None

    @property
    def is_sound(self) -> bool:
        return self.problem_count == 0


@contextmanager
def quiet(root: Path, paths: StorePaths | None = None) -> Iterator[None]:
    """Keep brokers out of the folder while it is looked at; StoreError if one is in.

    A shared lock: those who only look don't keep each other out, and it needs no right to write. A folder without a
    lock file was never used, or copied from elsewhere; there is nobody to keep out.
    """
    with ExitStack() as held:
        if (root / "lock").is_file():
            lock = held.enter_context(os.fdopen(disk.open_file(root / "lock", os.O_RDONLY), "rb"))
            try:
                fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
            except (BlockingIOError, PermissionError) as error:
                raise _in_use(root) from error
        for folder in filter(Path.is_dir, paths.outside if paths else ()):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            held.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise _in_use(folder) from error
        yield


def _in_use(folder: Path) -> StoreError:
    return StoreError(f"{folder} is in use by a broker; stop it first (inspect works on a store in use)")


def no_progress(done: int, total: int) -> None:
    """For those who do not want to see any."""


def verify(root: Path, progress: Progress = no_progress, paths: StorePaths | None = None) -> Verification:
    """Walk everything. The store must be `quiet`; nothing in it is changed."""
    return _Verifier(survey(root, paths), progress).run()


@dataclass(slots=True)
class _Walked:
    """What the walk over the log came upon."""

    records: int = 0
    last_timestamp: int = 0
    damage_count: int = 0
    damages: list[Damage] = field(default_factory=list)
    tail: Tail = _NO_TAIL


class _Verifier:
    def __init__(self, found: Survey, progress: Progress) -> None:
        self._found = found
        self._progress = progress
        self._findings = Findings()
        self._expected = Expected(deleted_topics(found.root))
        self._walked = _Walked()
        # A broker that died may have left the end of the log undispatched; one that left in order has not.
        entered_end = _entered_end(found) if found.aborted else sys.maxsize
        self._queues = QueueCheck(found.own_queues, found.log, saved_topics(found.root), entered_end, self._findings)
        self._index = IndexCheck(found.index, found.log, found.maps, found.aborted, self._findings)

    def run(self) -> Verification:
        if self._found.aborted:
            self._findings.note("the last broker did not leave in order: the next to start will look at the log's end")
        self._note_unseen()
        self._check_files()
        self._walk_log()
        end = self._walked.tail.begin
        self._queues.finish(end)
        self._index.finish(end)
        check_timers(self._found, self._findings)
        self._check_checkpoint()
        self._check_sums()
        self._check_config()
        return self._result()

    def _result(self) -> Verification:
        found, findings, walked = self._found, self._findings, self._walked
        return Verification(
            folder=found.root,
            log_start=found.log.start,
            log_end=walked.tail.begin,
            records=walked.records,
            topics=len({topic for topic, _ in found.queues}),
            queues=len(found.queues),
            index_files=len(found.index),
            index_entries=sum(file.entries for file in found.index),
            problem_count=findings.counts.total(),
            problems=findings.listed,
            notes=findings.notes,
            counts=dict(findings.counts),
            damage_count=walked.damage_count,
            damages=walked.damages,
            tail=walked.tail,
            index_shape=self._index.shape,
        )

    # Files

    def _note_unseen(self) -> None:
        """What lies there, harms nobody and is not looked at."""
        found, note = self._found, self._findings.note
        if passed_over := [*found.passed_over, *self._strangers()]:
            names = ", ".join(map(self._name, passed_over[:_MAX_NAMED]))
            more = f" and {rest} more" if (rest := len(passed_over) - _MAX_NAMED) > 0 else ""
            note(f"not looked at, and brokers do not either: {names}{more}")
        if found.in_rocksdb:
            note("the queues are kept in RocksDB, and were not looked at")
        if found.batch_topics:
            note(f"the queues of {counted(len(found.batch_topics), 'topic')} are batch queues, and were not looked at")
        if found.light_queues:
            queues = counted(found.light_queues, "queue")
            note(f"{queues} of light topics ({LIGHT_QUEUE_PREFIX}…) not looked at")

    def _strangers(self) -> Iterator[Path]:
        """What lies in the root and under `config`, and is no part of the store: Apache's own, or a person's."""
        paths, root = self._found.paths, self._found.root
        parts = {paths.commit_log, paths.consume_queue, paths.index, paths.checkpoint, paths.abort}
        yield from (path for path in sorted(root.iterdir()) if path not in parts and path.name not in _PARTS)
        for path in sorted(paths.config.iterdir()) if paths.config.is_dir() else ():
            name = path.name.removesuffix(".bak")
            if not path.is_file() or (name not in _TABLES and name.partition(".")[0] not in _OTHER_CONFIG):
                yield path

    def _check_files(self) -> None:
        found = self._found
        for stray in found.strays:
            self._findings.add(Area.FILES, self._name(stray), "it does not belong here; move it out of the store")
        self._check_chain(found.log.files, found.log.file_size)
        for queue in found.queues.values():
            self._check_chain(queue.files, found.queue_file_size)
        if found.queue_file_size % ENTRY_SIZE:
            what = f"files of {found.queue_file_size} bytes, which is no multiple of {ENTRY_SIZE}"
            self._findings.add(Area.FILES, "consumequeue", what)

    def _check_chain(self, files: Sequence[FoundFile], size: int) -> None:
        """One size, names that are multiples of it, and no file missing between two others."""
        for number, file in enumerate(files, 1):
            if file.size == 0 and number == len(files):
                self._findings.note(f"{self._name(file.path)} is empty: a crash left it; the next start removes it")
            elif file.size != size:
                what = f"it has {file.size} bytes, the others have {size}"
                self._findings.add(Area.FILES, self._name(file.path), what)
            if size and file.start % size:
                self._findings.add(Area.FILES, self._name(file.path), f"its name is no multiple of {size}")
        for before, after in pairwise(files):
            if after.start - before.start > size:
                where = f"between {self._name(before.path)} and {after.path.name}"
                self._findings.add(Area.FILES, where, "a file is missing")

    def _name(self, path: Path) -> str:
        return self._found.paths.name(path)

    # The log

    def _walk_log(self) -> None:
        log, walked = self._found.log, self._walked
        total = log.files_end - log.start
        for found in walk(log, 0, proof=proof_of(self._found)):
            if isinstance(found, RecordHead):
                self._see_record(found)
                if walked.records % _PROGRESS_RECORDS == 0:
                    self._progress(found.physical_offset - log.start, total)
            elif isinstance(found, Damage):
                self._see_damage(found)
            else:
                walked.tail = found
        self._progress(total, total)
        self._check_tail(walked.tail)

    def _see_record(self, head: RecordHead) -> None:
        self._walked.records += 1
        if is_void(head):
            self._index.forgive(head.physical_offset, head.physical_offset + head.size)
        self._walked.last_timestamp = max(self._walked.last_timestamp, head.store_timestamp)
        entry, keys = self._expected.traces(head)
        if keys:
            self._index.expect(head.physical_offset, len(keys))
        if entry is not None and not self._found.has_other_queues(head.topic):
            self._queues.expect(head, entry)

    def _see_damage(self, damage: Damage) -> None:
        self._walked.damage_count += 1
        if len(self._walked.damages) < MAX_DAMAGES:
            self._walked.damages.append(damage)
        where = f"offset {damage.begin}, {counted(damage.end - damage.begin, 'byte')}"
        self._findings.add(Area.LOG, where, damage.reason)

    def _check_tail(self, tail: Tail) -> None:
        clean_end = self._clean_end()
        if clean_end is not None and clean_end != tail.begin:
            what = f"the log ended at {clean_end} when its broker stopped; now it ends here: {tail.reason}"
            self._findings.add(Area.LOG, f"offset {tail.begin}", what)
        elif tail.end > tail.begin:
            size = counted(tail.end - tail.begin, "byte")
            what = f"{size} behind the last whole record, up to the last that is not zero: {tail.reason}"
            if self._found.aborted or clean_end is not None:
                self._findings.add(Area.LOG, f"offset {tail.begin}", what)
            else:  # Apache leaves what it cut off
                self._findings.note(f"offset {tail.begin} of the log: {what}")

    def _clean_end(self) -> int | None:
        checkpoint = self._found.checkpoint
        if checkpoint is None or checkpoint.clean_end is None or self._found.aborted:
            return None
        return checkpoint.clean_end[0]

    # Small files

    def _check_checkpoint(self) -> None:
        checkpoint, newest = self._found.checkpoint, self._walked.last_timestamp
        if checkpoint is not None and checkpoint.damage:
            self._findings.add(Area.CHECKPOINT, "checkpoint", checkpoint.damage)
        if checkpoint is None or not self._walked.records:
            return
        end = self._walked.tail.begin
        if checkpoint.safe is not None and checkpoint.safe.log > end:
            what = f"it says the log is safe up to {checkpoint.safe.log}, but it ends at {end}"
            self._findings.add(Area.CHECKPOINT, "checkpoint", what)
        times = {
            "log": checkpoint.log_timestamp,
            "queues": checkpoint.queues_timestamp,
            "index": checkpoint.index_timestamp,
        }
        for part, timestamp in times.items():
            if timestamp > newest:
                what = f"it says the {part} are safe up to {timestamp}, but the newest record is of {newest}"
                self._findings.add(Area.CHECKPOINT, "checkpoint", what)

    def _check_sums(self) -> None:
        path = self._found.root / SUMS
        if path.is_file() and (what := Sums.damage(path)):
            self._findings.add(Area.CHECKPOINT, SUMS, f"{what}; the next clean stop writes it again")
            return
        self._check_changes()

    def _check_changes(self) -> None:
        """Name files that are not what they were at a clean stop, where nothing else tells that an entry is wrong: a
        delivery time, or a tag hash that could be a place among the filters of Apache's."""
        found, told = self._found, set(self._findings.counts)
        shape = Shape(found.queue_file_size, *(self._index.shape or DEFAULT_SHAPE))
        files = DerivedFiles(found.paths, shape, AbortMark(found.paths.abort).last_exit(), has_index=bool(found.index))
        for path in files.changed_since_stop():
            area = Area.INDEX if path.parent == found.paths.index else Area.QUEUES
            if area not in told:
                what = "it is not what it was at the last clean stop; the next start builds it again"
                self._findings.add(area, self._name(path), what)

    def _check_config(self) -> None:
        folder = self._found.root / "config"
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            name = path.name.removesuffix(".bak")
            if name in _TABLES and path.is_file():
                self._check_table(path)
        if (count := max((record.number for record in read_skipped(folder)), default=0)) > 0:
            self._findings.note(f"{count:,} records were left out by services; `cosmodrome store skipped` lists them")

    def _check_table(self, path: Path) -> None:
        try:
            read_table(path)
        except (ProtocolError, StoreError, ValueError) as error:
            hint = ""
            if path.suffix != ".bak" and _is_readable(path.with_name(path.name + ".bak")):
                hint = "; its .bak can be read, and a broker would take that"
            self._findings.add(Area.CONFIG, self._name(path), f"it cannot be read: {error}{hint}")


def proof_of(found: Survey) -> Proof:
    """What queues and checkpoint say about a log. Entries may be missing if the last broker died."""
    checkpoint, safe_end = found.checkpoint, 0
    if checkpoint is not None:
        safe_end = max(checkpoint.safe.log if checkpoint.safe else 0, (checkpoint.clean_end or (0,))[0])
    queues, is_ours = Evidence(found.own_queues), AbortMark(found.paths.abort).is_ours
    return Proof(queues, _believable(found, safe_end), not found.aborted, is_ours, deleted_topics(found.root))


def claimed_end(found: Survey) -> int:
    """How far the log reaches, as the queues and a checkpoint of a clean exit say; 0 if none of them speaks."""
    checkpoint = found.checkpoint
    if checkpoint is None or checkpoint.clean_end is None or found.aborted:
        return _entered_end(found)
    return max(_entered_end(found), _believable(found, checkpoint.clean_end[0]))


def _entered_end(found: Survey) -> int:
    """Where the last record that is in a queue ends; 0 if none is."""
    ends = [0]
    for queue in found.own_queues.values():
        entry = queue.entry(queue.max_offset - 1)
        if entry is not None and entry[1] != FILLER_SIZE:
            ends.append(_believable(found, entry[0] + entry[1]))
    return max(ends)


def _believable(found: Survey, end: int) -> int:
    """What is below the log speaks of records long gone; what is behind its files is damaged itself."""
    return end if found.log.start < end <= found.log.files_end else 0


def read_table(path: Path) -> dict[str, Any]:
    """A config file; empty ones count as empty tables, for Apache leaves such when it is killed."""
    data = state_file.unsealed(path.read_bytes())
    table = fastjson.loads(data) if data.strip() else {}
    if not isinstance(table, dict):
        raise ProtocolError("it is no JSON object")
    return table


def _is_readable(path: Path) -> bool:
    try:
        return bool(read_table(path))
    except (OSError, ProtocolError, StoreError, ValueError):
        return False


def deleted_topics(root: Path) -> dict[str, int]:
    """By topic, up to where in the log its records are deleted, as far as that can be read."""
    try:
        return parse_deleted(state_file.unsealed((root / "config" / DELETED_TOPICS).read_bytes()))
    except (OSError, StoreError, ValueError, KeyError, AttributeError):
        return {}


def saved_topics(root: Path) -> frozenset[str] | None:
    """The topics of the broker's table; None when it is missing or cannot be read."""
    try:
        table = read_table(root / "config" / "topics.json").get("topicConfigTable")
    except (OSError, ProtocolError, StoreError, ValueError):
        return None
    return frozenset(map(str, table)) if isinstance(table, dict) else None
