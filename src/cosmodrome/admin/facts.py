"""Facts about a cluster, gathered once for `doctor`, which judges them without asking anything itself.

All brokers are asked at once, with a bound. What would be too much to ask is left out, and `Facts.left_out` says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from cosmodrome.admin.brokers import BrokersAdmin
from cosmodrome.admin.clients import ClientsAdmin, client_infos
from cosmodrome.admin.core import first_of_each, nodes_of, unanswered
from cosmodrome.admin.groups import GroupsAdmin
from cosmodrome.admin.results import (
    AllProgress,
    BrokerNode,
    Consumers,
    GroupConfigs,
    GroupOnBroker,
    GroupProgress,
    TopicOnBroker,
    Unanswered,
)
from cosmodrome.admin.topics import TopicsAdmin
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import parse_properties
from cosmodrome.errors import BrokerError, CosmodromeError
from cosmodrome.model import CHECK_MAX_TIME_TOPIC, DLQ_PREFIX, SYSTEM_GROUP_PREFIX
from cosmodrome.wire.bodies import (
    ClusterInfo,
    ConsumerConnection,
    ConsumerRunningInfo,
    HaStatusBody,
    KVTable,
    TopicStats,
)
from cosmodrome.wire.requests import ConsumerGroupHeader, GetRunningInfo, TopicHeader
from cosmodrome.wire.role_requests import RoleReply

T = TypeVar("T")

LOOK_MS = 1_500  # for a question that any broker answers at once
MAX_MEMBERS_ASKED = 200  # members of groups that are behind, about themselves
MAX_TOPICS_COUNTED = 3_000  # dead letters
HALF_GROUP = "CID_RMQ_SYS_TRANS"
SAMPLE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class NameServerFacts:
    """The brokers that one name server knows; `problem` if it did not answer."""

    address: str
    brokers: tuple[BrokerNode, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """What one broker says of itself; parts that it does not know are empty or None."""

    node: BrokerNode
    asked_ms: int  # the time here when it was asked for its figures
    figures: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    role: RoleReply | None = None
    copies: HaStatusBody | None = None


@dataclass(frozen=True, slots=True)
class Silent:
    """A broker that did not answer; `elsewhere` is an address where it does."""

    broker: Unanswered
    elsewhere: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that `doctor` judges."""

    now_ms: int
    name_servers: tuple[NameServerFacts, ...] = ()
    brokers: tuple[BrokerFacts, ...] = ()
    silent: tuple[Silent, ...] = ()
    topics: tuple[TopicOnBroker, ...] = ()
    routed_topics: frozenset[str] = frozenset()
    progress: Mapping[str, GroupProgress] = field(default_factory=dict)
    earlier: Mapping[str, GroupProgress] = field(default_factory=dict)
    sample_ms: int = 0  # between `earlier` and `progress`
    members: Mapping[str, Consumers] = field(default_factory=dict)
    running: Mapping[tuple[str, str], ConsumerRunningInfo] = field(default_factory=dict)  # by group and client id
    stored: Mapping[str, int] = field(default_factory=dict)  # messages in dead letter topics and the like
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """One name server or broker, and whether it does its work."""

    kind: str  # "name server" or "broker"
    name: str
    address: str
    is_healthy: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Health:
    """The health of every part; a cluster without a broker is not healthy."""

    parts: tuple[Part, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether every part is, and there is a broker."""
        return all(part.is_healthy for part in self.parts) and any(part.kind == "broker" for part in self.parts)


class FactsAdmin(TopicsAdmin, GroupsAdmin, ClientsAdmin, BrokersAdmin):
    """The part of `Admin` that looks at everything at once."""

    async def facts(self, *, sample_seconds: float = SAMPLE_SECONDS) -> Facts:
        """Look at everything: groups twice, `sample_seconds` apart, or once if that is 0."""
        self._require_running()
        name_servers = tuple(await asyncio.gather(*map(self._look_at_name_server, self._name_servers)))
        nodes = (await self.cluster()).brokers
        looks = await asyncio.gather(*map(self._look_at_broker, nodes))
        brokers = tuple(look for look in looks if isinstance(look, BrokerFacts))
        silent = [look for look in looks if isinstance(look, Unanswered)]
        masters = first_of_each(broker.node for broker in brokers)
        loop = asyncio.get_running_loop()
        began = loop.time()
        earlier = {one.group: one for one in (await self.all_progress()).groups} if masters else {}
        topics = (await self.topic_configs()).topics if masters else ()
        stored, left_out = await self._count_stored(topics)
        configs = (await self.group_configs()).groups if masters else ()
        members = await self._members_of(earlier, configs, masters)
        elsewhere = await asyncio.gather(*map(self._find_elsewhere, silent))
        await asyncio.sleep(max(sample_seconds - (loop.time() - began), 0))
        routed = await self.topic_names()  # after a while: a new topic is registered a moment after it is made
        progress = earlier
        if masters and sample_seconds:
            progress = {one.group: one for one in (await self.all_progress()).groups}
        running, more_left_out = await self._running_of(progress, members, masters)
        return Facts(
            now_ms=self._clock.now_ms(),
            name_servers=name_servers,
            brokers=brokers,
            silent=tuple(Silent(one, address) for one, address in zip(silent, elsewhere, strict=True)),
            topics=topics,
            routed_topics=frozenset(routed),
            progress=progress,
            earlier=earlier,
            sample_ms=int((loop.time() - began) * 1_000),
            members=members,
            running=running,
            stored=stored,
            left_out=(*left_out, *more_left_out),
        )

    async def health(self) -> Health:
        """Ask every name server and every broker that they know; one that does not answer is no error."""
        self._require_running()
        servers = await asyncio.gather(*map(self._look_at_name_server, self._name_servers))
        parts = [
            Part("name server", one.address, one.address, not one.problem, one.problem or _counted(one.brokers))
            for one in servers
        ]
        nodes = sorted(
            {node for one in servers for node in one.brokers}, key=lambda one: (one.broker_name, one.broker_id)
        )
        looks = await asyncio.gather(*map(self._look_at_broker, nodes))
        return Health((*parts, *(_part(node, look) for node, look in zip(nodes, looks, strict=True))))

    async def all_members(self, configs: GroupConfigs, progress: AllProgress) -> dict[str, Consumers]:
        """Return the members of every group, as one broker for each sees them; groups of brokers are left out."""
        masters = first_of_each((await self.cluster()).brokers)
        return await self._members_of({one.group: one for one in progress.groups}, configs.groups, masters)

    async def _look_at_name_server(self, server: BrokerNode) -> NameServerFacts:
        try:
            reply = await self._ask(server, RequestCode.GET_BROKER_CLUSTER_INFO, timeout_ms=LOOK_MS)
        except CosmodromeError as error:
            return NameServerFacts(server.address, problem=str(error))
        groups = ClusterInfo.decode(reply.body).brokers.values()
        return NameServerFacts(server.address, tuple(node for group in groups for node in nodes_of(group)))

    async def _look_at_broker(self, node: BrokerNode) -> BrokerFacts | Unanswered:
        asked_ms = self._clock.now_ms()
        try:
            reply = await self._ask(node, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_ms=LOOK_MS)
        except CosmodromeError as error:
            return unanswered(node, error)
        figures = KVTable.decode(reply.body).table
        settings, role, copies = await asyncio.gather(
            _else_none(self._ask(node, RequestCode.GET_BROKER_CONFIG, timeout_ms=LOOK_MS)),
            _else_none(self._ask(node, RequestCode.GET_BROKER_ROLE, timeout_ms=LOOK_MS)),
            _else_none(self._ask(node, RequestCode.GET_BROKER_HA_STATUS, timeout_ms=LOOK_MS)),
        )
        return BrokerFacts(
            node,
            asked_ms,
            figures,
            dict(parse_properties(bytes(settings.body).decode(errors="replace"))) if settings is not None else {},
            RoleReply.decode(role) if role is not None else None,
            HaStatusBody.decode(copies.body) if copies is not None and copies.body else None,
        )

    async def _find_elsewhere(self, silent: Unanswered) -> str:
        """Return the address where a silent broker answers: its port on the host of a name server; else nothing.

        So it is when a broker advertises an address that is not reached from here.
        """
        port = silent.address.rpartition(":")[2]
        hosts = {server.address.rpartition(":")[0] for server in self._name_servers}
        for address in sorted(f"{host}:{port}" for host in hosts):
            if address == silent.address:
                continue
            reply = await _else_none(self._ask(address, RequestCode.GET_BROKER_CONFIG, timeout_ms=LOOK_MS))
            if reply is None:
                continue
            settings = parse_properties(bytes(reply.body).decode(errors="replace"))
            if settings.get("brokerName") == silent.broker_name:
                return address
        return ""

    async def _count_stored(self, topics: Iterable[TopicOnBroker]) -> tuple[dict[str, int], list[str]]:
        """Return how many messages the topics have that ought to be empty: dead letters, given up transactions."""
        wanted = [
            one for one in topics if one.config.name.startswith(DLQ_PREFIX) or one.config.name == CHECK_MAX_TIME_TOPIC
        ]
        left_out = (
            [f"{len(wanted) - MAX_TOPICS_COUNTED} dead letter topics"] if len(wanted) > MAX_TOPICS_COUNTED else []
        )
        wanted = wanted[:MAX_TOPICS_COUNTED]
        header = [TopicHeader(one.config.name) for one in wanted]
        replies = await asyncio.gather(
            *(
                _else_none(self._ask(one.node, RequestCode.GET_TOPIC_STATS_INFO, which))
                for one, which in zip(wanted, header, strict=True)
            )
        )
        stored: dict[str, int] = {}
        for one, reply in zip(wanted, replies, strict=True):
            if reply is not None:
                offsets = TopicStats.decode(reply.body).offsets.values()
                count = sum(max(queue.max_offset - queue.min_offset, 0) for queue in offsets)
                stored[one.config.name] = stored.get(one.config.name, 0) + count
        return stored, left_out

    async def _members_of(
        self, progress: Mapping[str, GroupProgress], configs: Iterable[GroupOnBroker], masters: Iterable[BrokerNode]
    ) -> dict[str, Consumers]:
        """Return who is in each group: one broker is asked, that on which it is farthest behind, else any that has it.

        Members are connected to every broker that they consume from. A group that brokers said to be without members,
        with its progress, is not asked about again.
        """
        empty = {group: Consumers(group) for group, one in progress.items() if one.clients == 0}
        by_name = {node.broker_name: node for node in masters}
        where = {one.config.name: one.node for one in configs}
        where |= {group: node for group, one in progress.items() if (node := _busiest(one, by_name)) is not None}
        wanted = (group for group in where if group not in empty and not group.startswith(SYSTEM_GROUP_PREFIX))
        asked = [(group, where[group]) for group in wanted]
        found = await asyncio.gather(*(self._members_on(group, node) for group, node in asked))
        return empty | {group: one for (group, _), one in zip(asked, found, strict=True) if one is not None}

    async def _members_on(self, group: str, node: BrokerNode) -> Consumers | None:
        header = ConsumerGroupHeader(group)
        try:
            reply = await self._ask(node, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        except BrokerError as error:
            return Consumers(group) if error.code == ResponseCode.CONSUMER_NOT_ONLINE else None
        except CosmodromeError:
            return None
        return _consumers(group, ConsumerConnection.decode(reply.body))

    async def _running_of(
        self, progress: Mapping[str, GroupProgress], members: Mapping[str, Consumers], masters: Iterable[BrokerNode]
    ) -> tuple[dict[tuple[str, str], ConsumerRunningInfo], list[str]]:
        """Ask the members of groups that are behind what they do, the farthest behind first."""
        by_name = {node.broker_name: node for node in masters}
        behind = sorted((one for one in progress.values() if one.lag), key=lambda one: -one.lag)
        wanted = [
            (one.group, client.client_id, node)
            for one in behind
            if one.group in members and (node := _busiest(one, by_name)) is not None
            for client in members[one.group].clients
        ]
        left_out = [f"{len(wanted) - MAX_MEMBERS_ASKED} members of groups that are behind"]
        asked = wanted[:MAX_MEMBERS_ASKED]
        replies = await asyncio.gather(
            *(
                _else_none(
                    self._ask(
                        node, RequestCode.GET_CONSUMER_RUNNING_INFO, GetRunningInfo(group, client), timeout_ms=LOOK_MS
                    )
                )
                for group, client, node in asked
            )
        )
        found = {
            (group, client): ConsumerRunningInfo.decode(reply.body)
            for (group, client, _), reply in zip(asked, replies, strict=True)
            if reply is not None
        }
        return found, left_out if len(wanted) > MAX_MEMBERS_ASKED else []


def _counted(nodes: tuple[BrokerNode, ...]) -> str:
    return f"knows {len(nodes)} broker{'' if len(nodes) == 1 else 's'}"


def _part(node: BrokerNode, look: BrokerFacts | Unanswered) -> Part:
    name = f"{node.broker_name}:{node.broker_id}"
    if isinstance(look, Unanswered):
        return Part("broker", name, node.address, False, look.reason)
    if look.role is not None and look.role.no_messages:
        return Part("broker", name, node.address, False, f"it takes no messages: {look.role.no_messages}")
    return Part("broker", name, node.address, True, look.settings.get("brokerRole", ""))


def _busiest(progress: GroupProgress, nodes: Mapping[str, BrokerNode]) -> BrokerNode | None:
    """Return the broker on which a group is farthest behind."""
    lags: dict[str, int] = {}
    for queue in progress.queues:
        lags[queue.broker_name] = lags.get(queue.broker_name, 0) + queue.lag
    known = [name for name in lags if name in nodes]
    return nodes[max(known, key=lambda name: lags[name])] if known else None


def _consumers(group: str, body: ConsumerConnection) -> Consumers:
    return Consumers(
        group,
        client_infos(body.connections),
        body.consume_type,
        body.message_model,
        body.consume_from,
        tuple(body.subscriptions[topic] for topic in sorted(body.subscriptions)),
        dict(body.disagreement),
    )


async def _else_none(asking: Awaitable[T]) -> T | None:
    try:
        return await asking
    except CosmodromeError:
        return None
