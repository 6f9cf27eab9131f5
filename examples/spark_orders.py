"""A million orders through a node and Spark: a streaming report by city, and an archive in Parquet. `make demo`"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cosmodrome import Message
from cosmodrome.blocking import Producer
from cosmodrome.spark import quiet_session

TOPIC = "orders"
CITIES = ("Berlin", "Hamburg", "Köln", "Leipzig", "München", "Ulm")
STATES = ("paid", "paid", "paid", "cancelled")
ORDER = "id long, customer string, city string, cents long, at long"
HOUR_MS = 3_600_000
BATCH = 500
MICRO_BATCHES = 4
NODE_STOP_SECONDS = 20

console = Console(highlight=False)
stopping = threading.Event()


# --- the orders


def orders(count: int) -> Iterator[Message]:
    """Those of the last full hour, in the order of their times; the same ones in every run."""
    chance = random.Random(1)
    begin_ms = int(time.time() * 1000) // HOUR_MS * HOUR_MS - HOUR_MS
    for number in range(count):
        customer = f"c-{int(chance.random() * 50_000)}"
        order = {
            "id": number,
            "customer": customer,
            "city": chance.choice(CITIES),
            "cents": int(chance.expovariate(1 / 4_000)) + 100,
            "at": begin_ms + number * HOUR_MS // count,
        }
        state = chance.choice(STATES)
        yield Message(TOPIC, orjson.dumps(order), tags=state, keys=str(number), properties={"customer": customer})


def produce(namesrv: str, count: int) -> None:
    waiting: list[Message] = []
    with bar("sending orders", count) as done, Producer("shop", namesrv) as producer:
        for sent, order in enumerate(orders(count), 1):
            waiting.append(order)
            if len(waiting) == BATCH or sent == count:
                producer.send_batch(waiting)
                waiting.clear()
                done(sent)


# --- what Spark does with them


def stream(spark: SparkSession, namesrv: str, count: int) -> DataFrame:
    """All orders from the first one on, in a few micro-batches."""
    return (
        spark.readStream.format("rocketmq")
        .option("nameServer", namesrv)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", -(-count // MICRO_BATCHES))
        .load()
    )


def report(messages: DataFrame, checkpoint: Path, count: int) -> dict[tuple[str, datetime], tuple[int, int]]:
    """Orders and cents by city and ten minutes: each micro-batch tells what has changed, and the newest counts.

    An order may come an hour late; Spark forgets windows that are older, so the state of an endless stream is bounded.
    """
    found: dict[tuple[str, datetime], tuple[int, int]] = {}

    def keep(changed: DataFrame, _batch_id: int) -> None:
        for row in changed.collect():
            found[row.city, row.begin] = (row.orders, row.cents)

    order = F.from_json(F.col("body").cast("string"), ORDER)
    totals = (
        messages.where("tags = 'paid'")
        .select(order.alias("order"))
        .select("order.*", F.timestamp_millis("order.at").alias("time"))
        .withWatermark("time", "1 hour")
        .groupBy(F.window("time", "10 minutes"), "city")
        .agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))
        .select("city", F.col("window.start").alias("begin"), "orders", "cents")
    )
    query = (
        totals.writeStream.outputMode("update")
        .foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    follow(query, "report by city", count)
    return found


def archive(messages: DataFrame, folder: Path, checkpoint: Path, count: int) -> None:
    """Every message once, whatever fails on the way: the checkpoint, and a list beside the files, say what is done."""
    query = (
        messages.withColumn("date", F.to_date("storeTimestamp"))
        .writeStream.format("parquet")
        .partitionBy("date", "topic")
        .option("path", str(folder))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    follow(query, "archive", count)


def follow(query: StreamingQuery, title: str, count: int) -> None:
    """Show how far a query is until it has ended; raises if it has failed."""
    with bar(title, count) as done:
        ended = False
        while not ended:
            ended = bool(query.awaitTermination(1))
            if stopping.is_set():
                query.stop()
                raise KeyboardInterrupt
            done(sum(progress["numInputRows"] for progress in query.recentProgress))


# --- the stage


@contextmanager
def node(data: Path) -> Iterator[str]:
    """`cosmodrome up` on free ports; the address of its name server."""
    command = [sys.executable, "-m", "cosmodrome", "up", "--data", str(data)]
    command += ["--namesrv-port", "0", "--broker-port", "0", "--console-port", "0"]
    # In a group of its own, Ctrl-C is not for the node: it is stopped when nobody needs it any more.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"name server on (\S+),", process.stdout.readline())
            if found is None:
                sys.exit("the node did not start; what it says stands above")
            yield found[1]
        finally:
            process.terminate()
            process.wait(NODE_STOP_SECONDS)


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    cores = len(os.sched_getaffinity(0))
    settings = {
        "spark.sql.shuffle.partitions": cores,
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "2g",
    }
    made = quiet_session("orders", f"local[{cores}]", **settings)  # there are bars enough
    on_stop(lambda _signal, _frame: stopping.set())  # Spark does not like to be interrupted in the midst of a call
    try:
        yield made
    finally:
        made.stop()


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("{task.description:15}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=total)
        yield lambda completed: progress.update(task, completed=completed)


def report_table(found: dict[tuple[str, datetime], tuple[int, int]]) -> Table:
    begins = sorted({begin for _, begin in found})
    table = Table(title="paid orders, thousand € by ten minutes (UTC)", title_justify="left")
    table.add_column("city")
    for begin in begins:
        table.add_column(f"{begin:%H:%M}", justify="right")
    table.add_column("orders", justify="right")
    table.add_column("k€", justify="right")
    for city in sorted({city for city, _ in found}):
        of_city = [found.get((city, begin), (0, 0)) for begin in begins]
        sums = [sum(column) for column in zip(*of_city, strict=True)]
        cells = [f"{cents / 100_000:,.1f}" for _, cents in of_city]
        table.add_row(city, *cells, f"{sums[0]:,}", f"{sums[1] / 100_000:,.1f}")
    return table


def run(count: int, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    archived = folder / f"archive-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    with tempfile.TemporaryDirectory(prefix="running-", dir=folder) as home, node(Path(home, "node")) as namesrv:
        console.print(f"a node runs, its name server on {namesrv}")
        produce(namesrv, count)
        console.print("starting Spark")
        with spark_session() as spark:
            messages = stream(spark, namesrv, count)
            console.print(report_table(report(messages, Path(home, "report"), count)))
            archive(messages, archived, Path(home, "archive"), count)
            kept = spark.read.parquet(str(archived))
            rows, different = kept.agg(F.count("*"), F.countDistinct("keys")).collect()[0]
    if not rows == different == count:
        sys.exit(f"{count:,} orders were sent, but {archived} has {rows:,} rows of {different:,} orders")
    console.print(f"all {rows:,} messages, each of them once, are Parquet files in {archived}", soft_wrap=True)


def stop(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def on_stop(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="keeps the archive")
    given = parser.parse_args()
    on_stop(stop)
    try:
        run(given.messages, given.folder)
    except KeyboardInterrupt:
        console.print("stopped")
        sys.exit(130)


if __name__ == "__main__":
    main()
