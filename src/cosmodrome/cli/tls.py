"""`cosmodrome tls`: certificates for a first try."""

from __future__ import annotations

from pathlib import Path

import click

from cosmodrome.net.certificates import make_authority

MAX_DAYS = 3_650


@click.group()
def tls() -> None:
    """Make certificates."""


@tls.command()
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("tls"),
    show_default=True,
    help="Folder for the files.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="Name or address of a server, which its certificate names; may be given several times.  "
    "[default: localhost, 127.0.0.1 and this machine's name]",
)
@click.option(
    "--days", type=click.IntRange(1, MAX_DAYS), default=365, show_default=True, help="Days until they expire."
)
def init(folder: Path, hosts: tuple[str, ...], days: int) -> None:
    """Make a CA, a certificate for servers and one for clients. No file is overwritten."""
    files = make_authority(folder.absolute(), hosts, days)
    width = max(map(len, files))
    for name, path in files.items():
        click.echo(f"{name:<{width}}  {path}")
    click.echo(
        "\n# for broker.conf and namesrv.conf\n"
        "tls.server.mode=enforcing\n"
        f"tls.server.certPath={files['server']}\n"
        f"tls.server.keyPath={files['server key']}\n"
        "tls.enable=true\n"
        "tls.client.authServer=true\n"
        f"tls.client.trustCertPath={files['ca']}\n"
        f"\n# for commands: --tls --tls-ca-file {files['ca']}\n"
        "# Keep ca.key away from the servers: with it anybody can make certificates that your clients trust."
    )
