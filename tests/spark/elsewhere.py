"""Copies a topic in a Spark of its own, once as a table and once as a stream, and says what it saw as JSON. The copies
are TOPIC-table, and TOPIC-stream, which is written exactly once.

python -m tests.spark.elsewhere MASTER NAME_SERVER TOPIC FOLDER

With a Spark Connect server, of a process of its own, operators' commands run there as well: `cosmodrome sql`, and a
pipeline to TOPIC-pipeline.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cosmodrome.spark import session
from tests.bounded import child, line_of
from tests.spark.helpers import numbers

CONNECT = "connect"
SERVE = "serve"
ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 240
RUN_SECONDS = 500  # half a dozen Spark jobs and two commands, on a busy machine


def run(*arguments: str) -> dict[str, Any]:
    """In a group of processes of its own, none of which is left over."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    environment.pop("PYTEST_CURRENT_TEST", None)
    command = this_program(*arguments)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as child:
        try:
            output, errors = child.communicate(timeout=RUN_SECONDS)
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    assert child.returncode == 0, errors[-4_000:]
    seen: dict[str, Any] = json.loads(output.splitlines()[-1])
    return seen


def this_program(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", "tests.spark.elsewhere", *arguments]


SETTINGS: Mapping[str, Any] = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    # Executors come when they are ready; nothing begins before both have.
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{TIMEOUT_SECONDS}s",
}
CONNECT_SETTINGS: Mapping[str, Any] = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",  # any: somebody else may have Spark's own
}


def serve() -> None:
    """A Spark Connect server: prints its port, and ends when there is no more to read."""
    spark = session("server", "local[2]", **SETTINGS, **CONNECT_SETTINGS)
    service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    print(getattr(service, "MODULE$").localPort(), flush=True)
    sys.stdin.read()
    spark.stop()


@contextmanager
def connect_server() -> Iterator[str]:
    """Its address."""
    with child(this_program(SERVE), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield f"sc://127.0.0.1:{int(line_of(server.stdout, TIMEOUT_SECONDS))}"


def executors(spark: SparkSession) -> int:
    """Beside the driver."""
    infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    return len(infos) - 1


class Copying:
    """What Spark does with a topic, through one session."""

    def __init__(self, spark: SparkSession, namesrv: str, topic: str, folder: Path) -> None:
        self._spark = spark
        self._source = {"nameServer": namesrv, "subscribe": topic, "startingOffsets": "earliest"}
        self._sink = {"nameServer": namesrv, "topic": topic}
        self._checkpoint = folder / "checkpoint"

    def run(self) -> dict[str, Any]:
        table = self._spark.read.format("rocketmq").options(**self._source, minPartitions="4").load()
        rows = table.select("body", F.spark_partition_id().alias("task")).collect()
        self._write(table)
        self._stream()
        return {"table": numbers(rows), "tasks": len({row.task for row in rows}), "batches": self._batches()}

    def _target(self, kind: str) -> dict[str, str]:
        return {**self._sink, "topic": f"{self._sink['topic']}-{kind}"}

    def _write(self, table: DataFrame) -> None:
        table.select("body", "keys").write.format("rocketmq").mode("append").options(**self._target("table")).save()

    def _stream(self) -> None:
        limits = {"maxOffsetsPerTrigger": "30", "minPartitions": "2"}
        rows = self._spark.readStream.format("rocketmq").options(**self._source, **limits).load()
        query = (
            rows.select("body", "keys")
            .writeStream.format("rocketmq")
            .options(**self._target("stream"), exactlyOnce="true", checkpointLocation=str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(TIMEOUT_SECONDS)

    def _batches(self) -> int:
        return len(list((self._checkpoint / "commits").glob("[0-9]*")))


def command(*arguments: str) -> str:
    """What `cosmodrome …` prints."""
    args = [sys.executable, "-W", "ignore", "-m", "cosmodrome", *arguments]
    return subprocess.run(args, stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT_SECONDS).stdout


def asked(remote: str, namesrv: str, topic: str) -> Any:
    query = f"select count(*) as messages, sum(cast(value as int)) as total from `{topic}`"
    return json.loads(command("sql", query, "--remote", remote, "--namesrv", namesrv, "-o", "json"))


def run_pipeline(remote: str, namesrv: str, topic: str, folder: Path) -> Any:
    definition = {
        "name": "elsewhere",
        "pipeline": "transform",
        "source": {"nameServer": namesrv, "subscribe": topic, "startingOffsets": "earliest"},
        "steps": [{"sql": "select body, keys from input where cast(value as int) % 2 = 0"}],
        "sink": {"format": "rocketmq", "nameServer": namesrv, "topic": f"{topic}-pipeline", "exactlyOnce": "true"},
        "checkpoint": str(folder / "pipeline-checkpoint"),
    }
    file = folder / "pipeline.yaml"
    file.write_text(json.dumps(definition))  # which is YAML, too
    said = command("pipeline", "run", str(file), "--remote", remote, "--once", "-o", "json")
    return json.loads(said.splitlines()[-1])


def main(master: str, namesrv: str, topic: str, folder: str) -> None:
    if master != CONNECT:
        spark = session("elsewhere", master, **SETTINGS)
        seen = {**Copying(spark, namesrv, topic, Path(folder)).run(), "executors": executors(spark)}
        print(json.dumps(seen), flush=True)
        spark.stop()
        return
    with connect_server() as remote:
        spark = session("elsewhere", remote)
        seen = Copying(spark, namesrv, topic, Path(folder)).run()
        spark.stop()
        seen["sql"] = asked(remote, namesrv, topic)
        seen["pipeline"] = run_pipeline(remote, namesrv, topic, Path(folder))
        print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    serve() if sys.argv[1] == SERVE else main(*sys.argv[1:])
