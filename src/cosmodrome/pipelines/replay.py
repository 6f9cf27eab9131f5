"""Messages sent again: out of files, or out of a time range of topics, into a topic.

Keys, tags, flags and the users' own properties stay; what brokers and clients noted about the first sending goes. The
order of each queue is kept.

A replay may write to the very topics that it reads. So it ends with what was there when it began, however often it is
stopped and started again: where that is, is noted in its checkpoint before the first message is sent.

    checkpoint/replay-end    {"orders":{"broker-a":{"0":123,"1":98}}}, the offsets behind the last messages
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import orjson
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from cosmodrome.client.outgoing import RESERVED_PROPERTIES
from cosmodrome.errors import ConfigError
from cosmodrome.model import Property
from cosmodrome.numbers import parse_int
from cosmodrome.pipelines.definition import Pipeline
from cosmodrome.pipelines.folders import literal
from cosmodrome.pipelines.frames import VALUE, check_column, read, save, stream, with_steps
from cosmodrome.pipelines.outcome import Outcome
from cosmodrome.spark.encoding import SPARK_ID
from cosmodrome.spark.options import source_options
from cosmodrome.spark.pool import connected
from cosmodrome.spark.positions import Positions
from cosmodrome.spark.progress import Offsets, from_json, to_json

QUEUE = ("topic", "brokerName", "queueId")
# A replay that was stopped goes on with its last micro-batch, and sends that one again: it must not be large.
BATCH_SECONDS = 10
BATCH_ROWS = 200_000
FINISHED = (
    "this replay has sent all that was there when it was first run, and nothing was sent now; to send messages again, "
    "give it another checkpoint"
)
_END = "replay-end"
_SOURCE_LINE = 2  # of what Spark notes of a micro-batch: behind the version and its own settings
_LIMITS = ("maxOffsetsPerTrigger", "maxBytesPerTrigger")
_STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")


def replay(spark: SparkSession, pipeline: Pipeline) -> StreamingQuery | Outcome:
    """Topics are read as a stream, so that a replay that was stopped goes on; files from their beginning."""
    if rate := pipeline.options["rate"]:
        pipeline = _slowed(pipeline, rate / pipeline.options["tasks"])
    if pipeline.source.format == "rocketmq":
        return _replay_topics(spark, pipeline)
    return _replay_files(spark, pipeline)


def _slowed(pipeline: Pipeline, rows_per_second: float) -> Pipeline:
    assert pipeline.sink is not None
    options = {**pipeline.sink.options, "maxRowsPerSecond": str(rows_per_second)}
    return dataclasses.replace(pipeline, sink=dataclasses.replace(pipeline.sink, options=options))


def _replay_topics(spark: SparkSession, pipeline: Pipeline) -> StreamingQuery | Outcome:
    options = _stream_options(pipeline)
    noted = _noted_end(spark, pipeline.checkpoint)
    if noted is not None and _is_reached(noted, _reached(spark, pipeline.checkpoint)):
        return Outcome({"rows": 0}, notes=(FINISHED,))
    end = _end_now(options) if noted is None else noted
    only = _is_before(end)
    if (end_ms := pipeline.source.option("endingTimestamp")) is not None:
        only = only & (F.col("storeTimestamp") < F.timestamp_millis(F.lit(int(end_ms))))
    source = dataclasses.replace(pipeline.source, options=options)
    rows = _as_sent(spark, pipeline, read(spark, source, streaming=True, only=only))
    if noted is None:
        _note_end(spark, pipeline.checkpoint, end)
    return stream(pipeline, rows, available_now=True, same_queues=pipeline.options["queues"] == "same")


def _stream_options(pipeline: Pipeline) -> dict[str, str]:
    options = {name: value for name, value in pipeline.source.options.items() if name.lower() != "endingtimestamp"}
    if not any(map(pipeline.source.option, _LIMITS)):
        options["maxOffsetsPerTrigger"] = str(pipeline.options["rate"] * BATCH_SECONDS or BATCH_ROWS)
    if not any(map(pipeline.source.option, _STARTS)):
        options["startingOffsets"] = "earliest"  # a stream's own default, the latest, would replay nothing
    # One task keeps the order; a queue that has nothing of that time is no reason to fail.
    return {**options, "maxTasksPerBatch": "1", "startingOffsetsByTimestampStrategy": "latest"}


# --- where a replay ends


def _end_now(given: Mapping[str, str]) -> Offsets:
    options = source_options(given, streaming=True)
    with connected(options.link) as cluster:
        positions = Positions(cluster, options)
        return positions.latest(positions.queues())


def _note_end(spark: SparkSession, checkpoint: str, end: Offsets) -> None:
    """Spark writes a file elsewhere and renames it: it is there as a whole, or not at all, and then its folder is
    empty."""
    text = F.lit(orjson.dumps(to_json(end)).decode())
    spark.range(1).select(text.alias(VALUE)).coalesce(1).write.mode("overwrite").text(f"{checkpoint}/{_END}")


def _noted_end(spark: SparkSession, checkpoint: str) -> Offsets | None:
    lines = _lines(spark, f"{checkpoint}/{_END}")
    return from_json(orjson.loads(lines[0])) if lines else None


def _reached(spark: SparkSession, checkpoint: str) -> Offsets:
    """How far the last micro-batch that was sent has come."""
    try:
        names = spark.read.text(literal(f"{checkpoint}/commits")).select("_metadata.file_name").distinct().collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return {}
    batches = [number for row in names if (number := parse_int(row.file_name)) is not None]
    lines = _lines(spark, f"{checkpoint}/offsets/{max(batches)}") if batches else []
    return from_json(orjson.loads(lines[_SOURCE_LINE])) if len(lines) > _SOURCE_LINE else {}


def _is_reached(end: Offsets, reached: Offsets) -> bool:
    return all(reached.get(queue, -1) >= offset for queue, offset in end.items())


def _lines(spark: SparkSession, path: str) -> list[str]:
    """Of a small file; none if it is not there."""
    try:
        return [row.value for row in spark.read.text(literal(path)).coalesce(1).collect()]
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return []


def _is_before(end: Offsets) -> Column:
    """Queues that came later had nothing then."""
    if not end:
        return F.lit(False)
    offsets = {f"{queue.topic}/{queue.broker_name}/{queue.queue_id}": offset for queue, offset in end.items()}
    pairs = [F.lit(part) for pair in offsets.items() for part in pair]
    return F.col("queueOffset") < F.create_map(*pairs)[F.concat_ws("/", *QUEUE)]


# --- files


def _replay_files(spark: SparkSession, pipeline: Pipeline) -> Outcome:
    rows = read(spark, pipeline.source, streaming=False)
    if missing := [name for name in (*QUEUE, "queueOffset", "body") if name not in rows.columns]:
        raise ConfigError(f"source: the files have no column {missing[0]}; replay what archive or store-scan wrote")
    sent = Observation("replay")
    ordered = rows.repartition(pipeline.options["tasks"], *QUEUE).sortWithinPartitions(*QUEUE, "queueOffset")
    messages = _as_sent(spark, pipeline, ordered).observe(sent, F.count("*").alias("messages"))
    save(pipeline, messages, same_queues=pipeline.options["queues"] == "same")
    return Outcome({"messages": int(sent.get["messages"])})


# --- messages


def _as_sent(spark: SparkSession, pipeline: Pipeline, rows: DataFrame) -> DataFrame:
    """Rows as a producer would send them, by no more tasks than share the rate, however many a step made."""
    rows = with_steps(spark, pipeline, rows.drop(VALUE))
    assert pipeline.sink is not None
    has_topic = any(name.lower() == "topic" for name in pipeline.sink.options)
    columns = ["body", "keys", "tags", "flag", *([] if has_topic else ["topic"])]
    if missing := [name for name in (*columns, *QUEUE, "properties") if name not in rows.columns]:
        raise ConfigError(f"a message needs the column {missing[0]}, which is not there; in steps, select *")
    check_column(rows, "properties", "map<string,string>", "leave source.properties out")
    made = rows.select(*columns, *_place(pipeline.options["queues"]), _own_properties().alias("properties"))
    return made.coalesce(pipeline.options["tasks"])


def _place(queues: str) -> list[Column]:
    """What says to which queue a message goes. Those of one queue share a sharding key, unless they had their own."""
    own = F.col("properties")[Property.SHARDING_KEY]
    match queues:
        case "same":
            return [F.col("brokerName"), F.col("queueId"), own.alias("shardingKey")]
        case "hashed":
            return [F.coalesce(own, F.concat_ws("/", *QUEUE)).alias("shardingKey")]
        case _:
            return [own.alias("shardingKey")]


def _own_properties() -> Column:
    not_kept = sorted({*RESERVED_PROPERTIES, SPARK_ID})
    return F.map_filter("properties", lambda name, _: ~name.isin(*not_kept))
