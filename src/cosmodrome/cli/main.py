"""The command `cosmodrome`."""

from __future__ import annotations

import logging
from typing import Any

import click

from cosmodrome import __version__
from cosmodrome.cli import find, messages, pipeline, serve, sql, store, trace
from cosmodrome.errors import CosmodromeError

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class CosmodromeGroup(click.Group):
    """What goes wrong is told in one line with exit code 1; a traceback means a bug."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CosmodromeError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=CosmodromeGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cosmodrome")
@click.option("-v", "--verbose", count=True, help="Log more: -v for what happens, -vv for everything.")
def main(verbose: int) -> None:
    """RocketMQ for Python: name server, broker and clients in one command."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, format=LOG_FORMAT)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


main.add_command(serve.up)
main.add_command(serve.namesrv)
main.add_command(serve.broker)
main.add_command(messages.send)
main.add_command(messages.tail)
main.add_command(find.find)
main.add_command(trace.trace)
main.add_command(store.store)
main.add_command(pipeline.pipeline)
main.add_command(sql.sql)

if __name__ == "__main__":
    main()
