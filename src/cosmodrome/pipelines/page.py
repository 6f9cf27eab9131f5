"""A report as one HTML page that needs nothing else: no script, no network, light and dark. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from cosmodrome.pipelines.charts import duration, number
from cosmodrome.pipelines.outcome import Table

# Pages carry what is in messages. Should an escape ever be forgotten, the browser still runs and loads nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_IDS = frozenset({"msgId", "keys", "uniqKey", "storeHost", "places", "messageId"})

MAX_WORD = 64  # letters; what is longer may be broken anywhere
MAX_LINE = 24  # letters; what is longer may be broken between words

_STYLE = """
:root { color-scheme: light dark;
  --back: #f6f7f9; --card: #fff; --text: #1b1f27; --soft: #667085; --line: #e4e7ec;
  --a: #2f6fed; --b: #12a594; --c: #d9822b; --bad: #d64545; --hover: rgba(47, 111, 237, .08) }
@media (prefers-color-scheme: dark) { :root {
  --back: #12151b; --card: #1a1f28; --text: #e6e9ef; --soft: #98a2b3; --line: #2b323e;
  --a: #6ea0ff; --b: #3fd0bf; --c: #f0a75c; --bad: #ff7b7b; --hover: rgba(110, 160, 255, .12) } }
* { box-sizing: border-box }
body { margin: 0; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif }
main { max-width: 1360px; margin: 0 auto; padding: 36px 20px 60px }
h1 { font-size: 26px; margin: 0 0 4px; letter-spacing: -.01em }
h2 { font-size: 16px; margin: 0 0 2px }
.soft, .note, .none { color: var(--soft) }
.note { font-size: 13px; margin: 0 0 10px }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 24px 0 }
.tile, .card { background: var(--card); border: 1px solid var(--line); border-radius: 10px }
.tile { padding: 12px 16px }
.tile b { display: block; font-size: 24px; font-weight: 650; font-variant-numeric: tabular-nums }
.tile span { color: var(--soft); font-size: 13px }
.tile.bad b { color: var(--bad) }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 500px), 1fr)); gap: 16px }
.card { padding: 16px 18px; min-width: 0; margin-bottom: 16px }
.cards .card { margin-bottom: 0 }
.cards + .card { margin-top: 16px }
svg { display: block; width: 100%; height: auto; font: 11.5px system-ui, sans-serif }
.grid { stroke: var(--line); stroke-width: 1 }
.tick { fill: var(--soft) } .name { fill: var(--text) }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round }
.line.a, .reach.a { stroke: var(--a) } .line.b, .reach.b { stroke: var(--b) }
.line.c, .reach.c { stroke: var(--c) } .line.bad, .reach.bad { stroke: var(--bad) }
.dot.a, .bar.a { fill: var(--a) } .dot.b, .bar.b { fill: var(--b) }
.dot.c, .bar.c { fill: var(--c) } .dot.bad, .bar.bad { fill: var(--bad) }
.reach { stroke-width: 1.5; opacity: .55 } .notch { stroke: var(--card); stroke-width: 2 }
.moment { fill: transparent } .moment:hover, g:hover > .moment { fill: var(--hover) }
.wide svg { min-width: 480px }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 0 0 6px; font-size: 13px; color: var(--soft) }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px }
.legend .a { background: var(--a) } .legend .b { background: var(--b) }
.legend .c { background: var(--c) } .legend .bad { background: var(--bad) }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums }
th { text-align: left; font-weight: 600; color: var(--soft); vertical-align: bottom }
th, td { padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top }
tbody tr:last-child td { border-bottom: 0 } tbody tr:hover { background: var(--hover) }
.number { text-align: right } td.number { white-space: nowrap }
td { unicode-bidi: isolate } td.word { white-space: nowrap } td.text { min-width: 12em }
td.long { min-width: 24em; overflow-wrap: anywhere }
td.id { font: 12px ui-monospace, "SF Mono", Menlo, Consolas, monospace }
td.time { white-space: nowrap }
footer { margin-top: 28px; font-size: 13px }
"""


@dataclass(frozen=True, slots=True)
class Tile:
    label: str
    value: str
    bad: bool = False


def page(title: str, subtitle: str, tiles: Sequence[Tile], parts: Iterable[str]) -> str:
    """`parts` are cards, already HTML."""
    shown = "".join(map(_tile, tiles))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><div class="soft">{escape(subtitle)}</div>'
        f'<div class="tiles">{shown}</div>{"".join(parts)}'
        '<footer class="soft">Made by Cosmodrome. Times are UTC.</footer></main></body></html>\n'
    )


def _tile(tile: Tile) -> str:
    kind = "tile bad" if tile.bad else "tile"
    return f'<div class="{kind}"><b>{escape(tile.value)}</b><span>{escape(tile.label)}</span></div>'


def cards(parts: Iterable[str]) -> str:
    """Side by side, where there is room."""
    return f'<div class="cards">{"".join(parts)}</div>'


def card(title: str, note: str, content: str) -> str:
    """`content` is HTML already."""
    about = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section class="card"><h2>{escape(title)}</h2>{about}{content}</section>'


def table_card(table: Table, note: str = "") -> str:
    return card(
        table.title[:1].upper() + table.title[1:], note, _table(table) if table.rows else '<p class="none">none</p>'
    )


def _table(table: Table) -> str:
    numeric = [any(isinstance(row[at], int | float) for row in table.rows) for at in range(len(table.columns))]
    heads = "".join(
        f"<th{' class=number' if is_number else ''}>{escape(heading(name))}</th>"
        for name, is_number in zip(table.columns, numeric, strict=True)
    )
    rows = "".join(
        "<tr>" + "".join(_cell(name, value) for name, value in zip(table.columns, row, strict=True)) + "</tr>"
        for row in table.rows
    )
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def heading(column: str) -> str:
    """`consumeP99Ms` is consume p99; its cells have the unit."""
    return _WORD.sub(" ", column.removesuffix("Ms")).lower()


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, int | float):
        return f'<td class="number">{escape(_number(name, value))}</td>'
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f'<td class="{_kinds(name, text)}">{escape(text)}</td>'


def _kinds(name: str, text: str) -> str:
    """Return the classes of a cell. A table that is too wide scrolls: only ids and hashes are broken."""
    longest = max(map(len, text.split()), default=0)
    shape = "long" if longest > MAX_WORD else "text" if len(text) > MAX_LINE else "word"
    return f"id {shape}" if name in _IDS else "time" if _is_time(text) else shape


def _number(name: str, value: float) -> str:
    if name.endswith("Rate"):
        return percent(value)
    return duration(value) if name.endswith("Ms") else number(value)


def percent(part: float) -> str:
    """Never 100 % of what is less than all."""
    return "100 %" if part >= 1 else f"{min(part * 100, 99.99):.2f} %"


def _is_time(text: str) -> bool:
    return re.fullmatch(r"\d{4}-\d\d-\d\d [\d:.]+", text) is not None
