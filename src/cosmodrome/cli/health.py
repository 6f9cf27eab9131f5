"""`cosmodrome health`."""

from __future__ import annotations

import time

import click

from cosmodrome.admin.facts import Health
from cosmodrome.cli.access import Access, access_options
from cosmodrome.cli.asking import ask
from cosmodrome.cli.formats import Column, Schema, format_options, repeat, watch_option, write

SCHEMA = Schema(
    "part",
    (
        Column("kind", "name server or broker."),
        Column("name", "The name; of a broker with its id, 0 is the master."),
        Column("address", "The address."),
        Column("healthy", "Whether it does its work."),
        Column("detail", "The role of a broker, or the reason why not."),
    ),
)
DEFAULT_WATCH_SECONDS = 1.0


@click.command()
@click.option("--exit-when-healthy", is_flag=True, help="Look again until all is healthy, then exit with 0.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="With --exit-when-healthy: give up after so long, with exit code 1.  [default: never]",
)
@access_options
@watch_option
@format_options(SCHEMA)
def health(exit_when_healthy: bool, timeout: float | None, access: Access, output: str, watch: float | None) -> None:
    """Say whether every name server and broker does its work. The exit code is 1 if one does not."""
    if timeout is not None and not exit_when_healthy:
        raise click.UsageError("--timeout is for --exit-when-healthy")
    if exit_when_healthy and watch is None:
        watch = DEFAULT_WATCH_SECONDS
    deadline = None if timeout is None else time.monotonic() + timeout
    last = [Health(())]

    def show() -> None:
        last[0] = ask(access, lambda admin: admin.health())
        made = (
            {
                "kind": part.kind,
                "name": part.name,
                "address": part.address,
                "healthy": part.is_healthy,
                "detail": part.detail,
            }
            for part in last[0].parts
        )
        write(SCHEMA, made, output)

    def is_enough() -> bool:
        is_late = deadline is not None and time.monotonic() >= deadline
        return exit_when_healthy and (last[0].is_healthy or is_late)

    repeat(show, watch, until=is_enough)
    if not last[0].is_healthy:
        raise click.exceptions.Exit(1)
