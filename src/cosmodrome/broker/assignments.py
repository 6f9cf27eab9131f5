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
from cosmodrome.model import MessageQueue, RequestMode
from cosmodrome.net.caller import Caller
from cosmodrome.wire.bodies import RequestModeBody

log = logging.getLogger(__name__)

ASK_TIMEOUT_MS = 2_000
FRESH_MS = 5_000
MAX_KNOWN_TOPICS = 10_000
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

    def __init__(self, config: BrokerConfig, caller: Caller, topics: Topics, clock: Clock) -> None:
        addresses = config.name_servers
        self._name_servers = NameServers(caller, addresses, ASK_TIMEOUT_MS) if addresses else None
        self._broker_name = config.broker_name
        self._topics = topics
        self._clock = clock
        self._known: dict[str, tuple[int, tuple[MessageQueue, ...]]] = {}

    async def find(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """None when nobody knows the topic."""
        asked_ms, queues = self._known.get(topic, (0, ()))
        if self._clock.steady_ms() - asked_ms < FRESH_MS:
            return queues
        try:
            queues = await self._ask(topic)
        except ClientError as error:  # then what we know is better than nothing
            log.warning("cannot ask where %s lives: %s", topic, error)
        queues = tuple(sorted({*queues, *self._own(topic)}))
        if not queues:
            return None
        if len(self._known) >= MAX_KNOWN_TOPICS:
            self._known.clear()
        self._known[topic] = (self._clock.steady_ms(), queues)
        return queues

    async def _ask(self, topic: str) -> tuple[MessageQueue, ...]:
        if self._name_servers is None:
            return ()
        try:
            return subscribe_queues(topic, await self._name_servers.route(topic))
        except RouteNotFound:
            return ()

    def _own(self, topic: str) -> list[MessageQueue]:
        """Ours count even before the name servers have heard of them."""
        config = self._topics.find_topic(topic)
        if config is None or not config.readable:
            return []
        return [MessageQueue(topic, self._broker_name, queue_id) for queue_id in range(config.read_queues)]
