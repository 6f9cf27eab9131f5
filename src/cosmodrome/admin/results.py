"""The answers that `Admin` gives: frozen dataclasses, and their JSON.

An answer that several brokers make together names in `unanswered` the brokers that did not answer, and why.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from cosmodrome.model import (
    ConsumeFrom,
    ConsumeType,
    GroupConfig,
    MessageModel,
    MessageQueue,
    Subscription,
    TopicConfig,
)
from cosmodrome.wire.bodies import EpochsBody, HaStatusBody, QueueEntries
from cosmodrome.wire.header import camel_case


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """A broker as the name server names it; id 0 is the master of its name."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A broker or name server that did not do what it was asked; `code` is its response code, 0 if it gave none."""

    broker_name: str
    address: str
    reason: str
    code: int = 0


@dataclass(frozen=True, slots=True)
class Cluster:
    """All brokers that the name server knows, by cluster, name and id."""

    brokers: tuple[BrokerNode, ...]

    @property
    def masters(self) -> tuple[BrokerNode, ...]:
        """The masters alone."""
        return tuple(node for node in self.brokers if node.broker_id == 0)


@dataclass(frozen=True, slots=True)
class BrokerTable:
    """Names and values that one broker told: its figures, or its settings."""

    node: BrokerNode
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BrokerTables:
    """What several brokers told."""

    brokers: tuple[BrokerTable, ...]
    unanswered: tuple[Unanswered, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The first and the next offset of a queue; `last_update_ms` is the time of its last message, 0 without one."""

    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_update_ms: int = 0


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """The queues of a topic, by broker and id."""

    topic: str
    queues: tuple[QueueStatus, ...]
    unanswered: tuple[Unanswered, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicOnBroker:
    """A topic's config on one broker."""

    node: BrokerNode
    config: TopicConfig


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """Topics as the brokers have them."""

    topics: tuple[TopicOnBroker, ...]
    unanswered: tuple[Unanswered, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupOnBroker:
    """A consumer group's config on one broker."""

    node: BrokerNode
    config: GroupConfig


@dataclass(frozen=True, slots=True)
class GroupConfigs:
    """Consumer groups as the brokers have them."""

    groups: tuple[GroupOnBroker, ...]
    unanswered: tuple[Unanswered, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a group is on one queue; `last_ms` is the store time of the last message it consumed, 0 if unknown."""

    topic: str
    broker_name: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    pull_offset: int = 0
    last_ms: int = 0

    @property
    def lag(self) -> int:
        """Messages that the group has not consumed yet."""
        return max(self.broker_offset - self.consumer_offset, 0)

    @property
    def inflight(self) -> int:
        """Messages that its members hold and have not committed."""
        return max(self.pull_offset - self.consumer_offset, 0)


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a group is on all its queues; `tps` counts the messages it consumes in a second."""

    group: str
    queues: tuple[QueueProgress, ...] = ()
    tps: float = 0.0
    unanswered: tuple[Unanswered, ...] = ()
    clients: int | None = None  # members that are connected; None if it was not asked

    @property
    def lag(self) -> int:
        """Messages that the group has not consumed yet, over all queues."""
        return sum(queue.lag for queue in self.queues)

    @property
    def inflight(self) -> int:
        """Messages that its members hold and have not committed, over all queues."""
        return sum(queue.inflight for queue in self.queues)


@dataclass(frozen=True, slots=True)
class AllProgress:
    """The progress of every group that brokers know, by name."""

    groups: tuple[GroupProgress, ...]
    unanswered: tuple[Unanswered, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """One connected client of a group, as the brokers see it; several brokers may see it from different ports."""

    client_id: str
    address: str
    language: str
    version: str


@dataclass(frozen=True, slots=True)
class Consumers:
    """The members of a consumer group that are connected, and what they subscribe to.

    `disagreement` says what each member wants, if they do not agree.
    """

    group: str
    clients: tuple[ClientInfo, ...] = ()
    consume_type: ConsumeType = ConsumeType.PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    subscriptions: tuple[Subscription, ...] = ()
    disagreement: Mapping[str, str] = field(default_factory=dict)
    unanswered: tuple[Unanswered, ...] = ()


@dataclass(frozen=True, slots=True)
class Producers:
    """The members of a producer group that are connected."""

    group: str
    clients: tuple[ClientInfo, ...] = ()
    unanswered: tuple[Unanswered, ...] = ()


@dataclass(frozen=True, slots=True)
class AllProducers:
    """The members of every producer group, by group."""

    groups: tuple[Producers, ...]
    unanswered: tuple[Unanswered, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueReset:
    """Where a group goes on, on one queue."""

    broker_name: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Resets:
    """Where a group goes on, on the queues of a topic."""

    group: str
    topic: str
    queues: tuple[QueueReset, ...] = ()
    unanswered: tuple[Unanswered, ...] = ()


@dataclass(frozen=True, slots=True)
class HaStatus:
    """How one broker replicates: a master's slaves, or a slave's master."""

    node: BrokerNode
    status: HaStatusBody


@dataclass(frozen=True, slots=True)
class HaStatuses:
    """How several brokers replicate."""

    brokers: tuple[HaStatus, ...]
    unanswered: tuple[Unanswered, ...] = ()


@dataclass(frozen=True, slots=True)
class Epochs:
    """Which master wrote which part of the logs of several brokers."""

    brokers: tuple[EpochsBody, ...]
    unanswered: tuple[Unanswered, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueLateness:
    """How late a group is on one queue: when the next message it has not consumed was stored, and how long ago."""

    broker_name: str
    queue_id: int
    min_ms: int
    max_ms: int
    consumed_ms: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late a group is on the queues of a topic."""

    group: str
    topic: str
    queues: tuple[QueueLateness, ...] = ()
    unanswered: tuple[Unanswered, ...] = ()


@dataclass(frozen=True, slots=True)
class QueuePage:
    """Entries of a consume queue of one broker."""

    node: BrokerNode
    page: QueueEntries


@dataclass(frozen=True, slots=True)
class Account:
    """An account of a broker with ACL, without its secret; permissions are those of plain_acl.yml."""

    access_key: str
    is_admin: bool = False
    default_topic_perm: str = ""
    default_group_perm: str = ""
    topic_perms: tuple[str, ...] = ()
    group_perms: tuple[str, ...] = ()
    white_addresses: str = ""


@dataclass(frozen=True, slots=True)
class AccountsOfBroker:
    """The accounts of one broker, and the addresses from which nobody needs one."""

    node: BrokerNode
    accounts: tuple[Account, ...]
    white_addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AccountsOfBrokers:
    """The accounts of several brokers."""

    brokers: tuple[AccountsOfBroker, ...]
    unanswered: tuple[Unanswered, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """Where something was changed; `detail` is what came of it, such as `3 topics`."""

    brokers: tuple[BrokerNode, ...]
    detail: str = ""
    unanswered: tuple[Unanswered, ...] = ()


def to_json(result: Any) -> Any:
    """Return a result as JSON values: names in camelCase, enums by value, computed figures such as `lag` included."""
    if isinstance(result, Enum):
        return result.value
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        fields = {camel_case(f.name): to_json(getattr(result, f.name)) for f in dataclasses.fields(result)}
        return fields | _computed(result)
    if isinstance(result, Mapping):
        return {_key(key): to_json(value) for key, value in result.items()}
    if isinstance(result, tuple | list):
        return [to_json(item) for item in result]
    if isinstance(result, frozenset):
        return sorted(to_json(item) for item in result)
    return result


def _computed(result: Any) -> dict[str, Any]:
    """Return the properties of progress that a script would have to compute."""
    if isinstance(result, QueueProgress | GroupProgress):
        return {"lag": result.lag, "inflight": result.inflight}
    return {}


def _key(key: Any) -> str:
    if isinstance(key, MessageQueue):
        return f"{key.topic}/{key.broker_name}/{key.queue_id}"
    return str(key)
