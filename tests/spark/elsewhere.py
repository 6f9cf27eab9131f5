"""Reads a topic in a Spark of its own, once as a table and once as a stream, and says what it saw as JSON.

python -m tests.spark.elsewhere MASTER NAME_SERVER TOPIC FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cosmodrome.spark import session
from tests.spark.helpers import Streams, numbers

CONNECT = "connect"
ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 240


def run(*arguments: str) -> dict[str, Any]:
    """In a group of processes of its own, none of which is left over."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    environment.pop("PYTEST_CURRENT_TEST", None)
    command = [sys.executable, "-W", "ignore", "-m", "tests.spark.elsewhere", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as child:
        try:
            output, errors = child.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    assert child.returncode == 0, errors[-4_000:]
    seen: dict[str, Any] = json.loads(output.splitlines()[-1])
    return seen


def started(master: str) -> SparkSession:
    settings: dict[str, Any] = {
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "512m",
        # Executors come when they are ready; nothing begins before both have.
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{TIMEOUT_SECONDS}s",
    }
    if master == CONNECT:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        return SparkSession.builder.remote("local[2]").config(map=settings).getOrCreate()
    return session("elsewhere", master, **settings)


def executors(spark: SparkSession, master: str) -> int:
    """Beside the driver."""
    if master == CONNECT:
        return 0
    infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    return len(infos) - 1


def main(master: str, namesrv: str, topic: str, folder: str) -> None:
    spark = started(master)
    options = {"nameServer": namesrv, "subscribe": topic, "startingOffsets": "earliest"}
    table = spark.read.format("rocketmq").options(**options, minPartitions="4").load()
    rows = table.select("body", F.spark_partition_id().alias("task")).collect()
    stream = Streams(spark, options, Path(folder))
    stream.run(maxOffsetsPerTrigger="30", minPartitions="2")
    seen = {
        "batch": numbers(rows),
        "tasks": len({row.task for row in rows}),
        "stream": stream.numbers(),
        "batches": len(stream.batches()),
        "executors": executors(spark, master),
    }
    print(json.dumps(seen), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
