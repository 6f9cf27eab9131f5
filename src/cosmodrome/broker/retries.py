"""Messages that a consumer could not handle: when they come again, and when they become dead letters. Pure."""

from __future__ import annotations

from cosmodrome.model import GroupConfig, Property
from cosmodrome.store.message import StoreMessage
from cosmodrome.wire import properties as props
from cosmodrome.wire.record import Record
from cosmodrome.wire.requests import SendBack

# The first retry waits as long as this delay level says, each one after it a level longer.
FIRST_RETRY_LEVEL = 3
NO_DELAY = 0


def is_dead(record: Record, group: GroupConfig, request: SendBack) -> bool:
    """The message has come often enough, or its consumer does not want it again."""
    limit = group.retry_max_times if request.max_reconsume_times is None else request.max_reconsume_times
    return record.reconsume_times >= limit or request.delay_level < 0


def retry_level(record: Record, request: SendBack) -> int:
    return request.delay_level or FIRST_RETRY_LEVEL + record.reconsume_times


def returned(record: Record, topic: str, queue_id: int, level: int, store_host: bytes) -> StoreMessage:
    """The message once more, on its way to its group's retry or dead letter topic."""
    properties = props.decode(record.properties)
    properties.setdefault(Property.RETRY_TOPIC, record.topic)
    properties.setdefault(Property.ORIGIN_MESSAGE_ID, record.offset_msg_id)
    properties[Property.DELAY] = str(level)
    message = StoreMessage.again(record, topic, queue_id, props.encode(properties))
    message.store_host = store_host
    message.reconsume_times += 1
    return message
