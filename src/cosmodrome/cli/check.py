"""`cosmodrome check`: one line and an exit code, as Nagios and CI want them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import click

from cosmodrome.admin.door import Admin
from cosmodrome.cli.access import Access, access_options
from cosmodrome.cli.asking import ask
from cosmodrome.cli.groups import lag_seconds
from cosmodrome.cli.output import one_line
from cosmodrome.cli.shared import is_system_group, regex
from cosmodrome.errors import CosmodromeError

OK, WARNING, CRITICAL, UNKNOWN = range(4)
STATES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_NAMED = 5  # of those beyond a threshold


class Figure(NamedTuple):
    """One value that is compared with thresholds."""

    name: str
    value: float


class CheckGroup(click.Group):
    """Commands that end with 3, UNKNOWN, whatever goes wrong: 1 and 2 say WARNING and CRITICAL."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit:
            raise
        except (click.ClickException, CosmodromeError, OSError) as error:
            message = error.format_message() if isinstance(error, click.ClickException) else str(error)
            click.echo(one_line(f"UNKNOWN - {message}"))
            raise click.exceptions.Exit(UNKNOWN) from error


@click.group(cls=CheckGroup)
def check() -> None:
    """Compare figures with thresholds, for Nagios and CI. The exit code is 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN."""


def thresholds(warning: float, critical: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds -w and -c: a value as large as one of them is beyond it."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        command = click.option("-c", "--critical", type=float, default=critical, show_default=True)(command)
        return click.option("-w", "--warning", type=float, default=warning, show_default=True)(command)

    return decorate


def judge(what: str, figures: Iterable[Figure], warning: float, critical: float, unit: str = "") -> None:
    """Print the line and exit with the state of the worst figure."""
    if warning > critical:
        raise click.UsageError(f"--warning {warning:g} is above --critical {critical:g}")
    found = sorted(figures, key=lambda one: -one.value)
    if not found:
        raise click.ClickException(f"there is nothing to check: {what}")
    state = CRITICAL if found[0].value >= critical else WARNING if found[0].value >= warning else OK
    bad = [one for one in found if one.value >= warning] or found[:1]
    named = ", ".join(f"{one.name} {one.value:g}{unit}" for one in bad[:_NAMED])
    more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
    data = " ".join(f"'{one.name}'={one.value:g};{warning:g};{critical:g}" for one in found)
    click.echo(one_line(f"{STATES[state]} - {what}: {named}{more} | {data}"))
    raise click.exceptions.Exit(state)


group_option = click.option("--group", "pattern", type=regex, default="", metavar="REGEX", help="Only these groups.")


@check.command()
@group_option
@click.option("--seconds", is_flag=True, help="Compare the age of what was consumed last, not the number of messages.")
@thresholds(1_000, 10_000)
@access_options
def lag(pattern: re.Pattern[str], seconds: bool, warning: float, critical: float, access: Access) -> None:
    """Check how far groups are behind, in messages or seconds."""
    progress = ask(access, lambda admin: admin.all_progress())
    if progress.unanswered:
        raise click.ClickException(f"{progress.unanswered[0].broker_name}: {progress.unanswered[0].reason}")
    now_ms = int(time.time() * 1_000)
    found = (
        Figure(one.group, max((lag_seconds(queue, now_ms) or 0 for queue in one.queues), default=0))
        if seconds
        else Figure(one.group, one.lag)
        for one in progress.groups
        if pattern.search(one.group) and not is_system_group(one.group)
    )
    judge("lag", found, warning, critical, " s" if seconds else "")


@check.command()
@thresholds(75, 85)
@access_options
def disk(warning: float, critical: float, access: Access) -> None:
    """Check how much of brokers' disks is used, in percent."""
    tables = ask(access, lambda admin: admin.broker_runtime())
    if tables.unanswered:
        raise click.ClickException(f"{tables.unanswered[0].broker_name}: {tables.unanswered[0].reason}")
    found = [
        Figure(
            f"{one.node.broker_name}:{one.node.broker_id}",
            round(float(one.values.get("commitLogDiskRatio", "0")) * 100, 1),
        )
        for one in tables.brokers
    ]
    judge("disk used", found, warning, critical, "%")


@check.command()
@thresholds(1, 1)
@access_options
def replication(warning: float, critical: float, access: Access) -> None:
    """Check how many copies are missing: of SYNC_MASTERs, and slaves that are registered but do not follow."""

    async def missing(admin: Admin) -> list[Figure]:
        facts = await admin.facts(sample_seconds=0)
        slaves: dict[str, int] = {}
        for node in (one.node for one in facts.brokers):
            slaves[node.broker_name] = slaves.get(node.broker_name, 0) + (node.broker_id != 0)
        made = []
        for one in facts.brokers:
            if one.node.broker_id == 0 and one.copies is not None:
                in_sync = sum(slave.in_sync for slave in one.copies.slaves)
                is_sync = one.settings.get("brokerRole") == "SYNC_MASTER"
                asked = max(int(one.settings.get("inSyncReplicas", "0")), 2) - 1 if is_sync else 0
                wanted = max(asked, slaves[one.node.broker_name])
                made.append(Figure(one.node.broker_name, max(wanted - in_sync, 0)))
        return [*made, *(Figure(one.broker.broker_name, 1) for one in facts.silent)]

    judge("missing copies", ask(access, missing), warning, critical)


@check.command("dead-letters")
@group_option
@thresholds(1, 1_000)
@access_options
def dead_letters(pattern: re.Pattern[str], warning: float, critical: float, access: Access) -> None:
    """Check how many dead letters groups have."""
    groups = ask(access, lambda admin: admin.dead_letter_groups()).groups
    found = [Figure(one.group, one.messages) for one in groups if pattern.search(one.group)]
    judge("dead letters", found or [Figure("none", 0)], warning, critical)


@check.command()
@access_options
def health(access: Access) -> None:
    """Check that every name server and broker does its work."""
    found = ask(access, lambda admin: admin.health())
    bad = [part for part in found.parts if not part.is_healthy]
    if not found.is_healthy:
        told = "; ".join(f"{part.kind} {part.name}: {part.detail}" for part in bad) or "no broker is registered"
        click.echo(one_line(f"CRITICAL - {told}"))
        raise click.exceptions.Exit(CRITICAL)
    click.echo(f"OK - {len(found.parts)} name servers and brokers answer")
