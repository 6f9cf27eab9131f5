"""Replies: a message that answers another one goes straight to the producer that asked."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cosmodrome.broker.processors.send import message_from, queue_id_for
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import ClientError, RequestError
from cosmodrome.model import Perm, Property
from cosmodrome.net.connection import Connection
from cosmodrome.store.message import StoreMessage
from cosmodrome.wire import properties as props
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import PushReply, SendMessage, SendReply

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

log = logging.getLogger(__name__)

PUSH_TIMEOUT_MS = 10_000
NOT_STORED_ID = "0"


async def send_reply(broker: Broker, connection: Connection, command: Command) -> Command:
    """SEND_REPLY_MESSAGE: push the reply to the producer it names, and keep a copy; success means it was pushed."""
    request = SendMessage.decode(command)
    broker.check_permission(Perm.WRITE)
    topic = broker.topics.sendable(
        request.topic, request.default_topic, request.default_topic_queue_nums, request.unit_mode
    )
    queue_id = queue_id_for(request, topic)
    message = message_from(broker, connection, command, request, topic, queue_id)
    message.properties = props.append(request.properties or "", Property.PUSH_REPLY_TIME, str(broker.clock.now_ms()))
    failure = await _push(broker, connection, request, message)
    reply = SendReply(NOT_STORED_ID, queue_id, 0)
    if broker.config.store_reply_message_enable:
        reply = await _store(broker, message) or reply
    if failure is not None:
        return command.reply(ResponseCode.SYSTEM_ERROR, reply, remark=failure)
    return command.reply(ResponseCode.SUCCESS, reply)


async def _push(broker: Broker, connection: Connection, request: SendMessage, message: StoreMessage) -> str | None:
    """Why the producer did not get the reply, or None."""
    client_id = props.find(message.properties, Property.REPLY_TO_CLIENT)
    if client_id is None:
        return "REPLY_TO_CLIENT is null, can not reply message"
    producer = broker.clients.find_producer(client_id)
    if producer is None:
        return f"push reply message fail, channel of <{client_id}> not found."
    assert isinstance(producer, Connection)
    header = PushReply(
        request.producer_group,
        request.topic,
        request.default_topic,
        request.default_topic_queue_nums,
        message.queue_id,
        message.sys_flag,
        request.born_timestamp,
        request.flag,
        connection.peer,
        broker.address,
        broker.clock.now_ms(),
        message.properties,
        message.reconsume_times,
        request.unit_mode,
    )
    push = Command.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header, message.body)
    try:
        answer = await producer.call(push, PUSH_TIMEOUT_MS)
    except ClientError as error:
        return f"push reply message to {client_id} fail: {error}"
    return None if answer.code == ResponseCode.SUCCESS else f"push reply message to {client_id} fail."


async def _store(broker: Broker, message: StoreMessage) -> SendReply | None:
    """A reply that was pushed has done its work, so a copy that cannot be kept is only told of."""
    try:
        appended = await broker.put(message)
    except RequestError as refusal:
        log.warning("a reply of %s was not stored: %s", message.topic, refusal)
        return None
    return SendReply(appended.msg_id, message.queue_id, appended.queue_offset)
