"""Attributes of topics: which of Apache's this broker keeps, which it refuses, and how a request changes them. Pure.

An attribute is a promise like a key of the config: one that is not kept is refused (decision 7). Apache 5's proxies
obey `message.type`; a broker only remembers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cosmodrome.errors import InvalidParameter

_SHOWN = 40  # characters of a value in an error


@dataclass(frozen=True, slots=True)
class _Attribute:
    """The values that are kept, and why others are not. Only a changeable one may be removed from a topic."""

    kept: tuple[str, ...]
    refusal: str
    changeable: bool = True
    stops_start: bool = False  # a stored topic that has another value is damaged by a broker that ignores it


_KNOWN = {
    "queue.type": _Attribute(
        ("SimpleCQ",),
        "queues of this version have one entry for each message, and read the files of BatchCQ wrongly",
        changeable=False,
        stops_start=True,
    ),
    "cleanup.policy": _Attribute(
        ("DELETE",),
        "this version compacts no topics: the newest message of a key would be deleted with the old ones",
        changeable=False,
        stops_start=True,
    ),
    "message.type": _Attribute(
        ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"), "there is no such type of messages"
    ),
    "reserve.time": _Attribute(("-1",), "all topics are kept equally long here: set fileReservedTime"),
}


def problem_of(name: str, value: str) -> str | None:
    """Return why a topic cannot have this attribute here; None if it can."""
    known = _KNOWN.get(name)
    if known is None:
        return f"the attribute {name[:_SHOWN]!r} is refused: this version knows {', '.join(_KNOWN)}"
    if value in known.kept:
        return None
    return f"the attribute {name}={value[:_SHOWN]} is refused: {known.refusal}. Supported: {', '.join(known.kept)}"


def stops_start(name: str) -> bool:
    """Return whether no broker may serve a stored topic that has another value of this attribute than it keeps."""
    return name not in _KNOWN or _KNOWN[name].stops_start


def _parts(change: str) -> tuple[str | None, str, str]:
    """Return sign, name and value of a change; no sign if it is none."""
    name, equals, value = change[1:].partition("=")
    is_whole = bool(value) if change[0] == "+" else change[0] == "-" and not equals
    return (change[0] if is_whole and name and not {"+", "-"} & {*name} else None), name, value


def changed(topic: str, known: Mapping[str, str] | None, changes: str | None) -> dict[str, str]:
    """Return what a topic has after Apache's `+name=value,-name`; `known` is what it has, None if it is not there.

    A change that sets what is set already is none, so that a request may be repeated.
    """
    attributes = dict(known or {})
    seen: set[str] = set()
    for change in filter(None, (changes or "").split(",")):
        sign, name, value = _parts(change)
        if sign is None:
            raise InvalidParameter(
                f"topic {topic}: the attribute change {change[:_SHOWN]!r} is neither +name=value nor -name"
            )
        if name in seen:
            raise InvalidParameter(f"topic {topic}: the attribute {name[:_SHOWN]!r} is changed twice in one request")
        seen.add(name)
        if sign == "+":
            if problem := problem_of(name, value):
                raise InvalidParameter(f"topic {topic}: {problem}")
            attributes[name] = value
        elif known is None:
            raise InvalidParameter(
                f"topic {topic} is not there yet: the attribute {name[:_SHOWN]!r} cannot be removed from it"
            )
        elif name not in known:
            raise InvalidParameter(f"topic {topic} has no attribute {name[:_SHOWN]!r} to remove")
        elif name in _KNOWN and not _KNOWN[name].changeable:
            raise InvalidParameter(f"topic {topic}: the attribute {name!r} is set for good")
        else:
            del attributes[name]
    return attributes
