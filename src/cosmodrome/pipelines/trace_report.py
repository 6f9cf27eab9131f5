"""From the traces of clients to how long messages take, which fail, and which are lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cosmodrome.pipelines import charts, traces
from cosmodrome.pipelines.charts import Point, Series, Spread
from cosmodrome.pipelines.definition import Pipeline
from cosmodrome.pipelines.frames import VALUE, check_column, read
from cosmodrome.pipelines.outcome import Outcome
from cosmodrome.pipelines.page import Tile, card, cards, page, percent, table_card
from cosmodrome.pipelines.reports import MAX_ON_PAGE, Kept, Section, folder, held, in_utc, kept, write_page

# Spans of time on the charts' axes; as many as fit.
_STEPS_MS = (1_000, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000, 21_600_000, 86_400_000, 604_800_000)
_MAX_SPANS = 120
_MAX_SPREADS = 16
_SHOWN = (
    *("topic", "group", "messages", "deliveries", "failed", "unsuccessful", "lost", "successRate"),
    *("waitP50Ms", "waitP99Ms", "waitMaxMs", "consumeP50Ms", "consumeP99Ms", "consumeMaxMs"),
)
_UNSUCCESSFUL_NOTE = "Unsuccessful: no try to consume has succeeded yet."
_FAILED_NOTE = "The newest first. Succeeded later: the group has consumed the message in another try."
_LOST_NOTE = "Sent, but never handed to a group that got others of their topic and tag."


def trace_report(spark: SparkSession, pipeline: Pipeline) -> Outcome:
    in_utc(spark)
    options = pipeline.options
    # Properties of trace messages only repeat the keys.
    more: dict[str, Any] = {"properties": "none"} if pipeline.source.format == "rocketmq" else {}
    messages = read(spark, pipeline.source, streaming=False, **more).drop(VALUE)
    check_column(messages, "body", "binary", "read traces, or files that archive or store-scan made of them")
    with ExitStack() as stack:
        records = stack.enter_context(held(traces.records(messages)))
        counted = records.agg(F.count("*"), F.min("timestamp"), F.max("timestamp")).first()
        assert counted is not None
        count, first_ms, last_ms = counted[0], counted[1] or 0, counted[2] or 0
        sends, visible = traces.sends(records), stack.enter_context(held(traces.visible(records)))
        calls = stack.enter_context(held(traces.deliveries(records, visible)))
        until_ms = last_ms - options["graceSeconds"] * 1_000
        lost = stack.enter_context(held(traces.lost_table(visible, calls, until_ms)))
        sections = [
            Section("sends", "sent, by topic and producer group", traces.send_table(sends)),
            Section("consumption", "consumed, by topic and consumer group", traces.consume_table(calls, lost)),
            Section("failed", "failed deliveries", traces.failed_table(calls)),
            Section("slowest", "slowest messages", traces.slowest_table(sends, calls, options["slowest"])),
            Section("lost", "lost messages", lost),
            Section("timeline", "over time", traces.time_table(sends, calls, step_ms(first_ms, last_ms))),
        ]
        found = {each.section.name: each for each in kept(sections, pipeline.sink)}
        numbers = {"records": int(count), **_numbers(found)}
    files = [folder(pipeline.sink, section) for section in sections] if pipeline.sink is not None else []
    if options["html"]:
        write_page(options["html"], html(numbers, first_ms, last_ms, found))
        files.append(options["html"])
    tables = [
        found["sends"].table(),
        found["consumption"].table(columns=_SHOWN),
        found["failed"].table(),
        found["slowest"].table(len(found["slowest"].rows)),
        found["lost"].table(),
    ]
    return Outcome(numbers, tables, files)


def step_ms(first_ms: int, last_ms: int) -> int:
    """How long a span on the time axis is."""
    wanted = (last_ms - first_ms) / _MAX_SPANS
    return next((step for step in _STEPS_MS if step >= wanted), _STEPS_MS[-1])


def _numbers(found: Mapping[str, Kept]) -> dict[str, int]:
    sent, consumed = found["sends"], found["consumption"]
    return {
        "sent": sent.total("messages"),
        "sendsFailed": sent.total("failed"),
        "deliveries": consumed.total("deliveries"),
        "deliveriesFailed": consumed.total("failed"),
        "lost": consumed.total("lost"),
    }


# --- the page


def html(numbers: Mapping[str, int], first_ms: int, last_ms: int, found: Mapping[str, Kept]) -> str:
    sent, consumed = found["sends"].dicts(), found["consumption"].dicts()
    tries = sum(row["tries"] for row in sent)
    ended = numbers["deliveries"] - sum(row["open"] for row in consumed)
    tiles = [
        Tile("messages sent", f"{numbers['sent']:,}"),
        Tile("sends that succeeded", _rate(numbers["sendsFailed"], tries), bool(numbers["sendsFailed"])),
        Tile("deliveries", f"{numbers['deliveries']:,}"),
        Tile("deliveries that succeeded", _rate(numbers["deliveriesFailed"], ended), bool(numbers["deliveriesFailed"])),
        Tile("lost messages", f"{numbers['lost']:,}", bool(numbers["lost"])),
    ]
    subtitle = f"{_time(first_ms)} to {_time(last_ms)} UTC, {numbers['records']:,} trace records"
    parts = [
        cards([*_time_charts(found["timeline"].dicts()), *_spread_charts(sent, consumed)]),
        table_card(found["sends"].table(MAX_ON_PAGE)),
        table_card(found["consumption"].table(MAX_ON_PAGE, _SHOWN), _UNSUCCESSFUL_NOTE),
        table_card(found["failed"].table(MAX_ON_PAGE), _FAILED_NOTE),
        table_card(found["slowest"].table(MAX_ON_PAGE), "Of each stage, those that took longest."),
        table_card(found["lost"].table(MAX_ON_PAGE), _LOST_NOTE),
    ]
    return page("Message trace report", subtitle, tiles, parts)


def _rate(failed: int, tried: int) -> str:
    return percent(1 - failed / tried) if tried else "–"


def _time(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _time_charts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    counts = [
        Series("sent", _points(rows, "sent"), "a"),
        Series("delivered", _points(rows, "delivered"), "b"),
        Series("failed", [*_summed(rows, "sendsFailed", "deliveriesFailed")], "bad"),
    ]
    waits, runs = (
        [Series("p50", _points(rows, f"{stage}P50Ms"), "b"), Series("p99", _points(rows, f"{stage}P99Ms"), "c")]
        for stage in ("wait", "consume")
    )
    return [
        card("Messages over time", "", charts.lines(counts)),
        card("Stored to consumed over time", "Until a handler gets the message.", charts.lines(waits, "ms")),
        card("Consume duration over time", "", charts.lines(runs, "ms")),
    ]


def _points(rows: Sequence[Mapping[str, Any]], column: str) -> list[Point]:
    return [Point(_at_ms(row["from"]), row[column]) for row in rows]


def _summed(rows: Sequence[Mapping[str, Any]], *columns: str) -> list[Point]:
    return [Point(_at_ms(row["from"]), sum(row[column] for column in columns)) for row in rows]


def _at_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def _spread_charts(sent: Sequence[Mapping[str, Any]], consumed: Sequence[Mapping[str, Any]]) -> list[str]:
    note = "Bar: median to p99, notch: p90, dot: longest. The figure is the p99."
    return [
        card("Send cost", note, charts.spreads(_spreads(sent, "send"), "a")),
        card("Stored to consumed", note, charts.spreads(_spreads(consumed, "wait"), "b")),
        card("Consume duration", note, charts.spreads(_spreads(consumed, "consume"), "c")),
    ]


def _spreads(rows: Sequence[Mapping[str, Any]], stage: str) -> list[Spread]:
    """The slowest ones, if there are many."""
    made = [
        Spread(f"{row['topic']} · {row['group']}", *(row[f"{stage}{part}Ms"] for part in ("P50", "P90", "P99", "Max")))
        for row in rows
        if row[f"{stage}P50Ms"] is not None
    ]
    return sorted(made, key=lambda spread: -spread.p99)[:_MAX_SPREADS]
