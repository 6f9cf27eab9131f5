"""Messages sent again: out of files, or out of a time range of topics, into a topic.

Keys, tags, flags and the users' own properties stay; what brokers and clients noted about the first sending goes. The
order of each queue is kept.
"""

from __future__ import annotations

import dataclasses

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from cosmodrome.client.outgoing import RESERVED_PROPERTIES
from cosmodrome.errors import ConfigError
from cosmodrome.model import Property
from cosmodrome.pipelines.definition import Pipeline
from cosmodrome.pipelines.frames import VALUE, check_column, read, save, stream, with_steps
from cosmodrome.pipelines.outcome import Outcome
from cosmodrome.spark.encoding import SPARK_ID

QUEUE = ("topic", "brokerName", "queueId")
# A replay that was stopped goes on with its last micro-batch, and sends that one again: it must not be large.
BATCH_SECONDS = 10
BATCH_ROWS = 200_000
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


def _replay_topics(spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    if not pipeline.checkpoint:
        raise ConfigError("checkpoint is missing: a folder in which Spark notes how far the replay has come")
    if pipeline.options["tasks"] != 1:
        raise ConfigError("options.tasks: a topic is replayed by one task, which keeps the order of its queues")
    end_ms = pipeline.source.option("endingTimestamp")
    options = {name: value for name, value in pipeline.source.options.items() if name.lower() != "endingtimestamp"}
    if not any(map(pipeline.source.option, _LIMITS)):
        options["maxOffsetsPerTrigger"] = str(pipeline.options["rate"] * BATCH_SECONDS or BATCH_ROWS)
    if not any(map(pipeline.source.option, _STARTS)):
        options["startingOffsets"] = "earliest"  # a stream's own default, the latest, would replay nothing
    # One task keeps the order; a queue that has nothing of that time is no reason to fail.
    forced = {"maxTasksPerBatch": "1", "startingOffsetsByTimestampStrategy": "latest"}
    source = dataclasses.replace(pipeline.source, options={**options, **forced})
    rows = read(spark, source, streaming=True)
    if end_ms is not None:
        rows = rows.where(F.col("storeTimestamp") < F.timestamp_millis(F.lit(int(end_ms))))
    return stream(pipeline, _as_sent(spark, pipeline, rows), available_now=True)


def _replay_files(spark: SparkSession, pipeline: Pipeline) -> Outcome:
    rows = read(spark, pipeline.source, streaming=False)
    if missing := [name for name in (*QUEUE, "queueOffset", "body") if name not in rows.columns]:
        raise ConfigError(f"source: the files have no column {missing[0]}; replay what archive or store-scan wrote")
    seen = Observation("replay")
    ordered = rows.repartition(pipeline.options["tasks"], *QUEUE).sortWithinPartitions(*QUEUE, "queueOffset")
    save(pipeline, _as_sent(spark, pipeline, ordered.observe(seen, F.count("*").alias("messages"))))
    return Outcome({"messages": int(seen.get["messages"])})


def _as_sent(spark: SparkSession, pipeline: Pipeline, rows: DataFrame) -> DataFrame:
    """Rows as a producer would send them."""
    rows = with_steps(spark, pipeline, rows.drop(VALUE))
    assert pipeline.sink is not None
    columns = ["body", "keys", "tags", "flag", *([] if "topic" in pipeline.sink.options else ["topic"])]
    if missing := [name for name in (*columns, *QUEUE, "properties") if name not in rows.columns]:
        raise ConfigError(f"a message needs the column {missing[0]}, which is not there; in steps, select *")
    check_column(rows, "properties", "map<string,string>", "leave source.properties out")
    return rows.select(*columns, *_place(pipeline.options["queues"]), _own_properties().alias("properties"))


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
