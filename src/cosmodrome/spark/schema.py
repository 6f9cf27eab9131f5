"""The columns of a message, as Spark and as Arrow see them, and how each is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from cosmodrome.errors import ConfigError
from cosmodrome.model import Property
from cosmodrome.spark.decoding import STRINGS, TIME, Records, timestamps
from cosmodrome.spark.options import PropertiesAs

_STRINGS = MapType(StringType(), StringType())
_PROPERTIES: dict[PropertiesAs, DataType] = {PropertiesAs.MAP: _STRINGS, PropertiesAs.STRING: StringType()}

# Names and types as in the old connector, and what it lacked.
_COLUMNS: dict[str, DataType] = {
    "topic": StringType(),
    "brokerName": StringType(),
    "queueId": IntegerType(),
    "queueOffset": LongType(),
    "keys": StringType(),
    "tags": StringType(),
    "properties": _STRINGS,
    "body": BinaryType(),
    "flag": IntegerType(),
    "bornTimestamp": TimestampType(),
    "storeTimestamp": TimestampType(),
}
_METADATA: dict[str, DataType] = {
    "msgId": StringType(),
    "commitLogOffset": LongType(),
    "sysFlag": IntegerType(),
    "bornHost": StringType(),
    "storeHost": StringType(),
    "reconsumeTimes": IntegerType(),
}

_ARROW: dict[DataType, pa.DataType] = {
    StringType(): pa.string(),
    BinaryType(): pa.binary(),
    IntegerType(): pa.int32(),
    LongType(): pa.int64(),
    TimestampType(): TIME,
    _STRINGS: STRINGS,
}

_MAKERS: dict[str, Callable[[Records], pa.Array]] = {
    "topic": lambda records: records.topics,
    "queueId": lambda records: pa.array(records.queue_ids, pa.int32()),
    "queueOffset": lambda records: pa.array(records.queue_offsets),
    "keys": lambda records: records.property(Property.KEYS),
    "tags": lambda records: records.property(Property.TAGS),
    "body": lambda records: records.bodies,
    "flag": lambda records: pa.array(records.flags, pa.int32()),
    "bornTimestamp": lambda records: timestamps(records.born_timestamps),
    "storeTimestamp": lambda records: timestamps(records.store_timestamps),
    "msgId": lambda records: records.message_ids,
    "commitLogOffset": lambda records: pa.array(records.commit_log_offsets),
    "sysFlag": lambda records: pa.array(records.sys_flags, pa.int32()),
    "bornHost": lambda records: records.born_hosts,
    "storeHost": lambda records: records.store_hosts,
    "reconsumeTimes": lambda records: pa.array(records.reconsume_times, pa.int32()),
}


def table_schema(properties: PropertiesAs, *, metadata: bool) -> StructType:
    """What a read has unless the user says otherwise."""
    columns = {**_COLUMNS, **(_METADATA if metadata else {})}
    if properties is PropertiesAs.NONE:
        del columns["properties"]
    else:
        columns["properties"] = _PROPERTIES[properties]
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def check_projection(schema: StructType, properties: PropertiesAs) -> None:
    """A user's schema may leave columns out and order them; ConfigError says what it may not."""
    known = {**_COLUMNS, **_METADATA}
    if twice := [name for name in schema.names if schema.names.count(name) > 1]:
        raise ConfigError(f"the schema has the column {twice[0]} more than once")
    for field in schema.fields:
        if field.name not in known:
            raise ConfigError(f"there is no column {field.name}; there are {', '.join(known)}")
        allowed = list(_PROPERTIES.values()) if field.name == "properties" else [known[field.name]]
        if field.dataType not in allowed:
            names, given = [kind.simpleString() for kind in allowed], field.dataType.simpleString()
            found, nulls = ("without nulls", ", with nulls") if given in names else (given, "")
            raise ConfigError(f"the column {field.name} is {found}; it must be {' or '.join(names)}{nulls}")
        if not field.nullable:
            raise ConfigError(f"the column {field.name} is NOT NULL; Spark takes none of a source that is")
        if field.name == "properties" and properties is not PropertiesAs.MAP:  # which it is unless the user says so
            _check_properties(field.dataType, properties)


def _check_properties(kind: DataType, properties: PropertiesAs) -> None:
    if kind != _PROPERTIES.get(properties):
        raise ConfigError(f"the option properties is {properties}, but the schema has properties {kind.simpleString()}")


def check_not_empty(schema: StructType) -> None:
    """Arrow batches without columns have no rows either."""
    if not schema.fields:
        raise ConfigError("the schema names no column")


class BatchMaker:
    """Makes the columns of a schema, and no others."""

    def __init__(self, schema: StructType) -> None:
        self._names: Sequence[str] = schema.names
        self._schema = pa.schema([(field.name, _ARROW[field.dataType]) for field in schema.fields])
        self._raw_properties = "properties" in schema.names and schema["properties"].dataType == StringType()

    @property
    def types(self) -> dict[str, pa.DataType]:
        return dict(zip(self._schema.names, self._schema.types, strict=True))

    def make(self, records: Records, broker_name: str | None) -> pa.RecordBatch:
        columns = [self._column(name, records, broker_name) for name in self._names]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, name: str, records: Records, broker_name: str | None) -> pa.Array:
        if name == "brokerName":
            return pa.repeat(pa.scalar(broker_name, pa.string()), len(records))
        if name == "properties":
            return records.raw_properties if self._raw_properties else records.properties
        return _MAKERS[name](records)
