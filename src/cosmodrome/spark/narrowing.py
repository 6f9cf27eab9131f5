"""What filters of a query leave to be read, decided before anything is read. Pure.

Queues and offsets are exact; so Spark need not look again. Times and tags only narrow what is read: a broker searches
by time in a log whose clock may have been set, and knows tags by their hashes; so Spark filters those again. Keys are
looked at where messages are decoded: no broker finds all that have one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from cosmodrome.client.subscribing import Expression, Sql, subscription
from cosmodrome.errors import CosmodromeError
from cosmodrome.model import ALL_TAGS, MessageQueue

# How far a broker's clock may have been set back between two messages.
CLOCK_SLACK_MS = 10_000
MAX_OFFSET = (1 << 63) - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TAG_SEPARATOR = " || "


@dataclass(frozen=True, slots=True)
class Narrowing:
    """None stands for all. Bounds are those of a range: the upper one is not part of it."""

    topics: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    offsets: tuple[int, int] = (0, MAX_OFFSET)
    stored_from_ms: int | None = None
    stored_before_ms: int | None = None
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None

    def wants(self, queue: MessageQueue) -> bool:
        return (
            (self.topics is None or queue.topic in self.topics)
            and (self.brokers is None or queue.broker_name in self.brokers)
            and (self.queue_ids is None or queue.queue_id in self.queue_ids)
        )

    def start(self, offset: int) -> int:
        return max(offset, self.offsets[0])

    def end(self, offset: int) -> int:
        return min(offset, self.offsets[1])

    def expression(self, given: Expression) -> Expression:
        """The tags to ask a broker for, where the user's own expression can be narrowed."""
        if self.tags is None or isinstance(given, Sql):
            return given
        asked = self.tags if given == ALL_TAGS else self.tags & subscription("any", given, version=1).tags
        narrowed = _TAG_SEPARATOR.join(sorted(asked))
        return narrowed if asked and _says(narrowed, asked) else given


def narrowed(filters: Iterable[Filter]) -> tuple[Narrowing, list[Filter]]:
    """What the filters leave, and those that Spark is still to apply."""
    narrowing, left = Narrowing(), []
    for each in filters:
        found = _apply(narrowing, each)
        narrowing = found.narrowing
        if not found.is_exact:
            left.append(each)
    return narrowing, left


@dataclass(frozen=True, slots=True)
class _Applied:
    narrowing: Narrowing
    is_exact: bool


def _apply(narrowing: Narrowing, condition: Filter) -> _Applied:
    column: tuple[str, ...] = getattr(condition, "attribute", ())
    value = getattr(condition, "value", None)
    if len(column) != 1 or value is None:
        return _Applied(narrowing, False)
    match column[0]:
        case "topic" | "brokerName" | "queueId" as name:
            return _to_queues(narrowing, _SETS[name], condition)
        case "queueOffset":
            return _to_offsets(narrowing, condition)
        case "storeTimestamp":
            return _Applied(_to_times(narrowing, condition), False)
        case "tags" | "keys" as name:
            return _Applied(_to_queues(narrowing, name, condition).narrowing, False)
        case _:
            return _Applied(narrowing, False)


_SETS: Mapping[str, str] = {"topic": "topics", "brokerName": "brokers", "queueId": "queue_ids"}


def _to_queues(narrowing: Narrowing, name: str, condition: Filter) -> _Applied:
    values = _values(condition)
    if values is None:
        return _Applied(narrowing, False)
    before = getattr(narrowing, name)
    both = values if before is None else values & before
    changed: dict[str, Any] = {name: both}
    return _Applied(replace(narrowing, **changed), True)


def _values(condition: Filter) -> frozenset[Any] | None:
    """What a column must be one of, if the filter says that."""
    match condition:
        case EqualTo(_, value) | EqualNullSafe(_, value):
            return frozenset([value])
        case In(_, values):
            return frozenset(value for value in values if value is not None)
        case _:
            return None


def _to_offsets(narrowing: Narrowing, condition: Filter) -> _Applied:
    low, high = narrowing.offsets
    exact = True
    match condition:
        case EqualTo(_, value) | EqualNullSafe(_, value):
            low, high = max(low, value), min(high, value + 1)
        case GreaterThan(_, value):
            low = max(low, value + 1)
        case GreaterThanOrEqual(_, value):
            low = max(low, value)
        case LessThan(_, value):
            high = min(high, value)
        case LessThanOrEqual(_, value):
            high = min(high, value + 1)
        case In(_, values) if numbers := [value for value in values if value is not None]:
            low, high, exact = max(low, min(numbers)), min(high, max(numbers) + 1), False
        case _:
            exact = False
    return _Applied(replace(narrowing, offsets=(low, high)), exact)


def _to_times(narrowing: Narrowing, condition: Filter) -> Narrowing:
    """Some seconds too much do no harm, since Spark filters again; a message too few would."""
    value = getattr(condition, "value", None)
    if not isinstance(value, datetime):
        return narrowing
    at_ms = (value.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
    match condition:
        case EqualTo() | EqualNullSafe():
            return _later(_earlier(narrowing, at_ms), at_ms)
        case GreaterThan() | GreaterThanOrEqual():
            return _later(narrowing, at_ms)
        case LessThan() | LessThanOrEqual():
            return _earlier(narrowing, at_ms)
        case _:
            return narrowing


def _later(narrowing: Narrowing, at_ms: int) -> Narrowing:
    from_ms = max(at_ms - CLOCK_SLACK_MS, 0)
    return replace(narrowing, stored_from_ms=max(from_ms, narrowing.stored_from_ms or 0))


def _earlier(narrowing: Narrowing, at_ms: int) -> Narrowing:
    before_ms = at_ms + 1 + CLOCK_SLACK_MS
    known = narrowing.stored_before_ms
    return replace(narrowing, stored_before_ms=before_ms if known is None else min(before_ms, known))


def _says(expression: str, tags: frozenset[str]) -> bool:
    """Whether a broker understands the expression as just these tags: one could hold a separator itself."""
    try:
        return subscription("any", expression, version=1).tags == tags
    except CosmodromeError:
        return False
