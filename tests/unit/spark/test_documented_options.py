"""The tables of options in docs/ and the options of the code are the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cosmodrome.spark.options import Given, source_options
from cosmodrome.spark.sink_options import sink_options
from cosmodrome.spark.store_options import store_options

DOCS = Path(__file__).parents[3] / "docs"
_NAME = re.compile(r"`([\w.]+)`")
# Spark's own, which it hands on.
_OF_SPARK = {
    *("checkpointLocation", "queryName", "asyncProgressTrackingEnabled", "asyncProgressTrackingCheckpointIntervalMs"),
    "paths",
}


def documented(page: str, section: str) -> set[str]:
    """Names in the first column of the tables of a section."""
    text = (DOCS / page).read_text(encoding="utf-8").split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    return {name for line in text.splitlines() if line.startswith("|") for name in _NAME.findall(line.split("|")[1])}


@pytest.mark.parametrize(
    ("page", "section", "read"),
    [
        (
            "spark.md",
            "Options",
            lambda: source_options({"nameServer": "localhost:9876", "subscribe": "orders"}, streaming=False),
        ),
        ("spark-sink.md", "Options", lambda: sink_options({"nameServer": "localhost:9876"}, streaming=False)),
        ("pipelines.md", "store-scan", lambda: store_options({"path": "store"})),
    ],
)
def test_every_option_is_in_the_table_and_the_reverse(
    page: str, section: str, read: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    names: set[str] = set()
    aliases: set[str] = set()
    take = Given.take

    def noted(self: Given, name: str, reader: Callable[[str], Any], default: Any, *others: str) -> Any:
        names.add(name)
        aliases.update(others)
        return take(self, name, reader, default, *others)

    monkeypatch.setattr(Given, "take", noted)
    read()
    assert names - documented(page, section) - _OF_SPARK == set()
    assert documented(page, section) - names - aliases == set()
