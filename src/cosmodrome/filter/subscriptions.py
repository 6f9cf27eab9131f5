"""The SQL92 filters that consumer groups have registered, one per group and topic.

Heartbeats repeat a subscription every 30 s, and members of a group may run different programs for a while. The newest
version counts, an older one is ignored while that group is there. A filter whose group has left is kept for a day:
a pull that is already under way, or a group that comes back, finds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cosmodrome.errors import FilterNotFound, FilterOutdated, FilterSyntaxError
from cosmodrome.filter import sql92
from cosmodrome.model import Property, Subscription
from cosmodrome.wire.properties import find

DEAD_KEPT_MS = 24 * 3600 * 1000


@dataclass(slots=True)
class _Registered:
    expression: str
    version: int
    filter: sql92.SqlFilter | None
    fault: FilterSyntaxError | None
    dead_since_ms: int | None = None


class GroupFilters:
    def __init__(self, dead_kept_ms: int = DEAD_KEPT_MS) -> None:
        self._dead_kept_ms = dead_kept_ms
        self._by_group: dict[str, dict[str, _Registered]] = {}

    def register(self, group: str, subscriptions: Iterable[Subscription], now_ms: int) -> list[FilterSyntaxError]:
        """Take everything a group subscribes to, as one heartbeat tells it; the faults of new expressions come back.

        A faulty expression takes the place of the one before: its consumers must learn of it, not get
        messages chosen by a filter they no longer ask for.
        """
        wanted = {
            subscription.topic: subscription
            for subscription in subscriptions
            if subscription.expression_type == sql92.EXPRESSION_TYPE
        }
        known = self._by_group.setdefault(group, {})
        faults = [fault for topic in wanted if (fault := _register(known, wanted[topic])) is not None]
        for topic, registered in known.items():
            if topic not in wanted and registered.dead_since_ms is None:
                registered.dead_since_ms = now_ms
        if not known:
            del self._by_group[group]
        return faults

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
        for group, known in list(self._by_group.items()):
            for topic, registered in list(known.items()):
                if registered.dead_since_ms is not None and now_ms - registered.dead_since_ms >= self._dead_kept_ms:
                    del known[topic]
            if not known:
                del self._by_group[group]

    def __len__(self) -> int:
        return sum(map(len, self._by_group.values()))


def _register(known: dict[str, _Registered], wanted: Subscription) -> FilterSyntaxError | None:
    old = known.get(wanted.topic)
    if old is not None and old.expression == wanted.expression:
        old.version = max(old.version, wanted.version)
        old.dead_since_ms = None
        return None
    if old is not None and old.dead_since_ms is None and wanted.version <= old.version:
        return None
    compiled = fault = None
    try:
        compiled = sql92.compile(wanted.expression)
    except FilterSyntaxError as error:
        fault = error
    known[wanted.topic] = _Registered(wanted.expression, wanted.version, compiled, fault)
    return fault
