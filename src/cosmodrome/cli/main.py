"""The command `cosmodrome`."""

from __future__ import annotations

import logging
import os
import platform
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cosmodrome import __version__
from cosmodrome.cli.output import LogFormatter, errors_told

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

# Command → the module that defines it under its own name, imported when the command runs, and its line in the help.
COMMANDS = {
    "admin": (
        "cosmodrome.cli.admin",
        "Ask and change a running cluster, with the verbs and flags of Apache's mqadmin.",
    ),
    "broker": ("cosmodrome.cli.serve", "Start a broker."),
    "bench": ("cosmodrome.cli.bench", "Measure sending, consuming and latency, with a bound."),
    "brokers": ("cosmodrome.cli.brokers", "List and describe brokers."),
    "check": ("cosmodrome.cli.check", "Compare figures with thresholds, for Nagios and CI."),
    "clients": ("cosmodrome.cli.clients", "List the producers and consumers that are connected."),
    "config": ("cosmodrome.cli.config", "Check settings."),
    "context": ("cosmodrome.cli.context", "Keep ways to reach clusters under names."),
    "debug": ("cosmodrome.cli.debug", "Gather what is needed to look into a problem."),
    "dlq": ("cosmodrome.cli.dlq", "List, read, resend and export dead letters."),
    "doctor": ("cosmodrome.cli.doctor", "Look for what is wrong with the cluster, and say what mends it."),
    "explain": ("cosmodrome.cli.explain", "Say what a code, a send status or an error means, and what to do."),
    "find": (
        "cosmodrome.cli.find",
        "Show messages of TOPIC that are stored: by key, by id, by place, or by the time they were stored.",
    ),
    "groups": ("cosmodrome.cli.groups", "List, describe, create, alter, reset and delete consumer groups."),
    "health": ("cosmodrome.cli.health", "Say whether every name server and broker does its work."),
    "namesrv": ("cosmodrome.cli.serve", "Start a name server."),
    "pipeline": ("cosmodrome.cli.pipeline", "Ready Spark jobs over topics: archive, replay, SQL, reports."),
    "send": ("cosmodrome.cli.messages", "Send BODY to TOPIC; BODY - reads it from standard input."),
    "sql": ("cosmodrome.cli.sql", "Ask QUERY in Spark's SQL; the topics it names are its tables."),
    "store": ("cosmodrome.cli.store", "Inspect, verify or repair a store folder."),
    "tail": ("cosmodrome.cli.messages", "Show the messages of TOPIC as they come."),
    "tls": ("cosmodrome.cli.tls", "Make certificates."),
    "top": ("cosmodrome.cli.top", "Show brokers, rates and lag live; q quits."),
    "topics": ("cosmodrome.cli.topics", "List, describe, create, alter and delete topics."),
    "trace": (
        "cosmodrome.cli.trace",
        "Show the life of the message MSG_ID: who sent it, where it went, who consumed it.",
    ),
    "up": ("cosmodrome.cli.serve", "Start a name server and a broker in one process."),
}


class CosmodromeGroup(click.Group):
    """A group of commands whose modules are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            module, _ = COMMANDS[cmd_name]
            self.add_command(getattr(import_module(module), cmd_name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them: each import costs as much as the whole help."""
        rows = []
        for name in self.list_commands(ctx):
            command = self.commands.get(name)
            rows.append((name, COMMANDS[name][1] if command is None else command.get_short_help_str()))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin with `incomplete`, without importing them."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=COMMANDS[name][1])
            for name in self.list_commands(ctx)
            if name.startswith(incomplete) and name in COMMANDS
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        if sys.stdout is None:  # closed by the shell, as in `cosmodrome up >&-`
            sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # until the process ends
        return super().main(*args, **kwargs)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with errors_told():  # help and version are written here
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with errors_told():
            return super().invoke(ctx)


@click.group(
    cls=CosmodromeGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    no_args_is_help=True,
    subcommand_metavar="COMMAND [ARGS]...",
)
@click.option("--version", is_flag=True, help="Show the version and exit; with -v, whether native code is used.")
@click.option("-v", "--verbose", count=True, help="Log more: -v for what happens, -vv for everything.")
@click.pass_context
def main(ctx: click.Context, version: bool, verbose: int) -> None:
    """RocketMQ for Python: name server, broker and clients in one command."""
    if version:
        _show_version(with_parts=verbose > 0)
        ctx.exit()
    if ctx.invoked_subcommand is None:
        ctx.fail("Missing command.")
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter(LOG_FORMAT))
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def _show_version(*, with_parts: bool) -> None:
    """Write the version; with its parts also the interpreter's, and whether native code does the work."""
    click.echo(f"cosmodrome, version {__version__}")
    if with_parts:
        from cosmodrome import native  # loads the native part

        click.echo(f"Python {platform.python_version()} ({platform.python_implementation()})")
        click.echo(native.describe())


if __name__ == "__main__":
    main()
