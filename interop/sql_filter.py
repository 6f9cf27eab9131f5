"""Ask Apache's own SQL92 filter what it makes of expressions and messages."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from interop.child import Child
from interop.java import CLIENT_OPTIONS, java_command
from interop.setup import Build

ANSWER_TIMEOUT_S = 120

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one expression: whether it compiles, what it did not read, and the value for each message."""

    compiled: bool
    rest: int | None
    results: tuple[str, ...]
    error: str


def verdicts(version: str, cases: Iterable[tuple[str, Messages]], home: Path) -> list[Verdict]:
    """One verdict per expression and its messages, in order."""
    cases = list(cases)
    command = java_command(Build("filter", version), "interop.SqlFilter", {}, CLIENT_OPTIONS)
    with Child(f"SqlFilter {version}", command, home / f"SqlFilter-{version}.log") as running:
        for expression, messages in cases:
            running.write("\t".join([quote(expression), *map(urlencode, messages)]))
        running.finish(ANSWER_TIMEOUT_S)
        answers = [json.loads(line) for line in running.lines]
    if len(answers) != len(cases):
        raise running.error(f"answered {len(answers)} of {len(cases)} lines")
    return [_verdict(expression, answer) for (expression, _), answer in zip(cases, answers, strict=True)]


def _verdict(expression: str, answer: dict[str, Any]) -> Verdict:
    rest = answer.get("rest") or None
    return Verdict(
        compiled=answer["compiled"],
        rest=_position(expression, rest) if rest else None,
        results=tuple(answer.get("results", ())),
        error=answer.get("error", ""),
    )


def _position(expression: str, place: str) -> int:
    """From JavaCC's "line:column" to a position in the text: tabs go to the next multiple of 8, units are UTF-16's."""
    wanted = tuple(map(int, place.split(":")))
    line, column = 1, 0
    for position, character in enumerate(expression):
        after = expression[position - 1] if position else ""
        if after == "\n" or (after == "\r" and character != "\n"):
            line, column = line + 1, 0
        column = (column // 8 + 1) * 8 if character == "\t" else column + 1
        if (line, column) >= wanted:
            return position
        column += character > "\uffff"
    raise AssertionError(f"{expression!r} has no {place}")
