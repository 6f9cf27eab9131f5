"""Streaming SQL from topics to a topic, or anywhere else."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cosmodrome.pipelines.definition import Pipeline
from cosmodrome.pipelines.frames import stream, transformed


def transform(spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    rows = transformed(spark, pipeline, streaming=True)
    return stream(_dropping(pipeline), rows, same_queues=pipeline.options["queues"] == "same")


def _dropping(pipeline: Pipeline) -> Pipeline:
    """Of messages that were read, properties of RocketMQ's own are left out, so that `select *` can be sent on.

    Not where rows themselves say to which topic they go: `select *` would send them back to where they came from, to be
    read again and again. There the sink refuses them.
    """
    sink = pipeline.sink
    assert sink is not None
    given = {name.lower() for name in sink.options}
    if sink.format != "rocketmq" or "topic" not in given or "reservedproperties" in given:
        return pipeline
    return replace(pipeline, sink=replace(sink, options={**sink.options, "reservedProperties": "drop"}))
