"""What clients write down about the life of a message, in the body of messages of their own.

    Pub \\x01 field \\x01 … \\x02 SubBefore \\x01 field … \\x02 …       UTF-8; a missing text is `null`

A class's fields are its record's, in order. A record may end early (older clients) or go on (Go adds the client's
address). Reading never fails: what makes no sense is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, get_type_hints

from cosmodrome.numbers import MIN_LONG, read_int

FIELD_END = "\x01"
RECORD_END = "\x02"

_NULL = "null"


class TracedType(IntEnum):
    """What kind of message was sent; Java's ordinals."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAYED = 3
    ORDERLY = 4


class Outcome(IntEnum):
    """How consuming ended."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class Pub:
    """A producer sent a message; `store_host` is the broker's address."""

    timestamp: int
    region: str
    group: str
    topic: str
    msg_id: str
    tags: str
    keys: str
    store_host: str
    body_size: int
    cost_ms: int
    msg_type: int
    offset_msg_id: str
    success: bool = True


@dataclass(frozen=True, slots=True)
class SubBefore:
    """A consumer hands a message to its listener; SubAfter with the same request id says how that ended."""

    timestamp: int
    region: str
    group: str
    request_id: str
    msg_id: str
    retry_times: int
    keys: str


@dataclass(frozen=True, slots=True)
class SubAfter:
    request_id: str
    msg_id: str
    cost_ms: int
    success: bool
    keys: str
    outcome: int
    timestamp: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """A producer decided a transaction; `state` is COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW."""

    timestamp: int
    region: str
    group: str
    topic: str
    msg_id: str
    tags: str
    keys: str
    store_host: str
    msg_type: int
    transaction_id: str
    state: str
    from_check: bool = False


@dataclass(frozen=True, slots=True)
class Recall:
    """A producer took back a message that waited for its time."""

    timestamp: int
    region: str
    group: str
    topic: str
    msg_id: str
    success: bool = True


TraceRecord = Pub | SubBefore | SubAfter | EndTransaction | Recall

_CLASSES: dict[str, Any] = {kind.__name__: kind for kind in (Pub, SubBefore, SubAfter, EndTransaction, Recall)}
_TYPES = {kind: list(get_type_hints(kind).values()) for kind in _CLASSES.values()}
_NEEDED = {
    kind: sum(field.default is dataclasses.MISSING for field in dataclasses.fields(kind)) for kind in _CLASSES.values()
}


def encode(records: Iterable[TraceRecord]) -> bytes:
    return "".join(map(_encoded, records)).encode(errors="replace")


def _encoded(record: TraceRecord) -> str:
    values = [getattr(record, field.name) for field in dataclasses.fields(record)]
    return FIELD_END.join([type(record).__name__, *map(_text, values)]) + RECORD_END


def _text(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) or _NULL


def decode(body: bytes | memoryview) -> list[TraceRecord]:
    lines = str(body, "utf-8", "replace").split(RECORD_END)
    return [record for record in map(_decoded, lines) if record is not None]


def _decoded(line: str) -> TraceRecord | None:
    name, *values = line.lstrip("\n").split(FIELD_END)
    kind = _CLASSES.get(name)
    if kind is None or len(values) < _NEEDED[kind]:
        return None
    try:
        record: TraceRecord = kind(*(_value(value, hint) for value, hint in zip(values, _TYPES[kind], strict=False)))
    except ValueError:
        return None
    return record


def _value(text: str, kind: type) -> str | int | bool:
    if kind is bool:
        return text == "true"
    if kind is int:
        return read_int(text, low=MIN_LONG)
    return "" if text == _NULL else text
