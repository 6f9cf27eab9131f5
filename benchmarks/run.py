"""The command behind `make bench`: our broker and Apache's under the same load, in turn, in one run."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
from rich.console import Console

from benchmarks import micro
from benchmarks.clients import ClientFigure, measure_clients
from benchmarks.java_clients import VERSION as JAVA_CLIENT
from benchmarks.java_clients import measure_java_clients
from benchmarks.lagging import measure_lagging
from benchmarks.load import LoadError
from benchmarks.measure import FULL, SMOKE, UP_STARTS, Effort, Figure, measure, measure_start
from benchmarks.profiling import profile
from benchmarks.results import SheetResult, environment
from benchmarks.sheets import PATHS, SHEETS, Sheet
from benchmarks.tables import (
    client_table,
    java_table,
    lagging_table,
    micro_table,
    replication_table,
    sheet_table,
    start_table,
)
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
JAVA = "java"
RESULTS_FILE = "bench.json"
CLIENT_TOPIC = "bench-clients"
CLIENT_MESSAGES = 100_000
QUIET_CORES = 0.2  # what others may use before figures suffer
QUIET_SAMPLE_S = 2.0
REPLICATED = ("send", "pipelined", "batch")
SLUGS = tuple(workload.slug for sheet in SHEETS for workload in sheet.workloads)


@click.command()
@click.option("--smoke", is_flag=True, help="Run everything once and tiny: shows that it works, measures nothing.")
@click.option("--seconds", type=click.FloatRange(0.1, 600), help=f"Length of one round.  [default: {FULL.seconds}]")
@click.option("--rounds", type=click.IntRange(1, 100), help=f"Rounds of each broker.  [default: {FULL.rounds}]")
@click.option(
    "--apache",
    type=click.Choice([*SERVER_VERSIONS, NO_APACHE]),
    multiple=True,
    help="Version of Apache's broker to run beside ours, from Maven Central; may be given again.  [default: all]",
)
@click.option(
    "--sheet",
    "names",
    type=click.Choice([*(sheet.name for sheet in SHEETS), JAVA, REPLICATION, LAGGING, SPARK]),
    multiple=True,
    help="Sheet to measure; may be given again.  [default: paths, with single steps, start and clients; and spark]",
)
@click.option("--only", type=click.Choice(SLUGS), multiple=True, help="Only this workload; may be given again.")
@click.option("--spark/--no-spark", default=True, help="Measure Spark too, where it and Java are.  [default: yes]")
@click.option("--profile", "profiled", type=click.Choice(SLUGS), help="Instead, show where our broker's time goes.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="json also writes a file.")
@click.option("--file", default=RESULTS_FILE, show_default=True, help="The file that -o json writes.")
@click.option("--results", type=click.Path(path_type=Path), help="Folder for a JSON file and an SVG chart per sheet.")
def main(
    smoke: bool,
    seconds: float | None,
    rounds: int | None,
    apache: tuple[str, ...],
    names: tuple[str, ...],
    only: tuple[str, ...],
    spark: bool,
    profiled: str | None,
    output: str,
    file: str,
    results: Path | None,
) -> None:
    """Measure Cosmodrome beside Apache's brokers: messages per second, and broker CPU time for each."""
    effort = SMOKE if smoke else FULL
    effort = replace(effort, seconds=seconds or effort.seconds, rounds=rounds or effort.rounds)
    versions = [] if NO_APACHE in apache else list(apache or SERVER_VERSIONS)
    console = Console(width=None if sys.stdout.isatty() else 150)
    is_whole = not names and not only
    try:
        with tempfile.TemporaryDirectory(prefix="cosmodrome-bench-") as home:
            bench = Bench(console, versions, Path(home), effort, is_smoke=smoke)
            if profiled is not None:
                bench.show_profile(profiled)
                return
            figures: dict[str, object] = environment(effort)
            if is_whole:
                figures |= bench.run_single_steps()
            done = bench.run_sheets(names, only)
            figures |= {"load": [figure.to_json() for one in done for row in one.rows for figure in row]}
            figures |= {"ratios": {slug: ratio for one in done for slug, ratio in one.ratios.items()}}
            if JAVA in names:
                figures |= bench.run_java()
            if REPLICATION in names:
                figures |= bench.run_replication()
            if LAGGING in names:
                figures |= bench.run_lagging()
            if SPARK in names or (spark and is_whole):
                figures |= bench.run_spark()
            if results is not None:
                for one in done:
                    for path in one.write(results, effort):
                        console.print(f"written: {path}", highlight=False)
            if output == "json":
                Path(file).write_text(json.dumps(figures, indent=2) + "\n")
                console.print(f"figures written to {file}")
    except (LoadError, ChildError) as error:
        raise click.ClickException(str(error)) from error


@dataclass(slots=True)
class Bench:
    """One run: where it shows its figures, and how much it does. Each method returns what goes into the file."""

    console: Console
    versions: Sequence[str]
    home: Path
    effort: Effort
    is_smoke: bool

    def show_profile(self, slug: str) -> None:
        """Show where our broker's time goes under a workload."""
        workload = next(one for sheet in SHEETS for one in sheet.workloads if one.slug == slug)
        for table in profile(workload, self.home, self.effort).tables():
            self.console.print(table)

    def run_single_steps(self) -> dict[str, object]:
        """Measure what concerns no single workload: steps in one process, start, our clients."""
        timings = micro.run(self.home, smoke=self.is_smoke)
        self.console.print(micro_table(timings))
        started = measure_start(self.home, 1 if self.is_smoke else UP_STARTS)
        self.console.print(start_table(started))
        clients = self._run_clients()
        self.console.print(client_table(clients))
        return {"micro_ns": timings, "start": asdict(started), "clients": [asdict(figure) for figure in clients]}

    def run_sheets(self, names: Sequence[str], only: Sequence[str]) -> list[SheetResult]:
        """Measure the sheets of these names, or those that have the workloads `only`; the paths if nothing is named."""
        if names:
            chosen = [sheet for sheet in SHEETS if sheet.name in names]
        elif only:
            chosen = [sheet for sheet in SHEETS if any(one.slug in only for one in sheet.workloads)]
        else:
            chosen = [PATHS]
        return [self._run_sheet(sheet, [w for w in sheet.workloads if not only or w.slug in only]) for sheet in chosen]

    def _run_sheet(self, sheet: Sheet, workloads: Sequence[Workload]) -> SheetResult:
        rows: list[list[Figure]] = []
        with ExitStack() as stack:
            targets = self._start_targets(sheet, stack)
            for number, workload in enumerate(workloads):
                row = measure(targets, workload, self.effort, cold=number == 0)
                self.console.print(f"{workload.title}: " + "; ".join(map(summary, row)), highlight=False)
                rows.append(row)
        result = SheetResult(sheet, rows)
        self.console.print(sheet_table(result))
        disturbed = max((figure.other_cores for row in rows for figure in row), default=0)
        if disturbed > QUIET_CORES and not self.is_smoke:
            self.console.print(
                f"[yellow]Not a quiet machine: others kept up to {disturbed:.1f} cores busy meanwhile.[/]"
            )
        return result

    def _start_targets(self, sheet: Sheet, stack: ExitStack) -> list[Target]:
        targets = [start_ours(self.home / f"{sheet.name}-ours", stack, config=sheet.config)]
        targets += [
            start_apache(version, self.home / f"{sheet.name}-{version}", stack, sheet.config)
            for version in self._versions_at_hand()
        ]
        return targets

    def _versions_at_hand(self) -> list[str]:
        found = []
        for version in self.versions:
            reason = why_no_apache(version)
            if reason is None:
                found.append(version)
            else:
                self.console.print(f"Apache {version} is not measured: {reason}", highlight=False)
        return found

    def run_java(self) -> dict[str, object]:
        """Measure Apache's own Java clients on each broker."""
        if reason := why_no_apache(JAVA_CLIENT, "client"):
            self.console.print(f"Java clients are not measured: {reason}", highlight=False)
            return {}
        with ExitStack() as stack:
            targets = self._start_targets(Sheet(JAVA, "", ()), stack)
            figures = measure_java_clients(targets, self.effort, stack)
        self.console.print(java_table(figures))
        return {"java": [asdict(figure) for figure in figures]}

    def run_replication(self) -> dict[str, object]:
        """Measure sends to a master with a slave, ours and Apache's, beside a single broker of ours."""
        rows = []
        with ExitStack() as stack:
            targets = [start_ours(self.home / "single", stack)]
            targets += [start_our_pair(self.home / role, stack, role) for role in ("ASYNC_MASTER", "SYNC_MASTER")]
            for version in self._versions_at_hand()[:1]:
                targets.append(start_apache_pair(version, self.home / "apache", stack, "SYNC_MASTER"))
            for number, workload in enumerate(one for one in WORKLOADS if one.slug in REPLICATED):
                row = measure(targets, workload, self.effort, cold=number == 0)
                self.console.print(f"{workload.title}: " + "; ".join(map(summary, row)), highlight=False)
                rows.append(row)
        self.console.print(replication_table(rows))
        return {"replication": [figure.to_json() for row in rows for figure in row]}

    def run_lagging(self) -> dict[str, object]:
        """Measure what a slave's state costs its master."""
        figures = measure_lagging(self.home / LAGGING, self.effort)
        self.console.print(lagging_table(figures))
        return {"lagging_slave": [figure.to_json() for figure in figures]}

    def _run_clients(self) -> list[ClientFigure]:
        with ExitStack() as stack:
            target = start_ours(self.home / "clients", stack)
            target.create_topic(CLIENT_TOPIC, QUEUES)
            messages, rounds = (1_000, 1) if self.is_smoke else (CLIENT_MESSAGES, 3)
            return measure_clients(target.namesrv, CLIENT_TOPIC, messages, rounds)

    def run_spark(self) -> dict[str, object]:
        """Measure Spark's reads and writes, where it and Java are."""
        try:
            require_spark()
        except ConfigError as error:
            self.console.print(f"Spark is not measured: {error}", highlight=False)
            return {}
        from benchmarks import spark_load, spark_report  # they need Spark

        if not self.is_smoke and (disturbed := others_cores()) > QUIET_CORES:
            self.console.print(f"[yellow]Not a quiet machine: others keep {disturbed:.1f} cores busy.[/]")
        with ExitStack() as stack:
            target = start_ours(self.home / "spark", stack)
            effort = spark_load.SMOKE if self.is_smoke else spark_load.FULL
            result = spark_load.measure_spark(
                target, self.home / "spark", effort, lambda line: self.console.print(line, highlight=False)
            )
        self.console.print(spark_report.throughput_table(result.figures))
        self.console.print(spark_report.latency_table(result.latencies))
        spark = [figure.to_json() for figure in result.figures]
        return {"spark": spark, "spark_ms": list(map(asdict, result.latencies))}


def others_cores() -> float:
    """Return how many cores are busy while this process does nothing."""
    busy = machine_busy_s()
    time.sleep(QUIET_SAMPLE_S)
    return (machine_busy_s() - busy) / QUIET_SAMPLE_S


def summary(figure: Figure) -> str:
    """Return a figure in a few words."""
    return f"{figure.target} {figure.per_second:,.0f}/s, {figure.cpu_us:.1f} µs"


if __name__ == "__main__":
    main()
