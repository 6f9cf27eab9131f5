"""`cosmodrome config`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from cosmodrome.cli.formats import Column, Schema, format_options, write
from cosmodrome.config import (
    BadSetting,
    BrokerConfig,
    NameServerConfig,
    NetConfig,
    RaftConfig,
    ReplicationConfig,
    SecurityConfig,
    StoreConfig,
    check_raft,
    check_role,
    judge_keys,
    read_properties,
)
from cosmodrome.errors import ConfigError
from cosmodrome.properties_file import Properties

ERROR, NOTE = "error", "note"
NAME_SERVER_FILE = re.compile(r"name?se?rv|name-?server", re.IGNORECASE)
_PLACE = re.compile(r".*?:([0-9]+): (.*)", re.DOTALL)
_KINDS: dict[str, tuple[Any, ...]] = {
    "broker": (BrokerConfig, StoreConfig, NetConfig, ReplicationConfig, SecurityConfig, RaftConfig),
    "namesrv": (NameServerConfig, NetConfig, SecurityConfig),
}
SCHEMA = Schema(
    "problem",
    (
        Column("file", "The file, as it was given."),
        Column("line", "The line in the file; none if the problem has no line.", right=True),
        Column("level", "error: the program would not start. note: the line has no effect."),
        Column("problem", "The problem and what to do."),
    ),
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a file, or without effect."""

    line: int | None
    level: str
    text: str


@click.group()
def config() -> None:
    """Check settings."""


@config.command("lint")
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--kind",
    type=click.Choice(sorted(_KINDS)),
    help="Program that the file is for.  [default: namesrv if the file's name says so, else broker]",
)
@format_options(SCHEMA)
def lint(files: tuple[str, ...], kind: str | None, output: str) -> None:
    """Read FILE as the broker or the name server does, and name every problem with its line.

    The exit code is 1 if the program would refuse to start with a file.
    """
    found = [(file, one) for file in files for one in problems(Path(file), kind or kind_of(file))]
    if output == "table":
        for file, one in found:
            place = file if one.line is None else f"{file}:{one.line}"
            click.echo(f"{place}: {one.level}: {one.text}")
        for file in files:
            if not any(name == file and one.level == ERROR for name, one in found):
                click.echo(f"{file}: fit for a {kind or kind_of(file)}")
    else:
        rows = ({"file": file, "line": one.line, "level": one.level, "problem": one.text} for file, one in found)
        write(SCHEMA, rows, output)
    if any(one.level == ERROR for _, one in found):
        raise click.exceptions.Exit(1)


def kind_of(file: str) -> str:
    """Return the program that a file is for, by the file's name."""
    return "namesrv" if NAME_SERVER_FILE.search(Path(file).name) else "broker"


def problems(file: Path, kind: str) -> list[Problem]:
    """Return everything that is wrong with a file, by line."""
    try:
        properties = read_properties(file)
    except ConfigError as error:
        return [Problem(None, ERROR, str(error))]
    refused, idle = judge_keys(properties, *_KINDS[kind])
    found = [_placed(text) for text in refused]
    found += [
        Problem(properties.lines[text.partition("=")[0]], NOTE, f"accepted without effect: {text}") for text in idle
    ]
    found += [
        Problem(line, NOTE, f"{key} is given again in line {properties.lines[key]}, which counts: remove this line")
        for key, line in properties.overruled
    ]
    told = {one.line for one in found if one.level == ERROR}
    found += (one for one in _bad_values(properties, kind) if one.line is None or one.line not in told)
    return sorted(found, key=lambda one: (one.line or 0, one.level))


def _bad_values(properties: Properties, kind: str) -> Iterable[Problem]:
    """Yield each value that a config does not take; a config names one at a time, so it is made again without that."""
    left = Properties(properties.source)
    for key, value in properties.items():
        left.add(key, value, properties.lines[key])

    def check() -> None:
        broker, replication = BrokerConfig().with_properties(left), ReplicationConfig().with_properties(left)
        check_role(broker, replication)
        raft = RaftConfig().with_properties(left)
        store, security = StoreConfig().with_properties(left), SecurityConfig().with_properties(left)
        check_raft(raft, store, broker, replication, security)

    makers: list[Callable[[], object]] = [partial(_made, made, left) for made in _KINDS[kind]]
    if kind == "broker":
        makers.append(check)
    for make in makers:
        while (problem := _problem_of(make)) is not None:
            key, one = problem
            yield one if one.line is not None or key not in left else Problem(left.lines[key], ERROR, one.text)
            if key not in left:
                break
            del left[key]


def _made(kind: Any, properties: Properties) -> object:
    return kind().with_properties(properties)


def _problem_of(make: Callable[[], object]) -> tuple[str, Problem] | None:
    try:
        make()
    except BadSetting as error:
        return error.key, _placed(str(error))
    except ConfigError as error:
        return "", _placed(str(error))
    return None


def _placed(text: str) -> Problem:
    """Take the line out of `broker.conf:7: …`."""
    match = _PLACE.fullmatch(text)
    return Problem(int(match[1]), ERROR, match[2]) if match else Problem(None, ERROR, text)
