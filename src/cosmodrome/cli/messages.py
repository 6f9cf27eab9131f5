"""`cosmodrome send` and `cosmodrome tail`."""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import click

from cosmodrome.cli.access import Access, access_options, hints_at_start
from cosmodrome.cli.options import DURATION, check_raw, duration, instant, output_option, raw_option
from cosmodrome.cli.output import (
    echo_json,
    message_json,
    message_text,
    reader_is_gone,
    send_result_json,
    send_result_text,
)
from cosmodrome.errors import RouteNotFound
from cosmodrome.model import ALL_TAGS, Message, ReceivedMessage, SendResult

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
@click.option(
    "--property",
    "--header",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="A user property; several may be given.",
)
@click.option("--lines", is_flag=True, help="With BODY -: each line of standard input is a message.")
@click.option("--key-separator", "-K", default="", metavar="TEXT", help="With --lines: the key stands before TEXT.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="With --lines: so many a second at most.")
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
    lines: bool,
    key_separator: str,
    rate: float | None,
    delay_level: int | None,
    delay: timedelta | None,
    deliver_at: datetime | None,
    timeout_ms: int,
    access: Access,
    output: str,
) -> None:
    """Send BODY to TOPIC; BODY - reads it from standard input."""
    if lines and body != "-":
        raise click.UsageError("--lines reads standard input: give - as BODY")
    if not lines and (key_separator or rate is not None):
        raise click.UsageError("--key-separator and --rate are for --lines")
    data = b""
    if not lines:
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
    if lines:
        from cosmodrome.cli.bulk import Bulk, send_lines

        with hints_at_start():
            send_lines(Bulk(message, key_separator, rate, timeout_ms, output), access, CLI_GROUP)
        return
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


class Start(NamedTuple):
    """Where a tail begins; at the end, if neither is set."""

    is_earliest: bool = False
    at_ms: int | None = None


def start_place(text: str) -> Start:
    """Return a start: `earliest`, `latest`, a time, or an age such as 15m."""
    if text in ("earliest", "latest"):
        return Start(is_earliest=text == "earliest")
    if DURATION.fullmatch(text):
        return Start(at_ms=int((datetime.now().astimezone() - duration(text)).timestamp() * 1_000))
    return Start(at_ms=max(int(instant(text).timestamp() * 1_000), 0))


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    type=start_place,
    default="latest",
    show_default=True,
    metavar="earliest|latest|TIME|AGE",
    help="Begin with the oldest message kept, the next one to come, or one of a time: 2030-01-31T09:00, or 15m ago.",
)
@click.option("--limit", type=click.IntRange(1), help="Stop after this many messages; otherwise Ctrl-C stops.")
@click.option("--tag", help="Only messages with one of these tags, such as 'paid || refunded'.")
@click.option("--key", "keys", multiple=True, help="Only messages with one of these keys; filtered here.")
@click.option(
    "--queue", "queues", multiple=True, metavar="[BROKER/]ID", help="Only messages of these queues; filtered here."
)
@click.option(
    "-f",
    "--format",
    "template",
    metavar="FORMAT",
    help=r"Print each message so: '%t %p %o %k %s\n'; `-f help` lists what there is.",
)
@click.option("--sql", help="Only messages with these properties, such as \"region = 'north' AND price > 10\".")
@raw_option
@access_options
@output_option
def tail(
    topic: str,
    start: Start,
    limit: int | None,
    tag: str | None,
    keys: tuple[str, ...],
    queues: tuple[str, ...],
    template: str | None,
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
    if template is not None and output == "json":
        raise click.UsageError("give --format or -o json, not both")
    if template == "help":
        from cosmodrome.cli.percent import help_text

        click.echo(help_text())
        return
    show = _Show(limit, output, raw, template, frozenset(keys), frozenset(queues))
    expression = Sql(sql) if sql is not None else tag or ALL_TAGS
    reader = TopicReader(
        topic,
        expression,
        from_earliest=start.is_earliest,
        from_ms=start.at_ms,
        rpc_hooks=access.rpc_hooks,
        config=access.config,
    )
    try:
        with hints_at_start():
            run(_look_for(topic, access))
        run(_tail(reader, show))
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


class _Show:
    """What a tail shows, and how."""

    def __init__(
        self,
        limit: int | None,
        output: str,
        raw: bool,
        template: str | None,
        keys: frozenset[str],
        queues: frozenset[str],
    ) -> None:
        self._left = limit
        self._output = output
        self._raw = raw
        self._keys = keys
        self._queues = queues
        self._format = None
        if template is not None:
            from cosmodrome.cli.percent import PercentFormat

            self._format = PercentFormat(template)

    def show(self, message: ReceivedMessage) -> bool:
        """Print a message if it is wanted; return whether it was the last."""
        queue = message.queue
        if self._keys and not self._keys & set(message.keys.split(" ")):
            return False
        if self._queues and not self._queues & {str(queue.queue_id), f"{queue.broker_name}/{queue.queue_id}"}:
            return False
        if self._format is not None:
            click.echo(self._format.render(message, raw=self._raw), nl=False, color=self._raw or None)
        elif self._output == "json":
            echo_json(message_json(message))
        else:
            click.echo(message_text(message, raw=self._raw), color=self._raw or None)
        if self._left is not None:
            self._left -= 1
        return self._left == 0


async def _tail(reader: TopicReader, show: _Show) -> None:
    """Show messages until there are enough, or until the reader of this command's output has left."""
    showing = asyncio.create_task(_show(reader, show))
    leaving = asyncio.create_task(_wait_until_reader_leaves())
    try:
        await asyncio.wait((showing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if showing.done():
            await showing
    finally:
        leaving.cancel()
        showing.cancel()
        await asyncio.gather(showing, leaving, return_exceptions=True)


async def _show(reader: TopicReader, show: _Show) -> None:
    async with reader:
        async for message in reader:
            if show.show(message):
                return


async def _wait_until_reader_leaves() -> None:
    """Return when nothing reads standard output any more; the next message may be hours away."""
    while True:
        await asyncio.sleep(READER_CHECK_SECONDS)
        if reader_is_gone():
            return
