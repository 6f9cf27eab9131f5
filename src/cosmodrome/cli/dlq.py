"""`cosmodrome dlq`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

import click

from cosmodrome.admin.dead_letters import Redriven, origin_topic
from cosmodrome.admin.door import Admin
from cosmodrome.cli.access import Access, access_options
from cosmodrome.cli.asking import ask, problems
from cosmodrome.cli.formats import Column, Partial, Row, Schema, rows
from cosmodrome.cli.options import instant
from cosmodrome.cli.output import message_json
from cosmodrome.cli.shared import ListGroup, pattern_argument, time_text, yes_option
from cosmodrome.client.finding import END_OF_TIME_MS, Found
from cosmodrome.model import Property, ReceivedMessage

GROUPS = Schema(
    "group",
    (
        Column("group", "The group that has given messages up."),
        Column("messages", "Its dead letters.", right=True),
        Column("lastMessage", "When the last one was given up.", "LAST"),
        Column("brokers", "The brokers that have them."),
    ),
)
LETTERS = Schema(
    "dead letter",
    (
        Column("at", "Where it lies: broker/queue@offset."),
        Column("stored", "When it was given up."),
        Column("topic", "The topic it was sent to."),
        Column("msgId", "The id its producer gave it.", "ID"),
        Column("keys", "Its keys."),
        Column("tags", "Its tag."),
        Column("tries", "How often it was tried again.", right=True),
        Column("lastError", "Why the last try failed, if the consumer said.", "ERROR"),
        Column("body", "The body.", wide=True),
    ),
)
OUTCOMES = Schema(
    "dead letter",
    (
        Column("at", "Where it lies: broker/queue@offset."),
        Column("msgId", "The id its producer gave it.", "ID"),
        Column("topic", "The topic it was sent to."),
        Column("outcome", "would resend, resent, or failed."),
        Column("problem", "Why it failed."),
    ),
)
_BODY_CHARACTERS = 200


def choice_options(command: Callable[..., object]) -> Callable[..., object]:
    """Add the options that choose dead letters."""
    for option in reversed(
        (
            click.option("--id", "ids", multiple=True, metavar="MSG_ID", help="Only these; several may be given."),
            click.option("--key", "keys", multiple=True, help="Only with one of these keys."),
            click.option("--topic", default="", help="Only those that were sent to this topic."),
            click.option("--error", metavar="REGEX", default="", help="Only those whose last error matches."),
            click.option("--begin", type=instant, metavar="TIME", help="Only given up then or later."),
            click.option("--end", type=instant, metavar="TIME", help="Only given up then or earlier."),
            click.option(
                "--limit", type=click.IntRange(1, 100_000), default=1_000, show_default=True, help="So many at most."
            ),
        )
    ):
        command = option(command)
    return command


@click.group(cls=ListGroup)
def dlq() -> None:
    """List, read, resend and export dead letters."""


@dlq.command("list")
@pattern_argument
@access_options
@rows(GROUPS)
def list_groups(pattern: re.Pattern[str], access: Access) -> Partial:
    """List the groups with dead letters whose names match REGEX."""

    found = ask(access, lambda admin: admin.dead_letter_groups())
    made = (
        {
            "group": one.group,
            "messages": one.messages,
            "lastMessage": time_text(one.last_ms),
            "brokers": list(one.brokers),
        }
        for one in found.groups
        if pattern.search(one.group)
    )
    return Partial(made, problems(found.unanswered))


@dlq.command("read")
@click.argument("group")
@choice_options
@access_options
@rows(LETTERS)
def read(group: str, access: Access, **choice: object) -> Partial:
    """Show the dead letters of GROUP, the oldest first."""
    found = ask(access, lambda admin: _found(admin, group, choice))
    return Partial(map(_letter, _chosen(found.messages, choice)), _missing(found))


@dlq.command("resend")
@click.argument("group")
@choice_options
@yes_option
@access_options
@rows(OUTCOMES)
def resend(group: str, yes: bool, access: Access, **choice: object) -> Partial:
    """Give dead letters to GROUP again, and to no other group.

    They stay where they are: what is resent twice is delivered twice. The exit code is 1 if one failed.
    """

    async def drive(admin: Admin) -> tuple[list[Redriven], list[str]]:
        found = await _found(admin, group, choice)
        chosen = _chosen(found.messages, choice)
        return await admin.redrive(group, chosen) if yes else [Redriven(one) for one in chosen], _missing(found)

    outcomes, missing = ask(access, drive)
    if not yes:
        click.echo("nothing is sent without --yes", err=True)
    failed = sum(bool(one.problem) for one in outcomes)
    made = [
        {
            "at": _place(one.message),
            "msgId": one.message.msg_id,
            "topic": origin_topic(one.message),
            "outcome": "failed" if one.problem else "resent" if yes else "would resend",
            "problem": one.problem,
        }
        for one in outcomes
    ]
    return Partial(made, [*missing, *([f"{failed} of {len(outcomes)} were not resent"] if failed else [])])


@dlq.command("export")
@click.argument("group")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@choice_options
@access_options
def export(group: str, file: Path, access: Access, **choice: object) -> None:
    """Write the dead letters of GROUP to FILE, one JSON object a line; - is standard output. Nothing is taken away."""
    found = ask(access, lambda admin: _found(admin, group, choice))
    chosen = _chosen(found.messages, choice)
    lines = "".join(json.dumps(message_json(one), ensure_ascii=True) + "\n" for one in chosen)
    if str(file) == "-":
        click.echo(lines, nl=False)
    else:
        file.write_text(lines, encoding="utf-8")
        click.echo(f"{len(chosen)} dead letters are in {file}")
    for problem in _missing(found):
        click.echo(problem, err=True)
    if found.failures:
        raise click.exceptions.Exit(1)


async def _found(admin: Admin, group: str, choice: dict[str, object]) -> Found:
    begin, end, limit = choice["begin"], choice["end"], choice["limit"]
    begin_ms = int(begin.timestamp() * 1_000) if isinstance(begin, datetime) else 0
    end_ms = int(end.timestamp() * 1_000) if isinstance(end, datetime) else END_OF_TIME_MS
    assert isinstance(limit, int), "click converts it"
    return await admin.dead_letters(group, max(begin_ms, 0), end_ms, limit)


def _chosen(messages: Iterable[ReceivedMessage], choice: dict[str, object]) -> list[ReceivedMessage]:
    ids, keys, topic = set(_texts(choice["ids"])), set(_texts(choice["keys"])), choice["topic"]
    error = re.compile(str(choice["error"]))
    return [
        one
        for one in messages
        if (not ids or ids & {one.msg_id, one.offset_msg_id, one.properties.get(Property.ORIGIN_MESSAGE_ID, "")})
        and (not keys or keys & set(one.keys.split(" ")))
        and (not topic or origin_topic(one) == topic)
        and error.search(one.properties.get(Property.LAST_ERROR, ""))
    ]


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, tuple) else ()


def _missing(found: Found) -> list[str]:
    return [f"there may be more, for not every broker was asked: {failure}" for failure in found.failures]


def _place(message: ReceivedMessage) -> str:
    return f"{message.queue.broker_name}/{message.queue.queue_id}@{message.queue_offset}"


def _letter(message: ReceivedMessage) -> Row:
    return {
        "at": _place(message),
        "stored": time_text(message.store_timestamp),
        "topic": origin_topic(message),
        "msgId": message.msg_id,
        "keys": message.keys,
        "tags": message.tags,
        "tries": message.reconsume_times,
        "lastError": message.properties.get(Property.LAST_ERROR, ""),
        "body": message.body.decode(errors="backslashreplace")[:_BODY_CHARACTERS],
    }
