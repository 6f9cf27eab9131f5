"""Which producers and consumers are connected, and what each group subscribes to. Pure: time is an argument.

A member is known by its connection: one client id on two connections counts twice, as with Apache.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from cosmodrome.errors import InvalidParameter
from cosmodrome.model import ConsumeFrom, ConsumeType, MessageModel, Subscription
from cosmodrome.wire.bodies import ConsumerData, HeartbeatData

# Of members that want different things, so much is told: in logs and in the answers to operators.
MAX_MEMBERS_TOLD = 100
MAX_WANTS_TOLD = 20
MAX_WANT_LENGTH = 200
STEP = 500  # memberships looked at in one step, in about a millisecond


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
        return f"{self.topic} {self.expression_type} {self.expression}"[:MAX_WANT_LENGTH]


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
    _is_compared: bool = True  # nobody wants anything else since the last look

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
            self.members[connection].client_id: _in_words(wants)
            for connection, wants in islice(self.wanted.items(), MAX_MEMBERS_TOLD)
        }

    def want(self, connection: Hashable, wanted: Iterable[Subscription]) -> None:
        """Take over what one member subscribes to."""
        wants = frozenset(Want(one.topic, one.expression_type, one.expression) for one in wanted)
        if self.wanted.get(connection) != wants:
            self.wanted[connection] = wants
            self._is_compared = False

    def leave(self, connection: Hashable) -> bool:
        """Return True if the connection was a member."""
        if self.members.pop(connection, None) is None:
            return False
        self.wanted.pop(connection, None)
        self._is_compared = False
        return True

    def take_disagreement_change(self) -> bool:
        """True once after the members began to want different things, to want other things than before, or to agree."""
        if self._is_compared:  # looking costs as much as the group has members
            return False
        self._is_compared = True
        differing = frozenset(self.wanted.values())
        now = differing if len(differing) > 1 else frozenset()
        changed, self._told = now != self._told, now
        return changed


@dataclass(slots=True)
class _Groups:
    """The groups of one connection, in the order it joined them."""

    producers: dict[str, None] = field(default_factory=dict)
    consumers: dict[str, None] = field(default_factory=dict)
    producing: Counter[str] = field(default_factory=Counter)  # by client id: in how many groups as a producer


class Clients:
    """The registry behind heartbeats. A group lives as long as it has members.

    Everything a connection does or leaves costs as much as it has, whatever others have. A connection is in at most
    `groups_each` groups, and all of them together have at most `limit` memberships.
    """

    def __init__(self, silent_after_ms: int, groups_each: int = 4_096, limit: int = 1_000_000) -> None:
        self._silent_after_ms = silent_after_ms
        self._groups_each = groups_each
        self._limit = limit
        self._count = 0
        self._producers: dict[str, dict[Hashable, Member]] = {}
        self._producer_connections: dict[str, Hashable] = {}  # by client id, the newest
        self._consumers: dict[str, ConsumerGroup] = {}
        self._groups: dict[Hashable, _Groups] = {}  # by connection

    def __len__(self) -> int:
        """Return how many memberships there are: of all producer and consumer groups together."""
        return self._count

    def check_room(self, data: HeartbeatData, connection: Hashable) -> None:
        """Refuse a heartbeat that would bring its connection, or all together, into too many groups."""
        groups = self._groups.get(connection) or _Groups()
        consumers = {consumer.group for consumer in data.consumers}
        fresh = len(set(data.producers) - groups.producers.keys()) + len(consumers - groups.consumers.keys())
        if fresh and (total := len(groups.producers) + len(groups.consumers) + fresh) > self._groups_each:
            raise InvalidParameter(
                f"client {data.client_id} is in {total} groups; maxGroupsPerConnection allows {self._groups_each}"
            )
        if fresh and self._count + fresh > self._limit:
            raise InvalidParameter(
                f"client {data.client_id} asks for {fresh} memberships more, and the broker has {self._count}; "
                f"maxGroupMemberships allows {self._limit}"
            )

    def register_producer(self, group: str, connection: Hashable, member: Member) -> None:
        members = self._producers.setdefault(group, {})
        groups = self._groups.setdefault(connection, _Groups())
        before = members.get(connection)
        if before is None:
            groups.producers[group] = None
            self._count += 1
        if before is None or before.client_id != member.client_id:
            groups.producing[member.client_id] += 1
            if before is not None:
                self._produces_less(connection, groups, before.client_id)
        members[connection] = member
        self._producer_connections[member.client_id] = connection

    def _produces_less(self, connection: Hashable, groups: _Groups, client_id: str) -> None:
        groups.producing[client_id] -= 1
        if not groups.producing[client_id]:
            del groups.producing[client_id]
            if self._producer_connections.get(client_id) == connection:
                del self._producer_connections[client_id]

    def register_consumer(self, data: ConsumerData, connection: Hashable, member: Member) -> bool:
        """True if members or topics of the group changed, so that it must rebalance."""
        group = self._consumers.setdefault(data.group, ConsumerGroup(data.group))
        is_new = connection not in group.members
        if is_new:
            self._groups.setdefault(connection, _Groups()).consumers[data.group] = None
            self._count += 1
        group.members[connection] = member
        group.want(connection, data.subscriptions)
        group.consume_type, group.message_model = data.consume_type, data.message_model
        group.consume_from = data.consume_from
        return group.subscribe(data.subscriptions) or is_new

    def unregister_producer(self, group: str, connection: Hashable) -> None:
        members = self._producers.get(group, {})
        member = members.pop(connection, None)
        if not members:
            self._producers.pop(group, None)
        if member is None:
            return
        groups = self._groups[connection]
        del groups.producers[group]
        self._produces_less(connection, groups, member.client_id)
        self._left(connection, groups)

    def unregister_consumer(self, group: str, connection: Hashable) -> bool:
        """True if the connection was a member."""
        found = self._consumers.get(group)
        if found is None or not found.leave(connection):
            return False
        if not found.members:
            del self._consumers[group]
        groups = self._groups[connection]
        del groups.consumers[group]
        self._left(connection, groups)
        return True

    def _left(self, connection: Hashable, groups: _Groups) -> None:
        self._count -= 1
        if not groups.producers and not groups.consumers:
            del self._groups[connection]

    def count_of(self, connection: Hashable) -> int:
        """Return in how many groups a connection is."""
        groups = self._groups.get(connection)
        return 0 if groups is None else len(groups.producers) + len(groups.consumers)

    def drop(self, connection: Hashable) -> list[str]:
        """Forget a connection; returns the consumer groups it was in."""
        groups = self._groups.get(connection)
        if groups is None:
            return []
        for group in list(groups.producers):
            self.unregister_producer(group, connection)
        return [group for group in list(groups.consumers) if self.unregister_consumer(group, connection)]

    def silent(self, now_ms: int) -> set[Hashable]:
        """Connections with a member that has sent no heartbeat for too long."""
        return {connection for step in self.looking_for_silent(now_ms) for connection in step}

    def looking_for_silent(self, now_ms: int) -> Iterator[list[Hashable]]:
        """The same in steps, each with those that it has found."""
        limit = now_ms - self._silent_after_ms
        found: list[Hashable] = []
        looked_at = 0
        for connection in list(self._groups):
            groups = self._groups.get(connection)
            if groups is None:  # it left since the last step
                continue
            looked_at += len(groups.producers) + len(groups.consumers)
            if self._is_silent(connection, groups, limit):
                found.append(connection)
            if looked_at >= STEP:
                yield found
                found, looked_at = [], 0
        yield found

    def _is_silent(self, connection: Hashable, groups: _Groups, limit: int) -> bool:
        producers, consumers = self._producers, self._consumers
        return any(producers[group][connection].seen_ms < limit for group in groups.producers) or any(
            consumers[group].members[connection].seen_ms < limit for group in groups.consumers
        )

    def find_consumers(self, group: str) -> ConsumerGroup | None:
        return self._consumers.get(group)

    def find_producer(self, client_id: str) -> Hashable | None:
        """The connection on which this client announced a producer, whatever its group."""
        return self._producer_connections.get(client_id)

    def producers(self, group: str) -> dict[Hashable, Member]:
        return self._producers.get(group, {})

    def producer_groups(self) -> dict[str, list[Member]]:
        """Return the members of every producer group."""
        return {group: list(members.values()) for group, members in self._producers.items()}

    def consumer_groups(self) -> list[ConsumerGroup]:
        return list(self._consumers.values())


def _in_words(wants: frozenset[Want]) -> str:
    words = ", ".join(map(str, heapq.nsmallest(MAX_WANTS_TOLD, wants)))
    return words if len(wants) <= MAX_WANTS_TOLD else f"{words} and {len(wants) - MAX_WANTS_TOLD} more"
