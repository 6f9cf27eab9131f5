"""Taking messages in."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from cosmodrome.codes import ResponseCode
from cosmodrome.errors import InvalidParameter, MessageIllegal, ProtocolError
from cosmodrome.model import DLQ_PREFIX, RETRY_PREFIX, Perm, Property, TopicConfig
from cosmodrome.net.connection import Connection
from cosmodrome.store.message import Appended, AppendedBatch, Durability, StoreMessage
from cosmodrome.wire import properties as props
from cosmodrome.wire.batch import decode_batch
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import SysFlag
from cosmodrome.wire.requests import SendMessage, SendReply

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

_SUCCESS = int(ResponseCode.SUCCESS)
_FLUSH_CODES = {
    Durability.OK: _SUCCESS,
    Durability.FLUSH_DISK_TIMEOUT: int(ResponseCode.FLUSH_DISK_TIMEOUT),
}

# Promises this broker can't keep yet are refused: a delay or a transaction that is silently dropped would be a lie.
_NOT_SERVED = (
    (Property.DELAY, "delay levels"),
    (Property.TRAN_MSG, "transactions"),
    ("TIMER_DELAY_SEC", "timed delivery"),
    ("TIMER_DELAY_MS", "timed delivery"),
    ("TIMER_DELIVER_MS", "timed delivery"),
)
_MARKS = (*(name.encode() for name, _ in _NOT_SERVED), Property.POP_CK.encode())


async def send_message(broker: Broker, connection: Connection, command: Command) -> Command:
    """SEND_MESSAGE: append one message or a batch; answer when it is as safe as this broker promises."""
    request = SendMessage.decode(command)
    broker.check_permission(Perm.WRITE)
    topic = broker.topics.sendable(request.topic, request.default_topic, request.default_topic_queue_nums)
    if broker.topics.unsaved:  # this send made the topic: it must outlive the message's promise
        await broker.topics.saved()
    queue_id = _queue_id(request, topic)
    if request.batch:
        return await _send_batch(broker, connection, command, request, topic, queue_id)
    properties = _checked(request.properties or "")
    unique_key = props.find(properties, Property.UNIQ_KEY)
    if unique_key is None:
        unique_key = broker.unique_ids.next()
        properties = props.append(properties, Property.UNIQ_KEY, unique_key)
    message = _message(broker, connection, command, request, topic, queue_id)
    message.properties = _with_broker_properties(broker, properties)
    appended = broker.store.append(message)
    code = await _durable(broker, appended.end, properties) if broker.store.group_commit else _SUCCESS
    return command.reply(code, _reply(broker, appended, queue_id, unique_key))


async def _send_batch(
    broker: Broker, connection: Connection, command: Command, request: SendMessage, topic: TopicConfig, queue_id: int
) -> Command:
    """Every item becomes a message of its own, with its own properties; together they are one write."""
    if request.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise MessageIllegal("batch request does not support retry group " + request.topic)
    body = bytes(command.body)
    try:
        items = decode_batch(body)
    except ProtocolError as error:
        raise MessageIllegal(str(error)) from error
    if any(mark in body for mark in _MARKS):  # in a body or in a property: look closer
        items = [item._replace(properties=_checked(item.properties)) for item in items]
    properties = _checked(request.properties or "")
    message = _message(broker, connection, command, request, topic, queue_id)
    appended = broker.store.append_batch(message, items)
    code = await _durable(broker, appended.end, properties) if broker.store.group_commit else _SUCCESS
    return command.reply(code, _reply(broker, appended, queue_id, props.find(properties, Property.UNIQ_KEY)))


def _message(
    broker: Broker, connection: Connection, command: Command, request: SendMessage, topic: TopicConfig, queue_id: int
) -> StoreMessage:
    return StoreMessage(
        request.topic,
        queue_id,
        bytes(command.body),
        "",
        request.flag,
        request.sys_flag | SysFlag.MULTI_TAGS if topic.filter_type == "MULTI_TAG" else request.sys_flag,
        request.born_timestamp,
        connection.packed_peer,
        broker.packed_address,
        request.reconsume_times or 0,
    )


def _queue_id(request: SendMessage, topic: TopicConfig) -> int:
    wanted = request.queue_id
    if wanted < 0:
        return random.randrange(topic.write_queues) if topic.write_queues else 0
    if wanted >= max(topic.read_queues, topic.write_queues):
        raise InvalidParameter(
            f"request queueId[{wanted}] is illegal, topic {topic.name} has {topic.read_queues} queues to read "
            f"and {topic.write_queues} to write"
        )
    return wanted


def _checked(properties: str) -> str:
    """The properties as they may be stored: a stale pop receipt does not travel on."""
    for name, what in _NOT_SERVED:
        if name in properties and props.find(properties, name) not in (None, "0", "false"):
            raise MessageIllegal(f"this broker does not serve {what} yet; send without the property {name}")
    if Property.POP_CK in properties:
        kept = props.decode(properties)
        kept.pop(Property.POP_CK, None)
        return props.encode(kept)
    return properties


def _with_broker_properties(broker: Broker, properties: str) -> str:
    """What every stored message says of the broker that took it."""
    if properties and properties[-1] != props.VALUE_END:
        properties += props.VALUE_END
    return properties + broker.stored_properties


async def _durable(broker: Broker, end: int, properties: str) -> int:
    """The promise of SYNC_FLUSH: on disk before the answer, unless the sender does not want to wait for it."""
    wait = props.find(properties, Property.WAIT) != "false"
    return _FLUSH_CODES[await broker.store.durable(end, wait=wait)]


def _reply(broker: Broker, appended: Appended | AppendedBatch, queue_id: int, unique_key: str | None) -> SendReply:
    config = broker.config
    return SendReply(appended.msg_id, queue_id, appended.queue_offset, unique_key, config.region_id, config.trace_on)
