"""Cutting the end off a store that is in use: the log, and what was derived from it."""

from __future__ import annotations

import logging
from collections import deque

from cosmodrome.store.checkpoint import Checkpoint, Safe
from cosmodrome.store.commit_log import CommitLog
from cosmodrome.store.consume_queues import ConsumeQueues, sync_queue_files
from cosmodrome.store.dispatcher import Dispatcher
from cosmodrome.store.index_file import Index, sync_index_files
from cosmodrome.store.mending import copy_aside
from cosmodrome.store.paths import aside_folder

log = logging.getLogger(__name__)


def record_boundary(commit_log: CommitLog, end: int) -> int:
    """Return `end` if a record ends there, else where the one before ends."""
    file = commit_log.file_at(end)
    if file is None or end == file.start or commit_log.head_at(end) is not None or commit_log.is_blank_at(end):
        return end
    ends = deque([file.start], maxlen=1)
    commit_log.scan(file.start, end, lambda head: ends.append(head.physical_offset + head.size), verify=False)
    return ends[0]


def keep_aside(commit_log: CommitLog, end: int) -> None:
    """Copy what is cut from the file that stays; the files behind it are moved aside as they are."""
    file = commit_log.file_at(end)
    if file is not None and file.start + file.position > end:
        position = end - file.start
        if position or file is commit_log.files[0]:
            copy_aside(aside_folder(commit_log.directory), file.view[position : file.position], end)


def promise_less(checkpoint: Checkpoint, commit_log: CommitLog, end: int) -> None:
    """Have the checkpoint speak of nothing behind `end`. Before the log is cut: a start takes what it promises and does
    not find for damage."""
    file = commit_log.file_at(end) or commit_log.files[-1]
    head = commit_log.head_at(file.start)
    time_ms = head.store_timestamp if head is not None and file.start < end else 0
    checkpoint.log_timestamp = min(checkpoint.log_timestamp, time_ms)
    checkpoint.queues_timestamp = min(checkpoint.queues_timestamp, time_ms)
    checkpoint.index_timestamp = min(checkpoint.index_timestamp, time_ms)
    checkpoint.clean_end = None
    if checkpoint.safe is not None:
        safe = checkpoint.safe
        checkpoint.safe = Safe(min(safe.log, end), min(safe.indexed, max(end - 1, 0)), min(safe.keyless, end))
    checkpoint.save()


def cut_derived(
    commit_log: CommitLog, queues: ConsumeQueues, index: Index | None, dispatcher: Dispatcher, end: int
) -> None:
    """Drop what queues and index say of the log behind `end`, which is cut already. On disk when this returns."""
    queues.cut_to(end)
    sync_queue_files(queues.take_dirty())
    if index is not None:
        sync_index_files(index.cut(end, lambda offset: _time_at(commit_log, offset)))
    dispatcher.cut(end)


def _time_at(commit_log: CommitLog, offset: int) -> int:
    head = commit_log.head_at(offset)
    return head.store_timestamp if head is not None else 0
