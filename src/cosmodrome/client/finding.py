"""Looking up stored messages by key, id, place and time. No group is joined and nothing is consumed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from cosmodrome.client.incoming import Isolation, Pulled, received, received_messages, unpacked
from cosmodrome.client.instance import Instance
from cosmodrome.client.namespaces import unwrap_message, wrap_queue, wrap_topic
from cosmodrome.client.offsets import min_offset, offset_at
from cosmodrome.client.pulling import PULL_MAX_BYTES, PULL_MAX_MESSAGES, PullAnswer, pull
from cosmodrome.client.subscribing import subscription
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import BrokerError, ClientError, DamagedMessage, ProtocolError, RouteNotFound
from cosmodrome.model import (
    ALL_TAGS,
    MASTER_ID,
    READER_GROUP,
    BrokerData,
    MessageQueue,
    Property,
    ReceivedMessage,
    Route,
)
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import Record, claimed_id, parse_offset_msg_id, read_records, sound_records
from cosmodrome.wire.requests import PullFlag, PullMessage, QueryMessage, ViewMessage

MAX_FOUND = 64  # Apache's brokers give no more for one key
END_OF_TIME_MS = 2**63 - 1
# An index keeps whole seconds, so that Apache's brokers take a message for up to so much older than it is.
INDEX_SECOND_MS = 999
_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Found:
    """Messages, the oldest first, and why there may be more: brokers that could not be asked, damaged messages."""

    messages: list[ReceivedMessage] = field(default_factory=list)
    failures: list[ClientError] = field(default_factory=list)

    def all(self) -> list[ReceivedMessage]:
        """The messages; the first failure is raised if there is one, for then some may be missing."""
        if self.failures:
            raise self.failures[0]
        return self.messages


class Finder:
    """Finds messages of a namespace through a started client.

    A topic that is looked up is not in use afterwards: its brokers get no heartbeat for it.
    """

    def __init__(self, instance: Instance, namespace: str = "") -> None:
        self._instance = instance
        self._namespace = namespace

    # --- by key and by id

    async def by_key(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int = END_OF_TIME_MS, max_num: int = MAX_FOUND
    ) -> Found:
        """Ask every broker of the topic for messages with this key or unique id; the newest `max_num` are kept."""
        wrapped = wrap_topic(self._namespace, topic)
        request = QueryMessage(wrapped, key, max_num, max(begin_ms - INDEX_SECOND_MS, 0), end_ms)
        brokers = (await self._route(wrapped)).brokers
        answers = await asyncio.gather(*(self._query(broker, request) for broker in brokers))
        messages = [message for answer in answers for message in answer.messages]
        failures = [failure for answer in answers for failure in answer.failures]
        wanted = (
            message for message in messages if _has_key(message, key) and begin_ms <= message.store_timestamp <= end_ms
        )
        return Found(_oldest_first(wanted)[-max_num:], failures)

    async def by_id(self, topic: str, message_id: str) -> Found:
        """Find what has this offset id, or else every message with this unique id: a repeated send leaves several."""
        place = _place(message_id)
        try:
            brokers = (await self._route(wrap_topic(self._namespace, topic))).brokers
        except RouteNotFound:
            if place is None:
                raise
            return Found([await self._view(topic, "", *place)])
        at = {address: broker.broker_name for broker in brokers for address in broker.addresses.values()}
        refusal = None
        if place is not None and place[0] in at:
            try:
                return Found([await self._view(topic, at[place[0]], *place)])
            except BrokerError as error:
                if error.is_lasting:
                    raise
                refusal = error  # a unique id may look like this as well
        found = await self.by_key(topic, message_id)
        messages = [one for one in found.messages if one.properties.get(Property.UNIQ_KEY) == message_id]
        if not messages and refusal is not None:
            raise refusal
        if not messages and place is not None and _port(place[0]) in map(_port, at):
            return Found([await self._view(topic, "", *place)])  # the route calls the host by another name
        return Found(messages, found.failures)

    async def _query(self, broker: BrokerData, request: QueryMessage) -> Found:
        address = broker.master or next(iter(broker.addresses.values()), broker.broker_name)
        try:
            reply = await self._instance.ask(address, Command.request(RequestCode.QUERY_MESSAGE, request))
        except BrokerError as refusal:
            if refusal.code == ResponseCode.QUERY_NOT_FOUND:
                return Found()
            if refusal.is_lasting:
                raise
            return Found(failures=[refusal])
        except ClientError as error:
            return Found(failures=[error])
        damaged: list[ClientError] = []

        def note(error: ProtocolError) -> None:
            damaged.append(DamagedMessage(request.topic, broker.broker_name, -1, -1, str(error)))

        records = sound_records(bytes(reply.body), note)
        return Found([self._shown(record, broker.broker_name) for record in records], damaged)

    async def _view(self, topic: str, broker_name: str, address: str, offset: int) -> ReceivedMessage:
        request = Command.request(
            RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(offset, wrap_topic(self._namespace, topic))
        )
        body = bytes((await self._instance.ask(address, request)).body)
        records, damage = read_records(body)
        if damage is not None:
            raise DamagedMessage(topic, broker_name, -1, -1, str(damage), claimed_id(body, 0))
        if len(records) != 1:
            raise ProtocolError(f"{address} answered with {len(records)} messages for the offset {offset}")
        return self._shown(records[0], broker_name)

    # --- by place and by time

    async def at(self, queue: MessageQueue, offset: int) -> ReceivedMessage | None:
        """The message at this offset of a queue; None if there is none, DamagedMessage if its bytes have changed."""
        wrapped = wrap_queue(self._namespace, queue)
        await self._instance.routes.topic(wrapped.topic)
        pulled = self._pulled(wrapped, await self._pull(wrapped, offset, 1))
        if pulled.damage is not None:
            raise pulled.damage
        return next((message for message in pulled.messages if message.queue_offset == offset), None)

    async def between(self, topic: str, begin_ms: int, end_ms: int, max_num: int) -> Found:
        """The first `max_num` messages of a topic that were stored in [begin, end]."""
        wrapped = wrap_topic(self._namespace, topic)
        queues = (await self._instance.routes.topic(wrapped)).subscribe_queues
        answers = await asyncio.gather(*(self._read(queue, begin_ms, end_ms, max_num) for queue in queues))
        messages = [message for answer in answers for message in answer.messages]
        return Found(_oldest_first(messages)[:max_num], [error for answer in answers for error in answer.failures])

    async def in_queue(
        self, queue: MessageQueue, begin_ms: int, end_ms: int, max_num: int, offset: int | None = None
    ) -> Found:
        """The first `max_num` messages of one queue that were stored in [begin, end], from an offset on if it is given.

        An offset that the queue no longer has stands for its first message.
        """
        wrapped = wrap_queue(self._namespace, queue)
        await self._instance.routes.topic(wrapped.topic)
        if offset is not None:
            offset = max(offset, await min_offset(self._instance, wrapped))
        return await self._read(wrapped, begin_ms, end_ms, max_num, offset)

    async def _read(
        self, queue: MessageQueue, begin_ms: int, end_ms: int, max_num: int, first: int | None = None
    ) -> Found:
        found, isolation = Found(), Isolation()
        try:
            offset = await offset_at(self._instance, queue, begin_ms, READER_GROUP) if first is None else first
            while len(found.messages) < max_num:
                answer = await self._pull(queue, offset, isolation.count(min(max_num, PULL_MAX_MESSAGES), offset))
                pulled = self._pulled(queue, answer)
                next_offset, damaged = isolation.settle(answer, pulled)
                if damaged is not None:
                    found.failures.append(damaged)
                for message in pulled.messages:
                    if message.store_timestamp > end_ms:
                        return found
                    if message.store_timestamp >= begin_ms:
                        found.messages.append(message)
                if not offset < answer.offsets.next_begin_offset or next_offset >= answer.offsets.max_offset:
                    return found
                offset = next_offset
        except ClientError as error:
            if error.is_lasting:
                raise
            found.failures.append(error)
        return found

    async def _pull(self, queue: MessageQueue, offset: int, max_num: int) -> PullAnswer:
        def request_to(_broker_id: int) -> PullMessage:
            where = (queue.topic, queue.queue_id, offset, max_num)
            return PullMessage(
                READER_GROUP, *where, PullFlag.SUBSCRIPTION, 0, 0, subscription=ALL_TAGS, max_msg_bytes=PULL_MAX_BYTES
            )

        return await pull(self._instance, queue, MASTER_ID, request_to)

    def _pulled(self, queue: MessageQueue, answer: PullAnswer) -> Pulled:
        if answer.reply.code != ResponseCode.SUCCESS:
            return Pulled([], answer.offsets.next_begin_offset)
        pulled = received_messages(queue, subscription(queue.topic, ALL_TAGS, 0), answer)
        for message in map(unpacked, pulled.messages):
            unwrap_message(self._namespace, message)
        return pulled

    # --- both

    async def _route(self, topic: str) -> Route:
        known = self._instance.routes.find(topic)
        if known is not None and not known.borrowed:
            return known.route
        return await self._instance.name_servers.route(topic)

    def _shown(self, record: Record, broker_name: str) -> ReceivedMessage:
        message = unpacked(received(record, MessageQueue(record.topic, broker_name, record.queue_id), {}))
        unwrap_message(self._namespace, message)
        return message


def _place(message_id: str) -> tuple[str, int] | None:
    """Address and log offset, if this may be an offset id."""
    try:
        ip, port, offset = parse_offset_msg_id(message_id)
    except ProtocolError:
        return None
    if not 0 < port <= _MAX_PORT or offset < 0:
        return None
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}", offset


def _port(address: str) -> str:
    return address.rpartition(":")[2]


def _has_key(message: ReceivedMessage, key: str) -> bool:
    """Brokers find keys by their hash, and others may have the same."""
    return key in message.keys.split(" ") or key == message.properties.get(Property.UNIQ_KEY)


def _oldest_first(messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
    return sorted(messages, key=lambda message: (message.store_timestamp, message.queue, message.queue_offset))
