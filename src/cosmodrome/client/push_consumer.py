"""Receiving messages as a member of a group."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
from collections.abc import Iterable
from typing import NamedTuple

from cosmodrome.client.assigned_queue import AssignedQueue
from cosmodrome.client.bell import Bell
from cosmodrome.client.handlers import Consume, Delivery, Handler, Handlers, unhandled
from cosmodrome.client.instance import Instance
from cosmodrome.client.lifecycle import Startable, cancelled
from cosmodrome.client.process_queue import ProcessQueue
from cosmodrome.client.producer import tracer_of
from cosmodrome.client.rebalance import averagely
from cosmodrome.client.routes import TopicRoute
from cosmodrome.client.subscribing import Expression, subscription
from cosmodrome.clock import Clock, SystemClock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import ClientConfig
from cosmodrome.errors import BrokerError, ClientError, CosmodromeError, RouteNotFound
from cosmodrome.model import (
    ALL_TAGS,
    RETRY_PREFIX,
    ConsumeFrom,
    ConsumeType,
    MessageModel,
    MessageQueue,
    ReceivedMessage,
    Subscription,
    check_group,
    check_topic,
    retry_topic,
)
from cosmodrome.net.connection import Connection
from cosmodrome.wire.bodies import ConsumerData, ConsumerIds, HeartbeatData
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header
from cosmodrome.wire.requests import (
    ConsumerGroupHeader,
    OffsetReply,
    QueryConsumerOffset,
    QueueHeader,
    SearchOffset,
    SendBack,
)

log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 20
STOP_TIMEOUT_MS = 10_000
REBALANCE_MIN_DISTANCE_MS = 1_000
OFFSET_TIMEOUT_MS = 5_000
SEND_BACK_TIMEOUT_MS = 5_000
# Where ConsumeFrom.TIMESTAMP starts unless told otherwise.
DEFAULT_LOOK_BACK_MS = 30 * 60 * 1_000

_BROKER_DECIDES_DELAY = 0


class _Subscribed:
    """One topic of this consumer."""

    def __init__(self, subscription: Subscription, consume: Consume) -> None:
        self.subscription = subscription
        self.consume = consume
        self.announced_version = subscription.version

    def bump(self, now_ms: int) -> None:
        version = max(now_ms, self.subscription.version + 1)
        self.subscription = dataclasses.replace(self.subscription, version=version)


class PushConsumer(Startable):
    """Receives the messages of the subscribed topics, sharing them with the other members of its group.

        consumer = PushConsumer("billing", "127.0.0.1:9876")
        consumer.subscribe("orders", "paid || refunded", handler)
        async with consumer:
            ...

    A message is done when its handler returns. When it raises, the broker delivers the message again later, and after
    `max_reconsume_times` (the group's own limit, unless given here) puts it among the dead letters, topic %DLQ%group.
    Every message is handled at least once: a crash, or a queue that moves to another member, may repeat some.
    `consume_from` counts only for a group that never consumed the queue before. `stop` waits up to `stop_timeout_ms`
    for running handlers and commits what they finished. With `trace`, what becomes of every message is written down for
    `cosmodrome trace`.
    """

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_reconsume_times: int | None = None,
        stop_timeout_ms: int = STOP_TIMEOUT_MS,
        trace: bool = False,
        config: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        config = config or ClientConfig()
        self._config = dataclasses.replace(config, namesrv=namesrv or config.namesrv)
        self._clock = clock or SystemClock()
        self._group = check_group(group)
        self._consume_from = consume_from
        self._consume_timestamp_ms = consume_timestamp_ms
        self._max_reconsume_times = max_reconsume_times
        self._stop_timeout_ms = stop_timeout_ms
        self._subscribed: dict[str, _Subscribed] = {}
        self._assigned: dict[MessageQueue, tuple[AssignedQueue, asyncio.Task[None]]] = {}
        self._rebalance_due = Bell(self._clock)
        self._brokers_to_tell = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._tracer = tracer_of(self._group, "CONSUME", namesrv, config, self._clock) if trace else None
        self._handlers = Handlers(max_in_flight, self._send_back, self._clock, self._tracer)
        self._instance = Instance(
            self._config,
            self._clock,
            self._announce,
            heartbeat_to_slaves=True,
            on_routes_changed=self._rebalance_soon,
        )
        self._instance.handlers[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] = self._members_changed
        self._subscribe(retry_topic(self._group), ALL_TAGS, _UNHANDLED)

    @property
    def client_id(self) -> str:
        return self._instance.client_id

    @property
    def assigned_queues(self) -> list[MessageQueue]:
        """The queues this member reads at the moment."""
        return sorted(self._assigned)

    # --- subscribing

    def subscribe(self, topic: str, expression: Expression, handler: Handler, *, batch: int | None = None) -> None:
        """Hand the topic's messages whose tag is in `expression` ("*" for all, "a || b") to `handler`.

        With `Sql("price > 5")` as expression, the broker chooses by the properties of the messages.
        The handler gets one message at a time; or a list of up to `batch` of them, if that is given; or a list, if its
        parameter is annotated as one (`messages: list[ReceivedMessage]`). An `async def` runs on the event loop, a
        `def` in a thread. Subscribing to a topic again replaces expression and handler.
        """
        check_topic(topic)
        if topic.startswith(RETRY_PREFIX):
            raise ClientError(f"{topic} is read by its group by itself; subscribe to the original topic")
        self._subscribe(topic, expression, Consume.by(handler, batch))

    def _subscribe(self, topic: str, expression: Expression, consume: Consume) -> None:
        known = self._subscribed.get(topic)
        version = max(self._clock.now_ms(), known.subscription.version + 1 if known else 0)
        wanted = subscription(topic, expression, version)
        if known is None:
            self._subscribed[topic] = _Subscribed(wanted, consume)
        else:  # its queues hold on to `known`
            known.subscription, known.consume = wanted, consume
        self._rebalance_soon()

    def unsubscribe(self, topic: str) -> None:
        """Stop reading the topic; what was handed to its handler is finished."""
        check_topic(topic)
        if not topic.startswith(RETRY_PREFIX) and self._subscribed.pop(topic, None) is not None:
            self._instance.routes.forget(topic)
            self._rebalance_soon()

    # --- starting and stopping

    async def _start(self) -> None:
        """After the first round our queues have their start offsets: what is sent from now on is received."""
        self._instance.start()
        if self._tracer is not None:
            await self._tracer.start()
        settled = await self._rebalance()
        self._tasks = {
            self._instance.run(self._rebalances(settled), "rebalance"),
            self._instance.run(self._commits(), "commits"),
        }

    async def _stop(self) -> None:
        """In the order the data flows: pulls, handlers, offsets, and last the connections."""
        await cancelled(self._tasks)
        await cancelled({task for _, task in self._assigned.values()})
        await self._handlers.stop(self._stop_timeout_ms)
        if self._tracer is not None:
            await self._tracer.stop()
        await asyncio.gather(*(assigned.commit() for assigned, _ in self._assigned.values()))
        self._assigned.clear()
        await self._instance.stop(consumer_group=self._group)

    def _announce(self, client_id: str) -> HeartbeatData:
        subscriptions = tuple(subscribed.subscription for subscribed in self._subscribed.values())
        consumer = ConsumerData(
            self._group,
            ConsumeType.PASSIVELY,
            MessageModel.CLUSTERING,
            self._consume_from,
            subscriptions,
        )
        return HeartbeatData(client_id, consumers=(consumer,))

    # --- sharing the queues

    def _rebalance_soon(self) -> None:
        self._brokers_to_tell = True
        self._rebalance_due.ring()

    async def _members_changed(self, _connection: Connection, _command: Command) -> None:
        """NOTIFY_CONSUMER_IDS_CHANGED. A new member has newer routes, and shares fit only if all see the same."""
        self._instance.routes.doubt()
        self._rebalance_due.ring()

    async def _rebalances(self, settled: bool) -> None:
        while True:
            await self._clock.sleep(REBALANCE_MIN_DISTANCE_MS)
            if settled:
                await self._rebalance_due.wait(self._config.rebalance_interval_ms - REBALANCE_MIN_DISTANCE_MS)
            settled = await self._rebalance()

    async def _rebalance(self) -> bool:
        """Take the queues that are ours and let go of those that are not; False if something could not be found out."""
        self._rebalance_due.clear()
        routes = await self._known_routes()
        if self._brokers_to_tell:  # before the first pull: they answer only consumers they have heard of
            self._brokers_to_tell = False
            await self._tell_brokers()
        members = _Members(self._instance, self._group)
        outcomes = [await self._rebalance_topic(topic, route, members) for topic, route in routes.items()]
        await self._release([queue for queue in self._assigned if queue.topic not in self._subscribed])
        if changed := [topic for topic, outcome in zip(routes, outcomes, strict=True) if outcome.changed]:
            await self._bump_versions(changed)
        return all(outcome.settled for outcome in outcomes)

    async def _known_routes(self) -> dict[str, TopicRoute]:
        """Of the subscribed topics that have one; a route that comes later starts another round."""
        routes: dict[str, TopicRoute] = {}
        for topic in list(self._subscribed):
            try:
                routes[topic] = await self._instance.routes.topic(topic)
            except RouteNotFound:
                log.debug("topic %s does not exist yet", topic)
            except CosmodromeError as error:
                log.warning("no route for %s: %s", topic, error)
        return routes

    async def _tell_brokers(self) -> None:
        versions = {subscribed: subscribed.subscription.version for subscribed in self._subscribed.values()}
        await self._instance.heartbeat()
        for subscribed, version in versions.items():
            subscribed.announced_version = version

    async def _bump_versions(self, topics: Iterable[str]) -> None:
        for topic in topics:
            if (subscribed := self._subscribed.get(topic)) is not None:
                subscribed.bump(self._clock.now_ms())
        await self._tell_brokers()

    async def _rebalance_topic(self, topic: str, route: TopicRoute, members: _Members) -> _Outcome:
        subscribed = self._subscribed.get(topic)
        if subscribed is None:  # unsubscribed while the round was under way
            return _Outcome(settled=True, changed=False)
        try:
            client_ids = await members.ask(route)
        except CosmodromeError as error:
            log.warning("queues of %s stay as they are: %s", topic, error)
            return _Outcome(settled=False, changed=False)
        mine = set(averagely(route.subscribe_queues, client_ids, self.client_id))
        lost = [queue for queue in self._assigned if queue.topic == topic and queue not in mine]
        await self._release(lost)
        taken = await asyncio.gather(*(self._acquire(queue, subscribed) for queue in mine - self._assigned.keys()))
        changed = bool(lost) or any(taken)
        if changed:
            log.info("%s: %d queues of %s, shared by %d", self.client_id, len(mine), topic, len(client_ids))
        return _Outcome(settled=self.client_id in client_ids and all(taken), changed=changed)

    async def _release(self, queues: Iterable[MessageQueue]) -> None:
        await asyncio.gather(*map(self._release_one, queues))

    async def _release_one(self, queue: MessageQueue) -> None:
        """What is in process is not waited for: the queue's new owner has started already."""
        assigned, task = self._assigned[queue]
        await cancelled([task])
        assigned.process.released = True
        await assigned.commit()
        del self._assigned[queue]  # last, so that a stop in between commits as well

    async def _acquire(self, queue: MessageQueue, subscribed: _Subscribed) -> bool:
        try:
            stored_offset = await self._stored_offset(queue)
            start_offset = await self._start_offset(queue) if stored_offset is None else stored_offset
        except CosmodromeError as error:
            log.warning("%s is left for the next round: %s", queue, error)
            return False
        assigned = AssignedQueue(
            queue,
            start_offset,
            stored_offset,
            group=self._group,
            wanted=subscribed,
            instance=self._instance,
            clock=self._clock,
            deliver=self._deliver,
        )
        self._assigned[queue] = assigned, self._instance.run(assigned.run(), f"pull {queue}")
        return True

    # --- offsets

    async def _stored_offset(self, queue: MessageQueue) -> int | None:
        header = QueryConsumerOffset(self._group, queue.topic, queue.queue_id)
        try:
            offset = await self._ask_offset(queue, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except BrokerError as refusal:
            if refusal.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return offset if offset >= 0 else None

    async def _start_offset(self, queue: MessageQueue) -> int:
        """Where a group begins that has no offset stored: retry topics are read whole, except by timestamp."""
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        by_timestamp = self._consume_from is ConsumeFrom.TIMESTAMP
        if by_timestamp and not is_retry:
            since_ms = self._consume_timestamp_ms
            if since_ms is None:
                since_ms = self._clock.now_ms() - DEFAULT_LOOK_BACK_MS
            header = SearchOffset(queue.topic, queue.queue_id, since_ms)
            return await self._ask_offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        if by_timestamp or (self._consume_from is ConsumeFrom.LAST_OFFSET and not is_retry):
            return await self._ask_offset(queue, RequestCode.GET_MAX_OFFSET, QueueHeader(queue.topic, queue.queue_id))
        return 0

    async def _ask_offset(self, queue: MessageQueue, code: RequestCode, header: Header) -> int:
        address = self._instance.member(queue.broker_name)
        reply = await self._instance.ask(address, Command.request(code, header), OFFSET_TIMEOUT_MS)
        return OffsetReply.decode(reply).offset

    async def _commits(self) -> None:
        while True:
            await self._clock.sleep(self._config.persist_offset_interval_ms)
            for assigned, _ in list(self._assigned.values()):
                await assigned.commit_oneway()

    # --- handing over

    def _deliver(self, messages: list[ReceivedMessage], process: ProcessQueue) -> None:
        """Retried messages go to the handler of the topic they came from first."""
        for topic, run in itertools.groupby(messages, key=lambda message: message.topic):
            subscribed = self._subscribed.get(topic)
            consume = _UNHANDLED if subscribed is None else subscribed.consume
            for portion in consume.portions(list(run)):
                self._handlers.submit(Delivery(consume, portion, process))

    async def _send_back(self, message: ReceivedMessage) -> bool:
        """Have the broker deliver the message again later; whether it agreed."""
        header = SendBack(
            message.commit_log_offset,
            self._group,
            _BROKER_DECIDES_DELAY,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=self._max_reconsume_times,
        )
        try:
            address = self._instance.master(message.queue.broker_name)
            request = Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
            await self._instance.ask(address, request, SEND_BACK_TIMEOUT_MS)
        except CosmodromeError as error:
            log.info("%s was not taken back: %s", message.msg_id, error)
            return False
        return True


_UNHANDLED = Consume.by(unhandled)


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
