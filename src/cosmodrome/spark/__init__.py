"""Topics as Spark tables: the data sources `rocketmq` and `rocketmq-store`."""

from cosmodrome.spark.sessions import quiet_session, register, session
from cosmodrome.spark.watching import lag, lag_listener

__all__ = ["lag", "lag_listener", "quiet_session", "register", "session"]
