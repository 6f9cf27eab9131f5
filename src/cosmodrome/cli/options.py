"""Options that several commands share."""

from __future__ import annotations

import click

from cosmodrome.config import DEFAULT_NAMESRV_PORT

PORT = click.IntRange(0, 65_535)

namesrv_option = click.option(
    "-n",
    "--namesrv",
    envvar="NAMESRV_ADDR",
    default=f"127.0.0.1:{DEFAULT_NAMESRV_PORT}",
    show_default=True,
    metavar="HOST:PORT[;…]",
    help="Name servers to ask (or set NAMESRV_ADDR).",
)
output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json prints one object a line, for scripts.",
)
host_option = click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
config_option = click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False),
    help="Apache's broker.conf: its keys are obeyed or named in a warning.",
)
