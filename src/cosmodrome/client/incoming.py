"""From a pulled body to messages an application can use. Pure."""

from __future__ import annotations

import logging

from cosmodrome.config import MIB
from cosmodrome.errors import CosmodromeError
from cosmodrome.filter.tags import chooses, matches
from cosmodrome.model import RETRY_PREFIX, MessageQueue, Property, ReceivedMessage, Subscription
from cosmodrome.wire import properties as properties_string
from cosmodrome.wire.compression import decompress
from cosmodrome.wire.record import Record, SysFlag, decode_records
from cosmodrome.wire.requests import PullReply

log = logging.getLogger(__name__)

# A compressed body may not grow beyond this, whatever it claims.
MAX_DECOMPRESSED_BYTES = 64 * MIB


def received_messages(
    queue: MessageQueue,
    wanted: Subscription,
    reply: PullReply,
    body: bytes,
    kind: type[ReceivedMessage] = ReceivedMessage,
) -> list[ReceivedMessage]:
    """The wanted messages of a pull, bodies still as stored. ProtocolError when the body is damaged."""
    bounds = {Property.MIN_OFFSET: str(reply.min_offset), Property.MAX_OFFSET: str(reply.max_offset)}
    found = [received(record, queue, bounds, kind) for record in decode_records(body)]
    return [message for message in found if matches(wanted, message.tags)] if chooses(wanted) else found


def received(
    record: Record, queue: MessageQueue, bounds: dict[str, str], kind: type[ReceivedMessage] = ReceivedMessage
) -> ReceivedMessage:
    properties = properties_string.decode(record.properties)
    properties.update(bounds)
    topic = record.topic
    if topic.startswith(RETRY_PREFIX):
        topic = properties.get(Property.RETRY_TOPIC, topic)
    return kind(
        topic,
        record.body,
        properties,
        record.flag,
        record.sys_flag,
        queue,
        record.queue_offset,
        record.physical_offset,
        record.born_timestamp,
        f"{record.born_host}:{record.born_port}",
        record.store_timestamp,
        f"{record.store_host}:{record.store_port}",
        record.reconsume_times,
        record.offset_msg_id,
        record.total_size,
    )


def unpack_body(message: ReceivedMessage) -> None:
    """Decompress the body in place, once. ProtocolError or ConfigError when that can't be done."""
    if message.sys_flag & SysFlag.COMPRESSED:
        message.body = decompress(message.body, message.sys_flag, limit_bytes=MAX_DECOMPRESSED_BYTES)
        message.sys_flag &= ~SysFlag.COMPRESSED


def unpacked(message: ReceivedMessage) -> ReceivedMessage:
    """With its body decompressed, or as it is if that can't be done: whoever looks on wants to see it all the same."""
    try:
        unpack_body(message)
    except CosmodromeError as error:
        log.warning("the body of %s stays compressed: %s", message.msg_id, error)
    return message
