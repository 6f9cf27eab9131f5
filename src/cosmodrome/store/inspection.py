"""What lies in a store folder: sizes, ranges, topics. It may be in use, and nothing in it is changed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from cosmodrome.store.log_walk import records_from
from cosmodrome.store.paths import StorePaths
from cosmodrome.store.skipped import read_skipped
from cosmodrome.store.survey import FoundFile, LogView, QueueView, Survey, survey
from cosmodrome.wire.record import RecordHead

MAX_TRIES = 3


@dataclass(frozen=True, slots=True)
class FileInfo:
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class LogInfo:
    """[start, end) is what the log holds; the times are those of its first and last record, 0 without any."""

    start: int
    end: int
    file_size: int
    files: list[FileInfo]
    first_store_timestamp: int
    last_store_timestamp: int


@dataclass(frozen=True, slots=True)
class QueueInfo:
    queue_id: int
    min_offset: int
    max_offset: int
    files: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """`messages` are those still in the log; the times are 0 when there are none."""

    topic: str
    messages: int
    first_store_timestamp: int
    last_store_timestamp: int
    queues: list[QueueInfo]


@dataclass(frozen=True, slots=True)
class IndexInfo:
    name: str
    size: int
    entries: int
    begin_timestamp: int
    end_timestamp: int
    begin_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    log_timestamp: int
    queues_timestamp: int
    index_timestamp: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """`clean` is False while a broker uses the store, and after one that died."""

    folder: Path
    clean: bool
    log: LogInfo
    checkpoint: CheckpointInfo | None
    queue_file_size: int
    queue_count: int
    topics: list[TopicInfo]
    index: list[IndexInfo]
    config: list[FileInfo]
    skipped: int  # records that its brokers could not use


def inspect(root: Path, paths: StorePaths | None = None) -> Inspection:
    """Look at the store in `root`, of which parts may lie elsewhere, as `paths` say."""
    for _ in range(MAX_TRIES - 1):
        try:
            return _inspect(root, paths)
        except FileNotFoundError:
            pass  # a broker cleaned up meanwhile
    return _inspect(root, paths)


def _inspect(root: Path, paths: StorePaths | None) -> Inspection:
    found = survey(root, paths)
    return Inspection(
        folder=root,
        clean=not found.aborted,
        log=_log_info(found),
        checkpoint=_checkpoint_info(found),
        queue_file_size=found.queue_file_size,
        queue_count=len(found.queues),
        topics=[_topic_info(topic, views, found.log) for topic, views in groupby(found.queues.values(), _topic_of)],
        index=[IndexInfo(f.path.name, f.size, f.entries, *f[2:6]) for f in found.index],
        config=[FileInfo(path.name, path.stat().st_size) for path in _config_files(root / "config")],
        skipped=_skipped_count(root / "config"),
    )


def _topic_of(view: QueueView) -> str:
    return view.topic


def _config_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []


def _skipped_count(folder: Path) -> int:
    try:
        return max((record.number for record in read_skipped(folder)), default=0)
    except OSError:
        return 0


def _checkpoint_info(found: Survey) -> CheckpointInfo | None:
    checkpoint = found.checkpoint
    if checkpoint is None:
        return None
    return CheckpointInfo(checkpoint.log_timestamp, checkpoint.queues_timestamp, checkpoint.index_timestamp)


def _log_info(found: Survey) -> LogInfo:
    log = found.log
    end, last = _log_end(log, found.queues.values())
    first = next(records_from(log, log.start), None)
    return LogInfo(
        log.start,
        end,
        log.file_size,
        [FileInfo(file.path.name, file.size) for file in log.files],
        first.store_timestamp if first else 0,
        last.store_timestamp if last else 0,
    )


def _log_end(log: LogView, queues: Iterable[QueueView]) -> tuple[int, RecordHead | None]:
    """Where the log ends, and its last record. Found from the newest record that a queue knows, if any does."""
    begin = max((file.start for file in log.files if _is_used(log, file)), default=log.start)
    for queue in queues:
        entry = queue.entry(queue.max_offset - 1)
        if entry is not None and entry[0] > begin and log.head_at(entry[0]) is not None:
            begin = entry[0]
    ended = deque(records_from(log, begin), maxlen=1)
    return (ended[0].physical_offset + ended[0].size, ended[0]) if ended else (begin, None)


def _is_used(log: LogView, file: FoundFile) -> bool:
    """Whether anything begins in it: the next file is made before it is needed."""
    return any(log.view(file)[:8])


def _topic_info(topic: str, views: Iterable[QueueView], log: LogView) -> TopicInfo:
    queues = []
    times: list[int] = []
    for view in views:
        max_offset = view.max_offset
        min_offset = view.min_offset(log.start, max_offset)
        queues.append(QueueInfo(view.queue_id, min_offset, max_offset, len(view.files)))
        times += [_store_time(view, log, offset) for offset in (min_offset, max_offset - 1) if offset >= min_offset]
    known = [time for time in times if time > 0]
    messages = sum(queue.max_offset - queue.min_offset for queue in queues)
    return TopicInfo(topic, messages, min(known, default=0), max(known, default=0), queues)


def _store_time(view: QueueView, log: LogView, queue_offset: int) -> int:
    entry = view.entry(queue_offset)
    head = log.head_at(entry[0]) if entry is not None else None
    return head.store_timestamp if head is not None else 0
