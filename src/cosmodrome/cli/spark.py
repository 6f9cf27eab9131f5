"""What the commands that use Spark share."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar

import click

from cosmodrome.pipelines.definition import checked_master
from cosmodrome.spark.sessions import SparkMissing

INTERRUPTED_EXIT_CODE = 130
_SHOW_CURSOR = "\x1b[?25h"
P = ParamSpec("P")
R = TypeVar("R")


class _Misuse(click.ClickException):
    exit_code = 2


master_option = click.option(
    "--master", metavar="MASTER", help="Where Spark runs: local[*] (here), spark://host:7077, yarn, k8s://…"
)
remote_option = click.option("--remote", metavar="sc://HOST", help="A Spark Connect server to run on.")


def says_what_to_install(command: Callable[P, R]) -> Callable[P, R]:
    """Exit code 2 when Spark cannot run here, as for a command that was called wrongly."""

    @functools.wraps(command)
    def told(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except SparkMissing as error:
            raise _Misuse(str(error)) from error

    return told


def chosen_master(master: str | None, remote: str | None) -> str | None:
    if master and remote:
        raise click.UsageError("give --master or --remote, not both")
    if remote and not remote.startswith("sc://"):
        raise click.BadParameter(f"{remote!r}: write sc://host or sc://host:15002", param_hint="--remote")
    if master:
        try:
            return checked_master(master)
        except ValueError as error:
            raise click.BadParameter(f"{master!r}: {error}", param_hint="--master") from None
    return remote


def ends_when_interrupted() -> None:
    """For a command that has nothing to finish: Ctrl-C ends it."""
    signal.signal(signal.SIGINT, lambda *_: end_at_once())


def end_at_once() -> NoReturn:
    """Without a word to Spark: it ends when it sees that we are gone. An exception in the midst of a call to it would
    come with a stack of either side."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{_SHOW_CURSOR}\n")  # a live table has hidden it
    sys.stderr.flush()
    os._exit(INTERRUPTED_EXIT_CODE)


def plain(value: Any) -> Any:
    """A value of a row as JSON has it; bytes that are no text are given in base64."""
    import base64
    from datetime import date, datetime
    from decimal import Decimal

    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes() | bytearray():
            try:
                return bytes(value).decode()
            except UnicodeDecodeError:
                return base64.b64encode(value).decode()
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case dict():
            return {str(key): plain(inner) for key, inner in value.items()}
        case tuple() if hasattr(value, "asDict"):
            return {name: plain(inner) for name, inner in value.asDict().items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
        case _:
            return str(value)
