"""The properties string of a message.

    name \\x01 value \\x02 name \\x01 value \\x02 …       the last \\x02 may be missing (Java 4.9.1 to 5.1.4)

Reading never fails: an item without a name or without a value is not there, and of two items with one name
the last counts. `find` and `decode` always agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cosmodrome.errors import InvalidParameter
from cosmodrome.native import store as _native

NAME_END = "\x01"
VALUE_END = "\x02"

MAX_SIZE_BYTES = 32767


def encode(properties: Mapping[str, str]) -> str:
    """Every property in the mapping's order, ending with the separator. Names and values hold no separators."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


def encode_foreign(properties: Mapping[str, str]) -> str:
    """`encode` of values that a peer chose; InvalidParameter if one of them would begin another property."""
    raw = encode(properties)
    if raw.count(NAME_END) != len(properties) or raw.count(VALUE_END) != len(properties):
        name, value = next(item for item in properties.items() if NAME_END in item[1] or VALUE_END in item[1])
        raise InvalidParameter(f"{value[:40]!r}, for the property {name}, holds a separator of properties")
    return raw


def decode(raw: str) -> dict[str, str]:
    found = {}
    for item in raw.split(VALUE_END):
        name, _, value = item.partition(NAME_END)
        if value and name:
            found[name] = value
    return found


def find(raw: str, name: str) -> str | None:
    """The value of one property without reading the others. `name` is not empty and holds no separators."""
    if name not in raw:
        return None
    before, mark, rest = raw.rpartition(f"{name}\x01")
    if not mark:
        return None
    if (not before or before[-1] == VALUE_END) and (value := rest.partition(VALUE_END)[0]):
        return value
    # The end of a longer name, or an empty value, hides what may stand before it: rare enough for the long way.
    return decode(raw).get(name)


pure_find = find
if _native is not None and not TYPE_CHECKING:
    _native.know_texts(find, None)
    find = _native.find


def append(raw: str, name: str, value: str) -> str:
    """`raw` with one more property behind it, which therefore wins over an earlier one of that name."""
    if raw and not raw.endswith(VALUE_END):
        return f"{raw}\x02{name}\x01{value}\x02"
    return f"{raw}{name}\x01{value}\x02"
