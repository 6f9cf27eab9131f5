"""Making a damaged store whole again: what the log holds is kept, and everything derived from it is built anew.

Nothing is deleted. What is replaced or cut goes to folders beside the store's own, whose names end in `.bad`; no
broker looks there. Wherever a repair is interrupted, running it again finishes it, and so does starting a broker: the
folder is marked as left by a crash, with nothing known to be safe, until all is done.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from cosmodrome import disk
from cosmodrome.clock import Clock
from cosmodrome.config import StoreConfig
from cosmodrome.errors import StoreError
from cosmodrome.mapped_file import sync_directory, sync_path
from cosmodrome.state_file import make_folder
from cosmodrome.store.checkpoint import Checkpoint
from cosmodrome.store.consume_queue import ENTRY_SIZE
from cosmodrome.store.derived import SUMS
from cosmodrome.store.evidence import Claim
from cosmodrome.store.expected import Expected
from cosmodrome.store.findings import Area, Findings, counted
from cosmodrome.store.index_shape import DEFAULT_SHAPE, IndexShape, find_shape
from cosmodrome.store.lock import AbortMark, StoreLock
from cosmodrome.store.log_walk import Damage, Proof, Seen, Tail, walk
from cosmodrome.store.mending import by_file, claims_in, copy_aside, void
from cosmodrome.store.message_store import MessageStore
from cosmodrome.store.paths import StorePaths, aside_folder, free_name
from cosmodrome.store.survey import (
    LIGHT_QUEUE_PREFIX,
    FoundFile,
    LogView,
    Maps,
    QueueKey,
    QueueView,
    Survey,
    agreed_size,
    list_index_files,
    list_log_files,
    survey,
)
from cosmodrome.store.timer_check import check_timers
from cosmodrome.store.timer_checkpoint import TimerCheckpoint
from cosmodrome.store.verification import (
    Progress,
    Verification,
    deleted_topics,
    no_progress,
    proof_of,
    quiet,
    verify,
)
from cosmodrome.wire.record import RecordHead

# What is derived from the log, or speaks about it; config tables are not.
_REBUILT = (Area.FILES, Area.LOG, Area.QUEUES, Area.INDEX, Area.TIMERS, Area.CHECKPOINT)


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What a repair would do. `obstacles` are what it cannot mend and what keeps it from mending the rest."""

    verification: Verification
    steps: list[str]
    obstacles: list[str]


def plan_repair(
    root: Path, config: StoreConfig | None = None, *, rebuild: bool = False, progress: Progress = no_progress
) -> RepairPlan:
    """Look only. With `rebuild`, queues and index are to be built anew even if nothing is wrong with them."""
    paths = StorePaths.of(root, config)
    with quiet(root, paths):
        verification = verify(root, progress, paths)
        found = _survey(paths, config)
    is_wrong = _short_files(found.log) or any(verification.counts.get(area) for area in _REBUILT)
    if not rebuild and not is_wrong:
        return RepairPlan(verification, [], [])
    obstacles = _obstacles(found)
    return RepairPlan(verification, [] if obstacles else _steps(found, verification, config), obstacles)


def repair(
    root: Path, clock: Clock, config: StoreConfig | None = None, progress: Progress = no_progress
) -> Verification:
    """Carry out what `plan_repair` says, and verify the result. StoreError if a broker uses the store or obstacles lie
    in the way. Without a `config`, file sizes are those of the files that are there."""
    paths = StorePaths.of(root, config)
    found = _survey(paths, config)
    lock = StoreLock(paths.lock)
    try:
        paths.refuse_links()
        for folder in paths.outside:
            lock.add_folder(folder)
        if obstacles := _obstacles(found):
            raise StoreError("; ".join(obstacles))
        rebuilt = _config(found, config)
        proof = proof_of(found)
        _distrust(paths)
        _tidy_log(found)
        idle = _mend_log(survey(root, paths), proof, progress)
        _set_derived_aside(paths, idle)
        _set_timers_aside(found)
        lock.release_folders()  # the store takes them itself; the root's lock does not keep out its own process
        MessageStore.open(root, rebuilt, clock).close()
    finally:
        lock.release()
    with quiet(root, paths):
        return verify(root, progress, paths)


def _survey(paths: StorePaths, config: StoreConfig | None) -> Survey:
    """What is there, with the size that the log's files should have."""
    found = survey(paths.root, paths)
    if config is None:
        return found
    return replace(found, log=LogView(found.log.files, config.mapped_file_size_commit_log, found.maps))


def _obstacles(found: Survey) -> list[str]:
    """What only a person can mend: the bytes of missing files, and what to drop of files that are too long."""
    log, size = found.log, found.log.file_size
    if not log.files_end:
        return ["there is no log to build anything from (--accept-empty-log starts over without one)"]
    odd = [file for file in log.files if file.size > size or file.start % size]
    lonely = [before for before, after in pairwise(log.files) if after.start > before.start + size]
    return [
        *(f"{file.path} has {file.size} bytes and should have {size}, or has a wrong name" for file in odd),
        *(f"the log file behind {file.path} is missing; put it back" for file in lonely),
    ]


# The plan in words


def _steps(found: Survey, verification: Verification, config: StoreConfig | None) -> list[str]:
    rebuilt = _config(found, config)
    queue_size = rebuilt.mapped_file_size_consume_queue
    return [
        *(f"move {stray.name} from commitlog to commitlog.bad" for stray in _log_strays(found)),
        *(f"fill {file.path.name} up to {found.log.file_size:,} bytes with zeros" for file in _short_files(found.log)),
        *_damage_steps(verification),
        *_tail_steps(verification.tail),
        *(f"rename {found.paths.name(path)} to {free_name(path).name}" for path in _derived(found.paths)),
        *_timer_steps(found),
        *_light_steps(found),
        f"build the queues anew from {counted(verification.records, 'record')}, {queue_size:,} bytes a file",
        _index_step(rebuilt),
        "verify the result",
    ]


def _damage_steps(verification: Verification) -> Iterator[str]:
    for begin, end, reason in verification.damages:
        what = f"replace {counted(end - begin, 'byte')} at {begin} of the log by empty records ({reason})"
        yield f"{what}; commitlog.bad keeps them"
    if (rest := verification.damage_count - len(verification.damages)) > 0:
        yield f"replace {counted(rest, 'more damaged part')} of the log in the same way"


def _tail_steps(tail: Tail) -> Iterator[str]:
    if tail.end > tail.begin:
        size = counted(tail.end - tail.begin, "byte")
        records = ", among them whole records that no queue knows" if tail.holds_records else ""
        yield f"cut {size} behind {tail.begin} off the log{records}; commitlog.bad keeps them"


def _timer_steps(found: Survey) -> Iterator[str]:
    if _has_timer_trouble(found):
        for path in _timer_files(found.paths):
            yield f"rename {found.paths.name(path)} to {free_name(path).name}; the next start sets its timers again"


def _has_timer_trouble(found: Survey) -> bool:
    findings = Findings()
    check_timers(found, findings)
    return findings.counts.total() > 0


def _timer_files(paths: StorePaths) -> list[Path]:
    return [path for path in (paths.root / "timerwheel", paths.root / "timerlog") if path.exists()]


def _set_timers_aside(found: Survey) -> None:
    """What lies in the log is set again by the next start: it is told by the checkpoint that there was a timer log."""
    if not _has_timer_trouble(found):
        return
    checkpoint, problems = TimerCheckpoint.look(found.paths.config / "timercheck")
    if problems and checkpoint is not None:
        checkpoint.save(found.paths.config / "timercheck")
    for path in _timer_files(found.paths):
        path.rename(free_name(path))
    sync_directory(found.root)


def _light_steps(found: Survey) -> Iterator[str]:
    if found.light_queues:
        queues = counted(found.light_queues, "queue")
        yield f"leave out {queues} of light topics ({LIGHT_QUEUE_PREFIX}…): only Apache fills them"


def _index_step(config: StoreConfig) -> str:
    if not config.message_index_enable:
        return "leave out the index: there is none now (-c broker.conf says otherwise)"
    return f"build the index anew, {config.max_hash_slot_num:,} slots and {config.max_index_num:,} entries a file"


def _derived(paths: StorePaths) -> list[Path]:
    return [path for path in (paths.consume_queue, paths.index) if path.is_dir()]


# Sizes


def _config(found: Survey, config: StoreConfig | None) -> StoreConfig:
    """File sizes for what is built: as configured, else as the old files had them, else Apache's defaults.

    A repair that was interrupted may have moved the old files aside already.
    """
    if config is not None:
        return config
    queue_folders = [found.paths.consume_queue, *_asides(found.paths.consume_queue)]
    index_folders = [found.paths.index, *_asides(found.paths.index)]
    shape = next(filter(None, map(_index_shape, index_folders)), DEFAULT_SHAPE)
    defaults = StoreConfig()
    return replace(
        defaults,
        mapped_file_size_commit_log=found.log.file_size,
        mapped_file_size_consume_queue=next(
            filter(None, map(_queue_file_size, queue_folders)), defaults.mapped_file_size_consume_queue
        ),
        max_hash_slot_num=shape.slots,
        max_index_num=shape.entries,
        message_index_enable=any(folder.is_dir() for folder in index_folders),
    )


def _queue_file_size(folder: Path) -> int:
    size = agreed_size(list_log_files(queue, []) for queue in folder.glob("*/*"))
    return size if size % ENTRY_SIZE == 0 else 0


def _index_shape(folder: Path) -> IndexShape | None:
    maps = Maps()
    shapes = (find_shape(file, maps.view(file.path)) for file in list_index_files(folder, []))
    return next(filter(None, shapes), None)


def _asides(folder: Path) -> list[Path]:
    """What repairs moved away, the newest first."""
    return sorted(folder.parent.glob(f"{folder.name}.bad*"), key=lambda path: path.stat().st_mtime_ns, reverse=True)


# Steps


def _distrust(paths: StorePaths) -> None:
    """From here to the end, whoever opens the store has to build queues and index from the whole log."""
    (paths.root / SUMS).unlink(missing_ok=True)  # what it speaks of is about to change, and rightly so
    AbortMark(paths.abort).distrust_memory()
    checkpoint = Checkpoint(paths.checkpoint)
    checkpoint.forget()
    checkpoint.save()


def _log_strays(found: Survey) -> list[Path]:
    return [stray for stray in found.strays if stray.parent == found.paths.commit_log]


def _short_files(log: LogView) -> list[FoundFile]:
    return [file for file in log.files if file.size < log.file_size]


def _tidy_log(found: Survey) -> None:
    for stray in _log_strays(found):
        folder = aside_folder(found.paths.commit_log)
        make_folder(folder)
        stray.rename(free_name(folder / stray.name, suffix=""))
    for file in _short_files(found.log):
        disk.set_size(file.path, found.log.file_size)


def _mend_log(found: Survey, proof: Proof, progress: Progress) -> set[QueueKey]:
    """Void what is damaged, copy aside what will be cut; returns the queues of which the log has no record left."""
    idle, expected, timestamp = set(found.own_queues), Expected(deleted_topics(found.root)), 0
    log, seen = found.log, Seen()
    folder = aside_folder(found.paths.commit_log)
    for part in walk(log, 0, proof=proof, seen=seen):
        if isinstance(part, RecordHead):
            timestamp = part.store_timestamp
            key = part.topic, part.queue_id
            if key in idle and expected.traces(part).entry is not None:
                idle.discard(key)
        elif isinstance(part, Damage):
            progress(part.begin - log.start, log.files_end - log.start)
            claims = list(claims_in(log, proof.queues, part, seen))
            for file, begin, end in by_file(log, part.begin, part.end):
                copy_aside(folder, log.view(file)[begin - file.start : end - file.start], begin)
                _void(file, begin, end, timestamp, claims)
        else:
            _copy_tail(found, part)
    return idle


def _copy_tail(found: Survey, tail: Tail) -> None:
    """Later files are not copied: they are moved as a whole when the log is cut, if they hold anything."""
    log, folder = found.log, aside_folder(found.paths.commit_log)
    for file, begin, end in by_file(log, tail.begin, tail.end):
        if begin > file.start or file is log.files[0]:
            copy_aside(folder, log.view(file)[begin - file.start : end - file.start], begin)


def _void(file: FoundFile, begin: int, end: int, timestamp: int, claims: list[Claim]) -> None:
    void(file, begin, end, timestamp, claims)


def _set_derived_aside(paths: StorePaths, idle: set[QueueKey]) -> None:
    """Make room for new queues and a new index.

    A queue of which the log has no record any more cannot be built from it, and would begin at 0 again, below its
    consumers' offsets. So its last file is carried over. All of them are, or none: the copies are made beside.
    """
    (paths.root / SUMS).unlink(missing_ok=True)
    queues = paths.consume_queue
    prepared = queues.with_name(queues.name + ".new")
    if queues.is_dir():
        if prepared.is_dir():
            shutil.rmtree(prepared)  # copies only, and perhaps not all of them
        disk.make_folders(prepared)
        views = survey(paths.root, paths).queues
        for key in idle & views.keys():
            _carry_over(views[key], prepared)
        queues.rename(free_name(queues))
    if prepared.is_dir():
        prepared.rename(queues)
    if paths.index.is_dir():
        paths.index.rename(free_name(paths.index))
        disk.make_folders(paths.index)
    paths.sync_names()


def _carry_over(view: QueueView, target: Path) -> None:
    used = [file for file in view.files if view.entry(file.start // ENTRY_SIZE) is not None]
    if used:
        path = target / view.topic / str(view.queue_id) / used[-1].path.name
        disk.make_folders(path.parent)
        disk.copy(used[-1].path, path)
        sync_path(path)
        for folder in path.parents[:3]:
            sync_directory(folder)
