"""The SQL92 filters that consumer groups have registered, one per group and topic.

Heartbeats repeat a subscription every 30 s, and members of a group may run different programs for a while. The newest
version counts, an older one is ignored while that group is there. A filter whose group has left is kept for a day:
a pull that is already under way, or a group that comes back, finds it. All filters together have a limit; those of
groups that have left make room first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cosmodrome.errors import FilterNotFound, FilterOutdated, FilterSyntaxError
from cosmodrome.filter import sql92
from cosmodrome.model import Property, Subscription
from cosmodrome.wire.properties import find

DEAD_KEPT_MS = 24 * 3600 * 1000
# Compiled, an expression takes some thirty times its characters; a filter counts as so many more.
DEFAULT_LIMIT = 4 * 1024 * 1024
FILTER_CHARACTERS = 100


@dataclass(slots=True)
class _Registered:
    expression: str
    version: int
    filter: sql92.SqlFilter | None
    fault: FilterSyntaxError | None
    dead_since_ms: int | None = None

    @property
    def characters(self) -> int:
        return len(self.expression) + FILTER_CHARACTERS


class GroupFilters:
    """The filters; `limit` is how many characters all expressions together may have."""

    def __init__(self, dead_kept_ms: int = DEAD_KEPT_MS, limit: int = DEFAULT_LIMIT) -> None:
        self._dead_kept_ms = dead_kept_ms
        self._limit = limit
        self._characters = 0
        self._by_group: dict[str, dict[str, _Registered]] = {}

    def register(self, group: str, subscriptions: Iterable[Subscription], now_ms: int) -> list[FilterSyntaxError]:
        """Take everything a group subscribes to, as one heartbeat tells it; the faults of new expressions come back.

        A faulty expression takes the place of the one before: its consumers must learn of it, not get
        messages chosen by a filter they no longer ask for.
        """
        return [fault for fault, _ in self.registering(group, subscriptions, now_ms) if fault is not None]

    def registering(
        self, group: str, subscriptions: Iterable[Subscription], now_ms: int
    ) -> Iterator[tuple[FilterSyntaxError | None, int]]:
        """The same in steps, one for each filter, with its fault and the length of its expression: compiling a long
        one takes many milliseconds."""
        wanted = {
            subscription.topic: subscription
            for subscription in subscriptions
            if subscription.expression_type == sql92.EXPRESSION_TYPE
        }
        for subscription in wanted.values():
            yield self._register(group, subscription, now_ms), len(subscription.expression)
        for topic, registered in self._by_group.get(group, {}).items():
            if topic not in wanted and registered.dead_since_ms is None:
                registered.dead_since_ms = now_ms

    def unregister(self, group: str, now_ms: int) -> None:
        """The last member of a group has left."""
        self.register(group, (), now_ms)

    def filter(self, topic: str, group: str, version: int) -> sql92.SqlFilter:
        """The filter for a pull whose subscription has this version, or the reason why there is none."""
        registered = self._by_group.get(group, {}).get(topic)
        if registered is None:
            raise FilterNotFound(
                f"group {group} has no SQL92 filter for {topic}; send a heartbeat with the subscription"
            )
        if registered.version < version:
            raise FilterOutdated(
                f"the SQL92 filter of group {group} for {topic} has version {registered.version}, older than the"
                f" {version} asked for; send a heartbeat with the subscription"
            )
        if registered.filter is None:
            raise FilterNotFound(f"group {group} has no SQL92 filter for {topic}: {registered.fault}")
        return registered.filter

    def want_again(self, group: str, properties: str) -> bool:
        """Whether a message that comes again passes the filter for the topic it was first sent to, if there is one."""
        registered = self._by_group.get(group, {}).get(find(properties, Property.RETRY_TOPIC) or "")
        return registered is None or registered.filter is None or registered.filter.matches_raw(properties)

    def clean(self, now_ms: int) -> None:
        """Forget the filters of those who left long ago."""
        self._forget_dead(now_ms - self._dead_kept_ms)

    def _forget_dead(self, since_ms: int) -> None:
        for group, known in list(self._by_group.items()):
            for topic, registered in list(known.items()):
                if registered.dead_since_ms is not None and registered.dead_since_ms <= since_ms:
                    self._characters -= registered.characters
                    del known[topic]
            if not known:
                del self._by_group[group]

    def __len__(self) -> int:
        return sum(map(len, self._by_group.values()))

    def _register(self, group: str, wanted: Subscription, now_ms: int) -> FilterSyntaxError | None:
        known = self._by_group.get(group, {})
        old = known.get(wanted.topic)
        if old is not None and old.expression == wanted.expression:
            old.version = max(old.version, wanted.version)
            old.dead_since_ms = None
            return None
        if old is not None and old.dead_since_ms is None and wanted.version <= old.version:
            return None
        fresh = _compiled(wanted)
        more = fresh.characters - (old.characters if old is not None else 0)
        if self._characters + more > self._limit:
            self._forget_dead(now_ms)
            old = self._by_group.get(group, {}).get(wanted.topic)
            more = fresh.characters - (old.characters if old is not None else 0)
        if self._characters + more > self._limit:
            problem = f"no room for it beside {len(self)} filters: maxFilterCharacters allows {self._limit}"
            return FilterSyntaxError(problem, wanted.expression, 0)
        self._characters += more
        self._by_group.setdefault(group, {})[wanted.topic] = fresh
        return fresh.fault


def _compiled(wanted: Subscription) -> _Registered:
    try:
        return _Registered(wanted.expression, wanted.version, sql92.compile(wanted.expression), None)
    except FilterSyntaxError as error:
        return _Registered(wanted.expression, wanted.version, None, error)
