"""White addresses: patterns of IPv4 and IPv6 addresses, as Apache's plain_acl.yml writes them. Pure.

192.168.0.1             one address                192.168.0.{1,2}    one of two
192.168.1-5.*           a range, then any number    10.0.0.1,10.0.0.7  a list
1050::5:600:300c:*      IPv6, ranges in hex        *                  any address
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from cosmodrome.errors import ConfigError

_EVERY: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
_OUTSIDE_BRACES: Final = re.compile(r",(?![^{}]*\})")
_PARTS: Final = {4: 4, 6: 8}
_LARGEST: Final = {4: 0xFF, 6: 0xFFFF}
_NUMBER: Final = {4: re.compile("[0-9]{1,3}"), 6: re.compile("[0-9A-Fa-f]{1,4}")}
MAX_CHARACTERS: Final = 4_096

Part = frozenset[int] | range


@dataclass(frozen=True, slots=True)
class AddressPattern:
    """A set of addresses of one family: each part of a number is in the set at its place."""

    parts: tuple[Part, ...]

    def matches(self, numbers: tuple[int, ...]) -> bool:
        """Return whether an address, as `numbers_of` makes it, is in the set."""
        return len(numbers) == len(self.parts) and all(
            number in part for number, part in zip(numbers, self.parts, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Addresses:
    """A set of addresses made of patterns; the empty one has no address."""

    patterns: tuple[AddressPattern, ...] = ()
    has_all: bool = False
    texts: tuple[str, ...] = ()  # the patterns as they were written

    def __contains__(self, host: str) -> bool:
        if self.has_all:
            return True
        if not self.patterns:
            return False
        numbers = numbers_of(host)
        return numbers is not None and any(pattern.matches(numbers) for pattern in self.patterns)


NO_ADDRESS: Final = Addresses()


def numbers_of(host: str) -> tuple[int, ...] | None:
    """Return the four or eight numbers of an address; None if it is none. An IPv4 address in IPv6 dress is IPv4."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0].strip("[]"))
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        if mapped is None:
            return tuple(int.from_bytes(address.packed[at : at + 2], "big") for at in range(0, 16, 2))
        address = mapped
    return tuple(address.packed)


def parse_addresses(texts: Iterable[str]) -> Addresses:
    """Return the set that the patterns describe; ConfigError names the one that describes none."""
    patterns: list[AddressPattern] = []
    texts = tuple(text for text in texts if text.strip())
    for text in texts:
        if len(text) > MAX_CHARACTERS:
            raise ConfigError(f"the white address {text[:40]!r}… is longer than {MAX_CHARACTERS} characters")
        for pattern in map(str.strip, _OUTSIDE_BRACES.split(text)):
            if pattern in _EVERY:
                return Addresses((), True, texts)
            if pattern:
                patterns.append(_parse(pattern))
    return Addresses(tuple(patterns), False, texts) if patterns else NO_ADDRESS


def _parse(text: str) -> AddressPattern:
    if (numbers := numbers_of(text)) is not None:
        return AddressPattern(tuple(frozenset({number}) for number in numbers))
    version = 6 if ":" in text else 4
    parts = _expanded(text) if version == 6 else text.split(".")
    if len(parts) != _PARTS[version]:
        raise _wrong(text)
    return AddressPattern(tuple(_part(part, version, text) for part in parts))


def _expanded(text: str) -> list[str]:
    """Return the parts of an IPv6 pattern, with the zeros that `::` stands for."""
    head, gap, tail = text.partition("::")
    before = head.split(":") if head else []
    if not gap:
        return before
    after = tail.split(":") if tail else []
    zeros = _PARTS[6] - len(before) - len(after)
    if "::" in tail or zeros < 1:
        raise _wrong(text)
    return [*before, *["0"] * zeros, *after]


def _part(part: str, version: int, text: str) -> Part:
    largest, number = _LARGEST[version], _NUMBER[version]

    def value(digits: str) -> int:
        found = digits.strip()
        if not number.fullmatch(found) or (read := int(found, 10 if version == 4 else 16)) > largest:
            raise _wrong(text)
        return read

    if part == "*":
        return range(largest + 1)
    if part.startswith("{") and part.endswith("}"):
        return frozenset(map(value, part[1:-1].split(",")))
    low, dash, high = part.partition("-")
    if not dash:
        return frozenset({value(part)})
    return _range(value, low, high, text)


def _range(value: Callable[[str], int], low: str, high: str, text: str) -> range:
    first, last = value(low), value(high)
    if first > last:
        raise _wrong(text)
    return range(first, last + 1)


def _wrong(text: str) -> ConfigError:
    return ConfigError(
        f"{text!r} is no white address; write one such as 192.168.0.1, 192.168.1-5.*, 192.168.0.{{1,2}}, fe80::* or *"
    )
