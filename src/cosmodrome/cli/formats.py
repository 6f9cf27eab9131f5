"""Output of commands that list things: tables for people and awk, JSON and YAML for programs.

A command declares the columns of its rows once, as a `Schema`, and returns rows; `@rows(SCHEMA)` gives it the options
`-o`, `--format help` and `--watch`, and prints what it returns.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import click

from cosmodrome.cli.output import one_line

FORMATS = ("table", "wide", "json", "yaml", "jsonl")
CLEAR = "\x1b[H\x1b[2J\x1b[3J"
EMPTY = "-"  # a cell is never empty: awk counts fields
MIN_WATCH_SECONDS = 0.2

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One value of a row: its key in JSON, its meaning, and how a table shows it."""

    key: str
    meaning: str
    title: str = ""  # of the table's column. [default: the key in capitals]
    right: bool = False
    wide: bool = False  # shown by `-o wide` only
    hidden: bool = False  # in JSON and YAML only

    @property
    def heading(self) -> str:
        return self.title or "".join(f"-{letter}" if letter.isupper() else letter for letter in self.key).upper()


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of one kind of row, in their order."""

    name: str
    columns: Sequence[Column] = field(default_factory=tuple)

    def shown(self, *, wide: bool) -> list[Column]:
        return [column for column in self.columns if not column.hidden and (wide or not column.wide)]

    def help_text(self) -> str:
        """Return the columns and their meanings, one a line."""
        width = max(len(column.key) for column in self.columns)
        lines = [f"{column.key:<{width}}  {_where(column)}  {column.meaning}" for column in self.columns]
        first = f"Each {self.name} is one row; -o json and -o yaml give a list, -o jsonl one object a line."
        return "\n".join([first, *lines])


def _where(column: Column) -> str:
    return "json " if column.hidden else "wide " if column.wide else "table"


def table_lines(schema: Schema, rows: Iterable[Row], *, wide: bool) -> list[str]:
    """Return a table without boxes: one row a line, columns two spaces apart, no cell empty or with a space at its end.

    Nothing is cut or wrapped, so `awk` finds each row whole.
    """
    columns = schema.shown(wide=wide)
    cells = [[column.heading for column in columns]]
    cells += [[_cell(row.get(column.key)) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            f"{cell:>{width}}" if column.right else f"{cell:<{width}}"
            for cell, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in cells
    ]


def _cell(value: Any) -> str:
    if value is None or value == "":
        return EMPTY
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, (list, tuple)):
        return ",".join(map(_cell, value)) or EMPTY
    if isinstance(value, Mapping):
        return ",".join(f"{key}={_cell(one)}" for key, one in value.items()) or EMPTY
    return one_line(str(value))


def write(schema: Schema, rows: Iterable[Row], output: str) -> None:
    """Print rows in one of FORMATS."""
    if output in ("table", "wide"):
        click.echo("\n".join(table_lines(schema, rows, wide=output == "wide")))
        return
    from cosmodrome.cli.output import echo_json, json_text

    documents = [{column.key: row.get(column.key) for column in schema.columns} for row in rows]
    if output == "jsonl":
        for document in documents:
            echo_json(document)
    elif output == "json":
        click.echo(json_text(documents, indent=True))
    else:
        click.echo(yaml_text(documents), nl=False)


def yaml_text(value: Any, indent: int = 0) -> str:
    """Return YAML 1.2 of lists, mappings and scalars; each scalar is JSON, which YAML includes."""
    pad = "  " * indent
    if isinstance(value, Mapping) and value:
        return "".join(f"{pad}{_key(key)}:{_value(one, indent)}" for key, one in value.items())
    if isinstance(value, (list, tuple)) and value:
        return "".join(f"{pad}-{_item(one, indent)}" for one in value)
    return f"{pad}{_scalar(value)}\n"


def _value(value: Any, indent: int) -> str:
    if isinstance(value, (Mapping, list, tuple)) and value:
        return "\n" + yaml_text(value, indent + 1)
    return f" {_scalar(value)}\n"


def _item(value: Any, indent: int) -> str:
    if isinstance(value, Mapping) and value:
        return " " + yaml_text(value, indent + 1).lstrip(" ")
    return _value(value, indent)


def _key(key: Any) -> str:
    text = str(key)
    return text if text.isidentifier() else _scalar(text)


def _scalar(value: Any) -> str:
    from cosmodrome.cli.output import json_text

    return json_text(value)


def format_options(schema: Schema, *, with_output: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds `-o` and `--format help` to a command, which gets the format as `output`.

    Without `with_output`, the command has a `-o` of its own.
    """

    def tell(context: click.Context, _option: click.Parameter, value: str | None) -> None:
        if value is not None and not context.resilient_parsing:
            click.echo(schema.help_text())
            context.exit()

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        command = click.option(
            "--format",
            type=click.Choice(["help"]),
            is_eager=True,
            expose_value=False,
            callback=tell,
            help="Print the columns and their meanings, and exit.",
        )(command)
        if not with_output:
            return command
        return click.option(
            "-o",
            "--output",
            type=click.Choice(FORMATS),
            default="table",
            show_default=True,
            help="wide shows more columns; json and yaml a list; jsonl one object a line.",
        )(command)

    return decorate


def watch_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--watch`; the command gets the seconds as `watch`, None to print once."""
    return click.option(
        "--watch",
        type=click.FloatRange(min=MIN_WATCH_SECONDS),
        metavar="SECONDS",
        help="Print again after so many seconds, until Ctrl-C.",
    )(command)


class Partial(NamedTuple):
    """Rows, and why some may be missing: one sentence for each broker that did not answer."""

    rows: Iterable[Row]
    problems: Sequence[str]


def rows(schema: Schema) -> Callable[[Callable[..., Iterable[Row] | Partial]], Callable[..., None]]:
    """Return a decorator for a command that returns rows: it adds the options of this module, and prints.

    The exit code is 1 if rows may be missing, and standard error says why.
    """

    def decorate(command: Callable[..., Iterable[Row] | Partial]) -> Callable[..., None]:
        @watch_option
        @format_options(schema)
        @functools.wraps(command)
        def printed(*args: Any, output: str, watch: float | None, **kwargs: Any) -> None:
            problems: Sequence[str] = ()

            def show() -> None:
                nonlocal problems
                made = command(*args, **kwargs)
                found, problems = made if isinstance(made, Partial) else (made, ())
                write(schema, found, output)
                for problem in problems:
                    click.echo(one_line(problem), err=True)

            repeat(show, watch)
            if problems:
                raise click.exceptions.Exit(1)

        return printed

    return decorate


def repeat(show: Callable[[], None], watch: float | None, *, until: Callable[[], bool] | None = None) -> None:
    """Call `show` once, or every `watch` seconds until Ctrl-C or until `until()` is true."""
    if watch is None:
        show()
        return
    try:
        while True:
            if sys.stdout.isatty():
                click.echo(CLEAR, nl=False)
            show()
            sys.stdout.flush()
            if until is not None and until():
                return
            time.sleep(watch)
    except KeyboardInterrupt:
        pass  # how a watch ends
