"""The tables of `make bench`."""

from __future__ import annotations

from rich.table import Table

from benchmarks import micro
from benchmarks.clients import ASYNC_FOR, ITERATION_BUDGET, PUSH, ClientFigure
from benchmarks.java_clients import JavaFigure
from benchmarks.lagging import P99_BUDGET, LaggingFigure
from benchmarks.measure import RESIDENT_BUDGET_MB, START_BUDGET_S, Figure, StartUp
from benchmarks.results import Rows, SheetResult, ratio_to_best


def sheet_table(result: SheetResult) -> Table:
    """Return one line for each broker on each workload; the ratio is ours to the better of the others."""
    table = Table("path", title=f"{result.sheet.title}: medians; CPU is the broker's own", title_justify="left")
    for heading in ("broker", "/s", "±", "CPU µs", "p50 / p99 / p99.9 ms", "budget µs", "ratio /s", "generator"):
        table.add_column(heading, justify="left" if heading == "broker" else "right")
    for row in result.rows:
        ours, *others = row
        for figure in row:
            is_ours = figure is ours
            ratio = ratio_to_best(ours, others) if is_ours else None
            table.add_row(
                ours.workload.title if is_ours else "",
                figure.target,
                f"{figure.per_second:,.0f}",
                f"{figure.spread / 2:.0%}",
                f"{figure.cpu_us:.1f}",
                latencies(figure),
                budget_cell(figure.cpu_us, figure.workload.budget_us, "g") if is_ours else "",
                "" if ratio is None else f"{ratio:.2f}",
                f"{figure.generator_cores:.2f}",
            )
    return table


def latencies(figure: Figure) -> str:
    """Return the percentiles in milliseconds; empty where requests travel together."""
    known = [us for us in (figure.p50_us, figure.p99_us, figure.p999_us) if us is not None]
    return " / ".join(f"{us / 1000:.2f}" for us in known)


def figure_cells(figure: Figure) -> list[str]:
    """Return rate, CPU time and latencies."""
    return [f"{figure.per_second:,.0f}", f"{figure.cpu_us:.1f}", latencies(figure)]


def budget_cell(value: float, budget: float | None, form: str) -> str:
    """Return the budget, and whether the value keeps it."""
    if budget is None:
        return ""
    return f"[green]{budget:{form}} kept[/]" if value <= budget else f"[red]{budget:{form}} MISSED[/]"


def client_table(figures: list[ClientFigure]) -> Table:
    """Return the figures of our clients; the iteration is measured by the callback form beside it."""
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
    """Return the figures of `cosmodrome up` with its budgets."""
    table = Table("cosmodrome up, empty store", title_justify="left")
    table.add_column("measured", justify="right")
    table.add_column("budget", justify="right")
    table.add_row("start, s", f"{start.seconds:.2f}", budget_cell(start.seconds, START_BUDGET_S, "g"))
    table.add_row("resident, MB", f"{start.resident_mb:.0f}", budget_cell(start.resident_mb, RESIDENT_BUDGET_MB, "g"))
    return table


def micro_table(timings: dict[str, float]) -> Table:
    """Return the CPU times of single steps."""
    table = Table("in one process", title_justify="left")
    for heading in ("ns each", "a second", "promised"):
        table.add_column(heading, justify="right")
    for name, nanoseconds in timings.items():
        per_second = 1e9 / nanoseconds
        table.add_row(name, f"{nanoseconds:,.0f}", f"{per_second:,.0f}", floor_cell(per_second, micro.FLOORS.get(name)))
    return table


def floor_cell(value: float, floor: float | None) -> str:
    """Return the lowest promised rate, and whether the value keeps it."""
    if floor is None:
        return ""
    return f"[green]{floor:,} kept[/]" if value >= floor else f"[red]{floor:,} MISSED[/]"


def replication_table(rows: Rows) -> Table:
    """Return one line for each master; the ratio is to Apache's SYNC_MASTER."""
    table = Table("path", title="masters with a slave: medians", title_justify="left")
    for heading in ("master", "/s", "CPU µs", "p50 / p99 / p99.9 ms", "ratio /s"):
        table.add_column(heading, justify="right")
    for row in rows:
        apaches = next((figure for figure in row if figure.target.startswith("Apache")), None)
        for figure in row:
            ratio = "" if apaches in (None, figure) else f"{figure.per_second / apaches.per_second:.2f}"
            title = figure.workload.title if figure is row[0] else ""
            table.add_row(title, figure.target, *figure_cells(figure), ratio)
    return table


def lagging_table(figures: list[LaggingFigure]) -> Table:
    """Return one line for each state of the slave."""
    workload = figures[0].figure.workload
    table = Table("slave", title=f"{workload.title}, to an ASYNC_MASTER", title_justify="left")
    for heading in ("/s", "CPU µs", "p50 / p99 / p99.9 ms", "p99 ÷ that without", "budget", "memory grown, KB"):
        table.add_column(heading, justify="right")
    alone_us = figures[0].figure.p99_us
    for one in figures:
        p99_us = one.figure.p99_us
        ratio = p99_us / alone_us if p99_us and alone_us else None
        cells = ("", "") if ratio is None else (f"{ratio:.2f}", budget_cell(ratio, P99_BUDGET, "g"))
        table.add_row(one.slave, *figure_cells(one.figure), *cells, f"{one.grown_kb:,}")
    return table


def java_table(figures: list[JavaFigure]) -> Table:
    """Return one line for each broker under each Java client; the ratio is ours to the better of the others."""
    table = Table("path", "broker", title="Apache's Java clients: medians", title_justify="left")
    for heading in ("messages/s", "ratio"):
        table.add_column(heading, justify="right")
    ours = figures[0].target
    for figure in figures:
        others = [one.per_second for one in figures if one.path == figure.path and one.target != ours]
        is_ours = figure.target == ours
        ratio = f"{figure.per_second / max(others):.2f}" if is_ours and others else ""
        table.add_row(figure.path if is_ours else "", figure.target, f"{figure.per_second:,.0f}", ratio)
    return table
