"""The messages that pop consumption stores: checkpoints and acks for the revive topic, and what comes again. Pure."""

from __future__ import annotations

from cosmodrome.model import REVIVE_PREFIX, Property
from cosmodrome.numbers import MAX_INT
from cosmodrome.store.message import StoreMessage
from cosmodrome.wire import properties as props
from cosmodrome.wire.bodies import Ack, CheckPoint
from cosmodrome.wire.record import Record

REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"
# A checkpoint comes out of the timer wheel this much before the acks that were made in time.
LEAD_MS = 1_000


def revive_topic(cluster: str) -> str:
    return REVIVE_PREFIX + cluster


def is_ack(properties: str) -> bool:
    """Whether a record of the timer topic is the ack of a pop."""
    topic = props.find(properties, Property.REAL_TOPIC) or ""
    return topic.startswith(REVIVE_PREFIX) and props.find(properties, Property.TAGS) in (ACK_TAG, BATCH_ACK_TAG)


def checkpoint_message(point: CheckPoint, topic: str, revive_queue_id: int, now_ms: int, host: bytes) -> StoreMessage:
    words = (point.topic, point.queue_id, point.start_offset, point.group, point.pop_time_ms, point.broker_name)
    due_ms = point.revive_ms - LEAD_MS
    return _message(topic, revive_queue_id, CHECKPOINT_TAG, words, point.encode(), due_ms, now_ms, host)


def ack_message(ack: Ack, topic: str, revive_queue_id: int, revive_ms: int, now_ms: int, host: bytes) -> StoreMessage:
    """`revive_ms` is when the checkpoint of the ack is due: by then the ack must be known."""
    tag = BATCH_ACK_TAG if ack.is_batch else ACK_TAG
    acked = -1 if ack.is_batch else ack.offsets[0]
    words = (ack.topic, ack.queue_id, acked, ack.group, ack.pop_time_ms, ack.broker_name)
    return _message(topic, revive_queue_id, tag, words, ack.encode(), revive_ms, now_ms, host)


def _message(
    topic: str,
    queue_id: int,
    tag: str,
    words: tuple[str | int, ...],
    body: bytes,
    due_ms: int,
    now_ms: int,
    host: bytes,
) -> StoreMessage:
    """InvalidParameter if a group or broker name would begin a property of its own: the wheel believes properties."""
    # Apache names a batch ack's unique key like a single one's.
    mark = CHECKPOINT_TAG if tag == CHECKPOINT_TAG else ACK_TAG
    properties = {
        Property.TAGS: tag,
        Property.TIMER_DELIVER_MS: str(due_ms),
        Property.UNIQ_KEY: "@".join(map(str, (*words, mark))),
    }
    return StoreMessage(topic, queue_id, body, props.encode_foreign(properties), 0, 0, now_ms, host, host)


def revived(record: Record, retry_topic: str, pop_time_ms: int) -> StoreMessage:
    """A message that was not acked, as it comes again: from the broker, as Apache has it."""
    properties = record.properties
    if props.find(properties, Property.FIRST_POP_TIME) is None:
        noted = props.append(properties, Property.FIRST_POP_TIME, str(pop_time_ms))
        if len(noted.encode()) <= props.MAX_SIZE_BYTES:  # the message counts more than the note
            properties = noted
    message = StoreMessage.again(record, retry_topic, 0, properties)
    message.born_host = message.store_host
    message.reconsume_times = min(message.reconsume_times + 1, MAX_INT)
    return message
