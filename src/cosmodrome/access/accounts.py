"""Accounts and white addresses, and the decision about one request: may it pass, and if not, why not. Pure.

    white address of all ──► passes        no key, or an unknown one ──► denied
    white address of the account ──► passes        a wrong signature ──► denied
    an administrator's code, a resource without permission ──► denied        else ──► passes

The signature is checked for every request: it covers the header fields and the body.
"""

from __future__ import annotations

import hashlib
import hmac
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

from cosmodrome.access.addresses import NO_ADDRESS, Addresses
from cosmodrome.access.permissions import ANY, FREE, KNOWN, PUB, RULES, SUB, WORDS, Rule, group_resource
from cosmodrome.errors import ProtocolError, RequestError
from cosmodrome.model import RETRY_PREFIX
from cosmodrome.numbers import shown
from cosmodrome.wire.acl import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from cosmodrome.wire.command import Command

DENIED: Final = 0
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
_ZONE: Final = "__ZONE_"
_BLOCK: Final = 64  # bytes of a block of SHA-1
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))
MAX_SHAPES: Final = 1_024  # sets of header fields whose order is remembered


class Signer:
    """HMAC-SHA1 with one secret key, whose own share of the work is done once."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret_key: str) -> None:
        key = secret_key.encode()
        if len(key) > _BLOCK:
            key = hashlib.sha1(key, usedforsecurity=False).digest()
        key = key.ljust(_BLOCK, b"\0")
        self._inner = hashlib.sha1(key.translate(_INNER), usedforsecurity=False)
        self._outer = hashlib.sha1(key.translate(_OUTER), usedforsecurity=False)

    def __repr__(self) -> str:
        return "Signer(…)"

    def signature(self, text: str, body: bytes | memoryview) -> str:
        """Return the signature as it stands in a header."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(text.encode(errors="replace"))  # as Java does with half a character
        if body:
            inner.update(body)
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False).decode()


@dataclass(frozen=True, slots=True)
class Account:
    """A key with its secret, and its permissions. Those of a group stand under the name of its retry topic."""

    access_key: str
    secret_key: str = field(repr=False)
    is_admin: bool = False
    white: Addresses = NO_ADDRESS
    default_topic: int = DENIED
    default_group: int = DENIED
    resources: Mapping[str, int] = field(default_factory=dict)
    signer: Signer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "signer", Signer(self.secret_key))

    def allows(self, resource: str, need: int) -> bool:
        """Return whether the account may use the resource in one of the ways of `need`."""
        owned = self.resources.get(resource)
        if owned is None:
            if self.is_admin and not self.resources:
                return True
            owned = self.default_group if resource.startswith(RETRY_PREFIX) else self.default_topic
        return bool(owned & need) or (resource, need) == FREE


@dataclass(frozen=True, slots=True)
class Accounts:
    """All accounts by their key, and the addresses from which everything passes."""

    by_key: Mapping[str, Account] = field(default_factory=dict)
    white: Addresses = NO_ADDRESS


@dataclass(frozen=True, slots=True)
class Denial:
    """The reason why a request does not pass. The text is for the peer and the log: it holds no secret."""

    kind: str  # a word for figures
    text: str
    access_key: str = ""

    @property
    def is_authentication(self) -> bool:
        """Return whether it is not known who asks."""
        return self.kind in ("unsigned", "unknown", "signature")


class Judge:
    """The decisions about requests under one set of accounts. What it remembers between requests is bounded."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts.by_key
        self._white = accounts.white
        self._shapes: dict[tuple[str, ...], Callable[[Mapping[str, str]], Any]] = {}

    def is_white(self, host: str) -> bool:
        """Return whether everything from this address passes."""
        return host in self._white

    def denial(self, command: Command, host: str, *, is_white: bool) -> Denial | None:
        """Return why the request may not pass, or None if it may. `is_white` as of the address `host`."""
        rule = RULES.get(command.code, KNOWN)
        if is_white and not rule.is_signed:
            return None
        access_key = command.fields.get(ACCESS_KEY)
        if not access_key:
            return Denial("unsigned", "No accessKey is configured: sign requests with the key of an account")
        account = self._accounts.get(access_key)
        if account is None:
            return Denial("unknown", f"No acl config for {shown(access_key)}", access_key)
        if account.white is not NO_ADDRESS and not rule.is_signed and host in account.white:
            return None
        if not self._is_signed(command, account):
            return Denial("signature", f"Check signature failed for accessKey={access_key}", access_key)
        if rule.is_admin:
            return None if account.is_admin else _needs_admin(command, access_key)
        return None if rule.needs is None else self._refused(command, account, rule)

    def _is_signed(self, command: Command, account: Account) -> bool:
        fields = command.fields
        signature = fields.get(SIGNATURE)
        if not signature or not signature.isascii():
            return False
        shape = tuple(fields)
        signed_values = self._shapes.get(shape)
        if signed_values is None:
            signed_values = self._remember(shape)
        text = "".join(signed_values(fields))
        if hmac.compare_digest(account.signer.signature(text, command.body), signature):
            return True
        return any(
            hmac.compare_digest(account.signer.signature(variant, command.body), signature)
            for variant in _variants(fields)
        )

    def _remember(self, shape: tuple[str, ...]) -> Callable[[Mapping[str, str]], Any]:
        names = sorted(name for name in shape if name != SIGNATURE)
        if len(names) == 1:  # the access key alone, of which itemgetter would give no tuple
            return lambda fields: (fields[ACCESS_KEY],)
        values = itemgetter(*names)
        if len(self._shapes) >= MAX_SHAPES:
            self._shapes.clear()
        self._shapes[shape] = values
        return values

    @staticmethod
    def _refused(command: Command, account: Account, rule: Rule) -> Denial | None:
        assert rule.needs is not None
        try:
            for resource, need in rule.needs(command):
                if not account.allows(resource, need):
                    return _no_permission(account, resource, need)
        except (RequestError, ProtocolError) as error:
            return Denial("malformed", f"the request cannot be read: {error}", account.access_key)
        return None


def _variants(fields: Mapping[str, str]) -> Iterator[str]:
    """Yield what else clients may have signed: some leave out fields that are added to the header later."""
    left_out: Sequence[Callable[[str], bool]] = (
        lambda name: name == _UNIQUE_KEY_QUERY,
        lambda name: name == SECURITY_TOKEN,
        lambda name: name.startswith(_ZONE),
    )
    present = [leaves_out for leaves_out in left_out if any(map(leaves_out, fields))]
    names = sorted(name for name in fields if name != SIGNATURE)
    for chosen in range(1, 1 << len(present)):
        tests = [test for index, test in enumerate(present) if chosen >> index & 1]
        yield "".join(fields[name] for name in names if not any(test(name) for test in tests))


def _needs_admin(command: Command, access_key: str) -> Denial:
    text = f"Need admin permission for request code={command.code}, but accessKey={access_key} is not"
    return Denial("admin", text, access_key)


def _no_permission(account: Account, resource: str, need: int) -> Denial:
    is_group = resource.startswith(RETRY_PREFIX)
    name = resource.removeprefix(RETRY_PREFIX) if is_group else resource
    kind = "group" if is_group else "topic"
    text = f"No permission for {kind} {shown(name)}: accessKey={account.access_key} needs {WORDS[need]}"
    return Denial("permission", text, account.access_key)


def permissions_of(topics: Iterable[tuple[str, int]], groups: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the permissions of an account by resource."""
    return {**dict(topics), **{group_resource(name): permission for name, permission in groups}}


PERMISSIONS: Final = {"DENY": DENIED, "PUB": PUB, "SUB": SUB, "PUB|SUB": ANY, "SUB|PUB": ANY}
