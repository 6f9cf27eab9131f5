"""Output of commands that list things: one row a line in tables, and the same values in JSON and YAML."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any

import click
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.cli.formats import Column, Row, Schema, repeat, rows, table_lines, yaml_text

SCHEMA = Schema(
    "ship",
    (
        Column("name", "The name."),
        Column("crewSize", "The number of people.", right=True),
        Column("port", "The home port.", wide=True),
        Column("cargo", "What it carries.", hidden=True),
    ),
)
SHIPS: list[dict[str, Any]] = [
    {"name": "Vostok", "crewSize": 1, "port": "Baikonur", "cargo": {"a": [1, 2]}},
    {"name": "two words\nand \x1b[31mtwo lines", "crewSize": None, "port": "", "cargo": None},
]


@click.command()
@rows(SCHEMA)
def ships() -> Iterable[Row]:
    return SHIPS


def shown(*words: str) -> str:
    done = CliRunner().invoke(ships, words)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_table_has_one_line_for_each_row_and_no_empty_cell() -> None:
    heading, first, second = shown().splitlines()
    assert heading.split() == ["NAME", "CREW-SIZE"]
    assert first.split() == ["Vostok", "1"]
    assert second == r"two words\nand \x1b[31mtwo lines          -"
    assert shown("-o", "wide").splitlines()[2].split()[-1] == "-"


def test_json_yaml_and_jsonl_give_every_value() -> None:
    assert json.loads(shown("-o", "json")) == SHIPS
    assert [json.loads(line) for line in shown("-o", "jsonl").splitlines()] == SHIPS
    assert yaml.safe_load(shown("-o", "yaml")) == SHIPS


def test_the_schema_can_be_printed() -> None:
    text = shown("--format", "help")
    assert "crewSize  table  The number of people." in text
    assert "cargo     json   What it carries." in text


def test_a_watch_shows_again_until_it_is_enough(monkeypatch: Any) -> None:
    shows: list[int] = []
    monkeypatch.setattr("cosmodrome.cli.formats.time.sleep", lambda _seconds: None)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    repeat(lambda: shows.append(1), 1.0, until=lambda: len(shows) == 3)
    assert len(shows) == 3


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3),
    max_leaves=12,
)


@given(TREES)
def test_yaml_reads_back_as_what_was_written(tree: object) -> None:
    assert yaml.safe_load(yaml_text(tree)) == tree


@given(st.lists(st.fixed_dictionaries({"name": st.text(), "crewSize": st.none() | st.integers()}), max_size=4))
def test_no_cell_breaks_a_line(made: list[dict[str, object]]) -> None:
    lines = table_lines(SCHEMA, made, wide=True)
    assert len(lines) == len(made) + 1
    assert all(len(line.splitlines()) == 1 for line in lines)
