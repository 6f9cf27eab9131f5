"""Apache's plain_acl.yml: from its text to accounts. Pure, but for the YAML library it needs.

A mistake anywhere refuses the whole text: half a list of accounts is worse than yesterday's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cosmodrome.access.accounts import DENIED, PERMISSIONS, Account, Accounts, permissions_of
from cosmodrome.access.addresses import Addresses, parse_addresses
from cosmodrome.errors import ConfigError
from cosmodrome.numbers import shown

MIN_KEY_CHARACTERS: Final = 7
MAX_FILE_BYTES: Final = 16 * 1024 * 1024

_OF_THE_FILE: Final = frozenset({"globalWhiteRemoteAddresses", "accounts", "dataVersion"})
_OF_AN_ACCOUNT: Final = frozenset(
    {
        "accessKey",
        "secretKey",
        "whiteRemoteAddress",
        "admin",
        "defaultTopicPerm",
        "defaultGroupPerm",
        "topicPerms",
        "groupPerms",
    }
)
_FLAGS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "": False}


class MissingYaml(ConfigError):
    """Access files cannot be read, for the package that reads YAML is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "aclEnable=true needs a package that reads YAML, and it is not installed: pip install 'cosmodrome[acl]'"
        )


def parse_plain_acl(text: str, source: str) -> Accounts:
    """Return what a file says; ConfigError names the file and the account, never a secret."""
    try:
        return _accounts(_loaded(text))
    except ConfigError as error:
        if isinstance(error, MissingYaml):
            raise
        raise ConfigError(f"{source}: {error}") from None


def joined(parts: Iterable[tuple[str, Accounts]]) -> Accounts:
    """Return the accounts of several files; ConfigError if two of them have the same key."""
    by_key: dict[str, Account] = {}
    homes: dict[str, str] = {}
    white: list[Addresses] = []
    for source, accounts in parts:
        white.append(accounts.white)
        for key, account in accounts.by_key.items():
            if key in by_key:
                raise ConfigError(f"{source}: accessKey {shown(key)} is in {homes[key]}, too; keep it in one file")
            by_key[key], homes[key] = account, source
    patterns = tuple(pattern for addresses in white for pattern in addresses.patterns)
    texts = tuple(text for addresses in white for text in addresses.texts)
    return Accounts(by_key, Addresses(patterns, any(addresses.has_all for addresses in white), texts))


def _loaded(text: str) -> Any:
    """Return the YAML as mappings, lists and text: a key of digits only stays what it looks like."""
    try:
        import yaml
    except ImportError:
        raise MissingYaml from None

    class Loader(yaml.BaseLoader):  # type: ignore[misc]
        """A loader that makes nothing but text, lists and mappings, and refuses a name given twice."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise ConfigError(f"line {self.peek_event().start_mark.line + 1}: write it out instead of an alias")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _value in node.value:
                name = getattr(key, "value", None)
                if not isinstance(name, str) or name in seen:
                    raise ConfigError(f"line {key.start_mark.line + 1}: the name {shown(str(name))} is given twice")
                seen.add(name)
            made: dict[Any, Any] = super().construct_mapping(node, deep)
            return made

    try:
        return yaml.load(text, Loader)  # a loader of text alone: it makes no objects
    except yaml.MarkedYAMLError as error:  # its own text quotes the line, and with it perhaps a secret
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise ConfigError(f"{where}it is no YAML: {error.problem or 'it cannot be read'}") from None
    except yaml.YAMLError:
        raise ConfigError("it is no YAML: it has characters that no text has") from None
    except RecursionError:
        raise ConfigError("it is no YAML of accounts: it is nested too deeply") from None


def _accounts(data: Any) -> Accounts:
    if data is None or data == "":
        raise ConfigError("it is empty; a file without accounts and white addresses says `accounts: []`")
    top = _mapping(data, "the file", _OF_THE_FILE)
    white = parse_addresses(_texts(top.get("globalWhiteRemoteAddresses"), "globalWhiteRemoteAddresses"))
    by_key: dict[str, Account] = {}
    for number, item in enumerate(_items(top.get("accounts"), "accounts"), 1):
        account = _account(item, number)
        if account.access_key in by_key:
            raise ConfigError(f"account {number}: accessKey {shown(account.access_key)} is given twice")
        by_key[account.access_key] = account
    return Accounts(by_key, white)


def _account(item: Any, number: int) -> Account:
    values = _mapping(item, f"account {number}", _OF_AN_ACCOUNT)
    key, secret = (_text(values.get(name), f"account {number}: {name}") for name in ("accessKey", "secretKey"))
    where = f"account {number} ({shown(key)})"
    for name, value in (("accessKey", key), ("secretKey", secret)):
        if len(value) < MIN_KEY_CHARACTERS:
            raise ConfigError(f"{where}: {name} needs at least {MIN_KEY_CHARACTERS} characters")
    flag = _text(values.get("admin"), f"{where}: admin").lower()
    if flag not in _FLAGS:
        raise ConfigError(f"{where}: admin is true or false, not {shown(flag)}")
    addresses = values.get("whiteRemoteAddress")
    try:
        white = parse_addresses(addresses if isinstance(addresses, list) else [_text(addresses, "whiteRemoteAddress")])
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return Account(
        key,
        secret,
        _FLAGS[flag],
        white,
        _permission(values.get("defaultTopicPerm"), f"{where}: defaultTopicPerm"),
        _permission(values.get("defaultGroupPerm"), f"{where}: defaultGroupPerm"),
        permissions_of(*(_pairs(values.get(name), f"{where}: {name}") for name in ("topicPerms", "groupPerms"))),
    )


def _pairs(value: Any, where: str) -> list[tuple[str, int]]:
    pairs = []
    for text in _texts(value, where):
        name, equals, permission = text.partition("=")
        if not equals or not name.strip() or "=" in permission:
            raise ConfigError(f"{where}: {shown(text)} is no permission; write name=PUB|SUB")
        pairs.append((name.strip(), _permission(permission, f"{where}: {shown(name)}")))
    return pairs


def _permission(value: Any, where: str) -> int:
    text = _text(value, where).replace(" ", "")
    if not text:
        return DENIED
    if text not in PERMISSIONS:
        raise ConfigError(f"{where}: {shown(text)} is no permission; write one of {', '.join(PERMISSIONS)}")
    return PERMISSIONS[text]


def _mapping(value: Any, where: str, known: frozenset[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is no list of names and values")
    for name in value:
        if name not in known:
            raise ConfigError(f"{where}: {shown(str(name))} is not supported; known are {', '.join(sorted(known))}")
    return value


def _items(value: Any, where: str) -> list[Any]:
    if value is None or value == "":
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{where} is no list; begin each line with `- `")
    return value


def _texts(value: Any, where: str) -> list[str]:
    return [_text(item, where) for item in _items(value, where)]


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ConfigError(f"{where} is no text")
    return value.strip()
