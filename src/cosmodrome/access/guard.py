"""The security of a daemon, made of its config: the gate before its handlers, and the signature of its own requests."""

from __future__ import annotations

import json
from collections.abc import Callable

from cosmodrome.access.addresses import NO_ADDRESS, parse_addresses
from cosmodrome.access.files import AccountFiles
from cosmodrome.access.gate import Gate, Handle, P
from cosmodrome.clock import Clock
from cosmodrome.config import SecurityConfig
from cosmodrome.errors import ConfigError
from cosmodrome.wire.acl import Credentials
from cosmodrome.wire.command import Command

_CREDENTIALS = "innerClientAuthenticationCredentials"


class Guard:
    """One daemon's gate, its files of accounts and its own credentials; without ACL, none of them.

    ConfigError, when it is made, if the accounts cannot be read: a daemon that should check keys does not start
    without.
    """

    def __init__(self, config: SecurityConfig, clock: Clock) -> None:
        self._clock = clock
        self.files = AccountFiles(config) if config.acl_enable else None
        self.gate: Gate | None = None
        if self.files is not None:
            limit = config.max_failed_authentications_per_minute
            self.gate = Gate(self.files.read(), clock, max_failures_per_minute=limit)
        self._credentials = inner_credentials(config)

    @property
    def sign(self) -> Callable[[Command], None] | None:
        """Return the function that signs the daemon's own requests, if it has credentials."""
        return self._credentials.sign if self._credentials is not None else None

    def around(self, handle: Handle[P]) -> Handle[P]:
        """Return `handle` behind the gate; the handler itself if there is none."""
        return self.gate.around(handle) if self.gate is not None else handle

    def admits_slave(self, allowed: str) -> Callable[[str], bool]:
        """Return the test of the addresses that may copy the log: `allowed`, else with ACL the white ones."""
        addresses = parse_addresses([allowed])
        if addresses is not NO_ADDRESS:
            return addresses.__contains__
        return self.gate.is_white if self.gate is not None else lambda _host: True

    async def run(self) -> None:
        """Read the accounts again when their files change, until cancelled."""
        if self.files is not None and self.gate is not None:
            await self.files.watch(self.gate, self._clock)

    def figures(self) -> dict[str, object]:
        """Return the figures of the gate for the runtime info."""
        return self.gate.figures() if self.gate is not None else {}


def inner_credentials(config: SecurityConfig) -> Credentials | None:
    """Return the account with which a daemon asks others; ConfigError if the key holds none, without its value."""
    text = config.inner_client_authentication_credentials.strip()
    if not text:
        return None
    try:
        values = json.loads(text)
        return Credentials(str(values["accessKey"]), str(values["secretKey"]), str(values.get("securityToken", "")))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f'{_CREDENTIALS} must be {{"accessKey": "…", "secretKey": "…"}}') from None
