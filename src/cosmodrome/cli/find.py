"""`cosmodrome find`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import click

from cosmodrome.cli.access import Access, access_options, hints_at_start
from cosmodrome.cli.options import check_raw, instant, output_option, raw_option
from cosmodrome.cli.output import echo_json, message_json, one_line
from cosmodrome.client.finding import END_OF_TIME_MS, MAX_FOUND, Finder, Found
from cosmodrome.client.instance import Instance
from cosmodrome.client.offsets import max_offset, min_offset
from cosmodrome.clock import SystemClock
from cosmodrome.model import MessageQueue, Property, ReceivedMessage, check_topic
from cosmodrome.net.loop import run

_PLACE = re.compile(r"(.+)/([0-9]{1,9})@([0-9]{1,18})")
_SHOWN_CHARACTERS = 1_000
# What the lines above the properties say already.
_TOLD = frozenset({Property.TAGS, Property.KEYS, Property.UNIQ_KEY, Property.MIN_OFFSET, Property.MAX_OFFSET})


def place(text: str) -> tuple[str, int, int]:
    """Broker, queue and offset, written as `send` and `tail` show them."""
    if (found := _PLACE.fullmatch(text)) is None:
        raise click.BadParameter(f"{text!r}: write BROKER/QUEUE@OFFSET, such as broker-a/3@17")
    return found[1], int(found[2]), int(found[3])


@click.command()
@click.argument("topic")
@click.option("--key", help="Messages with this key.")
@click.option("--id", "message_id", help="The message with this id, or with this offset id.")
@click.option(
    "--at", type=place, metavar="BROKER/QUEUE@OFFSET", help="The message at this place, such as broker-a/3@17."
)
@click.option(
    "--begin", type=instant, metavar="TIME", help="Messages stored then or later: 2030-01-31T09:00, or with Z."
)
@click.option("--end", type=instant, metavar="TIME", help="Stored then or earlier.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=MAX_FOUND,
    show_default=True,
    help="Show so many at most: the newest with --key, else the oldest. Of a key, a broker gives 64.",
)
@raw_option
@access_options
@output_option
def find(
    topic: str,
    key: str | None,
    message_id: str | None,
    at: tuple[str, int, int] | None,
    begin: datetime | None,
    end: datetime | None,
    limit: int,
    raw: bool,
    access: Access,
    output: str,
) -> None:
    """Show messages of TOPIC that are stored: by key, by id, by place, or by the time they were stored.

    A key and times may be given together. Nothing is consumed.
    """
    check_topic(topic)
    check_raw(raw, output)
    is_timed = begin is not None or end is not None
    given = [name for name, value in (("--key", key), ("--id", message_id), ("--at", at)) if value is not None]
    if len(given) > 1 or (is_timed and given not in ([], ["--key"])):
        raise click.UsageError("give one of --key, --id, --at and times; only a key may have times beside it")
    if not (given or is_timed):
        raise click.UsageError("say what to find: --key, --id, --at, or --begin and --end")
    if not all(value for value in (key, message_id) if value is not None):
        raise click.UsageError(f"{given[0]} is empty")
    begin_ms = 0 if begin is None else max(int(begin.timestamp() * 1000), 0)
    end_ms = END_OF_TIME_MS if end is None else int(end.timestamp() * 1000)
    if end_ms < begin_ms:
        raise click.UsageError("--end is before --begin")
    question = _Question(topic, key, message_id, at, begin_ms, end_ms, limit)
    with hints_at_start():
        found = run(question.asked(access))
    _show(found.messages[:limit] if key is None else found.messages[-limit:], output, raw=raw)
    if len(found.messages) > limit:
        click.echo(f"there are more; --limit shows more than {limit}", err=True)
    elif key is not None and len(found.messages) >= MAX_FOUND:
        click.echo(f"there may be more: of one key a broker gives {MAX_FOUND}; --begin and --end part them", err=True)
    if found.failures:
        raise click.ClickException(f"there may be more, for not every broker was asked: {found.failures[0]}")
    if not found.messages:
        raise click.ClickException(question.nothing)


@dataclass(slots=True)
class _Question:
    """A search, and the sentence for finding nothing."""

    topic: str
    key: str | None
    message_id: str | None
    at: tuple[str, int, int] | None
    begin_ms: int
    end_ms: int
    limit: int
    nothing: str = ""

    async def asked(self, access: Access) -> Found:
        instance = Instance(access.config, SystemClock(), None, rpc_hooks=access.rpc_hooks)
        instance.start()
        try:
            return await self._asked(instance)
        finally:
            await instance.stop()

    async def _asked(self, instance: Instance) -> Found:
        finder, topic, times = Finder(instance, instance.namespace), self.topic, (self.begin_ms, self.end_ms)
        if self.key is not None:
            self.nothing = f"topic {topic} has no message with the key {self.key} in its index, stored at these times"
            return await finder.by_key(topic, self.key, *times, self.limit + 1)
        if self.message_id is not None:
            self.nothing = f"topic {topic} has no message with the id {self.message_id}; is it deleted, or elsewhere?"
            return await finder.by_id(topic, self.message_id)
        if self.at is not None:
            return await self._placed(instance, finder, *self.at)
        self.nothing = f"topic {topic} has no message that was stored at these times"
        return await finder.between(topic, *times, self.limit + 1)

    async def _placed(self, instance: Instance, finder: Finder, broker: str, queue_id: int, offset: int) -> Found:
        queue = MessageQueue(self.topic, broker, queue_id)
        message = await finder.at(queue, offset)
        if message is not None:
            return Found([message])
        low, high = await min_offset(instance, queue), await max_offset(instance, queue)
        kept = f"it keeps {max(low, 0)} to {high - 1}" if high > max(low, 0) else "it is empty"
        self.nothing = f"queue {broker}/{queue_id} of topic {self.topic} has no offset {offset}; {kept}"
        return Found()


def _show(messages: list[ReceivedMessage], output: str, *, raw: bool) -> None:
    for number, message in enumerate(messages):
        if output == "json":
            echo_json(message_json(message))
            continue
        if number:
            click.echo()
        click.echo(_told(message, str if raw else one_line), color=raw or None)


def _told(message: ReceivedMessage, shown: Callable[[str], str]) -> str:
    queue = message.queue
    place = f"{queue.broker_name or message.store_host}/{queue.queue_id}@{message.queue_offset}"
    lines = [shown(f"{message.topic} {place}")]
    properties = sorted((name, value) for name, value in message.properties.items() if name not in _TOLD)
    facts = {
        "queue of": queue.topic if queue.topic != message.topic else "",
        "id": message.msg_id,
        "offset id": message.offset_msg_id,
        "stored": f"{_time(message.store_timestamp)} on {message.store_host}",
        "born": f"{_time(message.born_timestamp)} at {message.born_host}",
        "tag": message.tags,
        "keys": message.keys,
        "properties": ", ".join(f"{name}={value}" for name, value in properties),
        "tries before": str(message.reconsume_times or ""),
        "body": _body(message.body),
    }
    lines += [f"  {name:<12} {shown(value)}" for name, value in facts.items() if value]
    return "\n".join(lines)


def _body(body: bytes) -> str:
    text = body.decode(errors="backslashreplace")
    cut = "" if len(text) <= _SHOWN_CHARACTERS else f" … cut after {_SHOWN_CHARACTERS} characters; -o json shows all"
    return f"{len(body)} bytes: {text[:_SHOWN_CHARACTERS]}{cut}" if body else "empty"


def _time(timestamp_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC).astimezone()
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S.%f}"[:-3]
