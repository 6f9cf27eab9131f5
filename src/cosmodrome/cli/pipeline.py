"""`cosmodrome pipeline`: ready Spark jobs over topics."""

from __future__ import annotations

import dataclasses
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from cosmodrome.cli.options import output_option
from cosmodrome.cli.output import echo_json, echo_tables, table
from cosmodrome.cli.spark import (
    INTERRUPTED_EXIT_CODE,
    chosen_master,
    end_at_once,
    master_option,
    plain,
    remote_option,
    says_what_to_install,
)
from cosmodrome.pipelines.definition import Pipeline, Trigger, hint, load
from cosmodrome.pipelines.kinds import KINDS
from cosmodrome.pipelines.outcome import Outcome, Table
from cosmodrome.pipelines.running import Progress, Run, closed, opened
from cosmodrome.spark.sessions import require_spark

Tell = Callable[[Progress], None]


@click.group()
def pipeline() -> None:
    """Ready Spark jobs over topics: archive, replay, SQL, reports."""


@pipeline.command("list")
@output_option
def list_pipelines(output: str) -> None:
    """Show the pipelines there are."""
    width = max(map(len, KINDS))
    for kind in KINDS.values():
        if output == "json":
            echo_json({"name": kind.name, "summary": kind.summary, "streams": kind.streams is not False})
        else:
            click.echo(f"{kind.name:{width}}  {kind.summary}")
    if output == "text":
        click.echo("\n`cosmodrome pipeline init NAME` writes one to a file, to be changed and run.")


@pipeline.command()
@click.argument("name")
@click.option("--to", "target", type=click.Path(dir_okay=False, path_type=Path), help="The file, else NAME.yaml.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@output_option
def init(name: str, target: Path | None, force: bool, output: str) -> None:
    """Write the pipeline NAME to a YAML file with comments. Change it, then `cosmodrome pipeline run` it."""
    if name not in KINDS:
        raise click.BadParameter(
            f"there is no {name}{hint(name, KINDS)}; there are {', '.join(KINDS)}", param_hint="NAME"
        )
    path = target or Path(f"{name}.yaml")
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(KINDS[name].template.read_text(encoding="utf-8"))
    except FileExistsError:
        raise click.ClickException(f"{path} is there already; choose another name with --to, or use --force") from None
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from error
    if output == "json":
        echo_json({"pipeline": name, "file": str(path)})
    else:
        click.echo(f"{path} is written. Look through it, then run it: cosmodrome pipeline run {path}")


@pipeline.command()
@click.argument("file", type=click.Path(path_type=Path))
@master_option
@remote_option
@click.option("--once", is_flag=True, help="Do what there is to do now, then end.")
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Instead of the file: source.subscribe=orders."
)
@output_option
@says_what_to_install
def run(file: Path, master: str | None, remote: str | None, once: bool, changes: tuple[str, ...], output: str) -> None:
    """Run the pipeline of FILE until it is done or is stopped with Ctrl-C; the next run goes on from there."""
    where = chosen_master(master, remote)
    require_spark(java=False)  # without it there is no YAML either
    job = load(file, changes)
    require_spark(java=not (where or job.master).startswith("sc://"))
    if once:
        job = dataclasses.replace(job, trigger=Trigger(available_now=True))
    with _shown(job, output) as tell:
        task = Run(job, tell)
        with _Signals(task) as signals:
            spark = opened(job, where)
            signals.listen()  # Spark has put a handler of its own in place of ours
            outcome = task.run(spark)
            closed(spark)
    _show(job, outcome, output, stopped=task.is_stopping)
    if signal.SIGINT in signals.seen:
        raise click.exceptions.Exit(INTERRUPTED_EXIT_CODE)


class _Signals:
    """The first Ctrl-C or SIGTERM lets the job end in order; a second one ends it at once."""

    def __init__(self, task: Run) -> None:
        self.seen: list[int] = []
        self._task = task

    def __enter__(self) -> _Signals:
        self._before = self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def listen(self) -> dict[signal.Signals, Any]:
        """Who listened before."""
        return {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.seen:
            end_at_once()
        self.seen.append(number)
        self._task.stop()


# --- showing


@contextmanager
def _shown(job: Pipeline, output: str) -> Iterator[Tell]:
    """How each micro-batch is told: a line of JSON, a line of text, or a table that changes where someone looks."""
    if output == "json":
        yield lambda progress: echo_json(_progress_json(progress))
    elif not sys.stderr.isatty():
        yield lambda progress: click.echo(_progress_text(progress), err=True)
    else:
        from rich.console import Console
        from rich.live import Live

        with Live(_waiting(job), console=Console(stderr=True), refresh_per_second=4) as live:
            yield lambda progress: live.update(_live_table(progress))


def _progress_json(progress: Progress) -> dict[str, Any]:
    return {
        "event": "progress",
        "pipeline": progress.query,
        "batch": progress.batch,
        "timestamp": progress.timestamp,
        "rows": progress.rows,
        "totalRows": progress.total_rows,
        "rowsPerSecond": round(progress.rows_per_second, 1),
        "seconds": progress.seconds,
        "lag": dict(progress.lag),
    }


def _progress_text(progress: Progress) -> str:
    return (
        f"{progress.query}, batch {progress.batch}: {progress.rows:,} rows in {progress.seconds:.1f} s "
        f"({progress.rows_per_second:,.0f}/s), {progress.total_rows:,} in all; lag: {_lag(progress)}"
    )


def _lag(progress: Progress) -> str:
    return ", ".join(f"{topic} {count:,}" for topic, count in sorted(progress.lag.items())) or "-"


def _waiting(job: Pipeline) -> Any:
    from rich.spinner import Spinner

    return Spinner("dots", f"{job.name}: Spark starts, and reads …")


def _live_table(progress: Progress) -> Any:
    columns = ("pipeline", "batch", "rows", "in all", "rows/s", "seconds", "lag")
    row = (
        progress.query,
        str(progress.batch),
        f"{progress.rows:,}",
        f"{progress.total_rows:,}",
        f"{progress.rows_per_second:,.0f}",
        f"{progress.seconds:.1f}",
        _lag(progress),
    )
    return table(columns, [row])


def _show(job: Pipeline, outcome: Outcome, output: str, *, stopped: bool) -> None:
    if output == "json":
        echo_json(
            {
                "event": "stopped" if stopped else "finished",
                "pipeline": job.name,
                **outcome.numbers,
                "tables": {each.title: _rows(each) for each in outcome.tables},
                "files": list(outcome.files),
                "notes": list(outcome.notes),
            }
        )
        return
    echo_tables(*(table(each.columns, each.rows, each.title) for each in outcome.tables))
    numbers = ", ".join(
        f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in outcome.numbers.items()
    )
    goes_on = "; run it again to go on" if stopped and job.checkpoint else ""
    click.echo(f"{job.name}: {'stopped' if stopped else 'done'}: {numbers}{goes_on}")
    for file in outcome.files:
        click.echo(f"written: {file}")
    for note in outcome.notes:
        click.echo(note)


def _rows(told: Table) -> list[dict[str, Any]]:
    return [{name: plain(cell) for name, cell in zip(told.columns, row, strict=True)} for row in told.rows]
