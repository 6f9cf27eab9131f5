"""Signed requests, as Apache's brokers check them when ACL is on. Pure.

The signature is HMAC-SHA1, by the secret key, over the values of all header fields in the order of their names, then
the body. It stands in a field of its own, which is not part of what is signed.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass
from typing import Final

from cosmodrome.errors import ConfigError
from cosmodrome.wire.command import Command

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who asks. A token is needed only with keys that were lent for a time."""

    access_key: str
    secret_key: str
    security_token: str = ""

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            raise ConfigError("an access key and its secret key belong together; one of them is missing")

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r}, …)"

    def sign(self, command: Command) -> None:
        """Put key and signature into the fields, in place of those that may be there."""
        fields = command.fields
        fields[ACCESS_KEY] = self.access_key
        if self.security_token:
            fields[SECURITY_TOKEN] = self.security_token
        fields[SIGNATURE] = self._signature(command)

    def _signature(self, command: Command) -> str:
        fields = command.fields
        signed = "".join(fields[name] for name in sorted(fields) if name != SIGNATURE).encode()
        digest = hmac.new(self.secret_key.encode(), signed, "sha1")
        digest.update(command.body)
        return base64.b64encode(digest.digest()).decode()
