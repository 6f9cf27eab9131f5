"""One Spark session and one broker for all tests here. Who stops a broker takes `rocketmq`, a cluster of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cosmodrome.spark import session
from cosmodrome.testing import Cluster
from tests.spark.helpers import Read, Streams
from tests.spark.home import spark_home

HERE = Path(__file__).parent
SPARK_TESTS = "tests/spark/"
# Each test in these starts a Spark of its own, so they need not share a worker.
WITH_THEIR_OWN_SPARK = tuple(f"{SPARK_TESTS}test_{name}.py" for name in ("programs", "pipelines_killed", "sink_killed"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What Spark and pandas warn of is not ours to mend."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Most tests here share one JVM, so one worker runs them all; the others are dealt out one by one.

    xdist's own way, `--dist loadgroup`, groups nothing with pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class SparkTogether(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            shares = nodeid.startswith(SPARK_TESTS) and not nodeid.startswith(WITH_THEIR_OWN_SPARK)
            return SPARK_TESTS if shares else nodeid

    return SparkTogether(config, log)


@pytest.fixture(scope="session", autouse=True)
def _home() -> Iterator[None]:
    """Of all Sparks here; those in other processes inherit it."""
    with spark_home() as settings, pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    settings: dict[str, Any] = {
        "spark.sql.shuffle.partitions": 2,
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stopTimeout": "60s",  # a query that does not stop is an error, and not waited for
        "spark.log.level": "ERROR",
    }
    made = session("tests", "local[2]", **settings)
    yield made
    made.stop()


@pytest.fixture
def cluster(rocketmq_session: Cluster) -> Cluster:
    return rocketmq_session


@pytest.fixture
def topic(request: pytest.FixtureRequest, cluster: Cluster) -> str:
    """Of this test alone, with two queues."""
    name = re.sub(r"\W", "-", request.node.name)
    cluster.create_topic(name, queues=2)
    return name


@pytest.fixture
def read(spark: SparkSession, cluster: Cluster, topic: str) -> Read:
    """Reads the test's topic: `read(startingOffsets="latest")`."""

    def load(schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("rocketmq").options(nameServer=cluster.namesrv, subscribe=topic, **options)
        return (reader if schema is None else reader.schema(schema)).load()

    return load


@pytest.fixture
def stream(spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path) -> Iterator[Streams]:
    made = Streams(spark, {"nameServer": cluster.namesrv, "subscribe": topic}, tmp_path)
    yield made
    made.stop()
