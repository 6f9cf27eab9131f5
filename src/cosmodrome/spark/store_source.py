"""The data source `rocketmq-store`: store folders as tables, without a broker."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StringType, StructType

from cosmodrome.errors import ConfigError
from cosmodrome.spark.schema import BatchMaker, check_not_empty, check_projection, table_schema
from cosmodrome.spark.store_options import OnDamage, StoreOptions, store_options
from cosmodrome.spark.store_reading import Found, Part, parts, read_parts

FILE = "file"
DAMAGE = "damage"


class RocketMQStoreSource(DataSource):
    """spark.read.format("rocketmq-store").load("/data/store")"""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "rocketmq-store"

    def schema(self) -> StructType:
        options = store_options(self._given)
        columns = table_schema(options.properties, metadata=options.metadata_columns).add(FILE, StringType())
        return columns.add(DAMAGE, StringType()) if options.on_damage is OnDamage.REPORT else columns

    def reader(self, schema: StructType) -> DataSourceReader:
        options = store_options(self._given)
        return StoreReader(options, schema)


@dataclass(frozen=True, slots=True)
class StoreTask(InputPartition):
    parts: tuple[Part, ...]


class StoreReader(DataSourceReader):
    def __init__(self, options: StoreOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        check_not_empty(schema)
        check_projection(_of_messages(schema), options.properties)
        if options.on_damage is OnDamage.REPORT and DAMAGE not in schema.names:
            raise ConfigError(f"onDamage is report: the schema needs the column {DAMAGE}, which says what is wrong")

    def partitions(self) -> Sequence[InputPartition]:
        return [StoreTask(tuple(together)) for together in parts(self._options)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StoreTask):  # of an empty store
            return
        rows = _Rows(self._schema)
        for found in read_parts(partition.parts, self._options):
            yield rows.made(found)


class _Rows:
    """Batches of a schema that has columns of messages and those of this source."""

    def __init__(self, schema: StructType) -> None:
        messages = _of_messages(schema)
        self._names = schema.names
        self._maker = BatchMaker(messages)
        self._types = {**self._maker.types, FILE: pa.string(), DAMAGE: pa.string()}
        self._schema = pa.schema([(name, self._types[name]) for name in self._names])

    def made(self, found: Found) -> pa.RecordBatch:
        count = 1 if found.records is None else len(found.records)
        columns = {name: pa.nulls(count, self._types[name]) for name in self._names}
        if found.records is None:
            columns |= {DAMAGE: pa.array([found.damage]), "commitLogOffset": pa.array([found.at])}
        else:
            batch = self._maker.make(found.records, None)
            columns |= dict(zip(batch.schema.names, batch.columns, strict=True))
        columns[FILE] = pa.repeat(found.file, count)
        return pa.RecordBatch.from_arrays([columns[name] for name in self._names], schema=self._schema)


def _of_messages(schema: StructType) -> StructType:
    for field in schema.fields:
        if field.name in (FILE, DAMAGE) and field.dataType != StringType():
            raise ConfigError(f"the column {field.name} is {field.dataType.simpleString()}; it must be string")
    return StructType([field for field in schema.fields if field.name not in (FILE, DAMAGE)])
