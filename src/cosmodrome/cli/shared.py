"""Parts that the friendly verbs share: patterns, spans of time, dry runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from datetime import datetime
from typing import Any, TypeVar

import click

from cosmodrome.admin.results import Done
from cosmodrome.cli.asking import problems
from cosmodrome.cli.output import one_line
from cosmodrome.model import READ_WRITE, SYSTEM_GROUP_PREFIX, SYSTEM_PREFIX, SYSTEM_TOPICS, Perm

C = TypeVar("C", bound=Callable[..., Any])

_PERMISSIONS = {"r": int(Perm.READ), "w": int(Perm.WRITE), "rw": int(READ_WRITE), "-": 0}


def regex(text: str) -> re.Pattern[str]:
    """Return a pattern to search names with."""
    try:
        return re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r} is no regular expression: {error}") from None


class ListGroup(click.Group):
    """A group of commands that lists when no command is named: `cosmodrome topics` is `cosmodrome topics list`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


pattern_argument = click.argument("pattern", type=regex, default="", metavar="[REGEX]")
broker_option = click.option("--broker", default="", metavar="NAME", help="This broker alone.  [default: all]")
cluster_option = click.option("--cluster", default="", metavar="NAME", help="The brokers of this cluster alone.")
permission_option = click.option(
    "--perm", type=click.Choice([*_PERMISSIONS]), help="What is allowed: read, write, both, nothing (-)."
)


def yes_option(command: C) -> C:
    """Add `--yes`, without which a command only says what it would do."""
    return click.option("--yes", is_flag=True, help="Do it; without, the command says what it would do.")(command)


def permission(text: str) -> int:
    """Return the bits of `rw`."""
    return _PERMISSIONS[text]


def permission_text(perm: int) -> str:
    """Return `rw`, `r`, `w` or `-`."""
    return ("r" if perm & Perm.READ else "") + ("w" if perm & Perm.WRITE else "") or "-"


def is_system_topic(topic: str, owners: Container[str] = ()) -> bool:
    """Return whether brokers made the topic for themselves; `owners` are the names of brokers and clusters."""
    if topic in owners or topic.removesuffix(_REPLIES) in owners:
        return True
    return topic in SYSTEM_TOPICS or topic.startswith((SYSTEM_PREFIX, "%SYS"))


def is_system_group(group: str) -> bool:
    """Return whether the group is one of brokers and tools."""
    return group.startswith(SYSTEM_GROUP_PREFIX) or group in _TOOLS


_REPLIES = "_REPLY_TOPIC"  # after the name of a cluster
_TOOLS = frozenset(
    (
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
    )
)


def time_text(ms: int) -> str:
    """Return a moment of this machine's day and time; empty for none."""
    return f"{datetime.fromtimestamp(ms / 1_000):%Y-%m-%dT%H:%M:%S}" if ms > 0 else ""


def would(what: str) -> None:
    """Say what `--yes` would do."""
    click.echo(one_line(f"would {what}; nothing is done without --yes"))


def report(done: Done, what: str) -> None:
    """Say what was done and where; exit with 1 if a broker did not do it."""
    names = ", ".join(sorted({node.broker_name or node.address for node in done.brokers}))
    if names:
        click.echo(one_line(f"{what} on {names}{f': {done.detail}' if done.detail else ''}"))
    for problem in problems(done.unanswered):
        click.echo(one_line(problem), err=True)
    if done.unanswered or not names:
        raise click.exceptions.Exit(1)
