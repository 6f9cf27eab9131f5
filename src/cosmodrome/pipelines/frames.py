"""What pipelines are made of: rows read as a definition says, sent through its steps, written to its sink."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

from cosmodrome.errors import ConfigError, CosmodromeError
from cosmodrome.model import Property
from cosmodrome.numbers import parse_int
from cosmodrome.pipelines.definition import FILE_FORMATS, INPUT, Pipeline, Sink, Source, Step
from cosmodrome.pipelines.folders import files_of, new_folder
from cosmodrome.pipelines.running import explained
from cosmodrome.spark.sink_columns import check_columns
from cosmodrome.spark.sink_options import sink_options

VALUE = "value"  # the body as text
# Columns that say what a message is besides its body, in a row that becomes one.
MESSAGE_COLUMNS = ("topic", "keys", "tags", "properties", "shardingKey", "delayLevel", "deliverAt", "flag")
# What was read has these, too: the queue it came from, which another topic need not have.
QUEUE_COLUMNS = ("brokerName", "queueId")
# A schema of these is that of the files. Messages, and lines of text, are JSON with its fields.
_WITH_COLUMNS = FILE_FORMATS - {"text"}
_SCHEMA = "write names and types, such as id long, price double"
_BROKEN = "_broken_json"


# --- reading


def read(spark: SparkSession, source: Source, *, streaming: bool, only: Column | None = None, **more: str) -> DataFrame:
    """The rows of a source; `more` are options that the pipeline itself sets. `only` is asked of rows as they come,
    when no field of a body has taken the place of a column yet."""
    reader = spark.readStream if streaming else spark.read
    options = {**source.options, **more}
    frame = reader.format(source.format).options(**options)
    has_columns = source.format in _WITH_COLUMNS
    if has_columns and source.schema:
        frame = frame.schema(_fields(source.schema))
    rows = frame.load()
    if only is not None:
        rows = rows.where(only)
    if "body" in rows.columns and VALUE not in rows.columns:
        rows = with_text(rows)
    if source.schema and not has_columns:
        rows = with_fields(rows, source.schema, source.bad_json)
    if source.watermark is not None:
        if source.watermark.column not in rows.columns:
            known = ", ".join(rows.columns)
            raise ConfigError(f"source.watermark: there is no column {source.watermark.column}; there are {known}")
        rows = rows.withWatermark(source.watermark.column, source.watermark.delay)
    try:
        return rows.where(source.where) if source.where else rows
    except PySparkException as error:
        raise ConfigError(f"source.where is {source.where!r}: {explained(error)}") from None


def check_column(rows: DataFrame, name: str, kind: str, remedy: str) -> None:
    """ConfigError when a column that a pipeline needs is not there, or is of another type."""
    found = next((field.dataType.simpleString() for field in rows.schema.fields if field.name == name), None)
    if found != kind:
        wrong = "is not there" if found is None else f"is {found}"
        raise ConfigError(f"source: the column {name} must be {kind}, and it {wrong}; {remedy}")


def with_text(rows: DataFrame) -> DataFrame:
    """Rows with their bodies as text, too."""
    return rows.withColumn(VALUE, F.col("body").cast("string"))


def with_fields(rows: DataFrame, schema: str, bad_json: str) -> DataFrame:
    """Rows with the fields of their JSON bodies as columns; one that is named like a column takes its place."""
    fields = _fields(schema)
    if bad_json == "fail":
        parsed = F.from_json(VALUE, fields, {"mode": "FAILFAST"})
    else:
        wanted = StructType([*fields.fields]).add(_BROKEN, StringType())
        parsed = F.from_json(VALUE, wanted, {"columnNameOfCorruptRecord": _BROKEN})
    made = rows.withColumn(_BROKEN, parsed)
    if bad_json == "drop":
        made = made.where(F.col(_BROKEN).isNotNull() & F.col(f"{_BROKEN}.{_BROKEN}").isNull())
    taken = {name.lower() for name in fields.names}
    kept = [F.col(f"`{name}`") for name in rows.columns if name.lower() not in taken]
    return made.select(*kept, *(F.col(f"{_BROKEN}.`{name}`") for name in fields.names))


def _fields(schema: str) -> StructType:
    try:
        fields = StructType.fromDDL(schema)
    except PySparkException as error:
        raise ConfigError(f"schema is {schema!r}: {explained(error)}; {_SCHEMA}") from None
    if not isinstance(fields, StructType):
        raise ConfigError(f"schema is {schema!r}: {_SCHEMA}")
    return fields


# --- steps


def transformed(spark: SparkSession, pipeline: Pipeline, *, streaming: bool) -> DataFrame:
    """What comes out of the last step. Every source and step is a view; `input` is what the step before made."""
    rows: DataFrame | None = None
    for name, source in pipeline.sources.items():
        rows = read(spark, source, streaming=streaming)
        rows.createOrReplaceTempView(name)
    if rows is None:
        raise ConfigError("source is missing: where the rows come from")
    if len(pipeline.sources) > 1 and not pipeline.steps:
        raise ConfigError("steps is missing: with several sources, say in SQL what comes out of them")
    return with_steps(spark, pipeline, rows if len(pipeline.sources) == 1 else None)


def with_steps(spark: SparkSession, pipeline: Pipeline, rows: DataFrame | None) -> DataFrame:
    for step in pipeline.steps:
        if rows is not None:
            rows.createOrReplaceTempView(INPUT)
        try:
            rows = _after(spark, step, rows, pipeline.folder)
        except CosmodromeError:
            raise
        except Exception as error:
            raise ConfigError(f"steps: {step.name}: {blamed(error, step.python)}") from error
        rows.createOrReplaceTempView(step.name)
    assert rows is not None
    return rows


def _after(spark: SparkSession, step: Step, rows: DataFrame | None, folder: Path) -> DataFrame:
    if step.sql:
        return spark.sql(step.sql)
    if rows is None:
        raise ConfigError(f"steps: {step.name} comes first, but there are several sources; begin with sql")
    made = function(step.python, folder)(rows)
    if not hasattr(made, "createOrReplaceTempView"):
        raise ConfigError(f"steps: {step.python} returned {type(made).__name__}; it must return a DataFrame")
    return made  # type: ignore[no-any-return]


def blamed(error: Exception, name: str = "") -> str:
    """What went wrong, and where in the module of the function `name`."""
    if isinstance(error, PySparkException | Py4JError):
        return str(explained(error))
    file = getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    place = f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else ""
    return f"{type(error).__name__}: {error}{place}"


def function(name: str, folder: Path) -> Callable[..., Any]:
    """The function `module:function`; its module may lie beside the pipeline's file."""
    module, _, attribute = name.partition(":")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a module may raise anything
        raise ConfigError(f"{name} cannot be used: {error}") from error
    if not callable(found):
        raise ConfigError(f"{name} is no function")
    return found  # type: ignore[no-any-return]


# --- writing


def stream(
    pipeline: Pipeline, rows: DataFrame, *, available_now: bool = False, same_queues: bool = False
) -> StreamingQuery:
    """Start writing a stream to the sink. With `same_queues`, brokerName and queueId say where in a topic rows go."""
    sink = _sink(pipeline)
    made = prepared(rows, sink, streaming=True, same_queues=same_queues)
    if sink.format in FILE_FORMATS:
        _check_folder(rows.sparkSession, sink.options["path"], pipeline.checkpoint)
    writer = made.writeStream.format(sink.format).options(**sink.options).queryName(pipeline.name)
    writer = writer.outputMode(sink.output_mode)
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    arguments = {"availableNow": True} if available_now else pipeline.trigger.arguments()
    return started(writer, pipeline, arguments)


def started(writer: DataStreamWriter, pipeline: Pipeline, trigger: Mapping[str, Any]) -> StreamingQuery:
    if pipeline.checkpoint:
        writer = writer.option("checkpointLocation", pipeline.checkpoint)
    try:
        return (writer.trigger(**trigger) if trigger else writer).start()
    except PySparkException:
        raise
    except Exception as error:  # the file system's, by way of Java
        raise ConfigError(
            f"{explained(error)}; checkpoint and sink.path must be folders that can be written, and checkpoint is "
            f"{pipeline.checkpoint or 'missing'}"
        ) from error


def _check_folder(spark: SparkSession, path: str, checkpoint: str) -> None:
    """Spark's file sink passes over micro-batches whose numbers its folder has seen. Those of another query, or of one
    that has lost its checkpoint, would be passed over as well, and their rows would be nowhere."""
    written = _last_batch(spark, f"{path.rstrip('/')}/_spark_metadata")
    if written is None:
        return
    begun = _last_batch(spark, f"{checkpoint.rstrip('/')}/offsets") if checkpoint else None
    if begun is None or begun < written:
        raise ConfigError(
            f"sink.path: {path} was written by a query with another checkpoint, and Spark would silently leave out "
            "messages; give each pipeline a folder of its own, or the checkpoint that belongs to this one"
        )


def _last_batch(spark: SparkSession, log: str) -> int | None:
    """The number of the last micro-batch that a log of Spark's has, if there is one."""
    files = files_of(spark, log)
    if files is None or not files.exists():
        return None
    return max((number for name in files.names() if (number := parse_int(name)) is not None), default=None)


def save(pipeline: Pipeline, rows: DataFrame, *, same_queues: bool = False) -> None:
    """Write a table to the sink, and return when it is there; `same_queues` as in `stream`."""
    sink = _sink(pipeline)
    made = prepared(rows, sink, streaming=False, same_queues=same_queues)
    with new_folder(rows.sparkSession, sink) as target:
        writer = made.write.format(sink.format).options(**target.options).mode(sink.mode)
        (writer.partitionBy(*sink.partition_by) if sink.partition_by else writer).save()


def prepared(rows: DataFrame, sink: Sink, *, streaming: bool, same_queues: bool = False) -> DataFrame:
    """Rows as the sink takes them; ConfigError names the column that it needs and that is not there."""
    if sink.format == "rocketmq":
        return _messages(rows, sink, streaming=streaming, same_queues=same_queues)
    if sink.format in FILE_FORMATS:
        _check_partitions(rows.columns, sink.partition_by)
    if sink.format == "csv":
        _check_text(rows.schema)
    return rows


def _check_partitions(columns: list[str], partition_by: tuple[str, ...]) -> None:
    known = {name.lower() for name in columns}
    if missing := [name for name in partition_by if name.lower() not in known]:
        raise ConfigError(
            f"sink: files lie in folders by {' and '.join(partition_by)}, but the rows have no column {missing[0]}; "
            f"select it in steps, or set sink.partitionBy to columns that are there: {', '.join(columns)}"
        )
    if partition_by and known <= {name.lower() for name in partition_by}:
        raise ConfigError(
            f"sink: the rows have no column besides {', '.join(partition_by)}, which are folders; select in steps what "
            "the files are to hold"
        )


def _check_text(schema: StructType) -> None:
    """CSV has no maps, and of bytes Spark would write there what is left of them as UTF-8."""
    for field in schema.fields:
        if isinstance(field.dataType, BinaryType | MapType | ArrayType | StructType):
            is_bytes = isinstance(field.dataType, BinaryType)
            cast = f"cast({field.name} as string) or base64({field.name})" if is_bytes else f"to_json({field.name})"
            raise ConfigError(
                f"sink.format is csv, which is text, and the column {field.name} is {field.dataType.simpleString()}; "
                f"in steps, select {cast} instead, or take parquet, orc or json"
            )


def _messages(rows: DataFrame, sink: Sink, *, streaming: bool, same_queues: bool) -> DataFrame:
    """Whatever is no part of a message becomes its JSON body."""
    wanted = (*MESSAGE_COLUMNS, *QUEUE_COLUMNS) if same_queues else MESSAGE_COLUMNS
    kept = [name for name in wanted if name in rows.columns]
    if "body" in rows.columns:
        made = rows.select("body", *kept)
    elif sink.body == "column":
        raise ConfigError(
            "sink: the rows have no column body; select one in steps, or leave sink.body out, and the other columns "
            "become a JSON body"
        )
    elif fields := [name for name in rows.columns if name not in kept]:
        made = rows.select(_json(fields).alias("body"), *kept)
    else:
        raise ConfigError("sink: the rows have no column besides those of a message; select what the body is to hold")
    try:
        check_columns(made.schema, sink_options(sink.options, streaming=streaming))
    except ConfigError as error:
        raise ConfigError(f"sink: {error}") from None
    return made if "shardingKey" in kept else _with_sharding_key(made)


def _with_sharding_key(rows: DataFrame) -> DataFrame:
    """Read messages have it among their properties, where a sink takes it for RocketMQ's own."""
    if not any(field.name == "properties" and isinstance(field.dataType, MapType) for field in rows.schema.fields):
        return rows
    return rows.withColumn("shardingKey", F.col("properties")[Property.SHARDING_KEY])


def _json(fields: list[str]) -> Column:
    return F.to_json(F.struct(*(F.col(f"`{name}`") for name in fields)), {"ignoreNullFields": "false"})


def _sink(pipeline: Pipeline) -> Sink:
    if pipeline.sink is None:
        raise ConfigError("sink is missing: where the rows go")
    return pipeline.sink
