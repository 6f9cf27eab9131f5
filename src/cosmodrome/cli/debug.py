"""`cosmodrome debug bundle`: what somebody else needs to look into a problem, without secrets."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import sys
import time
import zipfile
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import click

from cosmodrome import __version__
from cosmodrome.admin.doctor import diagnose
from cosmodrome.admin.door import Admin
from cosmodrome.admin.results import to_json
from cosmodrome.cli.access import Access, access_options
from cosmodrome.cli.asking import ask

HIDDEN = "***"
MAX_LOG_BYTES = 5 * 1024 * 1024  # of each log: its end
_SECRET = r"secret|passw|token|credential|access[_-]?key|private[_-]?key|signature|authenticationuser"
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)
# `name=value`, `name: value` and `"name": "value"` in logs and files; a value in quotes or braces is taken as a whole.
_SECRET_PAIR = re.compile(
    rf"""([\"']?[\w.-]*(?:{_SECRET})[\w.-]*[\"']?\s*[=:]\s*)("(?:[^"\\]|\\.)*"|'[^']*'|\{{.*\}}|[^\s,;}}\]]+)""",
    re.IGNORECASE,
)


@click.group()
def debug() -> None:
    """Gather what is needed to look into a problem."""


@debug.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A log of a broker or client to put in; its last 5 MiB.",
)
@click.option(
    "-c",
    "--config",
    "configs",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A configuration file to put in.",
)
@access_options
def bundle(file: Path, logs: tuple[Path, ...], configs: tuple[Path, ...], access: Access) -> None:
    """Write FILE, a zip with the cluster's settings, figures, routes, progress and doctor's findings.

    Values that are secrets are left out: keys, passwords, tokens. Names of topics, groups and machines are in it, and
    no message. Look into it before you give it away.
    """
    parts = {name: _document(value) for name, value in ask(access, _gather).items()}
    parts["about.json"] = _document(
        {
            "cosmodrome": __version__,
            "python": sys.version,
            "system": platform.platform(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "namesrv": access.config.namesrv,
            "tls": access.config.tls,
        }
    )
    for number, path in enumerate(configs, 1):
        parts[f"configs/{number}-{path.name}"] = redacted(path.read_text(encoding="utf-8", errors="replace"))
    for number, path in enumerate(logs, 1):
        parts[f"logs/{number}-{path.name}"] = redacted(_tail(path))
    _write(file, _without(parts, access))
    click.echo(f"{len(parts)} files are in {file}; look into it before you give it away")


async def _gather(admin: Admin) -> dict[str, Any]:
    facts = await admin.facts()
    topics = sorted(name for name in facts.routed_topics if not name.startswith("%"))
    return {
        "doctor.json": diagnose(facts),
        "cluster.json": await admin.cluster(),
        "name-servers.json": facts.name_servers,
        "brokers.json": facts.brokers,
        "topics.json": {name: [one.config for one in facts.topics if one.config.name == name] for name in topics},
        "groups.json": list((await admin.group_configs()).groups),
        "progress.json": list(facts.progress.values()),
        "members.json": list(facts.members.values()),
    }


def _document(value: Any) -> str:
    return json.dumps(hide(plain(value)), indent=2, ensure_ascii=False, default=str) + "\n"


def plain(value: Any) -> Any:
    """Return JSON values of dataclasses, headers and mappings."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    return value if value is None or isinstance(value, str | int | float | bool) else to_json(value)


def hide(value: Any) -> Any:
    """Return JSON values without the values of secret names; texts are searched for secrets, too."""
    if isinstance(value, dict):
        return {name: HIDDEN if _SECRET_NAME.search(name) and one else hide(one) for name, one in value.items()}
    if isinstance(value, list):
        return [hide(one) for one in value]
    return redacted(value) if isinstance(value, str) else value


def redacted(text: str) -> str:
    """Return a text with `***` in place of each value that a secret name stands before."""
    return _SECRET_PAIR.sub(lambda match: f"{match[1]}{HIDDEN}", text)


def _without(parts: dict[str, str], access: Access) -> dict[str, str]:
    """Take out the keys of this command itself, wherever they stand."""
    keys = access.credentials
    secrets = [] if keys is None else [keys.secret_key, keys.security_token, keys.access_key]
    for secret in filter(None, secrets):
        parts = {name: text.replace(secret, HIDDEN) for name, text in parts.items()}
    return parts


def _tail(path: Path) -> str:
    with path.open("rb") as log:
        log.seek(max(path.stat().st_size - MAX_LOG_BYTES, 0))
        return log.read().decode(errors="replace")


def _write(file: Path, parts: Mapping[str, str]) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as made:
        for name, text in sorted(parts.items()):
            made.writestr(name, text)
