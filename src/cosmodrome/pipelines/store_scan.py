"""Store folders to files, without a broker. What is damaged is counted and told, and costs nothing else."""

from __future__ import annotations

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cosmodrome.pipelines.archive import dated
from cosmodrome.pipelines.definition import Pipeline
from cosmodrome.pipelines.frames import read, save, with_steps
from cosmodrome.pipelines.outcome import Outcome, Table
from cosmodrome.spark.store_options import OnDamage

MAX_SHOWN = 20


def store_scan(spark: SparkSession, pipeline: Pipeline) -> Outcome:
    """Unless the file says otherwise with onDamage, damage is passed over and told."""
    if (pipeline.source.option("onDamage") or OnDamage.REPORT).lower() != OnDamage.REPORT:
        return _saved(spark, pipeline, read(spark, pipeline.source, streaming=False), ())
    rows = read(spark, pipeline.source, streaming=False, onDamage="report")
    # The offset is there with the metadata only, which the files may be asked to go without.
    located = read(spark, pipeline.source, streaming=False, onDamage="report", metadataColumns="true")
    damaged = located.where("damage IS NOT NULL").select("file", "commitLogOffset", "damage")
    return _saved(spark, pipeline, rows, [damaged])


def _saved(spark: SparkSession, pipeline: Pipeline, rows: DataFrame, damaged: list[DataFrame] | tuple[()]) -> Outcome:
    """Damage is counted where it is read, messages where they are written: steps may leave some out, or add some."""
    seen, written = Observation("scan"), Observation("written")
    is_sound = F.col("damage").isNull() if damaged else F.lit(True)
    sound = rows.observe(seen, F.count_if(~is_sound).alias("damaged")).where(is_sound).drop("damage")
    made = with_steps(spark, pipeline, dated(sound))
    save(pipeline, made.observe(written, F.count("*").alias("messages")))
    numbers = {name: int(count) for each in (written, seen) for name, count in each.get.items()}
    tables = [_damage_table(each, numbers["damaged"]) for each in damaged if numbers["damaged"]]
    return Outcome(numbers, tables, [pipeline.sink.options["path"]] if pipeline.sink else ())


def _damage_table(damaged: DataFrame, count: int) -> Table:
    """The first of them; they are looked for again, as damage is rare."""
    rows = damaged.orderBy("file", "commitLogOffset").limit(MAX_SHOWN).collect()
    title = f"damaged parts, the first {MAX_SHOWN} of {count:,}" if count > MAX_SHOWN else "damaged parts"
    return Table(title, ("file", "offset", "what is wrong"), [tuple(row) for row in rows])
