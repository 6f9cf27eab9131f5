"""`cosmodrome explain`."""

from __future__ import annotations

import difflib

import click

from cosmodrome.cli.explanations import Explanation, every_explanation, explanations
from cosmodrome.cli.formats import Column, Row, Schema, format_options, write

SCHEMA = Schema(
    "meaning",
    (
        Column("kind", "response, request, send status or error."),
        Column("code", "The number; none for send statuses and errors.", right=True),
        Column("name", "The name in RocketMQ's source and in this package."),
        Column("meaning", "The meaning, in a sentence."),
        Column("advice", "The next step; empty for requests.", wide=True),
    ),
)


@click.command()
@click.argument("code", required=False)
@format_options(SCHEMA)
def explain(code: str | None, output: str) -> None:
    """Say what a code, a send status or an error means, and what to do.

    CODE is the number of a request or a response, or a name. Without it, all are listed.
    """
    found = every_explanation() if code is None else explanations(code)
    if not found:
        assert code is not None, "the list of all is not empty"
        raise click.ClickException(f"{code} is no code, send status or error known here{_hint(code)}")
    if code is None or output != "table":
        write(SCHEMA, (_row(one) for one in found), output)
    else:
        click.echo("\n\n".join(_text(one) for one in found))


def _hint(word: str) -> str:
    names = {one.name.lower(): one.name for one in every_explanation()}
    close = difflib.get_close_matches(word.lower().replace("-", "_"), names, n=1)
    return f"; did you mean {names[close[0]]}?" if close else "; `cosmodrome explain` lists them all"


def _text(one: Explanation) -> str:
    number = "" if one.code is None else f" {one.code}"
    lines = [f"{one.kind}{number} {one.name}", f"  {one.meaning}"]
    return "\n".join([*lines, f"  What to do: {one.advice}"] if one.advice else lines)


def _row(one: Explanation) -> Row:
    return one._asdict()
