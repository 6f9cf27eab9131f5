"""`cosmodrome doctor`."""

from __future__ import annotations

import dataclasses
import re

import click

from cosmodrome.admin.doctor import Diagnosis, Finding
from cosmodrome.admin.facts import SAMPLE_SECONDS
from cosmodrome.cli.access import Access, access_options
from cosmodrome.cli.asking import ask
from cosmodrome.cli.formats import Column, Row, Schema, format_options, repeat, watch_option, write
from cosmodrome.cli.output import one_line

SCHEMA = Schema(
    "finding",
    (
        Column("severity", "error, warning or note."),
        Column("name", "The kind of finding; docs/doctor.md lists them."),
        Column("subject", "The broker, topic or group."),
        Column("sure", "certain, likely or possible."),
        Column("seen", "The observation.", wide=True),
        Column("means", "The consequence.", hidden=True),
        Column("mend", "The command or change that mends it.", wide=True),
    ),
)


@click.command()
@click.option("--only", metavar="REGEX", help="Only findings whose name or subject matches.")
@click.option(
    "--sample",
    type=click.FloatRange(min=0, max=600),
    default=SAMPLE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks at the groups: a longer one says more surely whether lag grows.",
)
@access_options
@watch_option
@format_options(SCHEMA)
def doctor(only: str | None, sample: float, access: Access, output: str, watch: float | None) -> None:
    """Look for what is wrong with the cluster, and say what mends it.

    The exit code is 1 if there is an error or a warning.
    """
    pattern = _pattern(only)
    last: list[Diagnosis] = []

    def show() -> None:
        found = ask(access, lambda admin: admin.diagnose(sample_seconds=sample))
        wanted = tuple(one for one in found.findings if pattern.search(one.name) or pattern.search(one.subject))
        last[:] = [dataclasses.replace(found, findings=wanted)]
        if output == "table":
            click.echo(_text(last[0]))
        else:
            write(SCHEMA, map(_row, wanted), output)
        for what in found.left_out:
            click.echo(f"not looked at: {what}", err=True)

    repeat(show, watch)
    if last and not last[0].is_well:
        raise click.exceptions.Exit(1)


def _pattern(text: str | None) -> re.Pattern[str]:
    try:
        return re.compile(text or "")
    except re.error as error:
        raise click.BadParameter(f"{text!r} is no regular expression: {error}") from None


def _text(diagnosis: Diagnosis) -> str:
    looked = f"{diagnosis.brokers} brokers, {diagnosis.topics} topics, {diagnosis.groups} groups with offsets"
    if not diagnosis.findings:
        return f"all is well: {looked}"
    parts = [_told(one) for one in diagnosis.findings]
    count = len(parts)
    return "\n".join([*parts, f"{count} finding{'s' if count > 1 else ''}: {looked}"])


def _told(one: Finding) -> str:
    lines = [
        f"{one.severity.upper()} {one.name}: {one.subject} ({one.sure})",
        f"  {one.seen}",
        f"  {one.means}",
        f"  To mend: {one.mend}",
    ]
    return "\n".join(map(one_line, lines)) + "\n"


def _row(one: Finding) -> Row:
    return {**dataclasses.asdict(one), "severity": one.severity.value, "sure": one.sure.value}
