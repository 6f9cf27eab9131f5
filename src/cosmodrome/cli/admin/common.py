"""How verbs of `cosmodrome admin` are made: mqadmin's flags, one call of `Admin`, rows, partial answers, dry runs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import click

from cosmodrome.admin import Admin, BrokerNode, Done, Unanswered
from cosmodrome.cli.access import Access, access_options, hints_at_start
from cosmodrome.cli.formats import (
    FORMATS,
    MIN_WATCH_SECONDS,
    Column,
    Row,
    Schema,
    format_options,
    repeat,
    watch_option,
    write,
)
from cosmodrome.cli.output import one_line
from cosmodrome.net.loop import run
from cosmodrome.numbers import parse_int
from cosmodrome.wire.header import camel_case

Option = Callable[[Callable[..., Any]], Callable[..., Any]]
JAVA_TIME = "%Y-%m-%d#%H:%M:%S:%f"  # mqadmin's yyyy-MM-dd#HH:mm:ss:SSS
NOW = -1


@dataclass(slots=True)
class Answer:
    """Rows to print; brokers that did not answer make the exit code 1, and `note` goes to standard error."""

    rows: Iterable[Row] = ()
    unanswered: Sequence[Unanswered] = field(default_factory=tuple)
    note: str = ""


Work = Callable[..., Awaitable[Answer]]

CHANGE = Schema(
    "broker or name server",
    (
        Column("cluster", "Its cluster; empty for a name server."),
        Column("brokerName", "Its name; of a name server, its address.", "BROKER"),
        Column("address", "Where it was asked."),
        Column("done", "Whether it did what it was asked."),
        Column("detail", "What came of it, or why it was not done."),
    ),
)
DRY_RUN = "nothing was changed: this shows what would be. Add --yes to do it"


def format_or(own: click.ParamType[Any]) -> Callable[[str], Any]:
    """Return a converter for `-o` where mqadmin has one of its own: a format, or ("own", value)."""

    def convert(text: str) -> Any:
        return text if text in FORMATS else ("own", own.convert(text, None, None))

    return convert


def verb(
    schema: Schema, *, own_o: tuple[str, click.ParamType[Any]] | None = None, with_interval: bool = False
) -> Callable[[Work], click.Command]:
    """Return a decorator that makes a command of a coroutine `(admin, **options) -> Answer`.

    `own_o` is the name and type of an option that mqadmin calls `-o`: `-o true` sets it, and `-o json` the format.
    `with_interval` adds mqadmin's `-i SECONDS`, which is `--watch`.
    """

    def decorate(work: Work) -> click.Command:
        @functools.wraps(work)
        def command(*, access: Access, watch: float | None, **options: Any) -> None:
            output = options.pop("output")
            watch = options.pop("interval", None) if watch is None else watch
            if watch is not None and options.get("yes"):
                raise click.UsageError("--watch would do it again and again; give --yes without it")
            if own_o is not None:
                output = _split(options, own_o[0], output)

            def show() -> None:
                with hints_at_start():
                    answer = run(_asked(access, work, options))
                write(schema, answer.rows, output)
                tell(answer, ends=watch is None)

            repeat(show, watch)

        made = watch_option(access_options(command))
        if with_interval:
            made = click.option("-i", "--interval", type=click.FloatRange(min=MIN_WATCH_SECONDS), help="As --watch.")(
                made
            )
        made = _shared_o(*own_o)(made) if own_o is not None else format_options(schema)(made)
        if own_o is not None:
            made = format_options(schema, with_output=False)(made)
        return click.command(camel_case(work.__name__))(made)

    return decorate


def _shared_o(name: str, kind: click.ParamType[Any]) -> Option:
    return click.option(
        "-o",
        "--output",
        multiple=True,
        type=format_or(kind),
        metavar="FORMAT|VALUE",
        help=f"A format ({', '.join(FORMATS)}); any other value is mqadmin's -o, which is --{name} here.",
    )


def _split(options: dict[str, Any], name: str, given: Sequence[Any]) -> str:
    """Return the format, and put what mqadmin's `-o` says under its own name."""
    key, output = name.replace("-", "_"), "table"
    for value in given:
        if isinstance(value, tuple):
            options[key] = value[1]
        else:
            output = value
    return output


async def _asked(access: Access, work: Work, options: dict[str, Any]) -> Answer:
    async with Admin(config=access.config, rpc_hooks=access.rpc_hooks) as admin:
        return await work(admin, **options)


def tell(answer: Answer, *, ends: bool = True) -> None:
    """Say on standard error what rows cannot; if a broker did not answer and `ends`, end with exit code 1."""
    if answer.note:
        click.echo(one_line(answer.note), err=True)
    for one in answer.unanswered:
        place = f"{one.broker_name} at {one.address}" if one.broker_name != one.address else one.address
        click.echo(one_line(f"{'refused by' if one.code else 'no answer from'} {place}: {one.reason}"), err=True)
    if answer.unanswered and ends:
        raise click.exceptions.Exit(1)


def node_row(node: BrokerNode) -> dict[str, Any]:
    """Return the columns that name a broker."""
    return {
        "cluster": node.cluster,
        "brokerName": node.broker_name,
        "brokerId": node.broker_id,
        "address": node.address,
    }


def changed(*outcomes: Done, note: str = "") -> Answer:
    """Return where something was done, and where not, as rows."""
    rows: list[dict[str, Any]] = []
    for done in outcomes:
        rows += [{**node_row(node), "done": True, "detail": done.detail} for node in done.brokers]
        rows += [
            {"cluster": "", "brokerName": one.broker_name, "address": one.address, "done": False, "detail": one.reason}
            for one in done.unanswered
        ]
    return Answer(rows, [one for done in outcomes for one in done.unanswered], note)


def would(nodes: Iterable[BrokerNode], detail: str) -> Answer:
    """Return what a change would do where, as rows."""
    return Answer([{**node_row(node), "done": False, "detail": detail} for node in nodes], note=DRY_RUN)


async def at_once(awaitables: Iterable[Awaitable[Done]]) -> list[Done]:
    return list(await asyncio.gather(*awaitables))


# --- options


def yes_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--yes`."""
    return click.option("--yes", is_flag=True, help="Do it. Without this, only show what would be done.")(command)


def broker_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add mqadmin's `-b`."""
    return click.option(
        "-b",
        "--brokerAddr",
        "--broker",
        "broker",
        default="",
        metavar="HOST:PORT|NAME",
        help="The broker that is meant.",
    )(command)


def cluster_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add mqadmin's `-c`."""
    return click.option(
        "-c", "--clusterName", "--cluster", "cluster", default="", metavar="CLUSTER", help="The cluster that is meant."
    )(command)


def places(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-b` and `-c`; without both, all brokers are meant."""

    @functools.wraps(command)
    async def checked(*args: Any, broker: str, cluster: str, **kwargs: Any) -> Any:
        if broker and cluster:
            raise click.UsageError("-b and -c exclude each other: name one broker, or a cluster")
        return await command(*args, broker=broker, cluster=cluster, **kwargs)

    return broker_option(cluster_option(checked))


def place_needed(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-b` and `-c`, one of which must be given."""

    @functools.wraps(command)
    async def checked(*args: Any, broker: str, cluster: str, **kwargs: Any) -> Any:
        if bool(broker) == bool(cluster):
            raise click.UsageError("say where: -b HOST:PORT for one broker, or -c CLUSTER for all brokers of a cluster")
        return await command(*args, broker=broker, cluster=cluster, **kwargs)

    return broker_option(cluster_option(checked))


def topic_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-t`."""
    return click.option("-t", "--topic", required=True, help="The topic.")(command)


def group_option(*names: str) -> Option:
    """Return a decorator that adds `-g` with mqadmin's long names."""
    longs = names or ("--groupName", "--consumerGroup", "--group")
    return click.option("-g", *longs, "group", required=True, help="The consumer group.")


def moment(text: str) -> int:
    """Return a time in ms, as mqadmin writes it: `now`, ms since 1970, or 2030-01-31#09:00:00:000; or in ISO 8601."""
    text = text.strip()
    if text in ("now", "-1"):
        return NOW
    if (milliseconds := parse_int(text, high=10**15 - 1)) is not None:
        return milliseconds
    try:
        found = datetime.strptime(text, JAVA_TIME) if "#" in text else datetime.fromisoformat(text)
        return max(int(found.astimezone().timestamp() * 1000), 0)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r}: write now, ms since 1970, 2030-01-31#09:00:00:000 or 2030-01-31T09:00:00Z"
        ) from None
