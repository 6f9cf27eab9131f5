"""Where Spark looks for the data source: any top-level module named pyspark_* with a `DefaultSource`."""

from cosmodrome.spark.source import RocketMQSource as DefaultSource

__all__ = ["DefaultSource"]
