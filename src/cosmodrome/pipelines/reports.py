"""Reports: tables that are saved as files, shown on the terminal in part, and drawn on a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cosmodrome.errors import ConfigError
from cosmodrome.pipelines.definition import Sink
from cosmodrome.pipelines.folders import new_folder
from cosmodrome.pipelines.outcome import Table

MAX_SHOWN = 20
MAX_ON_PAGE = 500
MAX_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Section:
    """One table of a report; `name` is the folder of its files."""

    name: str
    title: str
    rows: DataFrame


@dataclass(frozen=True, slots=True)
class Kept:
    """The first rows of a section, on the driver."""

    section: Section
    rows: Sequence[Sequence[Any]]

    @property
    def columns(self) -> list[str]:
        return self.section.rows.columns

    def dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def total(self, column: str) -> int:
        """Of all rows, also of those that are not here."""
        if len(self.rows) < MAX_KEPT:
            return sum(row[column] for row in self.dicts())
        total = self.section.rows.agg(F.sum(column)).first()
        return int(total[0]) if total is not None else 0

    def sums(self, by: str, column: str) -> dict[Any, int]:
        """The total of each value of `by`, likewise."""
        sums: dict[Any, int] = {}
        if len(self.rows) < MAX_KEPT:
            for row in self.dicts():
                sums[row[by]] = sums.get(row[by], 0) + row[column]
            return sums
        grouped = self.section.rows.groupBy(by).agg(F.sum(column)).toArrow().to_pylist()
        return {shown(value): int(total) for value, total in (row.values() for row in grouped)}

    def table(self, count: int = MAX_SHOWN, columns: Sequence[str] = ()) -> Table:
        """What is shown of it; a terminal has not room for all `columns`."""
        title = self.section.title
        if len(self.rows) > count:
            title += f", the first {count}"
        chosen = [self.columns.index(name) for name in columns or self.columns]
        return Table(title, columns or self.columns, [[row[at] for at in chosen] for row in self.rows[:count]])


def in_utc(spark: SparkSession) -> None:
    """Hours and days are the same wherever a report is made."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def kept(sections: Sequence[Section], sink: Sink | None) -> list[Kept]:
    """Save every section below the sink's folder, one file each, and keep its first rows to show."""
    if sink is None:
        return [_kept(section, None) for section in sections]
    with new_folder(sections[0].rows.sparkSession, sink) as target:
        return [_kept(section, target) for section in sections]


def _kept(section: Section, sink: Sink | None) -> Kept:
    """A small table is made once and saved from here; only a large one is worth a job of its own."""
    first = section.rows.limit(MAX_KEPT).toArrow()
    if sink is not None:
        rows = section.rows
        if first.num_rows < MAX_KEPT:
            rows = rows.sparkSession.createDataFrame(first, rows.schema)
        writer = rows.coalesce(1).write.format(sink.format).options(**_file_options(sink)).mode(sink.mode)
        writer.save(folder(sink, section))
    return Kept(section, [tuple(map(shown, row.values())) for row in first.to_pylist()])


@contextmanager
def held(rows: DataFrame) -> Iterator[DataFrame]:
    """Rows that are needed more than once are made once; they go to disk where memory is short."""
    try:
        yield rows.persist(StorageLevel.MEMORY_AND_DISK)
    finally:
        rows.unpersist()


def folder(sink: Sink, section: Section) -> str:
    return f"{sink.options['path'].rstrip('/')}/{section.name}"


def _file_options(sink: Sink) -> Mapping[str, str]:
    given = {name: value for name, value in sink.options.items() if name != "path"}
    return {"header": "true", **given} if sink.format == "csv" else given


def shown(value: Any) -> Any:
    """Times as text, in UTC, and no more digits than anybody reads."""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]
    return round(value, 4) if isinstance(value, float) else value


def write_page(path: str, text: str) -> None:
    """ConfigError when it cannot be written there."""
    if "://" in path:
        raise ConfigError(f"options.html is {path}: a page is written to a local file")
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"options.html: {path} cannot be written: {error.strerror}") from None
