"""The data source `rocketmq`: topics as tables and streams."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from cosmodrome.errors import ConfigError
from cosmodrome.spark.batch import FilteringReader, RocketMQReader
from cosmodrome.spark.options import is_of_stream, source_options
from cosmodrome.spark.schema import check_not_empty, check_projection, table_schema
from cosmodrome.spark.sink import RocketMQStreamWriter, RocketMQWriter
from cosmodrome.spark.sink_columns import check_columns
from cosmodrome.spark.sink_options import SinkOptions, sink_options
from cosmodrome.spark.stream import RocketMQStreamReader


class RocketMQSource(DataSource):
    """spark.read / readStream / write / writeStream .format("rocketmq")"""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        """Of reads. Asked for by `load()`, so what cannot be is refused then already, as far as a batch and a stream
        have it in common."""
        options = source_options(self._given, streaming=is_of_stream(self._given))
        return table_schema(options.properties, metadata=options.metadata_columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = source_options(self._given, streaming=False)
        check_not_empty(schema)
        check_projection(schema, options.properties)
        return FilteringReader(options, schema) if options.push_filters else RocketMQReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = source_options(self._given, streaming=True)
        check_not_empty(schema)
        check_projection(schema, options.properties)
        return RocketMQStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise ConfigError('a topic cannot be overwritten, only added to: write with .mode("append")')
        return RocketMQWriter(self._sink_options(schema, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        if overwrite:
            raise ConfigError('a topic cannot be overwritten, only added to: use .outputMode("append")')
        return RocketMQStreamWriter(self._sink_options(schema, streaming=True))

    def _sink_options(self, schema: StructType, *, streaming: bool) -> SinkOptions:
        options = sink_options(self._given, streaming=streaming)
        check_columns(schema, options)
        return options
