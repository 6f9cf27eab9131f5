"""Named contexts: name servers, credentials and TLS under a name, kept in a file of the user's.

The file is `$XDG_CONFIG_HOME/cosmodrome/contexts.json` (`~/.config` by default), readable by its owner only. It keeps
the path of a credentials file, never a secret.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from cosmodrome.cli.options import contexts_path
from cosmodrome.errors import ConfigError

MODE = 0o600
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@dataclass(frozen=True, slots=True)
class Context:
    """One way to reach a cluster; empty values are left to options and the environment."""

    namesrv: str
    credentials: str = ""
    tls: bool = False
    tls_ca_file: str = ""
    tls_check: str = ""


@dataclass(slots=True)
class Contexts:
    """All contexts of a user, and the name of the one in use."""

    by_name: dict[str, Context] = field(default_factory=dict)
    current: str = ""

    def named(self, name: str) -> Context:
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise ConfigError(f"there is no context {name}; there is {known}. `cosmodrome context add` makes one")
        return self.by_name[name]


def contexts_file() -> Path:
    """Return the place of the file, whether it is there or not."""
    return Path(contexts_path())


def load(file: Path | None = None) -> Contexts:
    """Read the contexts; ConfigError names a file that cannot be read."""
    path = file or contexts_file()
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        by_name = {str(name): _context(value) for name, value in raw.get("contexts", {}).items()}
        return Contexts(by_name, str(raw.get("current", "")))
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"cannot read the contexts in {path}: {error}; correct or remove the file") from error


def _context(value: Mapping[str, Any]) -> Context:
    known = {one.name for one in fields(Context)}
    return Context(**{name: one for name, one in value.items() if name in known})


def save(contexts: Contexts, file: Path | None = None) -> None:
    """Write the contexts so that no other user can read them."""
    path = file or contexts_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    value = {"current": contexts.current, "contexts": {name: asdict(one) for name, one in contexts.by_name.items()}}
    aside = path.with_suffix(f".{os.getpid()}.tmp")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, MODE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        os.fchmod(descriptor, MODE)
        json.dump(value, stream, indent=2, sort_keys=True)
        stream.write("\n")
        stream.flush()
        os.fsync(descriptor)
    aside.replace(path)


def check_name(name: str) -> str:
    if not name or not set(name) <= _NAME_CHARACTERS:
        raise ConfigError(f"the name {name!r} of a context is illegal; use letters, digits, '.', '_' and '-'")
    return name
