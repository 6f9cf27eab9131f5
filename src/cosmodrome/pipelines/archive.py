"""Topics to files, by date and topic. Spark's file sink notes in its folder which files count, so each message is in
them once, however often the job is killed."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from cosmodrome.pipelines.definition import Pipeline
from cosmodrome.pipelines.frames import VALUE, read, stream, with_steps


def archive(spark: SparkSession, pipeline: Pipeline) -> StreamingQuery:
    rows = read(spark, pipeline.source, streaming=True)
    return stream(pipeline, with_steps(spark, pipeline, dated(rows)))


def dated(rows: DataFrame) -> DataFrame:
    """With the day on which the broker stored each message. The body as text would only be there twice."""
    return rows.drop(VALUE).withColumn("date", F.to_date("storeTimestamp"))
