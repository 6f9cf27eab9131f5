"""`make bench`: our broker and Apache's under the same load, in turn, in one run."""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks import micro
from benchmarks.clients import ASYNC_FOR, ITERATION_BUDGET, PUSH, ClientFigure, measure_clients
from benchmarks.lagging import P99_BUDGET, LaggingFigure, measure_lagging
from benchmarks.load import LoadError
from benchmarks.measure import (
    FULL,
    RESIDENT_BUDGET_MB,
    SMOKE,
    START_BUDGET_S,
    UP_STARTS,
    Effort,
    Figure,
    StartUp,
    measure,
    measure_start,
)
from benchmarks.profiling import profile
from benchmarks.targets import (
    Target,
    machine_busy_s,
    start_apache,
    start_apache_pair,
    start_our_pair,
    start_ours,
    why_no_apache,
)
from benchmarks.workloads import QUEUES, WORKLOADS, Workload
from cosmodrome.errors import ConfigError
from cosmodrome.spark.sessions import require_spark
from interop.child import ChildError
from interop.setup import SERVER_VERSIONS

NO_APACHE = "none"
SPARK = "spark"
REPLICATION = "replication"
LAGGING = "lagging-slave"
RESULTS_FILE = "bench.json"
CLIENT_TOPIC = "bench-clients"
CLIENT_MESSAGES = 100_000
QUIET_CORES = 0.2  # what others may use before figures suffer
QUIET_SAMPLE_S = 2.0
REPLICATED = ("send", "pipelined", "batch")
SLUGS = tuple(workload.slug for workload in WORKLOADS)

Rows = list[list[Figure]]  # one list per workload: ours first, then Apache's if it ran


@click.command()
@click.option("--smoke", is_flag=True, help="Everything once and tiny: shows that it works, measures nothing.")
@click.option("--seconds", type=click.FloatRange(0.1, 600), help="Length of one round.  [default: 5]")
@click.option(
    "--apache",
    type=click.Choice([*SERVER_VERSIONS, NO_APACHE]),
    default=SERVER_VERSIONS[0],
    show_default=True,
    help="Version of Apache's broker to run beside ours; its jars come from Maven Central.",
)
@click.option(
    "--only",
    type=click.Choice([*SLUGS, REPLICATION, LAGGING, SPARK]),
    multiple=True,
    help="Only this; may be given again. replication is measured only so: masters with slaves beside one without; "
    "and lagging-slave: a master whose slave is healthy, hung or slow.",
)
@click.option("--spark/--no-spark", default=True, help="Measure Spark too, where it and Java are.  [default: yes]")
@click.option("--profile", "profiled", type=click.Choice(SLUGS), help="Instead, show where our broker's time goes.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="json also writes a file.")
@click.option("--file", default=RESULTS_FILE, show_default=True, help="The file that -o json writes.")
def main(
    smoke: bool,
    seconds: float | None,
    apache: str,
    only: tuple[str, ...],
    spark: bool,
    profiled: str | None,
    output: str,
    file: str,
) -> None:
    """Measure Cosmodrome beside Apache's broker: messages per second, and broker CPU time for each."""
    effort = SMOKE if smoke else FULL
    if seconds is not None:
        effort = replace(effort, seconds=seconds)
    console = Console(width=None if sys.stdout.isatty() else 132)
    try:
        with tempfile.TemporaryDirectory(prefix="cosmodrome-bench-") as home:
            if profiled is not None:
                show_profile(console, find_workload(profiled), Path(home), effort)
            else:
                workloads = [workload for workload in WORKLOADS if not only or workload.slug in only]
                figures: dict[str, object] = {"python": platform.python_version(), "seconds": effort.seconds}
                if not only or workloads:
                    figures |= run(console, workloads, apache, Path(home), effort, whole=not only)
                if REPLICATION in only:
                    figures |= run_replication(console, apache, Path(home), effort)
                if LAGGING in only:
                    figures |= run_lagging(console, Path(home) / LAGGING, effort)
                if SPARK in only or (spark and not only):
                    figures |= run_spark(console, Path(home), smoke=smoke)
                if output == "json":
                    Path(file).write_text(json.dumps(figures, indent=2) + "\n")
                    console.print(f"figures written to {file}")
    except (LoadError, ChildError) as error:
        raise click.ClickException(str(error)) from error


def find_workload(slug: str) -> Workload:
    return next(workload for workload in WORKLOADS if workload.slug == slug)


def show_profile(console: Console, workload: Workload, home: Path, effort: Effort) -> None:
    for table in profile(workload, home, effort).tables():
        console.print(table)


def run(
    console: Console, workloads: list[Workload], apache: str, home: Path, effort: Effort, *, whole: bool
) -> dict[str, object]:
    """Measure and show; `whole` includes what concerns no single workload. Returns the figures for a file."""
    smoke = effort.rounds == SMOKE.rounds
    figures: dict[str, object] = {}
    if whole:
        timings = micro.run(home, smoke=smoke)
        console.print(micro_table(timings))
        started = measure_start(home, 1 if smoke else UP_STARTS)
        console.print(start_table(started))
        clients = run_clients(home / "clients", smoke=smoke)
        console.print(client_table(clients))
        figures |= {"micro_ns": timings, "start": asdict(started), "clients": [asdict(figure) for figure in clients]}
    rows = run_workloads(console, workloads, apache, home, effort)
    console.print(load_table(rows))
    disturbed = max(figure.other_cores for row in rows for figure in row)
    if disturbed > QUIET_CORES and not smoke:
        console.print(f"[yellow]Not a quiet machine: others kept up to {disturbed:.1f} cores busy meanwhile.[/]")
    return figures | {"load": [figure.to_json() for row in rows for figure in row]}


def run_replication(console: Console, apache: str, home: Path, effort: Effort) -> dict[str, object]:
    """Measure sends to a master with a slave, ours and Apache's, beside a single broker of ours."""
    rows: Rows = []
    with ExitStack() as stack:
        targets = [start_ours(home / "single", stack)]
        targets += [start_our_pair(home / role, stack, role) for role in ("ASYNC_MASTER", "SYNC_MASTER")]
        if apache != NO_APACHE:
            reason = why_no_apache(apache)
            if reason is None:
                targets.append(start_apache_pair(apache, home / "apache", stack, "SYNC_MASTER"))
            else:
                console.print(f"Apache's brokers are not measured: {reason}", highlight=False)
        for number, workload in enumerate(one for one in WORKLOADS if one.slug in REPLICATED):
            row = measure(targets, workload, effort, cold=number == 0)
            console.print(f"{workload.title}: " + "; ".join(map(summary, row)), highlight=False)
            rows.append(row)
    console.print(replication_table(rows))
    return {"replication": [figure.to_json() for row in rows for figure in row]}


def replication_table(rows: Rows) -> Table:
    """One line for each master; the ratio is to Apache's SYNC_MASTER."""
    table = Table("path", title="masters with a slave, the best round of each", title_justify="left")
    for heading in ("master", "/s", "CPU µs", "p50 / p99 ms", "ratio /s"):
        table.add_column(heading, justify="right")
    for row in rows:
        apaches = next((figure for figure in row if figure.target.startswith("Apache")), None)
        for figure in row:
            ratio = "" if apaches in (None, figure) else f"{figure.per_second / apaches.per_second:.2f}"
            title = figure.workload.title if figure is row[0] else ""
            table.add_row(title, figure.target, *figure_cells(figure), ratio)
    return table


def run_lagging(console: Console, home: Path, effort: Effort) -> dict[str, object]:
    """Measure what a slave's state costs its master."""
    figures = measure_lagging(home, effort)
    console.print(lagging_table(figures))
    return {"lagging_slave": [figure.to_json() for figure in figures]}


def lagging_table(figures: list[LaggingFigure]) -> Table:
    workload = figures[0].figure.workload
    table = Table("slave", title=f"{workload.title}, to an ASYNC_MASTER", title_justify="left")
    for heading in ("/s", "CPU µs", "p50 / p99 ms", "p99 ÷ that without", "budget", "memory grown, KB"):
        table.add_column(heading, justify="right")
    alone_us = figures[0].figure.p99_us
    for one in figures:
        p99_us = one.figure.p99_us
        ratio = p99_us / alone_us if p99_us and alone_us else None
        cells = ("", "") if ratio is None else (f"{ratio:.2f}", budget_cell(ratio, P99_BUDGET, "g"))
        table.add_row(one.slave, *figure_cells(one.figure), *cells, f"{one.grown_kb:,}")
    return table


def run_clients(home: Path, *, smoke: bool) -> list[ClientFigure]:
    with ExitStack() as stack:
        target = start_ours(home, stack)
        target.create_topic(CLIENT_TOPIC, QUEUES)
        messages, rounds = (1_000, 1) if smoke else (CLIENT_MESSAGES, FULL.rounds)
        return measure_clients(target.namesrv, CLIENT_TOPIC, messages, rounds)


def run_spark(console: Console, home: Path, *, smoke: bool) -> dict[str, object]:
    try:
        require_spark()
    except ConfigError as error:
        console.print(f"Spark is not measured: {error}", highlight=False)
        return {}
    from benchmarks import spark_load, spark_report  # they need Spark

    if not smoke and (disturbed := others_cores()) > QUIET_CORES:
        console.print(f"[yellow]Not a quiet machine: others keep {disturbed:.1f} cores busy.[/]")
    with ExitStack() as stack:
        target = start_ours(home / "spark", stack)
        effort = spark_load.SMOKE if smoke else spark_load.FULL
        result = spark_load.measure_spark(
            target, home / "spark", effort, lambda line: console.print(line, highlight=False)
        )
    console.print(spark_report.throughput_table(result.figures))
    console.print(spark_report.latency_table(result.latencies))
    return {"spark": [figure.to_json() for figure in result.figures], "spark_ms": list(map(asdict, result.latencies))}


def others_cores() -> float:
    """How many cores are busy while we do nothing."""
    busy = machine_busy_s()
    time.sleep(QUIET_SAMPLE_S)
    return (machine_busy_s() - busy) / QUIET_SAMPLE_S


def run_workloads(console: Console, workloads: list[Workload], apache: str, home: Path, effort: Effort) -> Rows:
    rows: Rows = []
    with ExitStack() as stack:
        targets = start_targets(console, apache, home, stack)
        for number, workload in enumerate(workloads):
            row = measure(targets, workload, effort, cold=number == 0)
            console.print(f"{workload.title}: " + "; ".join(map(summary, row)), highlight=False)
            rows.append(row)
    return rows


def start_targets(console: Console, apache: str, home: Path, stack: ExitStack) -> list[Target]:
    targets = [start_ours(home / "ours", stack)]
    if apache != NO_APACHE:
        reason = why_no_apache(apache)
        if reason is None:
            targets.append(start_apache(apache, home / "apache", stack))
        else:
            console.print(f"Apache's broker is not measured: {reason}", highlight=False)
    return targets


def summary(figure: Figure) -> str:
    return f"{figure.target} {figure.per_second:,.0f}/s, {figure.cpu_us:.1f} µs"


# --- tables


TITLE = "brokers under load, the best round of each; CPU is the broker's own per message, or per pull"


def load_table(rows: Rows) -> Table:
    names = [figure.target for figure in rows[0]] if rows else []
    table = Table("path", title=TITLE, title_justify="left")
    for name in names:
        for heading in (f"{name}/s", "CPU µs", "p50 / p99 ms"):
            table.add_column(heading, justify="right")
        if name == names[0]:
            table.add_column("budget µs", justify="right")
    if len(names) > 1:
        table.add_column("ratio /s", justify="right")
    for row in rows:
        ours = row[0]
        cells = [ours.workload.title, *figure_cells(ours), budget_cell(ours.cpu_us, ours.workload.budget_us, "g")]
        for other in row[1:]:
            cells += [*figure_cells(other), f"{ours.per_second / other.per_second:.2f}"]
        table.add_row(*cells)
    return table


def figure_cells(figure: Figure) -> list[str]:
    latency = "" if figure.p50_us is None or figure.p99_us is None else _latency(figure.p50_us, figure.p99_us)
    return [f"{figure.per_second:,.0f}", f"{figure.cpu_us:.1f}", latency]


def _latency(p50_us: float, p99_us: float) -> str:
    return f"{p50_us / 1000:.2f} / {p99_us / 1000:.2f}"


def budget_cell(value: float, budget: float | None, form: str) -> str:
    if budget is None:
        return ""
    return f"[green]{budget:{form}} kept[/]" if value <= budget else f"[red]{budget:{form}} MISSED[/]"


def client_table(figures: list[ClientFigure]) -> Table:
    """The iteration is measured by the callback form beside it."""
    table = Table("our clients on our broker, 128 B", title_justify="left")
    for heading in ("a second", "client CPU µs", "budget"):
        table.add_column(heading, justify="right")
    push = next(figure for figure in figures if figure.title == PUSH)
    for figure in figures:
        budget = (
            budget_cell(push.per_second / figure.per_second, ITERATION_BUDGET, "g") if figure.title == ASYNC_FOR else ""
        )
        table.add_row(figure.title, f"{figure.per_second:,.0f}", f"{figure.cpu_us:.1f}", budget)
    return table


def start_table(start: StartUp) -> Table:
    table = Table("cosmodrome up, empty store", title_justify="left")
    table.add_column("measured", justify="right")
    table.add_column("budget", justify="right")
    table.add_row("start, s", f"{start.seconds:.2f}", budget_cell(start.seconds, START_BUDGET_S, "g"))
    table.add_row("resident, MB", f"{start.resident_mb:.0f}", budget_cell(start.resident_mb, RESIDENT_BUDGET_MB, "g"))
    return table


def micro_table(timings: dict[str, float]) -> Table:
    table = Table("in one process", title_justify="left")
    for heading in ("ns each", "a second", "promised"):
        table.add_column(heading, justify="right")
    for name, nanoseconds in timings.items():
        per_second = 1e9 / nanoseconds
        table.add_row(name, f"{nanoseconds:,.0f}", f"{per_second:,.0f}", floor_cell(per_second, micro.FLOORS.get(name)))
    return table


def floor_cell(value: float, floor: float | None) -> str:
    if floor is None:
        return ""
    return f"[green]{floor:,} kept[/]" if value >= floor else f"[red]{floor:,} MISSED[/]"


if __name__ == "__main__":
    main()
