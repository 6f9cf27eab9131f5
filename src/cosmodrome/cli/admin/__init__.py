"""`cosmodrome admin VERB`: mqadmin's verbs and flags. Modules are imported when their verb runs."""

from __future__ import annotations

import difflib
import re
from importlib import import_module

import click

from cosmodrome.cli.admin.verbs import NOT_HERE, VERBS


class VerbGroup(click.Group):
    """The verbs, listed by subject; a wrong one gets a suggestion, and one that is not here the reason."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = import_module(f"cosmodrome.cli.admin.{VERBS[cmd_name].module}")
        command: click.Command = getattr(module, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cmd_name).lower())
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in NOT_HERE:
            raise click.UsageError(f"{name} is not here: {NOT_HERE[name]}", ctx)
        if name not in VERBS and not name.startswith("-"):
            lower = {verb.lower(): verb for verb in (*VERBS, *NOT_HERE)}
            close = difflib.get_close_matches(name.lower(), lower, 3, 0.5)
            meant = f"; did you mean {' or '.join(lower[one] for one in close)}?" if close else ""
            raise click.UsageError(f"no verb {name}{meant} `cosmodrome admin` lists them", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs by subject, without importing them."""
        subjects: dict[str, list[tuple[str, str]]] = {}
        for name, verb in VERBS.items():
            subjects.setdefault(verb.subject, []).append((name, verb.help))
        for subject, rows in subjects.items():
            with formatter.section(subject):
                formatter.write_dl(rows)


@click.group(cls=VerbGroup)
def admin() -> None:
    """Ask and change a running cluster, with the verbs and flags of Apache's mqadmin.

    What would destroy something is only shown; --yes does it. Exit codes: 0 done, 1 failed or answered in part,
    2 misuse.
    """
