"""What traced clients wrote down, as tables. Each function takes tables and returns one; none starts a job.

records     one row for each record of a trace and each message it speaks of
visible     messages that consumers could see: sent, and if in a transaction, committed
deliveries  calls of handlers, begun and ended, with the message each was for
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from cosmodrome.wire import trace
from cosmodrome.wire.trace import Outcome, TracedType

UNKNOWN_TOPIC = "(producer not traced)"
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}

# The last millisecond of the year 9999. Spark has no times beyond; what claims to be later is no trace.
_LAST_MS = 253_402_300_799_999
_MAX_COST_MS = 2**53
# Why a delivery failed, as clients write it down.
_REASONS = {
    Outcome.TIME_OUT: "the handler took too long",
    Outcome.EXCEPTION: "the handler raised an exception",
    Outcome.RETURNED_NULL: "the handler returned null",
    Outcome.FAILED: "the handler asked for a retry",
}
_UNKNOWN_REASON = "no reason was written down"
_COMMITTED = "COMMIT_MESSAGE"

_COLUMNS = {
    "kind": pa.string(),
    "timestamp": pa.int64(),
    "group": pa.string(),
    "topic": pa.string(),
    "msg_id": pa.string(),
    "tags": pa.string(),
    "keys": pa.string(),
    "store_host": pa.string(),
    "body_size": pa.int64(),
    "cost_ms": pa.int64(),
    "msg_type": pa.int64(),
    "success": pa.bool_(),
    "offset_msg_id": pa.string(),
    "request_id": pa.string(),
    "retry_times": pa.int64(),
    "outcome": pa.int64(),
    "state": pa.string(),
}
_NAMES = {
    "msg_id": "msgId",
    "store_host": "storeHost",
    "body_size": "bodySize",
    "cost_ms": "costMs",
    "msg_type": "msgType",
    "offset_msg_id": "offsetMsgId",
    "request_id": "requestId",
    "retry_times": "retryTimes",
}
_SPARK_TYPES = {pa.string(): "string", pa.int64(): "long", pa.bool_(): "boolean"}
SCHEMA = ", ".join(f"`{_NAMES.get(name, name)}` {_SPARK_TYPES[kind]}" for name, kind in _COLUMNS.items())
_ARROW = pa.schema([(_NAMES.get(name, name), kind) for name, kind in _COLUMNS.items()])


def records(messages: DataFrame) -> DataFrame:
    """What the bodies of trace messages say. A trace that was stored twice counts once."""
    return messages.select("body").mapInArrow(_decoded, SCHEMA).dropDuplicates()


def _decoded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [row for body in batch.column(0).to_pylist() if body is not None for row in rows_of(body)]
        columns = [pa.array([row[name] for row in rows], kind) for name, kind in _COLUMNS.items()]
        yield pa.RecordBatch.from_arrays(columns, schema=_ARROW)


def rows_of(body: bytes) -> Iterator[dict[str, Any]]:
    """The records of one body, each once for every message it names; what no client can have meant is left out."""
    for record in trace.decode(body):
        row = {name: getattr(record, name, None) for name in _COLUMNS} | {"kind": type(record).__name__}
        if _is_sound(row):
            for msg_id in record.msg_id.split(","):
                yield row | {"msg_id": msg_id}


def _is_sound(row: dict[str, Any]) -> bool:
    numbers = (row["body_size"], row["cost_ms"], row["msg_type"], row["retry_times"], row["outcome"])
    return 0 <= row["timestamp"] <= _LAST_MS and all(abs(number or 0) <= _MAX_COST_MS for number in numbers)


# --- messages and deliveries


def sends(records: DataFrame) -> DataFrame:
    """Every try to send a message."""
    return records.where("kind = 'Pub'").withColumn("costMs", F.greatest("costMs", F.lit(0)))


def visible(records: DataFrame) -> DataFrame:
    """When each message could be consumed: as long after the sending began as half of what it took, as Java reckons.

    A message of a transaction can be when that is committed. One that was taken back, or rolled back, is not there.
    """
    sent = sends(records).where("success OR offsetMsgId <> ''")  # stored, if perhaps not safely
    plain = sent.where(F.col("msgType") != TracedType.TRANSACTION_HALF)
    plain = plain.withColumn("storedMs", F.col("timestamp") + F.expr("costMs div 2"))
    halves = sent.where(F.col("msgType") == TracedType.TRANSACTION_HALF)
    commits = records.where((F.col("kind") == "EndTransaction") & (F.col("state") == _COMMITTED))
    committed = halves.join(commits.groupBy("msgId").agg(F.min("timestamp").alias("storedMs")), "msgId")
    recalled = records.where("kind = 'Recall' AND success").select("msgId")
    columns = ("msgId", "topic", "tags", "keys", "storeHost", "msgType", "storedMs")
    messages = plain.select(*columns).unionByName(committed.select(*columns)).join(recalled, "msgId", "left_anti")
    # The least of them, and not the first that comes: whoever computes this twice must get the same.
    least = F.min(F.struct("storedMs", *(name for name in columns if name not in ("msgId", "storedMs")))).alias("first")
    return messages.groupBy("msgId").agg(least).select("msgId", "first.*")


def deliveries(records: DataFrame, messages: DataFrame) -> DataFrame:
    """Handler calls. Older clients say only at the beginning of one which group they are; one may have no end."""
    before = records.where("kind = 'SubBefore'").select(
        "requestId", "msgId", "group", F.col("timestamp").alias("beganMs"), "retryTimes", "keys"
    )
    after = records.where("kind = 'SubAfter'").select(
        "requestId",
        "msgId",
        F.nullif("group", F.lit("")).alias("afterGroup"),
        F.greatest("costMs", F.lit(0)).alias("consumeMs"),
        "success",
        "outcome",
    )
    known = messages.select("msgId", "topic", "tags", "msgType", "storedMs", F.lit(True).alias("isKnown"))
    made = before.join(after, ["requestId", "msgId"], "full").join(known, "msgId", "left")
    measured = F.col("isKnown") & (F.col("retryTimes") == 0) & (F.col("msgType") != TracedType.DELAYED)
    wait = F.greatest(F.col("beganMs") - F.col("storedMs"), F.lit(0))
    return made.select(
        "msgId",
        F.coalesce("topic", F.lit(UNKNOWN_TOPIC)).alias("topic"),
        F.coalesce("group", "afterGroup", F.lit("")).alias("group"),
        F.coalesce("tags", F.lit("")).alias("tags"),
        F.coalesce("keys", F.lit("")).alias("keys"),
        *("storedMs", "beganMs", "retryTimes", "consumeMs", "success", "outcome"),
        F.when(measured, wait).alias("waitMs"),
        F.coalesce("isKnown", F.lit(False)).alias("isKnown"),
    )


# --- tables of the report


def send_table(sends: DataFrame) -> DataFrame:
    """By topic and producer group."""
    return (
        sends.groupBy("topic", "group")
        .agg(
            F.count_distinct("msgId").alias("messages"),
            F.count("*").alias("tries"),
            F.count_if(~F.col("success")).alias("failed"),
            F.avg(F.col("success").cast("double")).alias("successRate"),
            *_percentiles("costMs", "send", F.col("success")),
        )
        .orderBy("topic", "group")
    )


def consume_table(deliveries: DataFrame, lost: DataFrame) -> DataFrame:
    """By topic and consumer group. A message is `unsuccessful` if no try to consume it has succeeded yet."""
    keys = ("topic", "group")
    messages = deliveries.groupBy(*keys, "msgId").agg(F.max("success").alias("done"))
    counts = messages.groupBy(*keys).agg(
        F.count("*").alias("messages"), F.count_if(~F.coalesce("done", F.lit(False))).alias("unsuccessful")
    )
    calls = deliveries.groupBy(*keys).agg(
        F.count("*").alias("deliveries"),
        F.count_if(~F.col("success")).alias("failed"),
        F.count_if(F.col("success").isNull()).alias("open"),
        F.avg(F.col("success").cast("double")).alias("successRate"),
        *_percentiles("waitMs", "wait"),
        *_percentiles("consumeMs", "consume"),
    )
    losses = lost.groupBy(*keys).agg(F.count("*").alias("lost"))
    joined = counts.join(calls, list(keys)).join(losses, list(keys), "left")
    order = (*keys, "messages", "unsuccessful", "lost")
    made = joined.withColumn("lost", F.coalesce("lost", F.lit(0)))
    return made.select(*order, *(name for name in calls.columns if name not in keys)).orderBy(*keys)


def _percentiles(column: str, name: str, condition: Column | None = None) -> list[Column]:
    value = F.col(column) if condition is None else F.when(condition, F.col(column))
    return [
        (F.max(value) if part == 1.0 else F.percentile_approx(value, part)).alias(f"{name}{label.capitalize()}Ms")
        for label, part in PERCENTILES.items()
    ]


def lost_table(messages: DataFrame, deliveries: DataFrame, until_ms: int) -> DataFrame:
    """Messages that a group has not got, though it got others of that topic and tag, earlier ones among them.

    Nobody can know whether a group that began later, or wants other tags, would have wanted them. Delayed messages may
    still wait, and those after `until_ms` are too young to tell.
    """
    known = deliveries.where("isKnown")
    groups = known.select("topic", "group", "tags").distinct()
    begun = known.groupBy("topic", "group").agg(F.min("storedMs").alias("since"))
    old_enough = messages.where((F.col("msgType") != TracedType.DELAYED) & (F.col("storedMs") <= until_ms))
    expected = old_enough.join(groups, ["topic", "tags"]).join(begun, ["topic", "group"])
    missing = expected.where("storedMs >= since").join(known, ["group", "msgId"], "left_anti")
    sent = F.timestamp_millis("storedMs").alias("sentAt")
    return missing.select("topic", "group", "msgId", "tags", "keys", sent, "storeHost").orderBy(
        "sentAt", "msgId", "group"
    )


def failed_table(deliveries: DataFrame) -> DataFrame:
    """Return failed deliveries with their reasons, newest first, and if the group has consumed the message since."""
    done = deliveries.where("success").select("group", "msgId", F.lit(True).alias("isDone")).distinct()
    failed = deliveries.where(~F.col("success")).join(done, ["group", "msgId"], "left")
    reason = F.lit(_UNKNOWN_REASON)
    for outcome, text in _REASONS.items():
        reason = F.when(F.col("outcome") == outcome.value, F.lit(text)).otherwise(reason)
    return failed.select(
        F.timestamp_millis("beganMs").alias("at"),
        *("topic", "group", "msgId", "tags", "keys"),
        (F.col("retryTimes") + 1).alias("try"),
        reason.alias("reason"),
        "consumeMs",
        F.coalesce("isDone", F.lit(False)).alias("succeededLater"),
    ).orderBy(F.desc("at"), "msgId", "group", "try")


def slowest_table(sends: DataFrame, deliveries: DataFrame, count: int) -> DataFrame:
    """Of each stage, the messages that took longest."""
    stages = {
        "send": (sends.where("success"), "costMs", "timestamp"),
        "wait": (deliveries, "waitMs", "beganMs"),
        "consume": (deliveries, "consumeMs", "beganMs"),
    }
    tops = [
        rows.where(F.col(cost).isNotNull())
        .select(
            F.lit(stage).alias("stage"),
            F.col(cost).alias("tookMs"),
            *("topic", "group", "msgId", "keys"),
            F.timestamp_millis(at).alias("at"),
        )
        .orderBy(F.desc("tookMs"), "msgId")
        .limit(count)
        for stage, (rows, cost, at) in stages.items()
    ]
    order = F.array_position(F.array(*map(F.lit, stages)), F.col("stage"))
    return reduce(DataFrame.unionByName, tops).orderBy(order, F.desc("tookMs"), "msgId")


def time_table(sends: DataFrame, deliveries: DataFrame, step_ms: int) -> DataFrame:
    """What happened in each span of time; a delivery belongs to when it began."""
    sent = sends.groupBy(_span("timestamp", step_ms)).agg(
        F.count("*").alias("sent"),
        F.count_if(~F.col("success")).alias("sendsFailed"),
        *_percentiles("costMs", "send", F.col("success")),
    )
    consumed = (
        deliveries.where("beganMs IS NOT NULL")
        .groupBy(_span("beganMs", step_ms))
        .agg(
            F.count("*").alias("delivered"),
            F.count_if(~F.col("success")).alias("deliveriesFailed"),
            *_percentiles("waitMs", "wait"),
            *_percentiles("consumeMs", "consume"),
        )
    )
    counts = ("sent", "sendsFailed", "delivered", "deliveriesFailed")
    joined = sent.join(consumed, "fromMs", "full").fillna(0, list(counts))
    rest = [name for name in joined.columns if name not in ("fromMs", *counts)]
    return joined.select(F.timestamp_millis("fromMs").alias("from"), *counts, *rest).orderBy("from")


def _span(column: str, step_ms: int) -> Column:
    return (F.expr(f"`{column}` div {step_ms}") * step_ms).alias("fromMs")
