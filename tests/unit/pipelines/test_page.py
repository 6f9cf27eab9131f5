"""Pages and charts: nothing of what is in messages gets out of its place."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.pipelines.charts import (
    LABEL_WIDTH,
    WIDTH,
    Point,
    Series,
    Spread,
    duration,
    lines,
    nice_top,
    number,
    spreads,
    width_of,
)
from cosmodrome.pipelines.outcome import Table
from cosmodrome.pipelines.page import Tile, card, heading, page, percent, table_card

VALUES = st.one_of(st.none(), st.floats(0, 1e15), st.integers(0, 10**15))


class Tags(HTMLParser):
    """Which tags a page has, and whether they are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)


def tags(text: str) -> list[str]:
    parser = Tags()
    parser.feed(text)
    assert parser.open == []
    return parser.seen


def report(text: str) -> str:
    series = [Series(text, [Point(0, 1), Point(60_000, None), Point(120_000, 3)])]
    parts = [
        card(text, text, lines(series, "ms")),
        card(text, "", spreads([Spread(text, 1, 2, 30, 4_000)])),
        table_card(Table(text, ("keys", "count", text), [(text, 5, text), (None, 2, True)]), text),
    ]
    return page(text, text, [Tile(text, text, bad=True)], parts)


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_no_text_changes_the_page(text: str) -> None:
    assert tags(report(text)) == tags(report("plain"))


def test_what_looks_like_html_is_shown_as_it_is() -> None:
    made = report("<script>alert('1')</script><img src=x onerror=alert(1)>")
    assert "<script" not in made
    assert "<img" not in made
    assert "&lt;script&gt;" in made
    assert "default-src &#x27;none&#x27;" in made


@given(st.lists(st.tuples(st.integers(0, 2**41), VALUES), max_size=20), st.sampled_from(["", "ms"]))
def test_lines_are_drawn_for_any_values(points: list[tuple[int, float | None]], unit: str) -> None:
    made = lines([Series("a", [Point(*point) for point in points])], unit)
    tags(made)
    assert "nan" not in made
    assert "inf" not in made


@given(st.lists(st.tuples(*[st.floats(0, 1e12)] * 4), max_size=8))
def test_spreads_are_drawn_for_any_values(values: list[tuple[float, float, float, float]]) -> None:
    made = spreads([Spread("label", *sorted(each)) for each in values])
    tags(made)
    assert "nan" not in made


@given(st.floats(1e-6, 1e15))
def test_an_axis_ends_soon_after_the_largest_value(value: float) -> None:
    assert value * 0.99 <= nice_top(value) <= value * 2.6


def test_figures() -> None:
    assert [number(value) for value in (0, 3, 1234567, 2.5, 0.123)] == ["0", "3", "1,234,567", "2.5", "0.12"]
    assert [duration(ms) for ms in (0, 999, 1_500, 60_000, 5_400_000, 2 * 86_400_000)] == [
        *("0 ms", "999 ms", "1.5 s", "1 min", "1.5 h", "2 d"),
    ]
    assert [percent(part) for part in (1, 0.999999, 0.5, 0)] == ["100 %", "99.99 %", "50.00 %", "0.00 %"]
    assert (heading("consumeP99Ms"), heading("successRate")) == ("consume p99", "success rate")


# A font of the page is at most about so wide: DejaVu Sans at 11.5 pixels, measured in Chromium.
_TICK = re.compile(r'<text class="(?:tick|name)"(?: text-anchor="(\w+)")? x="(-?[\d.]+)" y="([\d.]+)">([^<]*)<')
_DIGIT_WIDTH, _POINT_WIDTH = 7.3, 4.0


def places(drawn: str) -> list[tuple[float, float, float, str]]:
    """Of every label: its height, where it begins and ends, and what it says."""
    made = []
    for anchor, x, y, text in _TICK.findall(drawn):
        width = sum(_POINT_WIDTH if each in " .,:" else _DIGIT_WIDTH for each in text)
        left = float(x) - {"middle": width / 2, "end": width}.get(anchor, 0)
        made.append((float(y), left, left + width, text))
    return sorted(made)


@given(
    st.integers(0, 2**41),
    st.lists(st.integers(1, 10**9), min_size=1, max_size=130),
    st.integers(0, 10**11),  # milliseconds: three years
    st.sampled_from(["", "ms"]),
)
def test_no_label_of_a_chart_is_cut_off_or_over_another(first: int, steps: list[int], most: int, unit: str) -> None:
    times = [first + sum(steps[:count]) for count in range(len(steps) + 1)]
    spread = Spread("orders · billing", 0, most / 4, most / 2, most)
    for drawn in (lines([Series("sent", [Point(at, most) for at in times])], unit), spreads([spread])):
        found = places(drawn)
        assert all(left >= -1 and right <= WIDTH + 1 for _, left, right, _ in found), found
        for (y, _, end, _), (other_y, begin, _, _) in pairwise(found):
            assert y != other_y or end <= begin, found


def test_a_long_label_ends_before_the_bars() -> None:
    for name in ("ORDERS_OF_THE_WAREHOUSE_IN_MUNICH", "i" * 200, "订单" * 20):
        drawn = spreads([Spread(name, 1, 2, 3, 4)])
        shown = re.findall(r'class="name"[^>]*>([^<]*)<', drawn)[0]
        assert shown.endswith("…")
        assert width_of(shown) <= LABEL_WIDTH
    assert "orders · billing<" in spreads([Spread("orders · billing", 1, 2, 3, 4)])


def test_a_large_axis_is_short() -> None:
    drawn = lines([Series("sent", [Point(0, 3_000_000), Point(1_000, 1)])])
    assert [text for *_, text in places(drawn) if ":" not in text] == ["5 M", "3.75 M", "2.5 M", "1.25 M", "0"]


def axis(*rows: Spread) -> list[str]:
    """The labels below a chart of spreads, from the left."""
    return [text for y, _, _, text in places(spreads(rows)) if y > 12 + 28 * len(rows)]


def test_a_logarithmic_axis_begins_and_ends_with_powers_of_ten() -> None:
    assert axis(Spread("a", 20, 50, 400, 900)) == ["10 ms", "100 ms", "1 s"]
    assert axis(Spread("a", 1, 2, 3, 4)) == ["1 ms", "10 ms"]
    assert axis(Spread("a", 0, 2, 30, 40), Spread("b", 3, 3, 3, 3)) == ["≤ 1 ms", "10 ms", "100 ms"]
    assert axis(Spread("a", 0, 0, 0, 0)) == ["≤ 1 ms", "10 ms"]
    assert axis(Spread("a", 1_000, 1_000, 1_000, 1_000)) == ["1 s", "10 s"]


def test_a_value_stands_at_its_power_of_ten() -> None:
    drawn = spreads([Spread("a", 10, 100, 100, 1_000)])
    grid = [float(x) for x in re.findall(r'<line class="grid" x1="([\d.]+)"', drawn)]
    (bar,) = re.findall(r'<rect class="bar a" x="([\d.]+)"', drawn)
    (dot,) = re.findall(r'<circle class="dot a" cx="([\d.]+)"', drawn)
    assert (float(bar), float(dot)) == (grid[0], grid[-1])


def test_only_words_that_are_no_words_are_broken() -> None:
    shown = table_card(
        Table(
            "t",
            ("topic", "msgId", "reason", "keys"),
            [("orders-of-today", "F" * 32, "it took too long " * 3, "k" * 65)],
        )
    )
    assert '<td class="word">orders-of-today' in shown
    assert '<td class="id text">FFFF' in shown
    assert '<td class="text">it took' in shown
    assert '<td class="id long">kkk' in shown
    style = page("t", "t", [], [])
    broken = [rule for rule in re.findall(r"([^{}]+)\{([^{}]*)\}", style) if "overflow-wrap" in rule[1]]
    assert [selector.strip() for selector, _ in broken] == ["td.long"]
    assert "word-break" not in style


def test_charts_and_tables_scroll_by_themselves() -> None:
    table = table_card(Table("t", ("a",), [(1,)]))
    for part in (spreads([Spread("a", 1, 2, 3, 4)]), lines([Series("a", [Point(0, 1)])]), table):
        assert '<div class="wide"><' in part
