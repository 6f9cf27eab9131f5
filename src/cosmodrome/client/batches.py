"""Cutting any number of messages into batches that a broker takes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cosmodrome.client.outgoing import MAX_BODY_BYTES, check_batch, encode_properties
from cosmodrome.config import MAX_BATCH
from cosmodrome.errors import InvalidMessage
from cosmodrome.model import Message
from cosmodrome.wire.batch import encoded_size
from cosmodrome.wire.ids import UNIQUE_ID_LENGTH

_ANY_ID = "0" * UNIQUE_ID_LENGTH

MAX_MESSAGES = MAX_BATCH  # our brokers take no more (maxMessagesPerBatch)


def split_batches(messages: Iterable[Message], max_bytes: int = MAX_BODY_BYTES) -> Iterator[list[Message]]:
    """Batches for `send_batch`, in the order of the messages, each as large as fits into `max_bytes` on the wire,
    and of 4,500 messages at most.

    Messages are drawn only when they are needed. A new batch begins as well where a message has another topic,
    sharding key or `wait_store_ok` than those before. InvalidMessage for a message that fits into no batch; whatever
    stood before it has been handed out.
    """
    batch: list[Message] = []
    batch_bytes = 0
    for message in messages:
        try:
            size = _size(message, max_bytes)
        except InvalidMessage:
            if batch:
                yield batch
            raise
        is_full = batch_bytes + size > max_bytes or len(batch) >= MAX_MESSAGES
        if batch and (is_full or not _go_together(batch[0], message)):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(message)
        batch_bytes += size
    if batch:
        yield batch


def _size(message: Message, max_bytes: int) -> int:
    check_batch([message], max_bytes)
    size = encoded_size(message.body, encode_properties(message, _ANY_ID))
    if size > max_bytes:
        topic = message.topic
        reason = f"a message of topic {topic} takes {size} bytes; a batch has at most {max_bytes}: send it by itself"
        raise InvalidMessage(reason, "body", topic=topic, size=size, limit=max_bytes)
    return size


def _go_together(one: Message, other: Message) -> bool:
    return (one.topic, one.wait_store_ok, one.sharding_key) == (other.topic, other.wait_store_ok, other.sharding_key)
