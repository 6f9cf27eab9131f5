"""Messages that a consumer could not handle: when they come again, and when they become dead letters. Pure."""

from __future__ import annotations

from cosmodrome.model import GroupConfig, Property
from cosmodrome.numbers import MAX_INT
from cosmodrome.store.message import StoreMessage
from cosmodrome.wire import properties as props
from cosmodrome.wire.record import Record
from cosmodrome.wire.requests import SendBack

# The first retry waits as long as this delay level says, each one after it a level longer.
FIRST_RETRY_LEVEL = 3
NO_DELAY = 0
# Why a consumer failed is noted as far as this.
MAX_ERROR_CHARACTERS = 256
OTHERS_BYTES = 512  # room for the properties that the broker notes on the way
_SEPARATORS = dict.fromkeys((*range(32), 127), " ")


def is_dead(record: Record, group: GroupConfig, request: SendBack) -> bool:
    """The message has come often enough, or its consumer does not want it again."""
    limit = group.retry_max_times if request.max_reconsume_times is None else request.max_reconsume_times
    return record.reconsume_times >= limit or request.delay_level < 0


def retry_level(record: Record, request: SendBack) -> int:
    return request.delay_level or FIRST_RETRY_LEVEL + record.reconsume_times


def returned(
    record: Record, topic: str, queue_id: int, level: int, store_host: bytes, last_error: str | None = None
) -> StoreMessage:
    """The message once more, on its way to its group's retry or dead letter topic."""
    properties = props.decode(record.properties)
    properties.setdefault(Property.RETRY_TOPIC, record.topic)
    properties.setdefault(Property.ORIGIN_MESSAGE_ID, record.offset_msg_id)
    properties[Property.DELAY] = str(level)
    _note_error(properties, last_error)
    message = StoreMessage.again(record, topic, queue_id, props.encode(properties))
    message.store_host = store_host
    message.reconsume_times = min(message.reconsume_times + 1, MAX_INT)
    return message


def _note_error(properties: dict[str, str], last_error: str | None) -> None:
    """Note why the consumer failed, if there is room for that: a message must not be lost for its properties."""
    before = properties.pop(Property.LAST_ERROR, None)
    error = before if last_error is None else last_error[:MAX_ERROR_CHARACTERS].translate(_SEPARATORS)
    if error:
        size = len(props.encode(properties | {Property.LAST_ERROR: error}).encode(errors="replace"))
        if size <= props.MAX_SIZE_BYTES - OTHERS_BYTES:
            properties[Property.LAST_ERROR] = error
