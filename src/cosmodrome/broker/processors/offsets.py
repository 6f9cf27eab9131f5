"""Where a group is on a queue, and where the queue begins and ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosmodrome.errors import InvalidParameter, QueryNotFound
from cosmodrome.net.connection import Connection
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import (
    OffsetReply,
    QueryConsumerOffset,
    QueueHeader,
    SearchOffset,
    TimestampReply,
    UpdateConsumerOffset,
)

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker


async def query_consumer_offset(broker: Broker, _connection: Connection, command: Command) -> Command:
    """QUERY_CONSUMER_OFFSET: the stored offset. A group new to a young queue starts at 0, whatever its client wants.

    An empty queue is young. Told that there is no offset, its client would ask for the queue's end next, and skip what
    lands in between; Apache's 4.9 answers 0, too.
    """
    request = QueryConsumerOffset.decode(command)
    stored = broker.offsets.find_offset(request.consumer_group, request.topic, request.queue_id)
    if stored is not None:
        return command.reply(header=OffsetReply(stored))
    if request.set_zero_if_not_found is not False and broker.store.is_young(request.topic, request.queue_id):
        return command.reply(header=OffsetReply(0))
    raise QueryNotFound("Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")


async def update_consumer_offset(broker: Broker, _connection: Connection, command: Command) -> Command:
    """UPDATE_CONSUMER_OFFSET: commit."""
    request = UpdateConsumerOffset.decode(command)
    broker.groups.group(request.consumer_group)
    topic = broker.topics.topic(request.topic)
    if request.commit_offset < 0 or not 0 <= request.queue_id < max(topic.read_queues, topic.write_queues):
        raise InvalidParameter(f"cannot commit offset {request.commit_offset} of queue {request.queue_id}")
    broker.offsets.accept(request.consumer_group, request.topic, request.queue_id, request.commit_offset)
    return command.reply()


async def get_max_offset(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_MAX_OFFSET: the offset the next message will get."""
    request = QueueHeader.decode(command)
    return command.reply(header=OffsetReply(broker.store.max_offset(request.topic, request.queue_id)))


async def get_min_offset(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_MIN_OFFSET: the oldest offset that can still be read."""
    request = QueueHeader.decode(command)
    return command.reply(header=OffsetReply(broker.store.min_offset(request.topic, request.queue_id)))


async def search_offset(broker: Broker, _connection: Connection, command: Command) -> Command:
    """SEARCH_OFFSET_BY_TIMESTAMP: the first offset stored at or after a time (UPPER: the last at or before it)."""
    request = SearchOffset.decode(command)
    upper = (request.boundary_type or "").upper() == "UPPER"
    offset = broker.store.offset_by_time(request.topic, request.queue_id, request.timestamp, upper=upper)
    return command.reply(header=OffsetReply(offset))


async def get_earliest_store_time(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_EARLIEST_MSG_STORETIME: when the oldest message of a queue was stored, -1 if there is none."""
    request = QueueHeader.decode(command)
    return command.reply(header=TimestampReply(broker.store.earliest_store_time(request.topic, request.queue_id)))
