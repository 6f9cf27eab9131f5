"""A bar chart of a sheet as one SVG file, without scripts and fonts of others. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from benchmarks.measure import Figure

WIDTH = 900
LEFT = 290  # of the bars; the workload's title is beside them
RIGHT = 110  # the figure is behind the bar
BAR, GAP, GROUP_GAP = 16, 3, 16
HEAD, FOOT = 70, 34
COLOURS = ("#2563eb", "#9ca3af", "#d1a054")
STYLE = "text{font:13px system-ui,sans-serif;fill:#111}.small{font-size:11px;fill:#555}.title{font-size:17px}"
# A viewer in the dark shows the same chart with light letters.
DARK = "@media(prefers-color-scheme:dark){text{fill:#eee}.small{fill:#aaa}rect.page{fill:#111}}"


def bars(title: str, rows: Sequence[Sequence[Figure]], caption: str) -> str:
    """Return the chart: a group of bars for each workload, a bar for each broker, longer is better.

    Each group has a scale of its own: batches are ten times as many messages as single sends.
    """
    brokers = [figure.target for figure in rows[0]] if rows else []
    group = len(brokers) * (BAR + GAP) + GROUP_GAP
    height = HEAD + group * len(rows) + FOOT
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}{DARK}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text class="title" x="16" y="28">{escape(title)}</text>',
        *_legend(brokers),
    ]
    for number, row in enumerate(rows):
        drawn += _group(row, HEAD + number * group)
    drawn.append(f'<text class="small" x="16" y="{height - 12}">{escape(caption)}</text></svg>')
    return "\n".join(drawn) + "\n"


def _legend(brokers: Sequence[str]) -> Iterator[str]:
    x = 16
    for name, colour in zip(brokers, COLOURS, strict=False):
        yield f'<rect x="{x}" y="42" width="12" height="12" fill="{colour}"/>'
        yield f'<text class="small" x="{x + 17}" y="52">{escape(name)}</text>'
        x += 40 + 7 * len(name)


def _group(row: Sequence[Figure], top: int) -> Iterator[str]:
    most = max(r.per_second for figure in row for r in figure.rounds)
    scale = (WIDTH - LEFT - RIGHT) / most
    title = row[0].workload.title
    yield f'<text x="{LEFT - 12}" y="{top + BAR - 3}" text-anchor="end">{escape(title)}</text>'
    for place, (figure, colour) in enumerate(zip(row, COLOURS, strict=False)):
        y = top + place * (BAR + GAP)
        width = figure.per_second * scale
        rates = [r.per_second * scale for r in figure.rounds]
        middle = y + BAR / 2
        end = LEFT + max(width, *rates) + 8
        yield f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" fill="{colour}"/>'
        yield (
            f'<line x1="{LEFT + min(rates):.1f}" x2="{LEFT + max(rates):.1f}" y1="{middle}" y2="{middle}" '
            'stroke="#111" stroke-width="1.5"/>'
        )
        yield f'<text class="small" x="{end:.1f}" y="{y + BAR - 4}">{_said(figure)}</text>'


def _said(figure: Figure) -> str:
    if figure.workload.rate and figure.p99_us is not None:
        return f"p99 {figure.p99_us / 1000:.2f} ms"
    return f"{figure.per_second:,.0f}/s"
