"""Which queues each member of a group reads, when the broker decides it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cosmodrome.broker.topics import Topics
from cosmodrome.client.name_servers import NameServers
from cosmodrome.client.rebalance import Strategy, averagely, by_circle
from cosmodrome.client.routes import subscribe_queues
from cosmodrome.clock import Clock
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import ClientError, RouteNotFound
from cosmodrome.model import MessageQueue, RequestMode, Route
from cosmodrome.net.caller import Caller
from cosmodrome.net.lane import Lane
from cosmodrome.wire.bodies import RequestModeBody

log = logging.getLogger(__name__)

ASK_TIMEOUT_MS = 2_000
FRESH_MS = 5_000
MAX_KNOWN_TOPICS = 10_000
MAX_KNOWN_QUEUES = 500_000  # of all known topics; each takes some hundred bytes
MANY_QUEUES = 1_000  # of a topic: counted and sorted beside the loop
ANY_QUEUE = -1

STRATEGIES: dict[str, Strategy] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}


def assigned(
    queues: Sequence[MessageQueue], client_ids: Sequence[str], me: str, strategy: Strategy, mode: RequestModeBody
) -> list[MessageQueue]:
    """The queues of one member. Those who pop share: all queues, or the ones of some members after them. Pure."""
    if mode.mode is RequestMode.PULL:
        return strategy(queues, client_ids, me)
    if not 0 < mode.pop_share_queues < len(client_ids) - 1:
        brokers = sorted({queue.broker_name for queue in queues})
        return [MessageQueue(mode.topic, broker, ANY_QUEUE) for broker in brokers]
    members = sorted(client_ids)
    if me not in members:
        return []
    index = members.index(me)
    if len(members) > len(queues):  # then everyone has one at least
        return [sorted(queues)[index % len(queues)]] if queues else []
    sharing = [members[(index + number) % len(members)] for number in range(mode.pop_share_queues + 1)]
    return sorted({queue for member in sharing for queue in strategy(queues, members, member)})


class TopicQueues:
    """The queues of topics on all brokers, as the name servers know them; asked again after some seconds."""

    def __init__(self, config: BrokerConfig, caller: Caller, topics: Topics, clock: Clock, lane: Lane) -> None:
        addresses = config.name_servers
        self._name_servers = NameServers(caller, addresses, ASK_TIMEOUT_MS) if addresses else None
        self._broker_name = config.broker_name
        self._topics = topics
        self._clock = clock
        self._lane = lane
        self._known: dict[str, tuple[int, tuple[MessageQueue, ...]]] = {}
        self._count = 0  # of queues in it

    async def find(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """None when nobody knows the topic."""
        asked_ms, queues = self._known.get(topic, (0, ()))
        if self._clock.steady_ms() - asked_ms < FRESH_MS:
            return queues
        route: Route | None = None
        try:
            route = await self._ask(topic)
        except ClientError as error:  # then what we know is better than nothing
            log.warning("cannot ask where %s lives: %s", topic, error)
        else:
            queues = ()
        own = self._own(topic)
        count = len(queues) + len(own) + (sum(data.read_queues for data in route.queues) if route is not None else 0)

        def gather() -> tuple[MessageQueue, ...]:
            told = queues if route is None else subscribe_queues(topic, route)
            return tuple(sorted({*told, *(MessageQueue(topic, self._broker_name, queue_id) for queue_id in own)}))

        found = await self._lane.aside(gather) if count > MANY_QUEUES else gather()
        if not found:
            return None
        self._keep(topic, found)
        return found

    def _keep(self, topic: str, queues: tuple[MessageQueue, ...]) -> None:
        _, before = self._known.pop(topic, (0, ()))
        self._count += len(queues) - len(before)
        if len(self._known) >= MAX_KNOWN_TOPICS or self._count > MAX_KNOWN_QUEUES:
            self._known.clear()
            self._count = len(queues)
        self._known[topic] = (self._clock.steady_ms(), queues)

    async def _ask(self, topic: str) -> Route | None:
        if self._name_servers is None:
            return None
        try:
            return await self._name_servers.route(topic)
        except RouteNotFound:
            return None

    def _own(self, topic: str) -> range:
        """Return the ids of our queues, which count even before the name servers have heard of them."""
        config = self._topics.find_topic(topic)
        return range(config.read_queues if config is not None and config.readable else 0)
