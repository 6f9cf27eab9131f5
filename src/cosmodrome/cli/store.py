"""`cosmodrome store`: look at a store folder, check it, repair it. No broker is asked."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from cosmodrome.cli.options import config_option, output_option
from cosmodrome.cli.output import echo_json, echo_tables, one_line, table
from cosmodrome.clock import SystemClock
from cosmodrome.config import StoreConfig, read_store_config
from cosmodrome.disk import DEFAULT_FILE_MODE, use_file_mode
from cosmodrome.errors import StoreError
from cosmodrome.store.findings import counted
from cosmodrome.store.fresh_start import plan_fresh_start, start_fresh
from cosmodrome.store.inspection import Inspection
from cosmodrome.store.inspection import inspect as inspect_store
from cosmodrome.store.memory_faults import tell_memory_faults
from cosmodrome.store.paths import StorePaths
from cosmodrome.store.repair import RepairPlan, plan_repair
from cosmodrome.store.repair import repair as repair_store
from cosmodrome.store.skipped import SkippedRecord, read_skipped
from cosmodrome.store.verification import Progress, Verification, quiet
from cosmodrome.store.verification import verify as verify_store

P = ParamSpec("P")
R = TypeVar("R")


parts_option = click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False),
    help="The broker's broker.conf, if it places parts of the store elsewhere (storePathCommitLog).",
)
folder_argument = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))


def _tells_disk_errors(command: Callable[P, R]) -> Callable[P, R]:
    """What the system refuses is told like everything else that goes wrong: in one line that says what to do."""

    @functools.wraps(command)
    def told(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except PermissionError as error:
            raise StoreError(f"{error}; run this as the user that runs the broker") from error
        except OSError as error:
            raise StoreError(str(error)) from error

    return told


@click.group()
def store() -> None:
    """Inspect, verify or repair a store folder, whoever wrote it."""
    tell_memory_faults()
    use_file_mode(DEFAULT_FILE_MODE)


@store.command()
@folder_argument
@parts_option
@output_option
@_tells_disk_errors
def inspect(folder: Path, config_file: str | None, output: str) -> None:
    """Show what lies in DIR. It may be in use; nothing is changed."""
    found = inspect_store(folder, StorePaths.of(folder, _config(config_file)))
    if output == "json":
        echo_json(_json(found))
    else:
        _show_inspection(found)


@store.command()
@folder_argument
@parts_option
@output_option
@_tells_disk_errors
def verify(folder: Path, config_file: str | None, output: str) -> None:
    """Walk everything in DIR and list what is wrong; the exit code is then 1. Stop its broker first."""
    paths = StorePaths.of(folder, _config(config_file))
    with quiet(folder, paths), _progress("verifying") as progress:
        found = verify_store(folder, progress, paths)
    _show_verification(found, output)


@store.command()
@folder_argument
@click.option("--write", is_flag=True, help="Do it. Without this, only say what would be done.")
@click.option("--rebuild", is_flag=True, help="Build queues and index anew even if nothing is wrong with them.")
@click.option(
    "--accept-empty-log",
    is_flag=True,
    help="The commit log is lost: move queues, index and offsets aside, so that the broker starts empty.",
)
@config_option
@output_option
@_tells_disk_errors
def repair(
    folder: Path, write: bool, rebuild: bool, accept_empty_log: bool, config_file: str | None, output: str
) -> None:
    """Mend the log of DIR and build its queues and index anew. Stop its broker first.

    Whole records stay; nothing is deleted, for what is replaced goes to folders that end in .bad. File sizes are those
    of the files that are there, or those of the config file. It may be interrupted and run again.
    """
    config = _config(config_file)
    if accept_empty_log:
        _start_over(folder, config, write=write, output=output)
        return
    with _progress("looking") as progress:
        plan = plan_repair(folder, config, rebuild=rebuild, progress=progress)
    if output == "text":
        _show_plan(plan, write=write)
    if plan.obstacles:
        raise StoreError("this cannot be repaired: " + "; ".join(plan.obstacles))
    if write and plan.steps:
        with _progress("repairing") as progress:
            repaired = repair_store(folder, SystemClock(), config, progress)
        _show_verification(repaired, output)
    elif output == "json":
        found = plan.verification
        echo_json(_json({"folder": folder, "problemCount": found.problem_count, "steps": plan.steps}))


@store.command()
@folder_argument
@output_option
@_tells_disk_errors
def skipped(folder: Path, output: str) -> None:
    """List the records of DIR that a broker could not use and left out, oldest first. It may be in use."""
    if not folder.is_dir():
        raise StoreError(f"{folder} is no folder; name the store of a broker, such as cosmodrome-data/broker-a")
    found = read_skipped(folder / "config")
    if output == "json":
        echo_json(_json({"folder": folder, "count": _skipped_count(found), "records": found}))
    elif not found:
        _say(f"{folder}: no record was left out")
    else:
        rows = [_skipped_row(record) for record in found]
        echo_tables(table(("time", "service", "topic/queue@offset", "log offset", "reason"), rows, right=(3,)))
        if (rest := _skipped_count(found) - len(found)) > 0:
            click.echo(f"and {rest:,} before them")


def _say(text: str) -> None:
    """Print a line; the names of files and topics in it may be anybody's."""
    click.echo(one_line(text))


def _skipped_count(found: list[SkippedRecord]) -> int:
    """How many there ever were: the register keeps the last of them."""
    return max((record.number for record in found), default=0)


def _skipped_row(record: SkippedRecord) -> tuple[str, ...]:
    place = f"{record.topic}/{record.queue_id}@{record.queue_offset}"
    return _time(record.time_ms), record.service, place, str(record.physical_offset), record.reason


def _config(config_file: str | None) -> StoreConfig | None:
    return read_store_config(Path(config_file)) if config_file else None


def _start_over(folder: Path, config: StoreConfig | None, *, write: bool, output: str) -> None:
    """Say what is moved aside, and move it with `write`."""
    steps = [str(move) for move in plan_fresh_start(folder, config)]
    if write:
        start_fresh(folder, config)
    if output == "json":
        echo_json({"folder": _text(str(folder)), "steps": list(map(_text, steps)), "written": write})
        return
    for step in steps:
        _say(f"{'now' if write else 'would'}: {step}")
    if not steps:
        _say(f"{folder}: there is nothing to move aside; a broker starts empty here")
    elif not write:
        click.echo("nothing was changed; --write does it")


@contextmanager
def _progress(what: str) -> Iterator[Progress]:
    """A bar on standard error, if someone sits before it."""
    from rich.console import Console  # here: it costs every other command a tenth of a second
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# Showing


def _json(value: Any) -> Any:
    """Dataclasses and named tuples become objects with Java's kind of names."""
    if dataclasses.is_dataclass(value):
        return {_camel(field.name): _json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {_camel(name): _json(part) for name, part in value._asdict().items()}
    if isinstance(value, dict):
        return {str(key): _json(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_json(part) for part in value]
    return _text(str(value)) if isinstance(value, str | Path) else value


def _text(text: str) -> str:
    """A file's name need not be UTF-8, but JSON must be."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _show_inspection(found: Inspection) -> None:
    for line in _inspection_lines(found):
        _say(line)
    times = "first stored", "last stored"
    if found.topics:
        echo_tables(table(("topic", "queues", "messages", *times), _topic_rows(found), right=(1, 2)))
    if found.index:
        echo_tables(table(("index file", "entries", "log range", *times), _index_rows(found), right=(1, 2)))


def _inspection_lines(found: Inspection) -> Iterator[str]:
    log, checkpoint = found.log, found.checkpoint
    yield f"{found.folder}: {'clean exit' if found.clean else 'in use, or its last broker died'}"
    size, files = counted(log.end - log.start, "byte"), counted(len(log.files), "file")
    yield f"log: {log.start} to {log.end} ({size}), {files} of {log.file_size:,} bytes"
    yield f"stored: {_time(log.first_store_timestamp)} to {_time(log.last_store_timestamp)}"
    if checkpoint is None:
        yield "checkpoint: none"
    else:
        times = map(_time, (checkpoint.log_timestamp, checkpoint.queues_timestamp, checkpoint.index_timestamp))
        yield "checkpoint: log {}, queues {}, index {}".format(*times)
    messages = sum(topic.messages for topic in found.topics)
    yield (
        f"topics: {len(found.topics):,} with {counted(found.queue_count, 'queue')} and {counted(messages, 'message')}"
    )
    yield f"config: {', '.join(file.name for file in found.config) or 'none'}"
    if found.skipped:
        yield f"records left out: {found.skipped:,}; `cosmodrome store skipped {found.folder}` lists them"


def _topic_rows(found: Inspection) -> Iterator[tuple[str, ...]]:
    for topic in found.topics:
        times = _time(topic.first_store_timestamp), _time(topic.last_store_timestamp)
        yield topic.topic, str(len(topic.queues)), f"{topic.messages:,}", *times


def _index_rows(found: Inspection) -> Iterator[tuple[str, ...]]:
    for file in found.index:
        offsets = f"{file.begin_offset} to {file.end_offset}"
        yield file.name, f"{file.entries:,}", offsets, _time(file.begin_timestamp), _time(file.end_timestamp)


def _time(timestamp_ms: int) -> str:
    if timestamp_ms <= 0:
        return "-"
    try:
        return f"{datetime.fromtimestamp(timestamp_ms / 1000, UTC).astimezone():%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):  # a damaged store may say anything
        return str(timestamp_ms)


def _show_verification(found: Verification, output: str) -> None:
    """The result, and exit code 1 when anything is wrong."""
    if output == "json":
        echo_json({"sound": found.is_sound, **_json(found)})
    else:
        for line in _verification_lines(found):
            _say(line)
    if not found.is_sound:
        raise click.exceptions.Exit(1)


def _verification_lines(found: Verification) -> Iterator[str]:
    yield from map(str, found.problems)
    if (rest := found.problem_count - len(found.problems)) > 0:
        yield f"and {rest} more"
    yield from (f"note: {note}" for note in found.notes)
    verdict = counted(found.problem_count, "problem") if found.problem_count else "sound"
    yield (
        f"{found.folder}: {verdict}; walked {counted(found.records, 'record')} "
        f"({counted(found.log_end - found.log_start, 'byte')}), {counted(found.queues, 'queue')} of "
        f"{counted(found.topics, 'topic')}, {counted(found.index_files, 'index file')} with "
        f"{found.index_entries:,} {'entry' if found.index_entries == 1 else 'entries'}"
    )


def _show_plan(plan: RepairPlan, *, write: bool) -> None:
    if not plan.steps and not plan.obstacles:
        _say(f"{plan.verification.folder}: nothing that a repair could mend")
        for problem in plan.verification.problems:
            _say(f"left as it is: {problem}")
        return
    for problem in plan.verification.problems:
        _say(f"wrong: {problem}")
    for step in plan.steps:
        _say(f"{'now' if write else 'would'}: {step}")
    if not write and plan.steps:
        click.echo("nothing was changed; --write does it")
