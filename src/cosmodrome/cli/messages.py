"""`cosmodrome send` and `cosmodrome tail`."""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from cosmodrome.cli.access import Access, access_options, hints_at_start
from cosmodrome.cli.options import check_raw, duration, instant, output_option, raw_option
from cosmodrome.cli.output import (
    echo_json,
    message_json,
    message_text,
    reader_is_gone,
    send_result_json,
    send_result_text,
)
from cosmodrome.errors import RouteNotFound
from cosmodrome.model import ALL_TAGS, Message, SendResult

if TYPE_CHECKING:
    from cosmodrome.client.queue_reader import TopicReader

# Each command imports its own half of the client, for imports are most of what a short command costs.

CLI_GROUP = "cosmodrome-cli"
READER_CHECK_SECONDS = 0.5


@click.command()
@click.argument("topic")
@click.argument("body")
@click.option("--tag", default="", help="The message's tag, which consumers filter by.")
@click.option("--key", "keys", multiple=True, help="A key to find the message by; may be given several times.")
@click.option("--property", "pairs", multiple=True, metavar="NAME=VALUE", help="A user property; several may be given.")
@click.option(
    "--delay-level",
    type=click.IntRange(1),
    help="Deliver later: by default level 1 is 1 s, 2 is 5 s, 3 is 10 s, 5 is 1 min, 14 is 10 min, 18 is 2 h.",
)
@click.option("--delay", type=duration, metavar="DURATION", help="Deliver so much later: 90s, 1h30m, 7d.")
@click.option("--deliver-at", type=instant, metavar="TIME", help="Deliver then: 2030-01-31T09:00, or with +02:00 or Z.")
@click.option(
    "--timeout",
    "timeout_ms",
    type=click.IntRange(1),
    default=3_000,
    show_default=True,
    help="Milliseconds to wait for the broker.",
)
@access_options
@output_option
def send(
    topic: str,
    body: str,
    tag: str,
    keys: tuple[str, ...],
    pairs: tuple[str, ...],
    delay_level: int | None,
    delay: timedelta | None,
    deliver_at: datetime | None,
    timeout_ms: int,
    access: Access,
    output: str,
) -> None:
    """Send BODY to TOPIC; BODY - reads it from standard input."""
    data = sys.stdin.buffer.read() if body == "-" else body.encode(errors="surrogateescape")
    if sum(later is not None for later in (delay_level, delay, deliver_at)) > 1:
        raise click.UsageError("give one of --delay-level, --delay and --deliver-at")
    message = Message(
        topic,
        data,
        tags=tag,
        keys=list(keys),
        properties=_properties(pairs),
        delay_level=delay_level or 0,
        delay=delay,
        deliver_at=deliver_at,
    )
    with hints_at_start():
        result = asyncio.run(_send(message, access, timeout_ms))  # for one message, uvloop's import costs more
    if output == "json":
        echo_json(send_result_json(result))
    else:
        click.echo(send_result_text(result))


def _properties(pairs: tuple[str, ...]) -> dict[str, str]:
    properties = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise click.BadParameter(f"{pair!r}: write NAME=VALUE", param_hint="--property")
        properties[name] = value
    return properties


async def _send(message: Message, access: Access, timeout_ms: int) -> SendResult:
    from cosmodrome.client.producer import Producer

    async with Producer(CLI_GROUP, rpc_hooks=access.rpc_hooks, config=access.config) as producer:
        return await producer.send(message, timeout_ms=timeout_ms)


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="latest",
    show_default=True,
    help="Begin with the oldest message kept, or with the next one to come.",
)
@click.option("--limit", type=click.IntRange(1), help="Stop after this many messages; otherwise Ctrl-C stops.")
@click.option("--tag", help="Only messages with one of these tags, such as 'paid || refunded'.")
@click.option("--sql", help="Only messages with these properties, such as \"region = 'north' AND price > 10\".")
@raw_option
@access_options
@output_option
def tail(
    topic: str,
    start: str,
    limit: int | None,
    tag: str | None,
    sql: str | None,
    raw: bool,
    access: Access,
    output: str,
) -> None:
    """Show the messages of TOPIC as they come. No consumer group is involved, so no group misses anything."""
    from cosmodrome.client.queue_reader import TopicReader
    from cosmodrome.client.subscribing import Sql
    from cosmodrome.net.loop import run

    if tag is not None and sql is not None:
        raise click.UsageError("give --tag or --sql, not both")
    check_raw(raw, output)
    expression = Sql(sql) if sql is not None else tag or ALL_TAGS
    reader = TopicReader(
        topic,
        expression,
        from_earliest=start == "earliest",
        rpc_hooks=access.rpc_hooks,
        config=access.config,
    )
    try:
        with hints_at_start():
            run(_look_for(topic, access))
        run(_tail(reader, limit, output, raw=raw))
    except KeyboardInterrupt:
        pass  # how a tail ends


async def _look_for(topic: str, access: Access) -> None:
    """Ask a name server once, for a reader would go on asking: where none answers, nothing is worth waiting for."""
    from cosmodrome.client.instance import Instance
    from cosmodrome.clock import SystemClock

    instance = Instance(access.config, SystemClock(), None, rpc_hooks=access.rpc_hooks)
    instance.start()
    try:
        await instance.routes.topic(topic)
    except RouteNotFound:
        pass  # it may come; the reader says that it waits
    finally:
        await instance.stop()


async def _tail(reader: TopicReader, limit: int | None, output: str, *, raw: bool) -> None:
    """Show messages until there are enough, or until the reader of this command's output has left."""
    showing = asyncio.create_task(_show(reader, limit, output, raw=raw))
    leaving = asyncio.create_task(_wait_until_reader_leaves())
    try:
        await asyncio.wait((showing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if showing.done():
            await showing
    finally:
        leaving.cancel()
        showing.cancel()
        await asyncio.gather(showing, leaving, return_exceptions=True)


async def _show(reader: TopicReader, limit: int | None, output: str, *, raw: bool) -> None:
    shown = 0
    async with reader:
        async for message in reader:
            if output == "json":
                echo_json(message_json(message))
            else:
                click.echo(message_text(message, raw=raw), color=raw or None)
            shown += 1
            if shown == limit:
                return


async def _wait_until_reader_leaves() -> None:
    """Return when nothing reads standard output any more; the next message may be hours away."""
    while True:
        await asyncio.sleep(READER_CHECK_SECONDS)
        if reader_is_gone():
            return
