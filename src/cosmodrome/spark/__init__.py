"""Topics as Spark tables: the data sources `rocketmq` and `rocketmq-store`."""

from cosmodrome.spark.sessions import register, session
from cosmodrome.spark.watching import lag, lag_listener

__all__ = ["lag", "lag_listener", "register", "session"]
