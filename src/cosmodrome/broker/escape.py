"""Where messages go that a slave delivers while it acts as its master: to another master of the cluster.

A slave's own log is its master's, to the byte, so nothing may be added to it. A message counts as delivered once
another broker has answered that it is stored there; until then whoever delivers it keeps it and tries again. An answer
that is lost so costs a repetition, never a message.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from cosmodrome.client.name_servers import NameServers
from cosmodrome.clock import Clock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import ClientError, ProtocolError, RouteNotFound, ServiceNotAvailable
from cosmodrome.model import AUTO_CREATE_TOPIC, RETRY_PREFIX, Perm, Property, Route
from cosmodrome.net.caller import Caller
from cosmodrome.store.message import StoreMessage
from cosmodrome.wire import properties as props
from cosmodrome.wire.bodies import ClusterInfo
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import SysFlag
from cosmodrome.wire.requests import SendMessage

log = logging.getLogger(__name__)

ASK_TIMEOUT_MS = 2_000
SEND_TIMEOUT_MS = 3_000
FRESH_MS = 5_000  # routes are asked for again after this
MAX_ROUTES = 10_000
BROKERS_TRIED = 3  # for one message, one after the other

# All of them say that the message is stored; FLUSH_DISK_TIMEOUT says it too, but a power loss may still cost it.
_STORED = (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT)
_HOSTS_V6 = SysFlag.BORN_V6 | SysFlag.STORE_V6
# What a delivered message has asked for, and must not ask of another broker again.
_DONE = (
    Property.DELAY,
    Property.TIMER_DELAY_SEC,
    Property.TIMER_DELAY_MS,
    Property.TIMER_DELIVER_MS,
    Property.START_DELIVER_TIME,
    Property.TRAN_MSG,
)
_PLACES = (Property.REAL_TOPIC, Property.REAL_QID)


class Target(NamedTuple):
    """A master that takes messages of a topic, and how many queues it has for them."""

    broker_name: str
    address: str
    queues: int


def targets(route: Route, own_name: str) -> list[Target]:
    """Return the masters of other names that the topic may be sent to. Pure."""
    masters = {broker.broker_name: broker.master for broker in route.brokers if broker.broker_name != own_name}
    return [
        Target(queue.broker_name, master, queue.write_queues)
        for queue in sorted(route.queues, key=lambda one: one.broker_name)
        if queue.perm & Perm.WRITE and queue.write_queues > 0 and (master := masters.get(queue.broker_name))
    ]


def to_send(message: StoreMessage) -> StoreMessage:
    """Return a delivered message as its producer would send it now: it waits for nothing any more. Pure."""
    kept = {name: value for name, value in props.decode(message.properties).items() if name not in _DONE}
    sys_flag = message.sys_flag & ~SysFlag.TRANSACTION_MASK & ~_HOSTS_V6
    return replace(message, properties=props.encode(kept), sys_flag=sys_flag)


def half_to_send(message: StoreMessage, topic: str) -> StoreMessage:
    """Return a half message as its producer sent it: with it, its transaction begins anew at another broker. Pure."""
    kept = {name: value for name, value in props.decode(message.properties).items() if name not in _PLACES}
    kept.pop(Property.TRANSACTION_CHECK_TIMES, None)
    kept.pop(Property.TRAN_PREPARED_QUEUE_OFFSET, None)
    kept[Property.TRAN_MSG] = "true"
    sys_flag = message.sys_flag & ~SysFlag.TRANSACTION_MASK & ~_HOSTS_V6 | SysFlag.PREPARED
    return replace(message, topic=topic, properties=props.encode(kept), sys_flag=sys_flag)


class Escapes:
    """Sends to other masters, each in its turn; `sent` counts."""

    def __init__(self, config: BrokerConfig, caller: Caller, clock: Clock) -> None:
        self._config = config
        self._caller = caller
        self._clock = clock
        addresses = config.name_servers
        self._name_servers = NameServers(caller, addresses, ASK_TIMEOUT_MS) if addresses else None
        self._known: dict[str, tuple[int, list[Target]]] = {}
        self._turns = count()
        self._own_group = f"InnerProducerGroup_{config.broker_name}_{config.broker_id}"
        self.sent = 0

    async def put(self, message: StoreMessage, beside: str | None = None) -> None:
        """Return once another master has stored a delivered message; ServiceNotAvailable if none has.

        With `beside`, only one that has that topic: messages of its pop retry topics are found nowhere else.
        """
        await self._send(to_send(message), beside)

    async def put_half(self, message: StoreMessage, topic: str) -> None:
        """The same for a half message of `topic`."""
        await self._send(half_to_send(message, topic))

    async def _send(self, message: StoreMessage, beside: str | None = None) -> None:
        found = await self._targets(beside or message.topic)
        if not found:
            raise ServiceNotAvailable(f"no other master of the cluster takes messages of {message.topic}")
        turn = next(self._turns)
        problems: list[str] = []
        for number in range(min(len(found), BROKERS_TRIED)):
            target = found[(turn + number) % len(found)]
            problem = await self._try(message, target, 0 if beside else turn % target.queues)
            if problem is None:
                self.sent += 1
                return
            problems.append(f"{target.broker_name} at {target.address}: {problem}")
        self._known.pop(beside or message.topic, None)
        raise ServiceNotAvailable(f"no other master took a message of {message.topic}: {'; '.join(problems)}")

    async def _try(self, message: StoreMessage, target: Target, queue_id: int) -> str | None:
        """Send to one broker; return why it has not stored the message, None if it has."""
        header = SendMessage(
            props.find(message.properties, Property.PGROUP) or self._own_group,
            message.topic,
            AUTO_CREATE_TOPIC,
            1,
            queue_id,
            message.sys_flag,
            message.born_timestamp,
            message.flag,
            message.properties,
            message.reconsume_times,
            # It was decided before that it comes again: it is no dead letter yet.
            max_reconsume_times=message.reconsume_times + 1,
            broker_name=target.broker_name,
        )
        try:
            request = Command.request(RequestCode.SEND_MESSAGE, header, message.body)
            reply = await self._caller.call(target.address, request, SEND_TIMEOUT_MS)
        except (ClientError, ProtocolError) as error:
            return str(error)
        return None if reply.code in _STORED else f"answered {reply.code}: {reply.remark}"

    async def _targets(self, topic: str) -> list[Target]:
        asked_ms, known = self._known.get(topic, (None, []))
        if asked_ms is not None and self._clock.steady_ms() - asked_ms < FRESH_MS:
            return known
        if self._name_servers is None:
            raise ServiceNotAvailable("no name server is configured: namesrvAddr names none")
        try:
            found = await self._routed(self._name_servers, topic)
        except (ClientError, ProtocolError) as error:
            raise ServiceNotAvailable(f"cannot ask which brokers take messages of {topic}: {error}") from error
        if len(self._known) >= MAX_ROUTES:
            self._known.clear()
        self._known[topic] = (self._clock.steady_ms(), found)
        return found

    async def _routed(self, name_servers: NameServers, topic: str) -> list[Target]:
        try:
            found = targets(await name_servers.route(topic), self._config.broker_name)
        except RouteNotFound:
            found = []
        if found or not topic.startswith(RETRY_PREFIX):
            return found
        # A broker makes a retry topic when the first message comes for it.
        return others(await name_servers.cluster(), self._config.broker_cluster_name, self._config.broker_name)


def others(info: ClusterInfo, cluster: str, own_name: str) -> list[Target]:
    """Return the other masters of a cluster. Pure."""
    names = sorted(name for name in info.clusters.get(cluster, ()) if name != own_name)
    brokers = [info.brokers[name] for name in names if name in info.brokers]
    return [Target(broker.broker_name, broker.master, 1) for broker in brokers if broker.master is not None]
