"""Options that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from cosmodrome.config import DEFAULT_NAMESRV_PORT

C = TypeVar("C", bound=Callable[..., Any])

PORT = click.IntRange(0, 65_535)

DURATION = re.compile(r"(?:[0-9]{1,9}(?:ms|s|m|h|d))+")
_DURATION_PART = re.compile(r"([0-9]+)(ms|s|m|h|d)")
_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}


def contexts_path() -> str:
    """Return the place of the file with the contexts, whether it is there or not."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # no import
    return os.path.join(base, "cosmodrome", "contexts.json")


def duration(text: str) -> timedelta:
    """A time span such as 90s, 1h30m or 7d."""
    if not DURATION.fullmatch(text):
        raise click.BadParameter(f"{text!r}: write a duration such as 500ms, 90s, 1h30m or 7d")
    try:
        return sum((int(count) * _UNITS[unit] for count, unit in _DURATION_PART.findall(text)), timedelta())
    except OverflowError:
        raise click.BadParameter(f"{text!r} is too long: at most {timedelta.max.days}d") from None


def instant(text: str) -> datetime:
    """A moment in ISO 8601; without a time zone it is this machine's."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{text!r}: write a time such as 2030-01-31T09:00 or 2030-01-31T09:00:00Z") from None


namesrv_option = click.option(
    "-n",
    "--namesrv",
    envvar="NAMESRV_ADDR",
    default=f"127.0.0.1:{DEFAULT_NAMESRV_PORT}",
    show_default=True,
    metavar="HOST:PORT[;…]",
    help="Name servers to ask (or set NAMESRV_ADDR).",
)
output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "jsonl"]),
    default="text",
    show_default=True,
    callback=lambda _context, _option, value: "json" if value == "jsonl" else value,
    help="json, or jsonl, prints one object a line, for scripts.",
)
raw_option = click.option(
    "--raw", is_flag=True, help="Show text as it is: it may break lines and command the terminal. Otherwise both show."
)
host_option = click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")


def _config_option(kind: str) -> Callable[[C], C]:
    return click.option(
        "-c",
        "--config",
        "config_file",
        type=click.Path(exists=True, dir_okay=False),
        help=f"Apache's {kind}. A key that asks for what this version cannot keep stops the start.",
    )


config_option = _config_option("broker.conf")
name_server_config_option = _config_option("namesrv.conf")


def check_raw(raw: bool, output: str) -> None:
    """Refuse `--raw` for JSON, which shows every character without doing what it says."""
    if raw and output == "json":
        raise click.UsageError("--raw is for text; -o json escapes what a terminal would obey, and loses nothing")
