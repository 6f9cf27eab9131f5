"""What Spark's figures look like, and the goals they are measured by."""

from __future__ import annotations

from rich.table import Table

from benchmarks.spark_load import READ, STREAM, Latency, SparkFigure

SHARE_GOAL = 0.7
ROWS_GOAL = {100: 400_000}  # by size of the body, for reads
MB_GOAL = {1_024: 300}
LATENCY_GOAL_MS = {"default": 200, "tuned": 90}


def throughput_table(figures: tuple[SparkFigure, ...]) -> Table:
    title = "Spark beside a source and a sink that do nothing, the best round of each"
    table = Table("path", title=title, title_justify="left")
    for heading in ("body B", "rows/s", "MB/s", "ceiling rows/s", "share", "goals"):
        table.add_column(heading, justify="right")
    for figure in figures:
        rates = (f"{figure.rows_per_second:,.0f}", f"{figure.mb_per_second:,.0f}")
        ceiling = f"{figure.ceiling_rows_per_second:,.0f}"
        table.add_row(figure.title, str(figure.body_bytes), *rates, ceiling, f"{figure.share:.0%}", _goals(figure))
    return table


def _goals(figure: SparkFigure) -> str:
    cells = []
    if figure.title in (READ, STREAM):
        if (rows := ROWS_GOAL.get(figure.body_bytes)) is not None:
            cells.append(_verdict(f"{rows:,} rows/s", figure.rows_per_second >= rows))
        if (megabytes := MB_GOAL.get(figure.body_bytes)) is not None:
            cells.append(_verdict(f"{megabytes} MB/s", figure.mb_per_second >= megabytes))
    return ", ".join([*cells, _verdict(f"{SHARE_GOAL:.0%}", figure.share >= SHARE_GOAL)])


def latency_table(latencies: tuple[Latency, ...]) -> Table:
    table = Table("one message, one micro-batch, ms", title_justify="left")
    for heading in ("batch", "goal", "from send to its end"):
        table.add_column(heading, justify="right")
    for latency in latencies:
        goal = LATENCY_GOAL_MS[latency.title]
        verdict = _verdict(str(goal), latency.batch_ms <= goal)
        table.add_row(latency.title, f"{latency.batch_ms:.0f}", verdict, f"{latency.since_sent_ms:.0f}")
    return table


def _verdict(goal: str, kept: bool) -> str:
    return f"[green]{goal} kept[/]" if kept else f"[red]{goal} MISSED[/]"
