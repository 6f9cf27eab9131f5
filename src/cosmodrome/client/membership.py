"""Being a member of a group: who the others are, and which queues are ours."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple, Protocol

from cosmodrome.client.bell import Bell
from cosmodrome.client.hooks import RpcHook
from cosmodrome.client.instance import Instance
from cosmodrome.client.lifecycle import going_on
from cosmodrome.client.reach import Reach
from cosmodrome.client.rebalance import Strategy
from cosmodrome.client.routes import TopicRoute
from cosmodrome.client.subscribing import Expression, subscription
from cosmodrome.clock import Clock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import ClientConfig
from cosmodrome.errors import BrokerError, ClientError, CosmodromeError, RouteNotFound
from cosmodrome.filter import sql92
from cosmodrome.model import RETRY_PREFIX, ConsumeFrom, ConsumeType, MessageModel, MessageQueue, Subscription
from cosmodrome.net.connection import Connection
from cosmodrome.wire.bodies import CheckClientConfig, ConsumerData, ConsumerIds, HeartbeatData
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import ConsumerGroupHeader

log = logging.getLogger(__name__)

REBALANCE_MIN_DISTANCE_MS = 1_000


class Subscribed:
    """One topic of this member; whoever reads its queues holds on to it, for it may change at any time."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        # The newest version brokers were told of: a pull that claims a newer one is refused.
        self.announced_version = subscription.version

    def bump(self, now_ms: int) -> None:
        version = max(now_ms, self.subscription.version + 1)
        self.subscription = dataclasses.replace(self.subscription, version=version)


class Holder(Protocol):
    """Who reads the queues."""

    @property
    def held(self) -> Iterable[MessageQueue]: ...

    async def acquire(self, queues: Iterable[MessageQueue], subscribed: Subscribed) -> set[MessageQueue]:
        """Begin to read these; those that can't be read yet are left out of the answer and come again."""
        ...

    async def release(self, queues: Iterable[MessageQueue]) -> bool:
        """Stop reading these; False if some must be held a little longer."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Role:
    """What a member says of itself, and how it finds its share."""

    group: str
    consume_type: ConsumeType
    model: MessageModel
    consume_from: ConsumeFrom
    strategy: Strategy


# Told of a topic, all its queues, and ours.
OnShare = Callable[[str, tuple[MessageQueue, ...], set[MessageQueue]], None]
# Told of topics that are wanted by another expression than before, once the brokers know.
OnChanged = Callable[[set[str]], None]


class Membership:
    """Keeps the brokers told of the subscriptions, and the holder in possession of its share of the queues.

    A round is made at once when members, routes or subscriptions change, and else once per interval.
    """

    def __init__(
        self,
        role: Role,
        config: ClientConfig,
        clock: Clock,
        on_routes_changed: Callable[[], None] | None = None,
        rpc_hooks: Sequence[RpcHook] = (),
    ) -> None:
        self._role = role
        self._holder: Holder = _Nobody()
        self._clock = clock
        self._interval_ms = config.rebalance_interval_ms
        self._on_share: OnShare | None = None
        self._on_changed: OnChanged | None = None
        self._changed: set[str] = set()  # topics whose new expressions brokers do not know yet
        self._left: dict[str, Subscribed] = {}  # topics whose queues are still held by what was wanted before
        self._missing: set[str] = set()  # topics that no name server knows
        self._on_routes_changed = on_routes_changed
        self._due = Bell(clock)
        self._brokers_to_tell = False
        self.subscribed: dict[str, Subscribed] = {}
        self.watched: Set[str] = frozenset()  # topics whose routes are wanted, whether or not they are subscribed to
        self.pinned: frozenset[MessageQueue] | None = None  # if set, these are ours, whoever else is in the group
        self.instance = Instance(
            config,
            clock,
            self._announce,
            heartbeat_to_slaves=True,
            on_routes_changed=self._routes_changed,
            rpc_hooks=rpc_hooks,
        )
        self.reach = Reach(self.instance, clock, role.group, self.subscribed, self._note_missing)
        self.instance.handlers[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] = self._members_changed

    def _announce(self, client_id: str) -> HeartbeatData:
        subscriptions = tuple(subscribed.subscription for subscribed in self.subscribed.values())
        role = self._role
        consumer = ConsumerData(
            role.group,
            role.consume_type,
            role.model,
            role.consume_from,
            subscriptions,
            self.instance.unit_mode,
        )
        return HeartbeatData(client_id, consumers=(consumer,))

    def serve(self, holder: Holder, on_share: OnShare | None = None, on_changed: OnChanged | None = None) -> None:
        """Whom to hand queues, and whom to tell of every round that changed something and of new expressions."""
        self._holder, self._on_share, self._on_changed = holder, on_share, on_changed

    def start(self) -> None:
        self.instance.claim(f"consumer group {self._role.group}")
        self.instance.start()

    # --- subscribing

    def require_new(self, topic: str, shown: str) -> None:
        """ClientError if the topic is subscribed to, and a second expression would take the place of the first."""
        if topic in self.subscribed:
            raise ClientError(
                f"{shown} is subscribed to already; unsubscribe first, or pass replace=True to replace its subscription"
            )

    def subscribe(self, topic: str, expression: Expression) -> None:
        known = self.subscribed.get(topic)
        before = known or self._left.get(topic)
        version = max(self._clock.now_ms(), before.subscription.version + 1 if before else 0)
        wanted = subscription(topic, expression, version)
        if known is None:
            self.subscribed[topic] = Subscribed(wanted)
        else:  # its queues hold on to `known`
            known.subscription = wanted
            self._changed.add(topic)
        self.rebalance_soon()

    def unsubscribe(self, topic: str) -> None:
        if (left := self.subscribed.pop(topic, None)) is not None:
            self._left[topic] = left
            self.rebalance_soon()

    # --- rounds

    def _routes_changed(self) -> None:
        self.rebalance_soon()
        if self._on_routes_changed is not None:
            self._on_routes_changed()

    def rebalance_soon(self) -> None:
        self._brokers_to_tell = True
        self._due.ring()

    async def _members_changed(self, _connection: Connection, _command: Command) -> None:
        """NOTIFY_CONSUMER_IDS_CHANGED. A new member has newer routes, and shares fit only if all see the same."""
        self.instance.routes.doubt()
        self._due.ring()

    async def join(self) -> bool:
        """The first round. A wrong key, an untrusted certificate or a filter that a broker does not know is an error; a
        broker that is away may come back."""
        await self._check_filters()
        settled = await self.rebalance()
        self.instance.require_entry()
        return settled

    async def _check_filters(self) -> None:
        """Ask the brokers whether they can choose as we want; by tags every one can."""
        subscriptions = [subscribed.subscription for subscribed in self.subscribed.values()]
        wanted = [one for one in subscriptions if one.expression_type == sql92.EXPRESSION_TYPE]
        routes = await self._known_routes([one.topic for one in wanted])
        for one in wanted:
            if (route := routes.get(one.topic)) is not None:
                for broker in route.route.brokers:
                    await self._check_filter(broker.broker_name, one)

    async def _check_filter(self, broker_name: str, wanted: Subscription) -> None:
        body = CheckClientConfig(self.instance.client_id, self._role.group, wanted).encode()
        try:
            address = self.instance.member(broker_name)
            await self.instance.ask(address, Command.request(RequestCode.CHECK_CLIENT_CONFIG, body=body))
        except BrokerError as refusal:
            if refusal.code == ResponseCode.SYSTEM_ERROR:
                raise ClientError(
                    f"{broker_name} cannot choose messages of {wanted.topic} by {wanted.expression!r}: "
                    f"{refusal}; enablePropertyFilter=true in its configuration allows that"
                ) from refusal
            if refusal.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
        except CosmodromeError as error:
            log.warning("filter not checked: group=%s topic=%s error=%s", self._role.group, wanted.topic, error)

    async def run(self, settled: bool) -> None:
        while True:
            await self._clock.sleep(REBALANCE_MIN_DISTANCE_MS)
            if settled:
                await self._due.wait(self._interval_ms - REBALANCE_MIN_DISTANCE_MS)
            settled = False
            with going_on("rebalance"):
                settled = await self.rebalance()

    async def rebalance(self) -> bool:
        """Take the queues that are ours and let go of those that are not; False if that is not finished."""
        self._due.clear()
        routes = await self._known_routes(list(self.subscribed))
        if self._brokers_to_tell:  # before the first pull: they answer only consumers they have heard of
            self._brokers_to_tell = False
            await self._tell_brokers()
        members = _Members(self.instance, self._role.group)
        let_go = await self._leave_topics()
        outcomes = [await self._rebalance_topic(topic, route, members) for topic, route in routes.items()]
        if changed := [topic for topic, outcome in zip(routes, outcomes, strict=True) if outcome.changed]:
            await self._bump_versions(changed)
        self.reach.is_settled = let_go and all(outcome.settled for outcome in outcomes)
        return self.reach.is_settled

    async def _leave_topics(self) -> bool:
        """Also those that are subscribed to again: their queues are read by what was wanted before."""
        left, self._left = self._left, {}
        let_go = await self._holder.release(
            [queue for queue in self._holder.held if queue.topic in left or queue.topic not in self.subscribed]
        )
        unused = left.keys() - self.subscribed.keys() - self.watched
        for topic in unused:  # last: its route may be the only one to a broker
            self.instance.routes.forget(topic)
        return let_go

    async def _known_routes(self, topics: Iterable[str]) -> dict[str, TopicRoute]:
        """Of those topics that have one; a route that comes later starts another round."""
        routes: dict[str, TopicRoute] = {}
        for topic in topics:
            try:
                routes[topic] = await self.instance.routes.topic(topic)
                self._missing.discard(topic)
                self.reach.is_reached = True
            except RouteNotFound:
                self._note_missing(topic)
                self.reach.is_reached = True
            except CosmodromeError as error:
                log.warning("route not found: group=%s topic=%s error=%s", self._role.group, topic, error)
                self.instance.note_refusal(error)
        return routes

    def _note_missing(self, topic: str) -> None:
        """Once; brokers make the retry topic of a group that is new when they hear of it."""
        if topic not in self._missing and not topic.startswith(RETRY_PREFIX):
            log.warning("topic does not exist, waiting for it: group=%s topic=%s", self._role.group, topic)
        self._missing.add(topic)

    async def _tell_brokers(self) -> None:
        versions = {subscribed: subscribed.subscription.version for subscribed in self.subscribed.values()}
        await self.instance.heartbeat()
        for subscribed, version in versions.items():
            subscribed.announced_version = version
        changed, self._changed = self._changed, set()
        if changed and self._on_changed is not None:
            self._on_changed(changed)

    async def _bump_versions(self, topics: Iterable[str]) -> None:
        for topic in topics:
            if (subscribed := self.subscribed.get(topic)) is not None:
                subscribed.bump(self._clock.now_ms())
        await self._tell_brokers()

    async def _rebalance_topic(self, topic: str, route: TopicRoute, members: _Members) -> _Outcome:
        subscribed = self.subscribed.get(topic)
        if subscribed is None:  # unsubscribed while the round was under way
            return _Outcome(settled=True, changed=False)
        try:
            mine = await self._share(route, members)
        except CosmodromeError as error:
            log.warning("queues not shared out: group=%s topic=%s error=%s", self._role.group, topic, error)
            return _Outcome(settled=False, changed=False)
        held = {queue for queue in self._holder.held if queue.topic == topic}
        lost, new = held - mine.queues, mine.queues - held
        let_go = await self._holder.release(lost)
        taken = await self._holder.acquire(new, subscribed)
        changed = bool(lost or taken)
        if changed:
            log.info(
                "queues assigned: group=%s client=%s topic=%s queues=%s",
                self._role.group,
                self.instance.client_id,
                topic,
                ",".join(f"{queue.broker_name}/{queue.queue_id}" for queue in sorted(mine.queues)) or "none",
            )
            if self._on_share is not None:
                self._on_share(topic, route.subscribe_queues, mine.queues)
        return _Outcome(settled=mine.is_final and let_go and taken == new, changed=changed)

    async def _share(self, route: TopicRoute, members: _Members) -> _Share:
        if self.pinned is not None:
            return _Share(set(self.pinned.intersection(route.subscribe_queues)), is_final=True)
        if self._role.model is MessageModel.BROADCASTING:
            return _Share(set(route.subscribe_queues), is_final=True)
        client_ids = await members.ask(route)
        me = self.instance.client_id
        try:
            mine = set(self._role.strategy(route.subscribe_queues, client_ids, me))
        except Exception as error:  # a user may have written it
            raise ClientError(f"the allocation strategy failed: {error!r}") from error
        return _Share(mine, is_final=me in client_ids)


class _Nobody:
    """Holds nothing."""

    held: Iterable[MessageQueue] = ()

    async def acquire(self, queues: Iterable[MessageQueue], subscribed: Subscribed) -> set[MessageQueue]:
        return set()

    async def release(self, queues: Iterable[MessageQueue]) -> bool:
        return True


class _Share(NamedTuple):
    queues: set[MessageQueue]
    is_final: bool  # the brokers have heard of us


class _Outcome(NamedTuple):
    """How a topic's rebalance went."""

    settled: bool  # nothing is left for another round
    changed: bool  # queues came or went


class _Members:
    """Who is in the group, asked once per broker and round."""

    def __init__(self, instance: Instance, group: str) -> None:
        self._instance = instance
        self._request = ConsumerGroupHeader(group)
        self._known: dict[str, tuple[str, ...]] = {}

    async def ask(self, route: TopicRoute) -> tuple[str, ...]:
        """From the first broker of the route that answers: all members who ask the same one agree."""
        failure: CosmodromeError = ClientError("its route names no broker")
        for broker in route.route.brokers:
            try:
                address = self._instance.member(broker.broker_name)
                return self._known.get(address) or await self._ask(address)
            except CosmodromeError as error:
                failure = error
        raise failure

    async def _ask(self, address: str) -> tuple[str, ...]:
        request = Command.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, self._request)
        reply = await self._instance.ask(address, request)
        self._known[address] = client_ids = ConsumerIds.decode(bytes(reply.body)).ids
        return client_ids
