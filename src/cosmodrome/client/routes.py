"""Where topics live: what the name servers said, kept fresh.

A route may be old at any moment; whoever uses it must survive that, and says `doubt` when it looks wrong.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from cosmodrome.client.lifecycle import going_on
from cosmodrome.clock import Clock
from cosmodrome.errors import CosmodromeError, RouteNotFound, SendFailed
from cosmodrome.model import AUTO_CREATE_TOPIC, MASTER_ID, MAX_QUEUES, BrokerData, MessageQueue, Perm, Route
from cosmodrome.numbers import parse_int

log = logging.getLogger(__name__)

# Topics without a route, those whose route just changed, and all topics after a doubt, are asked for again this soon.
RETRY_INTERVAL_MS = 1_000
# Queues per broker that a topic yet to be created is taken to have; also what a send asks the broker to create.
NEW_TOPIC_QUEUES = 4


@dataclass(frozen=True, slots=True)
class NewTopics:
    """How a topic that does not exist comes into being: made by a broker from its template, with so many queues."""

    template: str = AUTO_CREATE_TOPIC
    queues: int = NEW_TOPIC_QUEUES


class RouteSource(Protocol):
    async def route(self, topic: str) -> Route:
        """The topic's route, or RouteNotFound."""
        ...


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """A topic's route and the queues that follow from it, worked out once."""

    route: Route
    publish_queues: tuple[MessageQueue, ...]
    subscribe_queues: tuple[MessageQueue, ...]
    borrowed: bool  # the topic does not exist yet: this is the route of the template it will be made from


def topic_route(topic: str, route: Route, *, borrowed: bool = False) -> TopicRoute:
    """Sorted first: name servers give the same route in a different order each time, and that is no change."""
    queues = tuple(sorted(route.queues, key=lambda data: data.broker_name))
    brokers = tuple(sorted(route.brokers, key=lambda data: data.broker_name))
    route = Route(queues, brokers, route.order_conf)
    return TopicRoute(route, publish_queues(topic, route), subscribe_queues(topic, route), borrowed)


def publish_queues(topic: str, route: Route) -> tuple[MessageQueue, ...]:
    """The queues one may send to: those with write permission on brokers that have a master."""
    if route.order_conf:
        return _ordered_queues(topic, route.order_conf)
    masters = {broker.broker_name for broker in route.brokers if broker.master is not None}
    return tuple(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in sorted(route.queues, key=lambda data: data.broker_name)
        if data.perm & Perm.WRITE and data.broker_name in masters
        for queue_id in range(data.write_queues)
    )


def no_queue_to_write(topic: str, route: Route) -> SendFailed:
    """Return the error of a send to a topic without publish queues: a slave takes no messages."""
    masterless = sorted(broker.broker_name for broker in route.brokers if broker.master is None and broker.addresses)
    why = f": no master of {', '.join(masterless)} is registered, only slaves" if masterless else ""
    return SendFailed(f"no queue of topic {topic} may be written to{why}")


def subscribe_queues(topic: str, route: Route) -> tuple[MessageQueue, ...]:
    """The queues one may read from."""
    return tuple(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in sorted(route.queues, key=lambda data: data.broker_name)
        if data.perm & Perm.READ
        for queue_id in range(data.read_queues)
    )


def _ordered_queues(topic: str, order_conf: str) -> tuple[MessageQueue, ...]:
    """An ordered topic's queues are configured, `broker-a:8;broker-b:8`, so that they outlast a broker's absence."""
    queues: list[MessageQueue] = []
    for part in filter(None, order_conf.split(";")):
        broker_name, _, count = part.partition(":")
        number = parse_int(count, high=MAX_QUEUES)
        queues += (MessageQueue(topic, broker_name, queue_id) for queue_id in range(number or 0))
    return tuple(queues)


def borrowed_route(template: Route, max_queues: int = NEW_TOPIC_QUEUES) -> Route:
    """The route a topic will have once a broker made it from the template."""
    queues = []
    for data in template.queues:
        count = min(max_queues, data.read_queues)
        queues.append(dataclasses.replace(data, read_queues=count, write_queues=count))
    return dataclasses.replace(template, queues=tuple(queues), order_conf=None)


class _Poll:
    """When to ask for one topic again, counted in rounds.

    A route that just changed may well change again, since a new topic spreads from broker to broker: the gaps between
    two questions begin with one round and double up to the regular interval.
    """

    __slots__ = ("_gap", "_longest", "_rounds_left")

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self.changed()

    def is_due(self) -> bool:
        """Called once in each round. What is due stays so until something is learned."""
        self._rounds_left -= 1
        return self._rounds_left <= 0

    def changed(self) -> None:
        self._gap = self._rounds_left = 1

    def unchanged(self) -> None:
        self._gap = self._rounds_left = min(self._gap * 2, self._longest)

    def settled(self) -> None:
        self._gap = self._rounds_left = self._longest


class Routes:
    """The routes of the topics in use.

    A route once known is kept while the name servers are away or have forgotten it. With `borrow`, a topic that does
    not exist yet gets the route of the template from which a broker that is sent a message will make it. That route is
    kept for a whole interval, so that sends take turns over all its brokers and each makes the topic; with the topic's
    own route at once, it would stay on the first.
    """

    def __init__(
        self,
        source: RouteSource,
        clock: Clock,
        *,
        poll_interval_ms: int,
        borrow: bool,
        on_change: Callable[[], None],
        new_topics: NewTopics | None = None,
    ) -> None:
        self._source = source
        self._clock = clock
        self._longest_gap = max(1, poll_interval_ms // RETRY_INTERVAL_MS)
        self._borrow = borrow
        self._new_topics = new_topics or NewTopics()
        self._on_change = on_change
        self._topics: dict[str, TopicRoute | None] = {}  # None: in use, not known to any name server
        self._polls: dict[str, _Poll] = {}  # one for each topic in use
        self._asking: dict[str, asyncio.Task[TopicRoute]] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._doubted = False

    def find(self, topic: str) -> TopicRoute | None:
        """What is known now, without asking."""
        return self._topics.get(topic)

    async def topic(self, topic: str) -> TopicRoute:
        """The topic's route, asked for if unknown; RouteNotFound when the name server does not know it either.

        From now on the topic is in use.
        """
        return self._topics.get(topic) or await self._ask(topic)

    async def _ask(self, topic: str) -> TopicRoute:
        """However many wait for a topic, the name server is asked once; a waiter that gives up leaves the others be."""
        task = self._asking.get(topic)
        if task is None:
            task = self._asking[topic] = asyncio.create_task(self._load(topic))
            task.add_done_callback(lambda done: self._asked(topic, done))
        return await asyncio.shield(task)

    def _asked(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        del self._asking[topic]
        if not task.cancelled():
            task.exception()  # its waiters have it; when all have given up nobody needs it

    async def _load(self, topic: str) -> TopicRoute:
        self._topics.setdefault(topic, None)
        self._polls.setdefault(topic, _Poll(self._longest_gap))
        try:
            fresh = topic_route(topic, await self._source.route(topic))
        except RouteNotFound:
            fresh = await self._load_unknown(topic)
        self._learn(topic, fresh)
        return fresh

    async def _load_unknown(self, topic: str) -> TopicRoute:
        known = self._topics.get(topic)
        if known is not None and not known.borrowed:
            return known
        if self._borrow:
            return await self._load_borrowed(topic)
        if topic in self._polls:
            self._polls[topic].changed()  # it may come at any moment
        raise RouteNotFound(topic)

    async def _load_borrowed(self, topic: str) -> TopicRoute:
        try:
            template = await self._source.route(self._new_topics.template)
        except RouteNotFound:
            raise RouteNotFound(topic) from None
        return topic_route(topic, borrowed_route(template, self._new_topics.queues), borrowed=True)

    def _learn(self, topic: str, fresh: TopicRoute) -> None:
        if topic not in self._topics:  # forgotten meanwhile
            return
        poll = self._polls[topic]
        if fresh == self._topics[topic]:
            poll.unchanged()
            return
        poll.settled() if fresh.borrowed else poll.changed()
        del self._topics[topic]  # to come last: of a broker that moved, the newest route knows where to
        self._topics[topic] = fresh
        self._index_brokers()
        self._on_change()

    def _index_brokers(self) -> None:
        known = (topic for topic in self._topics.values() if topic is not None)
        self._brokers = {broker.broker_name: broker for topic in known for broker in topic.route.brokers}

    def forget(self, topic: str) -> None:
        """The topic is no longer in use."""
        self._polls.pop(topic, None)
        if self._topics.pop(topic, None) is not None:
            self._index_brokers()

    def doubt(self) -> None:
        """Something did not go as the routes say; ask for all of them again soon."""
        self._doubted = True

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        broker = self._brokers.get(broker_name)
        return None if broker is None else broker.addresses.get(broker_id)

    def readable_address(self, broker_name: str, broker_id: int) -> tuple[str, int] | None:
        """Where to read, and that member's id: the one asked for, else the master, else any."""
        broker = self._brokers.get(broker_name)
        if broker is None:
            return None
        for member in (broker_id, MASTER_ID, *broker.addresses):
            if member in broker.addresses:
                return broker.addresses[member], member
        return None

    def addresses(self, *, masters_only: bool) -> set[str]:
        return {
            address
            for broker in self._brokers.values()
            for member, address in broker.addresses.items()
            if member == MASTER_ID or not masters_only
        }

    async def run(self) -> None:
        """Ask again for every topic in use, each in its own time."""
        while True:
            await self._clock.sleep(RETRY_INTERVAL_MS)
            due = [topic for topic, poll in self._polls.items() if poll.is_due() or self._doubted]
            self._doubted = False
            with going_on("refresh of routes"):
                await self._refresh(due)

    async def _refresh(self, topics: Iterable[str]) -> None:
        for topic in topics:
            try:
                await self._ask(topic)
            except RouteNotFound:
                log.debug("no name server knows %s", topic)
            except CosmodromeError as error:
                log.warning("routes not refreshed: %s", error)
                return  # no name server answers; the next round will try again
