"""`cosmodrome sql`: one query over topics."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

import click
from orjson import dumps

from cosmodrome.cli.access import Access, access_options, hints_at_start
from cosmodrome.cli.options import duration, instant
from cosmodrome.cli.output import echo_json, echo_tables, table
from cosmodrome.cli.spark import (
    chosen_master,
    ends_when_interrupted,
    master_option,
    plain,
    remote_option,
    says_what_to_install,
)
from cosmodrome.errors import ConfigError, CosmodromeError
from cosmodrome.pipelines.querying import all_topics, asked
from cosmodrome.pipelines.running import explained, open_session
from cosmodrome.spark.sessions import require_spark

MAX_TABLE_ROWS = 10_000  # how wide its columns are shows with the last row, so a table is held as a whole


@click.command()
@click.argument("query")
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="WHEN",
    help="earliest, a time (2030-01-31T09:00), or how long ago (1h30m).",
)
@click.option("--to", "end", metavar="WHEN", help="Messages stored before then; as --from.")
@click.option(
    "--schema",
    default="",
    metavar="DDL",
    help="Bodies are JSON with these fields, which become columns: 'id long, price double'.",
)
@click.option("--limit", type=click.IntRange(1), help="Show at most so many rows; without it, a table shows 10,000.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="json prints one object a line.",
)
@master_option
@remote_option
@access_options
@says_what_to_install
def sql(
    query: str,
    start: str,
    end: str | None,
    schema: str,
    limit: int | None,
    output: str,
    master: str | None,
    remote: str | None,
    access: Access,
) -> None:
    """Ask QUERY in Spark's SQL; the topics it names are its tables: "select tags, count(*) from orders group by tags".

    Columns: topic, brokerName, queueId, queueOffset, keys, tags, properties, body, flag, bornTimestamp,
    storeTimestamp, and value: the body as text. Put topics with a - or % in their name between backticks.
    """
    where = chosen_master(master, remote) or "local[*]"
    require_spark(java=not where.startswith("sc://"))
    options = {**access.spark_options, **_times(start, end)}
    topics = _topics(access)
    ends_when_interrupted()
    spark = open_session("cosmodrome sql", where, {"spark.sql.shuffle.partitions": "4"})
    ends_when_interrupted()  # Spark has put a handler of its own in place of ours
    try:
        rows = asked(spark, query, topics, options, schema)
        _show(rows, output, limit)
    except CosmodromeError:
        raise
    except Exception as error:
        raise explained(error) from error
    finally:
        spark.stop()


def _times(start: str, end: str | None) -> dict[str, str]:
    options = {} if start == "earliest" else {"startingTimestamp": _when(start, "--from")}
    return {**options, **({"endingTimestamp": _when(end, "--to")} if end else {})}


def _when(text: str, option: str) -> str:
    """Milliseconds since 1970: of a moment, or of so long ago."""
    try:
        moment = datetime.now().astimezone() - duration(text)
    except (click.BadParameter, OverflowError):
        try:
            moment = instant(text)
        except click.BadParameter:
            raise click.BadParameter(
                f"{text!r}: write a time such as 2030-01-31T09:00, or how long ago, such as 1h30m", param_hint=option
            ) from None
    return str(max(int(moment.timestamp() * 1000), 0))


def _topics(access: Access) -> list[str]:
    """Asked for before Spark starts, as that takes a while."""
    with hints_at_start():
        return all_topics(access.spark_options)


def _show(rows: Any, output: str, limit: int | None) -> None:
    wanted = rows if limit is None else rows.limit(limit)
    if output == "json":
        _check_names(rows.columns)
        for row in wanted.toLocalIterator():
            echo_json(plain(row))
    elif output == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(rows.columns)
        writer.writerows(_cells(wanted))
        sys.stdout.flush()
    elif limit is None:
        echo_tables(table(rows.columns, _first(_cells(rows.limit(MAX_TABLE_ROWS + 1)))))
    else:
        echo_tables(table(rows.columns, _cells(wanted)))


def _check_names(columns: Sequence[str]) -> None:
    """ConfigError if two are the same: an object would have the last of them alone."""
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise ConfigError(
            f"two columns of the answer are named {twice[0]}, and an object of JSON has one of a name; call them "
            "different names with AS"
        )


def _first(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    """As many as a table has, and a word if there are more."""
    yield from islice(rows, MAX_TABLE_ROWS)
    if next(rows, None) is not None:
        click.echo(
            f"these are the first {MAX_TABLE_ROWS:,} rows; --limit shows as many as you say, -o csv and -o json all",
            err=True,
        )


def _cells(rows: Any) -> Iterator[list[str]]:
    for row in rows.toLocalIterator():
        values = [plain(value) for value in row]
        yield [
            "" if value is None else dumps(value).decode() if isinstance(value, dict | list) else str(value)
            for value in values
        ]
