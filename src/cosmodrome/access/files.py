"""The files of accounts: where they are, and reading them again when they change.

    $ROCKETMQ_HOME/conf/plain_acl.yml    and everything below    $ROCKETMQ_HOME/conf/acl/    that ends in .yml or .yaml

A file is read when it has not changed for one look, so that no half of one counts. When it cannot be read, the accounts
stay as they are.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cosmodrome.access.accounts import Accounts
from cosmodrome.access.gate import Gate
from cosmodrome.access.plain_acl import MAX_FILE_BYTES, joined, parse_plain_acl
from cosmodrome.clock import Clock
from cosmodrome.config import SecurityConfig
from cosmodrome.errors import ConfigError

log = logging.getLogger(__name__)

LOOK_EVERY_MS: Final = 500
HOME_VARIABLE: Final = "ROCKETMQ_HOME"
_DEFAULT: Final = Path("conf", "plain_acl.yml")
_FOLDER: Final = Path("conf", "acl")
_ENDINGS: Final = (".yml", ".yaml")
_NOT_ACCOUNTS: Final = "tools.yml"  # mqadmin's own key

Seen = tuple[tuple[str, int, int, int], ...]  # each file: path, time of its change, size, inode


class AccountFiles:
    """The files that a config names, directly or by Apache's home folder."""

    def __init__(self, config: SecurityConfig, environment: Mapping[str, str] = os.environ) -> None:
        home = config.rocketmq_home or environment.get(HOME_VARIABLE, "")
        if not home and not Path(config.acl_file or "-").is_absolute() and not config.acl_file:
            raise ConfigError(
                "aclEnable=true needs accounts: set aclFile to a file of them, or rocketmqHome to the folder above "
                f"{_DEFAULT}"
            )
        self._home = Path(home) if home else None
        base = Path(home)
        self._default = base / config.acl_file if config.acl_file else base / _DEFAULT
        self._seen: Seen = ()
        self._read: Seen = ()

    def paths(self) -> list[Path]:
        """Return the files there are, the default one last."""
        folder = self._home / _FOLDER if self._home is not None else None
        found = []
        if folder is not None and folder.is_dir():
            found = sorted(
                path
                for path in folder.rglob("*")
                if path.suffix in _ENDINGS and path.name != _NOT_ACCOUNTS and path != self._default and path.is_file()
            )
        return [*found, *([self._default] if self._default.is_file() else [])]

    def read(self) -> Accounts:
        """Return the accounts of all files; ConfigError names the file that cannot be read."""
        self._seen = self._read = self._look()
        paths = self.paths()
        if not paths:
            raise ConfigError(
                f"aclEnable=true needs accounts, and there is no {self._default}: make it, or set aclFile"
            )
        return joined((str(path), _read(path)) for path in paths)

    def read_again(self) -> Accounts | None:
        """Return the accounts if a file has changed and rests now, else None; ConfigError as by `read`, once."""
        before, self._seen = self._seen, self._look()
        if self._seen == self._read or self._seen != before:
            return None
        return self.read()

    @property
    def changed_ms(self) -> dict[str, int]:
        """Return the files whose accounts are in force, and the date of the last change of each."""
        return {path: changed_ns // 1_000_000 for path, changed_ns, _, _ in self._read}

    def _look(self) -> Seen:
        seen = []
        for path in self.paths():
            try:
                status = path.stat()
            except OSError:  # removed meanwhile
                continue
            seen.append((str(path), status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(seen)

    async def watch(self, gate: Gate, clock: Clock) -> None:
        """Give the gate the accounts of changed files, until cancelled."""
        while True:
            await clock.sleep(LOOK_EVERY_MS)
            try:
                accounts = await asyncio.to_thread(self.read_again)
            except (ConfigError, OSError) as error:
                log.error("accounts not changed: %s; the old ones stay in force", error)
                continue
            if accounts is not None:
                gate.use(accounts)
                gate.reloads += 1
                log.info("accounts read again: accounts=%d", len(accounts.by_key))


def _read(path: Path) -> Accounts:
    try:
        status = path.stat()
        if status.st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} has {status.st_size} bytes; a file of accounts has at most {MAX_FILE_BYTES}")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
    if status.st_mode & 0o077:
        log.warning("accounts readable by others: file=%s mode=%o; chmod 600 it", path, status.st_mode & 0o777)
    return parse_plain_acl(text, str(path))
