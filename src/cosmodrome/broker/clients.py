"""Which producers and consumers are connected, and what each group subscribes to. Pure: time is an argument.

A member is known by its connection: one client id on two connections counts twice, as with Apache.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

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


class Want(NamedTuple):
    """What a member subscribes to."""

    topic: str
    expression_type: str
    expression: str

    def __str__(self) -> str:
        return f"{self.topic} {self.expression_type} {self.expression}"


@dataclass(slots=True)
class ConsumerGroup:
    """The members of a group and what they last said they want."""

    name: str
    consume_type: ConsumeType = ConsumeType.PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    members: dict[Hashable, Member] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    wanted: dict[Hashable, frozenset[Want]] = field(default_factory=dict)  # by member
    _told: frozenset[frozenset[Want]] = frozenset()

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

    @property
    def disagreement(self) -> dict[str, str]:
        """Client id → what it wants, in words, if that is not the same for all; else nothing.

        Queues are shared, so a message then reaches a member that does not want it, and is lost to the one that does.
        """
        if len(set(self.wanted.values())) < 2:
            return {}
        return {
            self.members[connection].client_id: ", ".join(sorted(map(str, wants)))
            for connection, wants in self.wanted.items()
        }

    def take_disagreement_change(self) -> bool:
        """True once after the members began to want different things, to want other things than before, or to agree."""
        differing = frozenset(self.wanted.values())
        now = differing if len(differing) > 1 else frozenset()
        changed, self._told = now != self._told, now
        return changed


class Clients:
    """The registry behind heartbeats. A group lives as long as it has members."""

    def __init__(self, silent_after_ms: int) -> None:
        self._silent_after_ms = silent_after_ms
        self._producers: dict[str, dict[Hashable, Member]] = {}
        self._producer_connections: dict[str, Hashable] = {}  # by client id, the newest
        self._consumers: dict[str, ConsumerGroup] = {}

    def register_producer(self, group: str, connection: Hashable, member: Member) -> None:
        self._producers.setdefault(group, {})[connection] = member
        self._producer_connections[member.client_id] = connection

    def register_consumer(self, data: ConsumerData, connection: Hashable, member: Member) -> bool:
        """True if members or topics of the group changed, so that it must rebalance."""
        group = self._consumers.setdefault(data.group, ConsumerGroup(data.group))
        is_new = connection not in group.members
        group.members[connection] = member
        group.wanted[connection] = frozenset(
            Want(one.topic, one.expression_type, one.expression) for one in data.subscriptions
        )
        group.consume_type, group.message_model = data.consume_type, data.message_model
        group.consume_from = data.consume_from
        return group.subscribe(data.subscriptions) or is_new

    def unregister_producer(self, group: str, connection: Hashable) -> None:
        members = self._producers.get(group, {})
        member = members.pop(connection, None)
        if not members:
            self._producers.pop(group, None)
        if member is None or any(connection in others for others in self._producers.values()):
            return
        if self._producer_connections.get(member.client_id) == connection:
            del self._producer_connections[member.client_id]

    def unregister_consumer(self, group: str, connection: Hashable) -> bool:
        """True if the connection was a member."""
        found = self._consumers.get(group)
        if found is None or found.members.pop(connection, None) is None:
            return False
        found.wanted.pop(connection, None)
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

    def find_producer(self, client_id: str) -> Hashable | None:
        """The connection on which this client announced a producer, whatever its group."""
        return self._producer_connections.get(client_id)

    def producers(self, group: str) -> dict[Hashable, Member]:
        return self._producers.get(group, {})

    def consumer_groups(self) -> list[ConsumerGroup]:
        return list(self._consumers.values())
