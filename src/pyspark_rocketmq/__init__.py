"""Where Spark looks for the data source: any top-level module named pyspark_* with a `DefaultSource`."""

# One such module that cannot be imported hides all data sources from Spark, whoever made them. So without what the
# extra `spark` brings, or beside a PySpark that is too old, this one is empty.
try:
    from cosmodrome.spark.source import RocketMQSource as DefaultSource
except ImportError:
    __all__ = []
else:
    __all__ = ["DefaultSource"]
