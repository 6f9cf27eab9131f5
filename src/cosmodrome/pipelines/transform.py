"""Streaming SQL from topics to a topic, or anywhere else."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cosmodrome.pipelines.definition import Pipeline
from cosmodrome.pipelines.frames import stream, transformed


def transform(spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    return stream(pipeline, transformed(spark, pipeline, streaming=True))
