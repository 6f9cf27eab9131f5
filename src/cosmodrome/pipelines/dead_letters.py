"""What groups have given up: who, of which topic, for how long; and sending it again to where it came from.

A re-drive is safe to repeat. What is to be sent is first written to the state folder, as a plan; it is sent under the
plan's name, and noted as driven. A run that dies is ended by the next one, with the same rows and the same name.

    state/plans/run=…    the messages of each run, as they are sent
    state/driven/        the runs that have ended
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from cosmodrome.client.outgoing import RESERVED_PROPERTIES
from cosmodrome.errors import ConfigError
from cosmodrome.model import DLQ_PREFIX, RETRY_PREFIX, Property
from cosmodrome.pipelines.definition import Pipeline, Sink
from cosmodrome.pipelines.folders import literal
from cosmodrome.pipelines.frames import VALUE, check_column, read
from cosmodrome.pipelines.outcome import Outcome, Table
from cosmodrome.pipelines.reports import Kept, Section, folder, held, in_utc, kept
from cosmodrome.spark.encoding import SPARK_ID

# What a message that was driven again says of itself.
REDRIVEN_FROM = "REDRIVEN_FROM"  # the dead letter topic
REDRIVEN_ID = "REDRIVEN_ID"  # the id its producer gave it
REDRIVEN_TIMES = "REDRIVEN_TIMES"

MAX_SAMPLE = 200
MAX_KEYS = 20
_AGES = {"under 1 hour": 1, "1 to 24 hours": 24, "1 to 7 days": 24 * 7}
_OLDEST = "over 7 days"


def dead_letters(spark: SparkSession, pipeline: Pipeline) -> Outcome:
    in_utc(spark)
    options = pipeline.options
    rows = read(spark, pipeline.source, streaming=False, metadataColumns="true")
    check_column(
        rows, "properties", "map<string,string>", "leave source.properties out: they say where letters are from"
    )
    with held(letters(rows, int(time.time() * 1000))) as found:
        tables, files = _triage(found, pipeline)
        chosen = _chosen(found, options["where"])
        numbers = {"deadLetters": found.count()}
        redrive = Redrive(spark, pipeline)
        more, plan = redrive.drive(chosen) if options["redrive"] else redrive.dry_run(chosen)
    return Outcome({**numbers, **more}, [*tables, plan], files)


def _triage(found: DataFrame, pipeline: Pipeline) -> tuple[list[Table], list[str]]:
    sections = sections_of(found, pipeline.options["samples"])
    report = pipeline.options["report"]
    sink = Sink(pipeline.options["reportFormat"], {"path": report}, mode="overwrite") if report else None
    made: Sequence[Kept] = kept(sections, sink)
    return [each.table() for each in made], [folder(sink, each) for each in sections] if sink is not None else []


# --- triage


def letters(messages: DataFrame, now_ms: int) -> DataFrame:
    """Dead letters with what they once were. `id` is where a letter lies: it stays, whatever its producer called it. It
    has the time, too, as a store that is made anew begins with the same offsets.

    A pattern may match other topics, too: what is in a retry topic is not given up, but still on its way.
    """
    properties = F.col("properties")
    group = F.substring("topic", len(DLQ_PREFIX) + 1, 1_000)
    stored_ms = F.unix_millis("storeTimestamp")
    hours = F.lit(now_ms) - stored_ms
    return messages.where(F.startswith("topic", F.lit(DLQ_PREFIX))).select(
        F.concat_ws("@", F.col("commitLogOffset").cast("string"), "storeHost", stored_ms.cast("string")).alias("id"),
        group.alias("group"),
        _origin(properties, group).alias("originalTopic"),
        F.col("msgId").alias("messageId"),
        *("keys", "tags", "reconsumeTimes", "bornTimestamp"),
        F.col("storeTimestamp").alias("deadSince"),
        (F.greatest(hours, F.lit(0)) / 3_600_000).alias("ageHours"),
        F.coalesce(F.expr(f"try_cast(properties['{REDRIVEN_TIMES}'] AS int)"), F.lit(0)).alias("redrivenTimes"),
        *("properties", "body", VALUE, "flag", "topic", "brokerName", "queueId", "queueOffset"),
    )


def _origin(properties: Column, group: Column) -> Column:
    """Where a letter was first sent; popped messages come by way of a retry topic that is named after theirs."""
    named = F.coalesce(properties["DLQ_ORIGIN_TOPIC"], properties[Property.RETRY_TOPIC])
    prefix = F.concat(F.lit(RETRY_PREFIX), group)
    is_popped = F.startswith(named, F.concat(prefix, F.lit("+"))) | F.startswith(named, F.concat(prefix, F.lit("_")))
    return F.when(is_popped, F.substr(named, F.length(prefix) + 2)).otherwise(named)


def sections_of(found: DataFrame, samples: int) -> list[Section]:
    keys = ("group", "originalTopic")
    return [
        Section("groups", "dead letters, by group and original topic", group_table(found)),
        Section("ages", "by age", age_table(found)),
        Section("tags", "by tag", found.groupBy(*keys, "tags").count().orderBy(*keys, F.desc("count"))),
        Section("keys", "keys that died most often", key_table(found)),
        Section("samples", "samples, the youngest of each group and topic", sample_table(found, samples)),
    ]


def group_table(found: DataFrame) -> DataFrame:
    return (
        found.groupBy("group", "originalTopic")
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.length("body")).alias("bytes"),
            F.min("deadSince").alias("oldest"),
            F.max("deadSince").alias("newest"),
            F.max("reconsumeTimes").alias("mostTries"),
            F.count_if(F.col("redrivenTimes") > 0).alias("redrivenBefore"),
        )
        .orderBy(F.desc("messages"), "group", "originalTopic")
    )


def age_table(found: DataFrame) -> DataFrame:
    """How long ago they were given up."""
    columns, floor = [], 0
    for name, hours in _AGES.items():
        columns.append(F.count_if((F.col("ageHours") >= floor) & (F.col("ageHours") < hours)).alias(name))
        floor = hours
    columns.append(F.count_if(F.col("ageHours") >= floor).alias(_OLDEST))
    return found.groupBy("group", "originalTopic").agg(*columns).orderBy("group", "originalTopic")


def key_table(found: DataFrame) -> DataFrame:
    """A key that dies again and again is a message nobody can consume."""
    each = found.withColumn("key", F.explode(F.split("keys", " "))).where("key != ''")
    counts = each.groupBy("group", "originalTopic", "key").agg(
        F.count("*").alias("messages"), F.max("deadSince").alias("newest")
    )
    return counts.where("messages > 1").orderBy(F.desc("messages"), "group", "key").limit(MAX_KEYS)


def sample_table(found: DataFrame, count: int) -> DataFrame:
    """Bodies as text, as far as they are."""
    youngest = Window.partitionBy("group", "originalTopic").orderBy(F.desc("deadSince"), "id")
    text = F.substring(VALUE, 1, MAX_SAMPLE)
    return (
        found.withColumn("rank", F.row_number().over(youngest))
        .where(F.col("rank") <= count)
        .select(
            *("group", "originalTopic", "messageId", "keys", "tags", "reconsumeTimes", "deadSince"),
            F.regexp_replace(text, r"\p{Cntrl}", " ").alias("body"),
        )
        .orderBy("group", "originalTopic", F.desc("deadSince"))
    )


# --- re-drive


def _chosen(found: DataFrame, condition: str) -> DataFrame:
    try:
        return found.where(condition) if condition else found
    except AnalysisException as error:
        raise ConfigError(f"options.where is {condition!r}: {str(error).splitlines()[0]}") from None


def as_sent(found: DataFrame) -> DataFrame:
    """Letters as their producers sent them, and a mark that they have been dead before."""
    own = F.map_filter("properties", lambda name, _: ~name.isin(*_not_kept()))
    marks = F.create_map(
        *(F.lit(REDRIVEN_FROM), F.col("topic")),
        *(F.lit(REDRIVEN_ID), F.coalesce(F.col("properties")[REDRIVEN_ID], "messageId")),
        *(F.lit(REDRIVEN_TIMES), (F.col("redrivenTimes") + 1).cast("string")),
    )
    return found.select(
        "id",
        F.col("originalTopic").alias("topic"),
        *("body", "keys", "tags", "flag"),
        F.map_concat(own, marks).alias("properties"),
        F.col("properties")[Property.SHARDING_KEY].alias("shardingKey"),
        "deadSince",
    )


def _not_kept() -> list[str]:
    return sorted({*RESERVED_PROPERTIES, SPARK_ID, REDRIVEN_FROM, REDRIVEN_ID, REDRIVEN_TIMES})


class Redrive:
    """Sends dead letters to their topics again, each once."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._spark = spark
        self._pipeline = pipeline
        state = str(pipeline.options["state"]).rstrip("/")
        self._plans, self._driven = f"{state}/plans", f"{state}/driven"
        self._has_state = bool(state)

    def dry_run(self, chosen: DataFrame) -> tuple[dict[str, int], Table]:
        """What a re-drive would send."""
        new = self._new(chosen)
        table = _counts(new, "a re-drive would send (set options.redrive to true)")
        return {"toRedrive": _total(table), **_without_topic(new)}, table

    def drive(self, chosen: DataFrame) -> tuple[dict[str, int], Table]:
        """Send what no plan has yet, after what earlier runs left unfinished."""
        unfinished = self._unfinished()
        for run in unfinished:
            self._send(run)
        new = self._new(chosen)
        table = _counts(new, "sent again")
        if _total(table):
            run = f"redrive-{uuid.uuid4().hex}"
            # One file: its rows have the same order, and so the same names, whenever they are sent.
            plan = as_sent(new.where("originalTopic IS NOT NULL")).orderBy("deadSince", "id").coalesce(1)
            plan.write.parquet(f"{self._plans}/run={run}", mode="error")
            self._send(run)
        ended = {"earlierRunsEnded": len(unfinished)} if unfinished else {}
        return {"redriven": _total(table), **ended, **_without_topic(new)}, table

    def _new(self, chosen: DataFrame) -> DataFrame:
        """Without what is in a plan already."""
        plans = self._read(self._plans)
        return chosen if plans is None else chosen.join(plans.select("id"), "id", "left_anti")

    def _unfinished(self) -> list[str]:
        plans, driven = self._read(self._plans), self._read(self._driven)
        if plans is None:
            return []
        runs = plans.select("run").distinct()
        left = runs if driven is None else runs.join(driven.select("run"), "run", "left_anti")
        return sorted(row.run for row in left.collect())

    def _send(self, run: str) -> None:
        sink = self._pipeline.sink
        assert sink is not None
        set_here = self._pipeline.kind.set_on_sink(self._pipeline.options)
        options = {**sink.options, **set_here, "jobId": run}
        rows = self._spark.read.parquet(literal(f"{self._plans}/run={run}")).coalesce(1).drop("id", "deadSince")
        rows.write.format("rocketmq").options(**options).mode("append").save()
        note = self._spark.createDataFrame([(run,)], "run string").withColumn("endedAt", F.current_timestamp())
        note.coalesce(1).write.parquet(self._driven, mode="append")

    def _read(self, path: str) -> DataFrame | None:
        """None when nothing has been written there yet."""
        if not self._has_state:
            return None
        try:
            return self._spark.read.parquet(literal(path))
        except AnalysisException as error:
            if error.getCondition() not in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
                raise
            return None


def _counts(rows: DataFrame, title: str) -> Table:
    known = rows.where("originalTopic IS NOT NULL")
    counts = known.groupBy("group", "originalTopic").count().orderBy("group", "originalTopic").collect()
    return Table(title, ("group", "topic", "messages"), [tuple(row) for row in counts])


def _without_topic(rows: DataFrame) -> dict[str, int]:
    """Letters that do not say where they came from stay where they are."""
    count = rows.where("originalTopic IS NULL").count()
    return {"withoutTopic": count} if count else {}


def _total(table: Table) -> int:
    return sum(row[2] for row in table.rows)
