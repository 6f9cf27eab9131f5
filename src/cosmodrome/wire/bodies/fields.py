"""Reading a body's objects the way Java does: by the field asked for, whatever it looks like.

A missing or null field is its default, unknown fields are ignored, numbers and booleans may come as text. What cannot
be read as the kind asked for is a ProtocolError.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Self, TypeVar

from cosmodrome.errors import ProtocolError
from cosmodrome.model import MessageQueue
from cosmodrome.wire import fastjson
from cosmodrome.wire.fastjson import ObjectKey

Json = dict[str, Any]
E = TypeVar("E", bound=Enum)

_NUMBER = re.compile(r"\s*(-?[0-9]{1,20})(?:\.0*)?\s*")  # few enough for int()
_TRUE = frozenset({"true", "1", "y", "t", "yes"})


class Fields:
    """One JSON object, read field by field."""

    __slots__ = ("_folded", "_values")

    def __init__(self, values: Mapping[Any, Any]) -> None:
        self._values = values
        self._folded: dict[str, Any] | None = None

    @classmethod
    def parse(cls, data: bytes | memoryview) -> Self:
        return cls.of(fastjson.loads(data), "the body")

    @classmethod
    def of(cls, value: Any, what: str) -> Self:
        if not isinstance(value, Mapping):
            raise ProtocolError(f"{what} is not an object but {_shown(value)}")
        return cls(value)

    def get(self, name: str) -> Any:
        """The field as it is, or None. A name is also found spelled `NAME`, `na_me` or `isName`, as Java finds it."""
        value = self._values.get(name)
        if value is None and name not in self._values:
            if self._folded is None:
                self._folded = {_folded(key): value for key, value in self._values.items() if type(key) is str}
            folded = _folded(name)
            value = self._folded.get(folded, self._folded.get("is" + folded))
        return value

    def text(self, name: str, default: str = "") -> str:
        value = self.get(name)
        return default if value is None else as_text(value)

    def maybe_text(self, name: str) -> str | None:
        value = self.get(name)
        return None if value is None else as_text(value)

    def int32(self, name: str, default: int = 0) -> int:
        return as_int(self.get(name), default, 32, name)

    def int64(self, name: str, default: int = 0) -> int:
        return as_int(self.get(name), default, 64, name)

    def real(self, name: str) -> float:
        try:
            value = float(self.get(name) or 0)
        except (TypeError, ValueError, OverflowError):
            raise ProtocolError(f"{name} is not a number but {_shown(self.get(name))}") from None
        return value if abs(value) < float("inf") else 0.0

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        if isinstance(value, str):
            return value.strip().lower() in _TRUE
        return default if value is None else bool(value)

    def enum(self, name: str, names: Mapping[str, E], default: E) -> E:
        """By name in any case or by ordinal, the place in `names`; an unknown name is the default."""
        value = self.get(name)
        if isinstance(value, str) and not _NUMBER.fullmatch(value):
            return names.get(value.strip().upper(), default)
        ordinal = as_int(value, -1, 32, name)
        if value is None:
            return default
        if not 0 <= ordinal < len(names):
            raise ProtocolError(f"{name} has no value number {ordinal}")
        return list(names.values())[ordinal]

    def object(self, name: str) -> Fields:
        value = self.get(name)
        return Fields({}) if value is None else Fields.of(value, name)

    def objects(self, name: str) -> list[Fields]:
        return [Fields.of(item, name) for item in self.items(name)]

    def items(self, name: str) -> list[Any]:
        """The elements of an array, without nulls."""
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise ProtocolError(f"{name} is not an array but {_shown(value)}")
        return [item for item in value if item is not None]

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(as_text(item) for item in self.items(name))

    def entries(self, name: str) -> Iterator[tuple[Any, Any]]:
        """The entries of a map, without those whose value is null."""
        return self.object(name).all_entries()

    def all_entries(self) -> Iterator[tuple[Any, Any]]:
        """The object itself as a map."""
        return ((key, item) for key, item in self._values.items() if item is not None)

    def table(self, name: str) -> Iterator[tuple[str, Fields]]:
        """A map from names to objects."""
        return ((as_text(key), Fields.of(item, name)) for key, item in self.entries(name))

    def text_map(self, name: str) -> dict[str, str]:
        return {as_text(key): as_text(item) for key, item in self.entries(name)}

    def int_keys(self, name: str) -> Iterator[tuple[int, Any]]:
        """A map whose keys are integers, with or without quotes."""
        return ((as_int(key, 0, 64, name), item) for key, item in self.entries(name))

    def queue_keys(self, name: str) -> Iterator[tuple[MessageQueue, Any]]:
        """A map whose keys are message queues: raw objects, or the same as text."""
        return ((_queue_key(key), item) for key, item in self.entries(name))


class Body(ABC):
    """A body that is one JSON object; `decode` reads whatever a peer's `encode` may have written."""

    __slots__ = ()

    @abstractmethod
    def to_json(self) -> Json: ...

    @classmethod
    @abstractmethod
    def from_fields(cls, fields: Fields) -> Self: ...

    def encode(self, *, pretty: bool = False) -> bytes:
        return fastjson.dumps(self.to_json(), pretty=pretty)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        return cls.from_fields(Fields.parse(data))


class QueueKeyed(Body):
    """A body with tables whose keys are message queues. Java writes them as objects, which is no strict JSON."""

    __slots__ = ()

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """Read the body, ten times faster where its keys are written as Java and we write them."""
        return cls.from_fields(Fields.parse(_QUEUE_KEY.sub(_as_quoted, bytes(data))))


# No string of strict JSON has this in it: its quotes would be escaped.
_QUEUE_KEY = re.compile(rb'(?<=[{,])\{"brokerName":"[^"\\]*","queueId":[0-9]{1,10},"topic":"[^"\\]*"\}(?=:)')


def _as_quoted(key: re.Match[bytes]) -> bytes:
    return b'"%b"' % key[0].replace(b'"', b'\\"')


def as_text(value: Any) -> str:
    """Text as it is; anything else as its JSON text, as Java puts it into a map of strings."""
    if isinstance(value, ObjectKey):
        return value.text
    return value if type(value) is str else fastjson.dumps(value).decode()


def as_int(value: Any, default: int, bits: int, what: str) -> int:
    """A number, or text that holds one; null, "" and "null" are the default. Larger than `bits` allow is an error."""
    if value is None or value in ("", "null"):
        return default
    if isinstance(value, str) and (number := _NUMBER.fullmatch(value)):
        value = int(number[1])
    if not isinstance(value, int | float):
        raise ProtocolError(f"{what} is not a number but {_shown(value)}")
    number_value = int(value)
    if not -1 << bits - 1 <= number_value < 1 << bits - 1:
        raise ProtocolError(f"{what} does not fit into {bits} bits")
    return number_value


def queue_from(fields: Fields) -> MessageQueue:
    return MessageQueue(fields.text("topic"), fields.text("brokerName"), fields.int32("queueId"))


def queues_from(fields: Fields, name: str) -> tuple[MessageQueue, ...]:
    return tuple(queue_from(item) for item in fields.objects(name))


def _queue_key(key: Any) -> MessageQueue:
    if isinstance(key, ObjectKey):
        return queue_from(Fields(key.fields))
    return queue_from(Fields.of(fastjson.loads(as_text(key).encode()), "a queue"))


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _shown(value: Any) -> str:
    return f"a {type(value).__name__}"
