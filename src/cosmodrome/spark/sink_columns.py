"""Which columns a write may have."""

from __future__ import annotations

import difflib

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from cosmodrome.errors import ConfigError
from cosmodrome.spark.sink_options import SinkOptions

_NUMBERS = (IntegerType, ShortType, LongType)
_ALLOWED: dict[str, tuple[str, tuple[type[DataType], ...]]] = {
    "body": ("binary or string", (BinaryType, StringType)),
    "topic": ("string", (StringType,)),
    "keys": ("string or array<string>", (StringType, ArrayType)),
    "tags": ("string", (StringType,)),
    "properties": ("map<string,string>", (MapType,)),
    "shardingKey": ("string", (StringType,)),
    "delayLevel": ("int", _NUMBERS),
    "deliverAt": ("timestamp", (TimestampType,)),
    "brokerName": ("string", (StringType,)),
    "queueId": ("int", _NUMBERS),
    "flag": ("int", _NUMBERS),
}
_DELAYS = ("delayLevel", "deliverAt")


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """ConfigError names the column that cannot be, and says what it may be."""
    for field in schema.fields:
        _check(field.name, field.dataType)
    names = set(schema.names)
    if "body" not in names:
        raise ConfigError("the rows have no column body; name one so, binary or string")
    if "topic" not in names and not options.topic:
        raise ConfigError("say where to write: give the option topic, or the rows a column topic")
    if ("queueId" in names) != ("brokerName" in names):
        raise ConfigError("the columns brokerName and queueId belong together; one of them is missing")
    if options.exactly_once and (used := [name for name in _DELAYS if name in names]):
        raise ConfigError(f"the column {used[0]} cannot be with exactlyOnce=true: RocketMQ delays no half message")


def _check(name: str, kind: DataType) -> None:
    if name not in _ALLOWED:
        near = difflib.get_close_matches(name.lower(), [known.lower() for known in _ALLOWED], 1)
        meant = next((known for known in _ALLOWED if near and known.lower() == near[0]), None)
        hint = f"did you mean {meant}?" if meant else f"there are {', '.join(_ALLOWED)}"
        raise ConfigError(f"there is no column {name} in a write; {hint}")
    text, kinds = _ALLOWED[name]
    if isinstance(kind, NullType) and name != "body":  # nothing but nulls: as good as no column
        return
    fits = isinstance(kind, kinds)
    if isinstance(kind, ArrayType):
        fits = fits and isinstance(kind.elementType, StringType)
    if isinstance(kind, MapType):
        fits = fits and isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
    if not fits:
        raise ConfigError(f"the column {name} is {kind.simpleString()}; it must be {text}")
