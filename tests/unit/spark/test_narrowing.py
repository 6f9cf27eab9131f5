"""Filters narrow what is read, and never away what they want."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from cosmodrome.client.subscribing import Sql
from cosmodrome.model import ALL_TAGS, MessageQueue
from cosmodrome.spark.narrowing import CLOCK_SLACK_MS, Narrowing, narrowed

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MEANING: dict[type[Filter], Any] = {
    EqualTo: lambda mine, value: mine == value,
    EqualNullSafe: lambda mine, value: mine == value,
    GreaterThan: lambda mine, value: mine > value,
    GreaterThanOrEqual: lambda mine, value: mine >= value,
    LessThan: lambda mine, value: mine < value,
    LessThanOrEqual: lambda mine, value: mine <= value,
    In: lambda mine, values: mine in values,
}

topics = st.sampled_from(["a", "b"])
numbers = st.integers(0, 6)
times = st.integers(0, 60_000).map(lambda at: EPOCH + timedelta(milliseconds=at))
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "topic": topics,
    "queueId": numbers,
    "queueOffset": numbers,
    "storeTimestamp": times,
    "tags": st.sampled_from(["x", "y"]),
    "keys": st.sampled_from(["k", "k l"]),
}


def comparisons(column: str) -> st.SearchStrategy[Filter]:
    values = COLUMNS[column]
    simple = st.sampled_from([kind for kind in MEANING if kind is not In])
    return st.builds(lambda kind, value: kind((column,), value), simple, values) | st.builds(
        lambda chosen: In((column,), tuple(chosen)), st.lists(values, min_size=1, max_size=3)
    )


filters = st.lists(st.sampled_from(list(COLUMNS)).flatmap(comparisons), max_size=4)
messages = st.fixed_dictionaries(COLUMNS)


def means(condition: Any, message: dict[str, Any]) -> bool:
    return bool(MEANING[type(condition)](message[condition.attribute[0]], condition.value))


def is_read(narrowing: Narrowing, message: dict[str, Any]) -> bool:
    """Whether a message lies in what is planned to be read."""
    stored_ms = (message["storeTimestamp"] - EPOCH) // timedelta(milliseconds=1)
    offset = message["queueOffset"]
    return (
        narrowing.wants(MessageQueue(message["topic"], "broker-a", message["queueId"]))
        and narrowing.start(0) <= offset < narrowing.end(1 << 62)
        and (narrowing.stored_from_ms is None or stored_ms >= narrowing.stored_from_ms)
        and (narrowing.stored_before_ms is None or stored_ms < narrowing.stored_before_ms)
        and (narrowing.tags is None or message["tags"] in narrowing.tags)
        and (narrowing.keys is None or message["keys"] in narrowing.keys)
    )


@settings(deadline=None, max_examples=300)
@given(filters, messages)
def test_what_is_read_and_what_spark_filters_again_is_what_was_asked_for(
    given_filters: list[Filter], message: dict[str, Any]
) -> None:
    narrowing, left = narrowed(given_filters)
    assert all(any(each is mine for mine in given_filters) for each in left), "as Spark wants them, by reference"
    wanted = all(means(each, message) for each in given_filters)
    assert wanted == (is_read(narrowing, message) and all(means(each, message) for each in left))


def test_what_is_not_understood_is_left_to_spark() -> None:
    conditions: list[Filter] = [
        IsNotNull(("queueId",)),
        Not(EqualTo(("queueId",), 1)),
        StringStartsWith(("topic",), "o"),
        EqualTo(("properties", "k"), "v"),
        EqualTo(("flag",), 1),
        EqualNullSafe(("queueId",), None),
    ]
    assert narrowed(conditions) == (Narrowing(), conditions)


def test_queues_and_offsets_are_exact_and_the_rest_is_filtered_again() -> None:
    exact: list[Filter] = [EqualTo(("topic",), "a"), In(("queueId",), (1, 2)), GreaterThan(("queueOffset",), 5)]
    again: list[Filter] = [
        EqualTo(("tags",), "x"),
        In(("keys",), ("k",)),
        GreaterThan(("storeTimestamp",), EPOCH + timedelta(hours=1)),
    ]
    narrowing, left = narrowed([*exact, *again])
    assert left == again
    assert narrowing.offsets[0] == 6
    assert narrowing.stored_from_ms == 3_600_000 - CLOCK_SLACK_MS


def test_tags_narrow_the_users_own_expression() -> None:
    two, _ = narrowed([In(("tags",), ("b", "a"))])
    assert two.expression(ALL_TAGS) == "a || b"
    assert two.expression("b || c") == "b"
    assert two.expression("c") == "c", "nothing would match, and no expression says that"
    assert two.expression(Sql("n > 1")) == Sql("n > 1")
    odd, _ = narrowed([EqualTo(("tags",), "a || b")])
    assert odd.expression(ALL_TAGS) == ALL_TAGS, "a broker would take it for two tags"
