"""Which producers and consumers are connected, and what each group subscribes to. Pure: time is an argument.

A member is known by its connection: one client id on two connections counts twice, as with Apache.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from cosmodrome.model import ConsumeFrom, ConsumeType, MessageModel, Subscription
from cosmodrome.wire.bodies import ConsumerData


@dataclass(slots=True)
class Member:
    """One client on one connection."""

    client_id: str
    address: str
    language: int
    version: int
    seen_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    """The members of a group and what they last said they want."""

    name: str
    consume_type: ConsumeType = ConsumeType.PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    members: dict[Hashable, Member] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)

    @property
    def client_ids(self) -> list[str]:
        return [member.client_id for member in self.members.values()]

    @property
    def broadcasting(self) -> bool:
        return self.message_model == MessageModel.BROADCASTING

    def subscribe(self, wanted: Iterable[Subscription]) -> bool:
        """Take over a heartbeat's subscriptions; True if a topic came or went."""
        fresh = {subscription.topic: subscription for subscription in wanted}
        changed = fresh.keys() != self.subscriptions.keys()
        for topic, known in self.subscriptions.items():
            if topic in fresh and known.version >= fresh[topic].version:
                fresh[topic] = known
        self.subscriptions = fresh
        return changed


class Clients:
    """The registry behind heartbeats. A group lives as long as it has members."""

    def __init__(self, silent_after_ms: int) -> None:
        self._silent_after_ms = silent_after_ms
        self._producers: dict[str, dict[Hashable, Member]] = {}
        self._consumers: dict[str, ConsumerGroup] = {}

    def register_producer(self, group: str, connection: Hashable, member: Member) -> None:
        self._producers.setdefault(group, {})[connection] = member

    def register_consumer(self, data: ConsumerData, connection: Hashable, member: Member) -> bool:
        """True if members or topics of the group changed, so that it must rebalance."""
        group = self._consumers.setdefault(data.group, ConsumerGroup(data.group))
        is_new = connection not in group.members
        group.members[connection] = member
        group.consume_type, group.message_model = data.consume_type, data.message_model
        group.consume_from = data.consume_from
        return group.subscribe(data.subscriptions) or is_new

    def unregister_producer(self, group: str, connection: Hashable) -> None:
        members = self._producers.get(group, {})
        members.pop(connection, None)
        if not members:
            self._producers.pop(group, None)

    def unregister_consumer(self, group: str, connection: Hashable) -> bool:
        """True if the connection was a member."""
        found = self._consumers.get(group)
        if found is None or found.members.pop(connection, None) is None:
            return False
        if not found.members:
            del self._consumers[group]
        return True

    def drop(self, connection: Hashable) -> list[str]:
        """Forget a connection; returns the consumer groups it was in."""
        for group in list(self._producers):
            self.unregister_producer(group, connection)
        return [group for group in list(self._consumers) if self.unregister_consumer(group, connection)]

    def silent(self, now_ms: int) -> set[Hashable]:
        """Connections with a member that has sent no heartbeat for too long."""
        tables = [*self._producers.values(), *(group.members for group in self._consumers.values())]
        limit = now_ms - self._silent_after_ms
        return {connection for table in tables for connection, member in table.items() if member.seen_ms < limit}

    def find_consumers(self, group: str) -> ConsumerGroup | None:
        return self._consumers.get(group)

    def producers(self, group: str) -> dict[Hashable, Member]:
        return self._producers.get(group, {})

    def consumer_groups(self) -> list[ConsumerGroup]:
        return list(self._consumers.values())
