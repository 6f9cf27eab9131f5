"""What a consumer wants of a topic, as the store and the long polls are asked for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from cosmodrome.errors import RequestError, SubscriptionParseFailed
from cosmodrome.filter import sql92, tags
from cosmodrome.filter.subscriptions import GroupFilters
from cosmodrome.model import ALL_TAGS, RETRY_PREFIX, Subscription
from cosmodrome.net.lane import Lane

NO_SQL = "The broker does not support consumer to filter message by SQL92"


class Wanted(NamedTuple):
    """Tag hashes, of which None wants all, and a question to the properties string of what passes them."""

    codes: frozenset[int] | None = None
    matches: Callable[[str], bool] | None = None


EVERYTHING = Wanted()


LONG_EXPRESSION = 1_000  # characters
MAX_EXPRESSION = 32_768


async def prepare(lane: Lane, expression: str, expression_type: str | None) -> None:
    """Compile a long expression beside the loop, so that `asked_for` finds it compiled; or refuse it."""
    if len(expression) > MAX_EXPRESSION:
        raise SubscriptionParseFailed(
            f"an expression of {len(expression)} characters, where {MAX_EXPRESSION} are allowed: {expression[:50]!r}…"
        )
    if expression_type == sql92.EXPRESSION_TYPE:
        await lane.aside(partial(sql92.compile, expression))
    else:
        await lane.turn()


def asked_for(topic: str, expression: str | None, expression_type: str | None, *, sql_allowed: bool) -> Wanted:
    """What an expression that comes with the request itself asks of the topic."""
    if expression_type not in (None, "", "TAG"):
        check_sql(expression_type, sql_allowed)
        return _unless_retry(topic, sql92.compile(expression or ""))
    if expression in (None, "", ALL_TAGS):
        return EVERYTHING
    return _by_tags(tags.subscription(topic, expression, 0))


def registered(subscription: Subscription, group: str, version: int, filters: GroupFilters | None) -> Wanted:
    """What a group's heartbeat asked for; `filters` is None where SQL92 is not allowed."""
    if subscription.expression_type == "TAG":
        return _by_tags(subscription)
    check_sql(subscription.expression_type, filters is not None)
    assert filters is not None, "checked just now"
    return _unless_retry(subscription.topic, filters.filter(subscription.topic, group, version))


def wanted_again(group: str, filters: GroupFilters) -> Wanted:
    """Of the messages that come again, those that the filters for their first topics still want."""
    return Wanted(None, partial(filters.want_again, group))


def check_sql(expression_type: str | None, sql_allowed: bool) -> None:
    if not sql_allowed or expression_type != sql92.EXPRESSION_TYPE:
        raise RequestError(NO_SQL)


def _by_tags(subscription: Subscription) -> Wanted:
    return EVERYTHING if subscription.expression == ALL_TAGS else Wanted(subscription.codes)


def _unless_retry(topic: str, sql: sql92.SqlFilter) -> Wanted:
    """A retried message was wanted before, and its properties may have changed since."""
    return EVERYTHING if topic.startswith(RETRY_PREFIX) else Wanted(None, sql.matches_raw)
