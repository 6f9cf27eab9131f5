"""What was produced against what each group has consumed: by queue and hour, with gaps, duplicates and lag.

Where queues begin and end, and what groups have committed, is asked of the brokers first; then exactly that range is
read. So whatever arrives meanwhile changes nothing. Positions that lie outside of a queue are moved to its edge: what
was deleted, its time being up, is not missing, and what was never stored neither.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from cosmodrome.codes import RequestCode
from cosmodrome.errors import ConfigError
from cosmodrome.model import MessageQueue, Property
from cosmodrome.pipelines import charts
from cosmodrome.pipelines.charts import Point, Series
from cosmodrome.pipelines.definition import Pipeline
from cosmodrome.pipelines.outcome import Outcome, Table
from cosmodrome.pipelines.page import Tile, card, cards, page, table_card
from cosmodrome.pipelines.reports import MAX_ON_PAGE, MAX_SHOWN, Kept, Section, folder, held, in_utc, kept, write_page
from cosmodrome.spark.link import Cluster
from cosmodrome.spark.options import SourceOptions, source_options
from cosmodrome.spark.pool import connected
from cosmodrome.spark.positions import Positions
from cosmodrome.spark.progress import Offsets, to_json
from cosmodrome.wire.bodies import ConsumeStats, GroupList
from cosmodrome.wire.requests import ConsumeStatsRequest, TopicHeader

log = logging.getLogger(__name__)

QUEUE = ("topic", "brokerName", "queueId")
MAX_PLACES = 10
_POSITION_OPTIONS = frozenset(
    f"{side}{what}".lower()
    for side in ("starting", "ending")
    for what in ("offsets", "timestamp", "offsetsbytimestamp", "offsetsbytimestampstrategy")
)
_CHOICE_OPTIONS = frozenset({"subscribe", "topic", "subscribepattern"})
_PLACE = "topic string, brokerName string, queueId int"
_READ = f"{_PLACE}, queueOffset long, properties map<string,string>, storeTimestamp timestamp"
RANGES = f"{_PLACE}, start long, end long"
_COMMITS = f"group string, {_PLACE}, committed long, missed long"


class Outside(NamedTuple):
    """A position that was asked for where its queue has nothing, and the edge that was taken instead."""

    queue: MessageQueue
    side: str
    asked: int
    taken: int


class Snapshot(NamedTuple):
    """Where each queue begins, where it is audited from and to, and what groups have committed; None for a queue they
    never read."""

    first: Offsets
    start: Offsets
    end: Offsets
    committed: Mapping[tuple[str, MessageQueue], int | None]
    outside: Sequence[Outside] = ()


def audit(spark: SparkSession, pipeline: Pipeline) -> Outcome:
    in_utc(spark)
    given = pipeline.source.options
    options = source_options(given, streaming=False)
    with connected(options.link) as cluster:
        snapshot = taken(cluster, options, pipeline.options["groups"])
    with held(_read(spark, given, snapshot)) as messages:
        ranges, commits = _tables(spark, snapshot)
        sections = sections_of(messages, ranges, commits)
        found = {each.section.name: each for each in kept(sections, pipeline.sink)}
        numbers = _numbers(found, snapshot)
        text = html(numbers, found, snapshot.outside) if pipeline.options["html"] else ""
    files = [folder(pipeline.sink, section) for section in sections] if pipeline.sink is not None else []
    if text:
        write_page(pipeline.options["html"], text)
        files.append(pipeline.options["html"])
    tables = [found[name].table() for name in ("lag", "gaps", "duplicates", "hours")]
    return Outcome(numbers, [*_outside_tables(snapshot.outside, MAX_SHOWN), *tables], files)


# --- asking brokers


def taken(cluster: Cluster, options: SourceOptions, groups: Sequence[str]) -> Snapshot:
    """`groups` are those to look at; if there are none, all that brokers know for the topics."""
    positions = Positions(cluster, options)
    queues = positions.queues()
    if not queues:
        raise ConfigError(f"source.subscribePattern: no topic is like {options.pattern}")
    first, start, end = positions.earliest(queues), positions.start(queues), positions.end(queues)
    # Asked for last: no end that was found on the way is behind it.
    start, end, outside = inside(first, start, end, positions.latest(queues))
    if outside:
        log.warning("%d positions lie outside of their queues; the queues' edges are taken instead", len(outside))
    committed: dict[tuple[str, MessageQueue], int | None] = {}
    for topic in sorted({queue.topic for queue in queues}):
        of_topic = [queue for queue in queues if queue.topic == topic]
        for group in sorted(groups or consumers(cluster, topic, of_topic)):
            asked = Positions(cluster, dataclasses.replace(options, group=group))
            committed.update({(group, queue): asked.committed(queue) for queue in of_topic})
    return Snapshot(first, start, end, committed, outside)


def inside(
    first: Offsets, start: Offsets, end: Offsets, latest: Offsets
) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int], list[Outside]]:
    """Starts and ends, each within its queue, and those that were not."""
    starts, ends, outside = {}, {}, []
    for queue in sorted(start):
        starts[queue] = min(max(start[queue], first[queue]), latest[queue])
        ends[queue] = max(min(end[queue], latest[queue]), starts[queue])
        sides = (("start", start[queue], starts[queue]), ("end", end[queue], ends[queue]))
        outside += [Outside(queue, side, asked, taken) for side, asked, taken in sides if asked != taken]
    return starts, ends, outside


def consumers(cluster: Cluster, topic: str, queues: Collection[MessageQueue]) -> set[str]:
    """Groups that subscribe to the topic now, or have committed offsets of it."""
    brokers = sorted({cluster.member(queue) for queue in queues})
    return {group for address in brokers for group in _consumers_at(cluster, address, topic)}


def _consumers_at(cluster: Cluster, address: str, topic: str) -> set[str]:
    """Apache's 5.3 brokers count a topic that somebody subscribes to as a group of that name; one that is there in
    truth has committed something."""
    reply = cluster.ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader(topic))
    found = set(GroupList.decode(bytes(reply.body)).groups)
    return found if topic not in found or _has_committed(cluster, address, topic, topic) else found - {topic}


def _has_committed(cluster: Cluster, address: str, group: str, topic: str) -> bool:
    # Of all topics: about one that it is asked for by name, a broker tells whether or not anything was committed.
    reply = cluster.ask(address, RequestCode.GET_CONSUME_STATS, ConsumeStatsRequest(group))
    return any(queue.topic == topic for queue in ConsumeStats.decode(bytes(reply.body)).offsets)


def _read(spark: SparkSession, given: Mapping[str, str], snapshot: Snapshot) -> DataFrame:
    """Exactly the snapshot's range. A hole in it is what we look for, so it is no error."""
    own = {
        name: value
        for name, value in given.items()
        if name.lower() not in _POSITION_OPTIONS | _CHOICE_OPTIONS | {"failondataloss", "properties"}
    }
    by_topic: dict[str, dict[str, list[int]]] = {}
    for queue in sorted(snapshot.start):
        by_topic.setdefault(queue.topic, {}).setdefault(queue.broker_name, []).append(queue.queue_id)
    options = {
        **own,
        "assign": orjson.dumps(by_topic).decode(),
        "startingOffsets": orjson.dumps(to_json(snapshot.start)).decode(),
        "endingOffsets": orjson.dumps(to_json(snapshot.end)).decode(),
        "failOnDataLoss": "false",
    }
    rows = spark.read.format("rocketmq").schema(_READ).options(**options).load()
    return rows.select(*QUEUE, "queueOffset", F.col("properties")[Property.UNIQ_KEY].alias("uniqKey"), "storeTimestamp")


def _tables(spark: SparkSession, snapshot: Snapshot) -> tuple[DataFrame, DataFrame]:
    ranges: list[tuple[Any, ...]] = [
        (queue.topic, queue.broker_name, queue.queue_id, offset, snapshot.end[queue])
        for queue, offset in snapshot.start.items()
    ]
    commits: list[tuple[Any, ...]] = [
        (group, queue.topic, queue.broker_name, queue.queue_id, offset, missed(offset, snapshot.first[queue]))
        for (group, queue), offset in snapshot.committed.items()
    ]
    return spark.createDataFrame(ranges, RANGES), spark.createDataFrame(commits, _COMMITS)


def missed(committed: int | None, first: int) -> int:
    """What was deleted, its time being up, before the group had come to it."""
    return 0 if committed is None else max(first - committed, 0)


# --- tables


def sections_of(messages: DataFrame, ranges: DataFrame, commits: DataFrame) -> list[Section]:
    return [
        Section("lag", "lag, by group and queue", lag_table(messages, ranges, commits)),
        Section("gaps", "gaps: offsets that the store has not", gap_table(messages, ranges)),
        Section("duplicates", "duplicates: the same id stored more than once", duplicate_table(messages)),
        Section("hours", "produced and consumed, by queue and hour", hour_table(messages, commits)),
        Section("produced", "produced, by hour", produced_table(messages)),
    ]


def lag_table(messages: DataFrame, ranges: DataFrame, commits: DataFrame) -> DataFrame:
    """What each group has still to consume. Where it has committed nothing yet, that is all there is."""
    next_offset = F.greatest("start", F.coalesce("committed", F.lit(0)))
    behind = commits.join(ranges, list(QUEUE)).withColumn("queueOffset", next_offset)
    oldest = messages.select(*QUEUE, "queueOffset", F.col("storeTimestamp").alias("oldestWaiting"))
    joined = behind.join(oldest, [*QUEUE, "queueOffset"], "left")
    now = F.current_timestamp()
    age = F.round((F.unix_millis(now) - F.unix_millis("oldestWaiting")) / 1000).cast("long")
    return joined.select(
        "group",
        *QUEUE,
        "committed",
        F.col("end").alias("maxOffset"),
        F.greatest(F.col("end") - F.col("queueOffset"), F.lit(0)).alias("lag"),
        "missed",
        "oldestWaiting",
        F.when(age.isNotNull(), F.greatest(age, F.lit(0))).alias("oldestAgeSeconds"),
    ).orderBy(F.desc("missed"), F.desc("lag"), "group", *QUEUE)


def gap_table(messages: DataFrame, ranges: DataFrame) -> DataFrame:
    """Runs of offsets between a queue's ends that no message has; compaction and lost files make such."""
    in_order = Window.partitionBy(*QUEUE).orderBy("queueOffset")
    # The ends stand beside the messages as if they were some: what lies before the first is a gap, too.
    seen = messages.select(*QUEUE, "queueOffset", F.col("storeTimestamp").alias("at"))
    nothing = F.lit(None).cast("timestamp").alias("at")
    ends = [ranges.select(*QUEUE, edge.alias("queueOffset"), nothing) for edge in (F.col("start") - 1, F.col("end"))]
    both = seen.unionByName(ends[0]).unionByName(ends[1])
    previous = F.lag("queueOffset").over(in_order)
    before = F.lag("at").over(in_order)
    stepped = both.select(*QUEUE, "queueOffset", "at", previous.alias("previous"), before.alias("storedBefore"))
    missing = F.col("queueOffset") - F.col("previous") - 1
    return (
        stepped.where(missing > 0)
        .select(
            *QUEUE,
            (F.col("previous") + 1).alias("firstMissing"),
            (F.col("queueOffset") - 1).alias("lastMissing"),
            missing.alias("missing"),
            "storedBefore",
            F.col("at").alias("storedAfter"),
        )
        .orderBy(F.desc("missing"), *QUEUE, "firstMissing")
    )


def duplicate_table(messages: DataFrame) -> DataFrame:
    """A producer that got no answer sends again; then a message is there twice."""
    place = F.concat_ws("/", "brokerName", "queueId", "queueOffset")
    places = F.slice(F.sort_array(F.collect_list(place)), 1, MAX_PLACES)
    return (
        messages.where("uniqKey IS NOT NULL")
        .groupBy("topic", "uniqKey")
        .agg(
            F.count("*").alias("copies"),
            (F.count("*") - 1).alias("again"),
            F.min("storeTimestamp").alias("firstStored"),
            F.max("storeTimestamp").alias("lastStored"),
            F.array_join(places, ", ").alias("places"),
        )
        .where("copies > 1")
        .orderBy(F.desc("copies"), "topic", "uniqKey")
    )


def produced_table(messages: DataFrame) -> DataFrame:
    counted = messages.groupBy("topic", _hour()).agg(F.count("*").alias("produced"))
    return counted.orderBy("hour", "topic")


def hour_table(messages: DataFrame, commits: DataFrame) -> DataFrame:
    """Of what was produced in each hour, how much each group has consumed, as it has committed."""
    joined = messages.join(commits, list(QUEUE))
    is_consumed = F.col("queueOffset") < F.coalesce("committed", F.lit(0))
    return (
        joined.groupBy("group", *QUEUE, _hour())
        .agg(
            F.count("*").alias("produced"),
            F.count_if(is_consumed).alias("consumed"),
            F.count_if(~is_consumed).alias("waiting"),
        )
        .orderBy(F.desc("hour"), "group", *QUEUE)
    )


def _hour() -> Column:
    return F.date_trunc("hour", "storeTimestamp").alias("hour")


def _numbers(found: Mapping[str, Kept], snapshot: Snapshot) -> dict[str, int]:
    return {
        "queues": len(snapshot.start),
        "groups": len({group for group, _ in snapshot.committed}),
        "produced": found["produced"].total("produced"),
        "missing": found["gaps"].total("missing"),
        "duplicates": found["duplicates"].total("again"),
        "lag": found["lag"].total("lag"),
        "missed": found["lag"].total("missed"),
    }


def _outside_tables(outside: Sequence[Outside], count: int) -> list[Table]:
    """One, if there is something to tell."""
    if not outside:
        return []
    title = "positions outside of their queues, which were moved to the edge"
    if len(outside) > count:
        title += f", the first {count}"
    rows = [(*dataclasses.astuple(queue), *rest) for queue, *rest in outside[:count]]
    return [Table(title, (*QUEUE, "position", "asked", "taken"), rows)]


# --- the page


def html(numbers: Mapping[str, int], found: Mapping[str, Kept], outside: Sequence[Outside] = ()) -> str:
    tiles = [
        Tile("queues", f"{numbers['queues']:,}"),
        Tile("consumer groups", f"{numbers['groups']:,}"),
        Tile("messages produced", f"{numbers['produced']:,}"),
        Tile("messages missing", f"{numbers['missing']:,}", bool(numbers["missing"])),
        Tile("stored again", f"{numbers['duplicates']:,}", bool(numbers["duplicates"])),
        Tile("still to consume, all groups", f"{numbers['lag']:,}"),
        Tile("deleted before consumed", f"{numbers['missed']:,}", bool(numbers["missed"])),
    ]
    produced = [Series("produced", _by_hour(found["produced"], "produced"), "a")]
    waiting = [Series("waiting", _by_hour(found["hours"], "waiting"), "c")]
    parts = [
        cards(
            [
                card("Produced by hour", "", charts.lines(produced)),
                card("Not consumed yet, by hour of production", "All groups together.", charts.lines(waiting)),
            ]
        ),
        *map(table_card, _outside_tables(outside, MAX_ON_PAGE)),
        *(table_card(found[name].table(MAX_ON_PAGE)) for name in ("lag", "gaps", "duplicates", "hours")),
    ]
    return page("Produced and consumed", f"made {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC", tiles, parts)


def _by_hour(kept_rows: Kept, column: str) -> list[Point]:
    return [
        Point(int(datetime.fromisoformat(hour).replace(tzinfo=UTC).timestamp() * 1000), count)
        for hour, count in sorted(kept_rows.sums("hour", column).items())
    ]
