"""`cosmodrome context`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from cosmodrome.cli.contexts import Context, check_name, contexts_file, load, save
from cosmodrome.cli.formats import Column, Row, Schema, rows
from cosmodrome.cli.output import one_line
from cosmodrome.config import ClientConfig, TlsCheck

SCHEMA = Schema(
    "context",
    (
        Column("current", "Whether commands use it when no --context is given."),
        Column("name", "The name."),
        Column("namesrv", "The name servers."),
        Column("tls", "Whether connections are encrypted."),
        Column("credentials", "The file with access key and secret key.", wide=True),
        Column("tlsCaFile", "The CA file (PEM).", wide=True),
        Column("tlsCheck", "The check of certificates.", wide=True),
    ),
)


@click.group()
def context() -> None:
    """Keep ways to reach clusters under names."""


@context.command("add")
@click.argument("name")
@click.option("-n", "--namesrv", required=True, metavar="HOST:PORT[;…]", help="Name servers to ask.")
@click.option(
    "--credentials",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with accessKey and secretKey. The context keeps its path, not the keys.",
)
@click.option("--tls", is_flag=True, help="Speak TLS with name servers and brokers.")
@click.option("--tls-ca-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="CA file (PEM).")
@click.option("--tls-check", type=click.Choice([check.value for check in TlsCheck]), help="What is checked.")
def add(
    name: str, namesrv: str, credentials: Path | None, tls: bool, tls_ca_file: Path | None, tls_check: str | None
) -> None:
    """Add a context, or replace the one of that NAME. The first one is used at once."""
    if not tls and (tls_ca_file or tls_check):
        raise click.UsageError("--tls-ca-file and --tls-check are for --tls")
    made = Context(
        namesrv=namesrv,
        credentials=str(credentials.resolve()) if credentials else "",
        tls=tls,
        tls_ca_file=str(tls_ca_file.resolve()) if tls_ca_file else "",
        tls_check=tls_check or "",
    )
    _ = ClientConfig(namesrv=namesrv).name_servers  # a wrong address is an error now, not at the first use
    contexts = load()
    contexts.by_name[check_name(name)] = made
    contexts.current = contexts.current or name
    save(contexts)
    click.echo(f"context {name} is in {contexts_file()}{'; it is in use' if contexts.current == name else ''}")


@context.command("use")
@click.argument("name")
def use(name: str) -> None:
    """Use the context NAME from now on."""
    contexts = load()
    contexts.named(name)
    contexts.current = name
    save(contexts)
    click.echo(one_line(f"commands use context {name}: {contexts.by_name[name].namesrv}"))


@context.command("list")
@rows(SCHEMA)
def list_contexts() -> Iterable[Row]:
    """List the contexts."""
    contexts = load()
    return [
        {
            "current": name == contexts.current,
            "name": name,
            "namesrv": one.namesrv,
            "tls": one.tls,
            "credentials": one.credentials,
            "tlsCaFile": one.tls_ca_file,
            "tlsCheck": one.tls_check,
        }
        for name, one in sorted(contexts.by_name.items())
    ]


@context.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Remove the context NAME."""
    contexts = load()
    contexts.named(name)
    del contexts.by_name[name]
    if contexts.current == name:
        contexts.current = ""
    save(contexts)
    click.echo(f"context {name} is removed")
