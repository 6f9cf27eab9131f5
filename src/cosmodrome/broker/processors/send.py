"""Taking messages in."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cosmodrome.broker.delays import delay_level
from cosmodrome.broker.half_messages import is_half, is_transactional
from cosmodrome.broker.redirect import check_commit
from cosmodrome.broker.statistics import DEAD_LETTERS
from cosmodrome.broker.timers import DELIVER_MARK, is_timed, recall_handle
from cosmodrome.broker.topics import check_writable
from cosmodrome.codes import ResponseCode
from cosmodrome.errors import InvalidParameter, MessageIllegal, ProtocolError
from cosmodrome.model import DLQ_PREFIX, RETRY_PREFIX, Perm, Property, TopicConfig
from cosmodrome.net.connection import Answering, Connection, completed
from cosmodrome.store.message import Appended, AppendedBatch, Durability, StoreMessage
from cosmodrome.wire import properties as props
from cosmodrome.wire.batch import decode_batch
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import SysFlag
from cosmodrome.wire.requests import SendMessage, SendReply

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

log = logging.getLogger(__name__)

_SUCCESS = int(ResponseCode.SUCCESS)
_TRANSACTION = SysFlag.TRANSACTION_MASK
_NO_TRANSACTION = ~_TRANSACTION
# All of them say that the message is stored.
_STORED_CODES = {
    Durability.OK: _SUCCESS,
    Durability.FLUSH_DISK_TIMEOUT: int(ResponseCode.FLUSH_DISK_TIMEOUT),
    Durability.SLAVE_NOT_AVAILABLE: int(ResponseCode.SLAVE_NOT_AVAILABLE),
    Durability.FLUSH_SLAVE_TIMEOUT: int(ResponseCode.FLUSH_SLAVE_TIMEOUT),
}

# Properties without any of these words need no closer look; "DELAY" is part of other names, too.
KEYS_TOGETHER = 20  # of a batch, times the keys of a message
FEW_KEYS_CHARACTERS = 1_000  # properties as short as this cannot have many keys
_DELAY, _TRANSACTIONAL, _POP = Property.DELAY, Property.TRAN_MSG, Property.POP_CK


def send_message(broker: Broker, connection: Connection, command: Command) -> Answering:
    """SEND_MESSAGE: append one message or a batch; answer when it is as safe as this broker promises."""
    request = SendMessage.decode(command)
    broker.check_permission(Perm.WRITE)
    topic = broker.topics.sendable(
        request.topic, request.default_topic, request.default_topic_queue_nums, request.unit_mode
    )
    if broker.settling.must_wait(topic.name):  # a send made the topic: it must outlive the message's promise
        return _send_settled(broker, connection, command, request, topic)
    if not request.batch:
        return _send_one(broker, connection, command, request, topic)
    if broker.store.is_entering_batch:
        return _send_behind_batches(broker, connection, command, request, topic)
    return _send_batch(broker, connection, command, request, topic)


async def _send_settled(
    broker: Broker, connection: Connection, command: Command, request: SendMessage, topic: TopicConfig
) -> Command:
    await broker.settling.wait(topic.name)
    send = _send_batch if request.batch else _send_one  # others of the connection wait behind it already
    return await completed(send(broker, connection, command, request, topic))


async def _send_behind_batches(
    broker: Broker, connection: Connection, command: Command, request: SendMessage, topic: TopicConfig
) -> Command:
    """Send when no batch is on its way into its queue; nothing else of the connection is served before."""
    queue_id_for(request, topic)  # what is refused anyway is refused at once
    with connection.paused():
        while broker.store.is_entering_batch:
            await broker.lane.run(broker.store.entering_batch())
    return await completed(_send_batch(broker, connection, command, request, topic))


def _send_one(
    broker: Broker, connection: Connection, command: Command, request: SendMessage, topic: TopicConfig
) -> Answering:
    queue_id = queue_id_for(request, topic)
    if request.sys_flag & _TRANSACTION:
        _check_transaction(request)
    properties = request.properties or ""
    if len(properties) > FEW_KEYS_CHARACTERS:
        _check_keys(broker, properties, (properties,))
    is_plain = _is_plain(properties)
    if not is_plain:
        properties = _checked(properties)
    unique_key = props.find(properties, Property.UNIQ_KEY)
    if unique_key is None:
        unique_key = broker.unique_ids.next()
        properties = props.append(properties, Property.UNIQ_KEY, unique_key)
    message = message_from(broker, connection, command, request, topic, queue_id)
    message.properties = _with_broker_properties(broker, properties)
    store = _store if is_plain else _store_marked
    if request.topic.startswith(RETRY_PREFIX):
        _bury_if_dead(broker, request, message)
        if broker.topics.is_unsaved(message.topic):
            return _store_settled(store, broker, command, message, properties, queue_id, unique_key)
    return store(broker, command, message, properties, queue_id, unique_key)


Store = Callable[["Broker", Command, StoreMessage, str, int, str], Answering]


def _store(
    broker: Broker, command: Command, message: StoreMessage, properties: str, queue_id: int, unique_key: str
) -> Answering:
    appended = broker.store.append(message)
    broker.statistics.put(message.topic, message.queue_id, 1, appended.size, broker.store.append_ms)
    reply = _reply(broker, appended, queue_id, unique_key)
    if broker.promises:
        return _promised(broker, command, message, appended, properties, reply)
    return command.reply(_SUCCESS, reply)


def _store_marked(
    broker: Broker, command: Command, message: StoreMessage, properties: str, queue_id: int, unique_key: str
) -> Answering:
    """Store a message that may have to wait for something before it is delivered."""
    appended = _append_marked(broker, message)
    reply = _reply(broker, appended, queue_id, unique_key)
    reply.recall_handle = recall_handle(message, broker.config.broker_name)
    if broker.promises:
        return _promised(broker, command, message, appended, properties, reply)
    return command.reply(_SUCCESS, reply)


async def _store_settled(
    store: Store,
    broker: Broker,
    command: Command,
    message: StoreMessage,
    properties: str,
    queue_id: int,
    unique_key: str,
) -> Command:
    """Store a message when its topic, which it made, is on disk."""
    await broker.topics.saved()
    return await completed(store(broker, command, message, properties, queue_id, unique_key))


async def _promised(
    broker: Broker,
    command: Command,
    message: StoreMessage,
    appended: Appended | AppendedBatch,
    properties: str,
    reply: SendReply,
) -> Command:
    """Answer when the message is as safe as this broker promises."""
    return command.reply(await _durable(broker, message, appended, properties), reply)


def _append_marked(broker: Broker, message: StoreMessage) -> Appended:
    """Store a message that may have to wait for something before it is delivered."""
    if is_half(message):
        check_commit(broker, message)
        return broker.transactions.prepare(message)
    return broker.append(message)


def _send_batch(
    broker: Broker, connection: Connection, command: Command, request: SendMessage, topic: TopicConfig
) -> Answering:
    """Every item becomes a message of its own, with its own properties; together they are one write."""
    queue_id = queue_id_for(request, topic)
    if request.sys_flag & _TRANSACTION:
        _check_transaction(request)
    if request.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise MessageIllegal("batch request does not support retry group " + request.topic)
    try:
        items = decode_batch(command.body, limit := broker.config.max_messages_per_batch)
    except ProtocolError as error:
        raise MessageIllegal(str(error)) from error
    if len(items) > limit:
        raise MessageIllegal(f"a batch of more than {limit} messages, as maxMessagesPerBatch allows: send several")
    each_properties = [item.properties for item in items]
    together = "".join(each_properties)
    if len(together) > FEW_KEYS_CHARACTERS:
        _check_keys(broker, together, each_properties)
    if not _is_plain(together):
        items = [item._replace(properties=_checked_in_batch(item.properties)) for item in items]
    properties = _checked_in_batch(request.properties or "")
    message = message_from(broker, connection, command, request, topic, queue_id)
    appended = broker.store.append_batch(message, items)
    broker.statistics.put(message.topic, queue_id, len(items), appended.size, broker.store.append_ms)
    reply = _reply(broker, appended, queue_id, props.find(properties, Property.UNIQ_KEY))
    if broker.store.is_entering_batch or broker.promises:
        return _batch_promised(broker, command, message, appended, properties, reply)
    return command.reply(_SUCCESS, reply)


async def _batch_promised(
    broker: Broker, command: Command, message: StoreMessage, appended: AppendedBatch, properties: str, reply: SendReply
) -> Command:
    """Answer when a batch is in its queue, and as safe as this broker promises."""
    if broker.store.is_entering_batch:
        await broker.lane.run(broker.store.entering_batch())
    code = await _durable(broker, message, appended, properties) if broker.promises else _SUCCESS
    return command.reply(code, reply)


def _bury_if_dead(broker: Broker, request: SendMessage, message: StoreMessage) -> None:
    """Put a client's own retry among the dead letters if it came too often, or if its group consumes in order: such a
    group retries where it is, and sends only what it gives up."""
    group = broker.groups.group(request.topic.removeprefix(RETRY_PREFIX))
    limit = group.retry_max_times if request.max_reconsume_times is None else request.max_reconsume_times
    if message.reconsume_times > limit or broker.locks.is_orderly(group.name, broker.clock.steady_ms()):
        message.topic, message.queue_id = check_writable(broker.topics.ensure_dead_letter_topic(group.name)).name, 0
        origin = props.find(message.properties, Property.RETRY_TOPIC) or request.topic
        broker.statistics.count(DEAD_LETTERS, f"{origin}@{group.name}")
        message.properties = props.append(message.properties, Property.DELAY, "0")
        log.warning(
            "dead letter stored: group=%s topic=%s msg_id=%s attempt=%d reason=%r",
            group.name,
            origin,
            props.find(message.properties, Property.UNIQ_KEY) or "",
            message.reconsume_times,
            props.find(message.properties, Property.LAST_ERROR) or "not told",
        )


def message_from(
    broker: Broker, connection: Connection, command: Command, request: SendMessage, topic: TopicConfig, queue_id: int
) -> StoreMessage:
    """Return the message of a request, without properties. How a transaction ended is never the sender's to say."""
    sys_flag = request.sys_flag & _NO_TRANSACTION
    return StoreMessage(
        request.topic,
        queue_id,
        bytes(command.body),
        "",
        request.flag,
        sys_flag | SysFlag.MULTI_TAGS if topic.filter_type == "MULTI_TAG" else sys_flag,
        request.born_timestamp,
        connection.packed_peer,
        broker.packed_address,
        request.reconsume_times or 0,
    )


def _check_transaction(request: SendMessage) -> None:
    """Refuse a message that is undecided by its flag alone: it would come into no queue, and nothing could commit it.

    Retried messages come with the flag of their first life, too: their transaction is over.
    """
    is_undecided = request.sys_flag & _TRANSACTION in (SysFlag.PREPARED, SysFlag.ROLLBACK)
    if is_undecided and (request.reconsume_times or 0) <= 0 and not is_transactional(request.properties or ""):
        raise MessageIllegal(
            f"sysFlag {request.sys_flag} says that this is a half message, but its property {Property.TRAN_MSG} "
            "is not true"
        )


def queue_id_for(request: SendMessage, topic: TopicConfig) -> int:
    wanted = request.queue_id
    if wanted < 0:
        return random.randrange(topic.write_queues) if topic.write_queues else 0
    if wanted >= max(topic.read_queues, topic.write_queues):
        raise InvalidParameter(
            f"request queueId[{wanted}] is illegal, topic {topic.name} has {topic.read_queues} queues to read "
            f"and {topic.write_queues} to write"
        )
    return wanted


def _check_keys(broker: Broker, all_properties: str, each_properties: Sequence[str]) -> None:
    """Refuse more keys than the loop enters into the index in a moment: of one message, or of a batch together."""
    one = broker.config.max_keys_per_message
    together = KEYS_TOGETHER * one
    if (
        " " not in all_properties or all_properties.count(" ") < one
    ):  # which costs next to nothing to know, and says enough of nearly every message
        return
    counts = [len((props.find(properties, Property.KEYS) or "").split()) for properties in each_properties]
    if (most := max(counts)) > one:
        raise MessageIllegal(f"a message with {most} keys; maxKeysPerMessage allows {one}")
    if (total := sum(counts)) > together:
        raise MessageIllegal(
            f"a batch with {total} keys; {KEYS_TOGETHER} times maxKeysPerMessage allow {together}: send several"
        )


def _checked(properties: str) -> str:
    """The properties as they may be stored: a stale pop receipt does not travel on."""
    if Property.POP_CK in properties:
        kept = props.decode(properties)
        kept.pop(Property.POP_CK, None)
        return props.encode(kept)
    return properties


def _checked_in_batch(properties: str) -> str:
    if delay_level(properties) > 0 or is_timed(properties):
        raise MessageIllegal("a batch cannot be delayed; send its messages one by one")
    if is_transactional(properties):
        raise MessageIllegal("a batch cannot be a transaction; send its messages one by one")
    return _checked(properties)


def _is_plain(properties: str) -> bool:
    return not (
        _DELAY in properties or _TRANSACTIONAL in properties or DELIVER_MARK in properties or _POP in properties
    )


def _with_broker_properties(broker: Broker, properties: str) -> str:
    """What every stored message says of the broker that took it."""
    if properties and properties[-1] != props.VALUE_END:
        properties += props.VALUE_END
    return properties + broker.stored_properties


async def _durable(broker: Broker, message: StoreMessage, appended: Appended | AppendedBatch, properties: str) -> int:
    """Wait, unless the sender does not want that, and return the response code."""
    wait = props.find(properties, Property.WAIT) != "false"
    appended_ms = broker.clock.steady_ms()
    durability = await broker.durable(appended.end, wait=wait)  # the promise: disk and replicas, before a deadline
    broker.statistics.put_took(message.topic, message.queue_id, broker.clock.steady_ms() - appended_ms)
    return _STORED_CODES[durability]


def _reply(broker: Broker, appended: Appended | AppendedBatch, queue_id: int, unique_key: str | None) -> SendReply:
    config = broker.config
    return SendReply(appended.msg_id, queue_id, appended.queue_offset, unique_key, config.region_id, config.trace_on)
