"""Spark sessions that find the data sources."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from cosmodrome.errors import ConfigError
from cosmodrome.spark.java_output import java_warning_dropped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INSTALL_SPARK = "Spark is not installed: pip install 'cosmodrome[spark]', and install a Java 17 runtime or later"
UPDATE_SPARK = "this PySpark is too old: pip install 'cosmodrome[spark]' brings 4.3 or later"
INSTALL_JAVA = "Spark needs Java 17 or later: install a JRE (apt-get install openjdk-17-jre-headless), or set JAVA_HOME"

# The old connector's name: queries written for it need not be changed.
OLD_NAME = "org.apache.spark.sql.rocketmq.RocketMQSourceProvider"

# Workers and driver on one host talk over a Unix socket: tens of milliseconds less for every task.
_SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
}
_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


# A Python worker of Spark has a last word when Spark has hung up already. Over a Unix socket that fails at once, and
# where the machine is busy its traceback stands on the terminal; over TCP it does no harm.
ON_TERMINALS = {"spark.ui.showConsoleProgress": "false", "spark.python.unix.domain.socket.enabled": "false"}
_ERRORS_ONLY = f"-Dlog4j2.configurationFile=file:{Path(__file__).parent / 'log4j2.properties'}"
_QUIET_SETTINGS = {**ON_TERMINALS, "spark.driver.extraJavaOptions": _ERRORS_ONLY}


class SparkMissing(ConfigError):
    """What Spark needs is not installed here."""


def session(app_name: str = "cosmodrome", master: str = "local[*]", **conf: Any) -> SparkSession:
    """A session with the settings these sources like: `session("report", **{"spark.sql.shuffle.partitions": 4})`.

    `master` is what Spark calls so, or the address of a Spark Connect server (sc://host). Spark's helper processes take
    `python3` of the PATH unless told otherwise, and one without this package knows no format `rocketmq`; so they are
    told to take the Python that runs this.
    """
    return _session(app_name, master, conf)


def quiet_session(app_name: str = "cosmodrome", master: str = "local[*]", **conf: Any) -> SparkSession:
    """Return a session, as `session` does, in which Spark writes to the terminal errors alone, and no progress bars."""
    without_pandas_warning()
    if master.startswith("sc://"):
        return _session(app_name, master, conf)
    with java_warning_dropped():
        return _session(app_name, master, {**_QUIET_SETTINGS, **conf})


def _session(app_name: str, master: str, conf: Mapping[str, Any]) -> SparkSession:
    is_remote = master.startswith("sc://")
    require_spark(java=not is_remote)
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if is_remote:
        builder = builder.remote(master)
        settings = dict(conf)
    else:
        builder = builder.master(master)
        settings = {**_SETTINGS, **(_LOCAL_SETTINGS if master.startswith("local") else {}), **conf}
    for name, value in settings.items():
        builder = builder.config(name, str(value).lower() if isinstance(value, bool) else str(value))
    try:
        return _active(builder.getOrCreate())
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise SparkMissing(f"Spark did not start; what it said stands above. {INSTALL_JAVA}") from error


def without_pandas_warning() -> None:
    """Hide PySpark's warning of pandas 3 and later: these sources use Arrow, and no pandas."""
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)


def _active(spark: SparkSession) -> SparkSession:
    """Spark looks for the format of a batch write in the session of the thread that asks, which need not have one."""
    if (jvm := getattr(spark, "_jvm", None)) is not None:  # not behind Spark Connect
        spark._get_j_spark_session_class(jvm).setActiveSession(spark._jsparkSession)
    return spark


def require_spark(*, java: bool = True) -> None:
    """SparkMissing says what to install where Spark is missing, or the Java it would run on."""
    if any(importlib.util.find_spec(name) is None for name in ("numpy", "pyarrow", "pyspark", "yaml")):
        raise SparkMissing(INSTALL_SPARK)
    if not _knows_stream_limits():
        raise SparkMissing(UPDATE_SPARK)
    home = os.environ.get("JAVA_HOME")
    if java and which(os.path.join(home, "bin", "java") if home else "java") is None:
        raise SparkMissing(f"no Java was found{f' in JAVA_HOME, {home}' if home else ''}. {INSTALL_JAVA}")


def _knows_stream_limits() -> bool:
    """The youngest part of PySpark that the sources need."""
    try:
        return importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None
    except ImportError:  # older ones do not even load everywhere
        return False


def register(spark: SparkSession, *aliases: str) -> None:
    """Make the sources known to a session that does not find them by itself, and to the thread that calls this;
    `rocketmq` also by the old connector's name, and by `aliases`.

    Spark gives up looking for sources when any package named pyspark_* is broken. The package must be installed where
    the executors run.
    """
    require_spark(java=False)
    from cosmodrome.spark.source import RocketMQSource
    from cosmodrome.spark.store_source import RocketMQStoreSource

    _active(spark)
    for source in (RocketMQSource, RocketMQStoreSource):
        spark.dataSource.register(source)
    for alias in (OLD_NAME, *aliases):
        spark.dataSource.register(_named(RocketMQSource, alias))


def _named(source: type[Any], name: str) -> type[Any]:
    return type(source.__name__, (source,), {"name": classmethod(lambda cls: name)})
