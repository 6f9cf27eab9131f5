"""Charts as inline SVG: no script, no network. Colours are the page's, so they suit light and dark. Pure."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

WIDTH = 560
HEIGHT = 210
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 12, 26
ROW = 28
LABEL_WIDTH = 196
FIGURE_WIDTH = 74  # right of a spread
GAP = 8  # between labels
_Y_TICKS = 4
_X_TICKS = 5
_DAY_MS = 86_400_000


class Point(NamedTuple):
    at_ms: int
    value: float | None


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: Sequence[Point]
    tone: str = "a"  # a, b, c, or bad: a colour of the page


@dataclass(frozen=True, slots=True)
class Spread:
    """How a measure is spread: half of all values are at most `p50`, and so on."""

    label: str
    p50: float
    p90: float
    p99: float
    most: float


def width_of(text: str) -> float:
    """How wide a text is at most, about, in the page's font: what is drawn beyond the edge is not seen."""
    return sum(
        12.0 if unicodedata.east_asian_width(c) in "WF" or c in "MW…" else 9.0 if c.isupper() else 7.4 for c in text
    )


def fitted(text: str, width: float) -> str:
    """As much of it as there is room for."""
    if width_of(text) <= width:
        return text
    while text and width_of(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"


def number(value: float) -> str:
    if abs(value) >= 10 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1 else f"{value:.2g}"


# --- lines over time


def lines(series: Sequence[Series], unit: str = "") -> str:
    """Values over time, with a legend; every moment tells its values when pointed at. The unit is none, or ms."""
    times = sorted({point.at_ms for each in series for point in each.points})
    if not times:
        return _nothing()
    top = nice_top(max((point.value or 0.0 for each in series for point in each.points), default=0.0))
    span = max(times[-1] - times[0], 1)

    def x(at_ms: int) -> float:
        inner = WIDTH - LEFT - RIGHT
        return LEFT + (inner / 2 if len(times) == 1 else inner * (at_ms - times[0]) / span)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top

    drawn = [_y_axis(top, unit), _time_axis(times, x)]
    for each in series:
        drawn += [_path(run, each.tone, x, y) for run in _runs(each.points)]
    drawn.append(_moments(series, times, x, unit))
    return _legend(series) + _svg(HEIGHT, drawn)


def _value(value: float, unit: str) -> str:
    return duration(value) if unit == "ms" else number(value)


def nice_top(value: float) -> float:
    """The end of an axis: 1, 2, 2.5 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * 0.999999)


def _y_axis(top: float, unit: str) -> str:
    parts = []
    for tick in range(_Y_TICKS + 1):
        height = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * tick / _Y_TICKS
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>')
        text = _tick(top * tick / _Y_TICKS, unit)
        parts.append(f'<text class="tick" text-anchor="end" x="{LEFT - 7}" y="{height + 4:.1f}">{escape(text)}</text>')
    return "".join(parts)


def _tick(value: float, unit: str) -> str:
    """There is no room for millions beside an axis."""
    if unit == "ms":
        return duration(value)
    for size, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= max(size, 10_000):
            return f"{value / size:g} {name}"
    return number(value)


def _time_axis(times: Sequence[int], x: Callable[[int], float]) -> str:
    span_ms = times[-1] - times[0]
    spacing = (WIDTH - LEFT - RIGHT) / _X_TICKS
    return _labels([(x(at_ms), clock(at_ms, span_ms)) for at_ms in times], LEFT, HEIGHT - 7, spacing)


def _labels(ticks: Iterable[tuple[float, str]], left: float, y: float, spacing: float = 0) -> str:
    """Those of an axis, from the left: all inside, and none over another; the middles are `spacing` apart."""
    parts, free, next_middle = [], 0.0, 0.0
    for x, text in ticks:
        half = width_of(text) / 2
        middle = min(max(x, left + half), WIDTH - half)
        if middle - half < free or middle < next_middle:
            continue
        free, next_middle = middle + half + GAP, middle + spacing
        parts.append(f'<text class="tick" text-anchor="middle" x="{middle:.1f}" y="{y:g}">{escape(text)}</text>')
    return "".join(parts)


def clock(at_ms: int, span_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    if span_ms >= 3 * _DAY_MS:
        return f"{at:%b %d}"
    if span_ms >= _DAY_MS:
        return f"{at:%b %d %H:%M}"
    return f"{at:%H:%M}" if span_ms >= 600_000 else f"{at:%H:%M:%S}"


def _runs(points: Iterable[Point]) -> list[list[tuple[int, float]]]:
    """Where a value is missing, the line is broken."""
    runs: list[list[tuple[int, float]]] = [[]]
    for point in points:
        if point.value is None:
            runs.append([])
        else:
            runs[-1].append((point.at_ms, point.value))
    return [run for run in runs if run]


def _path(run: Sequence[tuple[int, float]], tone: str, x: Callable[[int], float], y: Callable[[float], float]) -> str:
    if len(run) == 1:
        (at_ms, value) = run[0]
        return f'<circle class="dot {tone}" cx="{x(at_ms):.1f}" cy="{y(value):.1f}" r="3.5"/>'
    places = " ".join(f"{x(at_ms):.1f},{y(value):.1f}" for at_ms, value in run)
    return f'<polyline class="line {tone}" points="{places}"/>'


def _moments(series: Sequence[Series], times: Sequence[int], x: Callable[[int], float], unit: str) -> str:
    by_time = [{point.at_ms: point.value for point in each.points} for each in series]
    width = (WIDTH - LEFT - RIGHT) / max(len(times), 1)
    parts = []
    for at_ms in times:
        told = [f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"]
        for each, values in zip(series, by_time, strict=True):
            if (value := values.get(at_ms)) is not None:
                told.append(f"{each.name}: {_value(value, unit)}")
        left = min(max(x(at_ms) - width / 2, LEFT), WIDTH - RIGHT - width)
        place = f'x="{left:.1f}" y="{TOP}" width="{width:.1f}" height="{HEIGHT - TOP - BOTTOM}"'
        parts.append(f'<rect class="moment" {place}><title>{escape(chr(10).join(told))}</title></rect>')
    return "".join(parts)


def _legend(series: Sequence[Series]) -> str:
    keys = "".join(f'<span><i class="{each.tone}"></i>{escape(each.name)}</span>' for each in series)
    return f'<p class="legend">{keys}</p>'


# --- spreads on a logarithmic scale


def spreads(rows: Sequence[Spread], tone: str = "a") -> str:
    """One row each, from the median to the 99th percentile, a notch at the 90th and a dot for the most."""
    if not rows:
        return _nothing()
    first, last = _decades(rows)
    height = TOP + ROW * len(rows) + BOTTOM

    def x(value: float) -> float:
        place = math.log10(max(value, 10.0**first)) - first
        return LABEL_WIDTH + (WIDTH - LABEL_WIDTH - FIGURE_WIDTH) * place / (last - first)

    ticks = [(x(10.0**decade), duration(10.0**decade)) for decade in range(first, last + 1)]
    if any(row.p50 < 10.0**first for row in rows):  # what is less is drawn where the axis begins
        ticks[0] = (ticks[0][0], f"≤ {ticks[0][1]}")
    rule = f'y1="{TOP}" y2="{height - BOTTOM}"'
    drawn = [f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" {rule}/>' for at, _ in ticks]
    drawn.append(_labels(ticks, 0, height - 7))
    drawn += [_spread(row, TOP + ROW * index + ROW / 2, x, tone) for index, row in enumerate(rows)]
    return _svg(height, drawn)


def _decades(rows: Sequence[Spread]) -> tuple[int, int]:
    """Return the powers of ten where a logarithmic axis begins, at 1 ms or later, and where it ends."""
    least, most = min(row.p50 for row in rows), max(max(row.most, row.p99) for row in rows)
    first = math.floor(math.log10(max(least, 1)))
    return first, max(first + 1, math.ceil(math.log10(max(most, 1))))


def _spread(row: Spread, middle: float, x: Callable[[float], float], tone: str) -> str:
    shown = fitted(row.label, LABEL_WIDTH - GAP)
    values = {"p50": row.p50, "p90": row.p90, "p99": row.p99, "max": row.most}
    told = f"{row.label}\n" + "\n".join(f"{name}: {duration(value)}" for name, value in values.items())
    left, notch, right, most = (x(value) for value in values.values())
    bar = f'x="{left:.1f}" y="{middle - 6:.1f}" width="{max(right - left, 3):.1f}" height="12" rx="3"'
    return (
        f"<g><title>{escape(told)}</title>"
        f'<rect class="moment" x="0" y="{middle - ROW / 2:.1f}" width="{WIDTH}" height="{ROW}"/>'
        f'<text class="name" x="0" y="{middle + 4:.1f}">{escape(shown)}</text>'
        f'<line class="reach {tone}" x1="{right:.1f}" x2="{most:.1f}" y1="{middle:.1f}" y2="{middle:.1f}"/>'
        f'<rect class="bar {tone}" {bar}/>'
        f'<line class="notch" x1="{notch:.1f}" x2="{notch:.1f}" y1="{middle - 6:.1f}" y2="{middle + 6:.1f}"/>'
        f'<circle class="dot {tone}" cx="{most:.1f}" cy="{middle:.1f}" r="3.5"/>'
        f'<text class="tick" x="{most + 8:.1f}" y="{middle + 4:.1f}">{duration(row.p99)}</text></g>'
    )


def duration(ms: float) -> str:
    """Short: 12 ms, 3.4 s, 5 min, 2.5 h, 3 d."""
    for size, unit in ((_DAY_MS, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if ms >= size:
            return f"{ms / size:.1f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{number(ms)} ms"


def _svg(height: float, parts: Iterable[str]) -> str:
    """One that scrolls where the screen is too narrow to read it."""
    return f'<div class="wide"><svg viewBox="0 0 {WIDTH} {height:g}" role="img">{"".join(parts)}</svg></div>'


def _nothing() -> str:
    return '<p class="none">nothing to draw</p>'
