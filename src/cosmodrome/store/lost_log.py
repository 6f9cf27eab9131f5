"""The guard at a store's start: does the commit log reach as far as everything else says?

An unmounted disk, an empty mount and a wrong path look like a new store. Opened as one, the queues that are there
would be emptied, delivered messages would be delivered again, and consumers would stand behind the end of the new log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cosmodrome import disk
from cosmodrome.errors import ProtocolError, StoreError
from cosmodrome.mapped_file import file_start, log_file_names
from cosmodrome.numbers import parse_int
from cosmodrome.store.checkpoint import Checkpoint
from cosmodrome.store.consume_queues import claimed_ends
from cosmodrome.store.index_file import HEADER
from cosmodrome.store.lock import AbortMark, Exit
from cosmodrome.store.paths import StorePaths
from cosmodrome.wire import fastjson

# What only a broker that stored messages writes; topics, groups and other settings may be prepared by hand.
PROGRESS_FILES = ("consumerOffset.json", "delayOffset.json")
_MOUNT = "Nothing was changed. If it lies on another disk, mount that; if it lies elsewhere, set storePathCommitLog"


class _Log(NamedTuple):
    """The range of a log, from the names and sizes of its files."""

    files: int
    start: int
    end: int


def check_log(paths: StorePaths) -> None:
    """Raise StoreError if the log is gone, or is not the one that queues and checkpoint speak of. Change nothing."""
    log = _look(paths.commit_log)
    checkpoint = Checkpoint(paths.checkpoint)
    if not log.files:
        proof = next(_proofs(paths, checkpoint), None)
        if proof is not None:
            raise StoreError(
                f"the commit log is gone: {paths.commit_log} {_what_is_there(paths.commit_log)}, but {proof}. "
                f"{_MOUNT}. To start over without its messages: {_repair(paths, '--accept-empty-log')}"
            )
        return
    _check_range(paths, log, checkpoint)


def has_log(paths: StorePaths) -> bool:
    """Return whether the log has a file that is not empty."""
    return _look(paths.commit_log).files > 0


def _look(folder: Path) -> _Log:
    names = [name for name in log_file_names(folder) if (folder / name).stat().st_size]
    if not names:
        return _Log(0, 0, 0)
    return _Log(len(names), file_start(names[0]), file_start(names[-1]) + (folder / names[-1]).stat().st_size)


def _what_is_there(folder: Path) -> str:
    return "has no log files" if folder.is_dir() else "does not exist"


# --- a log that is gone


def _proofs(paths: StorePaths, checkpoint: Checkpoint) -> Iterator[str]:
    """Yield each proof that there was a log, in words; the first will do."""
    if checkpoint.safe is not None and checkpoint.safe.log > 0:
        yield f"{paths.checkpoint} says that it reached {checkpoint.safe.log}"
    elif checkpoint.log_timestamp > 0:
        yield f"{paths.checkpoint} says that it had messages"
    for (topic, queue_id), end in claimed_ends(paths.consume_queue):
        if end is not None:
            yield f"queue {queue_id} of {topic} in {paths.consume_queue} leads to offset {end} of it"
    yield from (f"{path} has keys of its messages" for path in _filled_index_files(paths.index))
    if checkpoint.safe is None:  # else it says that the log was empty, and the offsets are somebody's wish
        yield from (f"{path} says how far messages were delivered" for path in _progress(paths.config))


def _filled_index_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file() and parse_int(path.name) is not None:
            with os.fdopen(disk.open_file(path, os.O_RDONLY), "rb") as file:
                header = file.read(HEADER.size).ljust(HEADER.size, b"\0")
            if HEADER.unpack(header)[3] > 0:
                yield path


def _progress(folder: Path) -> Iterator[Path]:
    for name in PROGRESS_FILES:
        for path in (folder / name, folder / f"{name}.bak"):
            try:
                table = fastjson.loads(path.read_bytes())
            except (OSError, ValueError, ProtocolError):
                continue  # what cannot be read is for its owner to refuse
            if isinstance(table, dict) and _is_past_zero(table.get("offsetTable")):
                yield path
                break


def _is_past_zero(table: object) -> bool:
    """Return whether any offset of `{"topic@group": {"0": 7}}` or `{"1": 7}` is above 0."""
    if not isinstance(table, dict):
        return False
    values = [value for row in table.values() for value in (row.values() if isinstance(row, dict) else (row,))]
    return any(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in values)


# --- a log that is another one


def _check_range(paths: StorePaths, log: _Log, checkpoint: Checkpoint) -> None:
    """Files are made at their full size and synced before use, so the last one ends behind everything ever written."""
    if checkpoint.safe is not None and checkpoint.safe.log > log.end:
        raise _too_short(paths, log, f"{paths.checkpoint} says that it reached {checkpoint.safe.log}")
    clean_end = checkpoint.clean_end
    exit_was_clean = AbortMark(paths.abort).last_exit() is Exit.CLEAN
    if exit_was_clean and clean_end is not None and clean_end[0] < log.start:
        raise StoreError(
            f"the commit log in {paths.commit_log} begins at {log.start}, but {paths.checkpoint} says that it ended at "
            f"{clean_end[0]} when its broker stopped: it is another log. {_MOUNT}. To keep this log and build the "
            f"queues from it: {_repair(paths, '--rebuild')}"
        )
    if exit_was_clean and clean_end is None:
        _check_queues(paths, log)


def _check_queues(paths: StorePaths, log: _Log) -> None:
    """Ask the queues if no offset of the checkpoint counts, as after Apache's brokers. One may be damaged; most of
    them are not."""
    ends = [end for _, end in claimed_ends(paths.consume_queue) if end is not None]
    beyond = [end for end in ends if end > log.end]
    if len(beyond) * 2 > len(ends):
        raise _too_short(paths, log, f"{len(beyond)} of {len(ends)} queues lead behind that, up to {max(beyond)}")


def _too_short(paths: StorePaths, log: _Log, proof: str) -> StoreError:
    return StoreError(
        f"the commit log in {paths.commit_log} ends at {log.end} or before, but {proof}: a part of it is missing, or "
        f"it is another log. {_MOUNT}. To go on with what is there: {_repair(paths, '--rebuild')}"
    )


def _repair(paths: StorePaths, option: str) -> str:
    """Return the command that accepts the loss; it needs the broker's config if that places the log elsewhere."""
    config = "" if paths.commit_log.parent == paths.root else "-c broker.conf "
    return f"cosmodrome store repair {paths.root} {config}{option} --write"
