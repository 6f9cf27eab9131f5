"""A copy of a message for its group's retry topic, where its broker cannot or shall not make one itself. Pure."""

from __future__ import annotations

from cosmodrome.client.outgoing import DELAYING, packed_body
from cosmodrome.model import AUTO_CREATE_TOPIC, CLIENT_INNER_PRODUCER, Property, ReceivedMessage, retry_topic
from cosmodrome.wire import properties as properties_string
from cosmodrome.wire.record import SysFlag
from cosmodrome.wire.requests import SendMessage

# A copy is neither half a transaction nor due when the message was; and the others are notes of the reader.
_NOT_OF_A_COPY = frozenset(
    {Property.TRAN_MSG, *DELAYING, Property.MIN_OFFSET, Property.MAX_OFFSET, Property.CONSUME_START_TIME}
)
_OF_BROKERS_BYTES = 512  # room for the properties that brokers add


def retry_copy(
    message: ReceivedMessage,
    group: str,
    topic: str,
    delay_level: int,
    reconsume_times: int,
    max_reconsume_times: int | None,
    now_ms: int,
    *,
    unit_mode: bool = False,
) -> tuple[SendMessage, bytes]:
    """`topic` is where the message came from first, as brokers know it."""
    properties = {name: value for name, value in message.properties.items() if name not in _NOT_OF_A_COPY}
    properties.setdefault(Property.ORIGIN_MESSAGE_ID, message.msg_id)
    properties[Property.RETRY_TOPIC] = topic
    properties[Property.DELAY] = str(delay_level)
    size = len(properties_string.encode(properties).encode(errors="replace"))
    if size > properties_string.MAX_SIZE_BYTES - _OF_BROKERS_BYTES:
        properties.pop(Property.LAST_ERROR, None)  # a message must not be lost for it
    if message.sys_flag & SysFlag.COMPRESSED:  # it could not be unpacked
        body, sys_flag = message.body, message.sys_flag & (SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
    else:
        body, sys_flag = packed_body(message.body)
    header = SendMessage(
        CLIENT_INNER_PRODUCER,
        retry_topic(group),
        AUTO_CREATE_TOPIC,
        1,
        0,
        sys_flag,
        now_ms,
        message.flag,
        properties_string.encode(properties),
        reconsume_times,
        unit_mode,
        max_reconsume_times=max_reconsume_times,
    )
    return header, body
