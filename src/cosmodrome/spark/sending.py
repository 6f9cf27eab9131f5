"""Sending from a task: many requests under way at once, each acknowledged before the task is done."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from cosmodrome.client.queue_choice import Turns, select_by_hash
from cosmodrome.client.routes import NEW_TOPIC_QUEUES, borrowed_route, publish_queues, topic_route
from cosmodrome.client.sending import RETRIED_CODES, STATUS
from cosmodrome.codes import RequestCode
from cosmodrome.errors import (
    BrokerError,
    CallTimeout,
    ConnectionFailed,
    CosmodromeError,
    InvalidMessage,
    RouteNotFound,
    SendFailed,
    UnknownTopic,
)
from cosmodrome.model import AUTO_CREATE_TOPIC, Message, MessageQueue, SendStatus
from cosmodrome.spark.encoding import Place, Shipment
from cosmodrome.spark.link import MAX_PAUSE_SECONDS, Cluster, Peer
from cosmodrome.spark.sink_options import SinkOptions
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import SysFlag
from cosmodrome.wire.requests import SendMessage, SendReply

log = logging.getLogger(__name__)

_SEND = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)

# Told of everything that is stored: what it is, in which queue, and what the broker said.
Stored = Callable[[Shipment, MessageQueue, SendReply], None]


class _UnderWay(NamedTuple):
    shipment: Shipment
    queue: MessageQueue
    peer: Peer
    opaque: int


class Sender:
    """Sends over all queues of a topic in turn. What one broker does not take is tried at another, as the client does;
    what belongs into one queue is sent there one request after the other, so that it keeps its order."""

    def __init__(self, cluster: Cluster, options: SinkOptions, stored: Stored) -> None:
        self._cluster = cluster
        self._options = options
        self._stored = stored
        self._turns = Turns()
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._under_way: deque[_UnderWay] = deque()
        self._again: list[Shipment] = []

    def send(self, shipment: Shipment) -> None:
        """Put it under way; SendFailed if this or an earlier one is taken by no broker."""
        while len(self._under_way) >= self._options.max_in_flight or self._is_before(shipment):
            self._settle_oldest()
            self._send_again()
        self._launch(shipment)
        self._send_again()

    def finish(self) -> None:
        """Return when everything is acknowledged."""
        while self._under_way or self._again:
            if self._under_way:
                self._settle_oldest()
            self._send_again()

    def _is_before(self, shipment: Shipment) -> bool:
        """Whether something for the very queue of this one is still under way. Half messages come into it later, in
        the order of their commits."""
        if shipment.queue is None or shipment.sys_flag & SysFlag.PREPARED:
            return False
        return any(each.shipment.queue == shipment.queue for each in self._under_way)

    # --- where to

    def locate(self, place: Place) -> MessageQueue | None:
        if place.queue_id >= 0 and place.broker_name:
            queue = MessageQueue(place.topic, place.broker_name, place.queue_id)
            if queue not in self._writable(place.topic):
                raise InvalidMessage(
                    f"queue {place.queue_id} of topic {place.topic} on broker {place.broker_name} does not exist, "
                    "or may not be written to"
                )
            return queue
        if place.queue_id >= 0 or place.broker_name:
            raise InvalidMessage("a row has a brokerName without a queueId, or the reverse; they belong together")
        if place.sharding_key:
            return select_by_hash(self._writable(place.topic), Message(place.topic, b""), place.sharding_key)
        return None

    def _writable(self, topic: str) -> tuple[MessageQueue, ...]:
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._cluster.patiently(lambda: self._asked(topic), self._options.send_retries)
            if not queues:
                raise SendFailed(f"no queue of topic {topic} may be written to")
            self._queues[topic] = queues
        return queues

    def _asked(self, topic: str) -> tuple[MessageQueue, ...]:
        """Of a topic that does not exist yet, the queues it will have when a broker makes it."""
        try:
            return topic_route(topic, self._cluster.route(topic)).publish_queues
        except RouteNotFound:
            pass
        try:
            template = self._cluster.route(AUTO_CREATE_TOPIC)
        except RouteNotFound:
            raise UnknownTopic(topic) from None
        return publish_queues(topic, borrowed_route(template))

    # --- there and back

    def _launch(self, shipment: Shipment) -> None:
        """Send it, or keep it for later."""
        queue = shipment.queue
        if queue is None:
            queues = self._writable(shipment.topic)  # patient by itself: what it raises is not tried again
            queue = self._turns.next(shipment.topic, queues, 0, shipment.failed_broker)
        try:
            peer = self._cluster.peer(self._cluster.master(queue))
            opaque = peer.send(self._command(shipment, queue))
        except CosmodromeError as error:
            self._failed(shipment, queue, error)
        else:
            self._under_way.append(_UnderWay(shipment, queue, peer, opaque))

    def _settle_oldest(self) -> None:
        shipment, queue, peer, opaque = self._under_way.popleft()
        try:
            reply = peer.fetch(opaque, self._options.send_timeout_ms / 1000)
            status = STATUS.get(reply.code)
            if status is None or (self._options.strict_acks and status is not SendStatus.SEND_OK):
                raise BrokerError(reply.code, reply.remark or "", peer.address)
        except CosmodromeError as error:
            self._failed(shipment, queue, error)
        else:
            self._stored(shipment, queue, SendReply.decode(reply))

    def _failed(self, shipment: Shipment, queue: MessageQueue | None, error: CosmodromeError) -> None:
        """Keep it to be sent again; SendFailed when it may not, or not any more."""
        if error.is_lasting:
            raise error
        if isinstance(error, (ConnectionFailed, CallTimeout)):
            self._cluster.drop(error.address)
        elif not self._may_pass(error):
            raise error
        shipment.tries += 1
        shipment.failed_broker = queue.broker_name if queue is not None else None
        if shipment.tries >= self._options.send_retries:
            raise SendFailed(
                f"no broker took rows for topic {shipment.topic} in {shipment.tries} tries; the last time: {error}"
            ) from error
        self._again.append(shipment)

    def _may_pass(self, error: CosmodromeError) -> bool:
        if isinstance(error, BrokerError):
            return error.code in RETRIED_CODES or error.code in STATUS
        return isinstance(error, RouteNotFound)  # of a topic that was there: its broker starts anew

    def _send_again(self) -> None:
        """Everything that failed, once the rest is settled: those under way at a lost broker are lost with it."""
        while self._again:
            while self._under_way:
                self._settle_oldest()
            failed, self._again = self._again, []
            tries = max(shipment.tries for shipment in failed)
            log.warning("%d requests are sent again, some for the %d. time", len(failed), tries)
            pause_seconds = self._options.send_retry_interval_ms / 1000 * 2 ** (tries - 1)
            time.sleep(min(pause_seconds, MAX_PAUSE_SECONDS))
            self._cluster.forget_routes()
            self._queues.clear()
            for shipment in failed:
                self._relaunch(shipment)

    def _relaunch(self, shipment: Shipment) -> None:
        while self._is_before(shipment):
            self._settle_oldest()
        self._launch(shipment)

    def _command(self, shipment: Shipment, queue: MessageQueue) -> Command:
        header = SendMessage(
            self._options.group,
            shipment.topic,
            AUTO_CREATE_TOPIC,
            NEW_TOPIC_QUEUES,
            queue.queue_id,
            shipment.sys_flag,
            time.time_ns() // 1_000_000,
            shipment.flag,
            shipment.properties,
            0,
            batch=shipment.is_batch,
            broker_name=queue.broker_name,
        )
        return Command(_SEND_BATCH if shipment.is_batch else _SEND, header.lettered_fields(), shipment.body)
