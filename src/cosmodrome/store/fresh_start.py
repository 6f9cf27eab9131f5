"""Starting over on purpose after the commit log was lost: what spoke of it is moved aside, and nothing is deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cosmodrome.config import StoreConfig
from cosmodrome.errors import StoreError
from cosmodrome.mapped_file import sync_directory
from cosmodrome.store.deleted_topics import DELETED_TOPICS
from cosmodrome.store.derived import SUMS
from cosmodrome.store.epochs import LOG_EPOCHS
from cosmodrome.store.lock import StoreLock
from cosmodrome.store.lost_log import PROGRESS_FILES, has_log
from cosmodrome.store.paths import StorePaths, free_name
from cosmodrome.store.queue_floors import QUEUE_FLOORS
from cosmodrome.store.scrub import SCRUB_FILE

# Tables that speak of places in the log, or of offsets in its queues. Topics and groups stay.
_TABLES = (
    "timermetrics",
    "timercheck",
    "timeline.json",
    DELETED_TOPICS,
    LOG_EPOCHS,
    QUEUE_FLOORS,
    SCRUB_FILE,
    "consumerOrderInfo.json",
    *PROGRESS_FILES,
)


class Move(NamedTuple):
    source: Path
    target: Path

    def __str__(self) -> str:
        return f"rename {self.source} to {self.target.name}"


def plan_fresh_start(root: Path, config: StoreConfig | None = None) -> list[Move]:
    """Return what is to be moved aside; StoreError if the log is there."""
    paths = StorePaths.of(root, config)
    if not root.is_dir():
        raise StoreError(f"there is no folder {root}")
    if has_log(paths):
        raise StoreError(f"{paths.commit_log} holds a log; --accept-empty-log is for stores whose log is lost")
    return [Move(path, free_name(path)) for path in _remains(paths)]


def start_fresh(root: Path, config: StoreConfig | None = None) -> None:
    """Move aside what `plan_fresh_start` names. It may be interrupted and run again: what the start of a broker looks
    at goes last."""
    lock = StoreLock(StorePaths.of(root, config).lock)
    try:
        for move in plan_fresh_start(root, config):
            move.source.rename(move.target)
            sync_directory(move.source.parent)
    finally:
        lock.release()


def _remains(paths: StorePaths) -> Iterator[Path]:
    tables = [paths.config / f"{name}{suffix}" for name in _TABLES for suffix in ("", ".bak")]
    places = [paths.root / "timerwheel", paths.root / "timerlog", paths.root / SUMS, *tables]
    yield from filter(Path.exists, (*places, paths.index, paths.consume_queue, paths.checkpoint))
