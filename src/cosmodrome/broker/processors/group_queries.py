"""Questions of operators about groups and queues: what is consumed, how late, from where; and copying offsets."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cosmodrome.broker.bodies import reply_with
from cosmodrome.broker.groups import check_open
from cosmodrome.errors import GroupNotFound, InvalidParameter, StoreError
from cosmodrome.model import MessageQueue, Subscription, TopicConfig, check_group
from cosmodrome.net.connection import Connection
from cosmodrome.net.lane import steps_of
from cosmodrome.wire.bodies import (
    CorrectionOffsets,
    QueueEntries,
    QueueEntry,
    SubscriptionBody,
    TimeSpan,
    TimeSpans,
    TopicList,
)
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import (
    CloneGroupOffset,
    GroupHeader,
    QueryConsumeQueue,
    QueryCorrectionOffset,
    QuerySubscription,
    QueryTimeSpan,
)

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

log = logging.getLogger(__name__)

QUEUES_STEP = 50  # queues looked at in one step; each may have to be read from a disk
MAX_ENTRIES = 1_000  # of a consume queue in one answer
ENTRIES_STEP = 200
FAR_OFFSET = 2**63 - 1


async def query_topics(broker: Broker, _connection: Connection, command: Command) -> Command:
    """Handle QUERY_TOPICS_BY_CONSUMER: reply with the topics that a group has consumed."""
    group = GroupHeader.decode(command).group
    return command.reply(body=TopicList(tuple(sorted(broker.offsets.topics_of(group)))).encode())


async def query_subscription(broker: Broker, _connection: Connection, command: Command) -> Command:
    """Handle QUERY_SUBSCRIPTION_BY_CONSUMER: reply with what the connected members of a group want of a topic."""
    request = QuerySubscription.decode(command)
    topic = request.topic or ""
    return command.reply(
        body=SubscriptionBody(request.group, topic, _subscription(broker, request.group, topic)).encode()
    )


def _subscription(broker: Broker, group: str, topic: str) -> Subscription | None:
    consumers = broker.clients.find_consumers(group)
    return None if consumers is None else consumers.subscriptions.get(topic)


async def query_time_span(broker: Broker, _connection: Connection, command: Command) -> Command:
    """Handle QUERY_CONSUME_TIME_SPAN: reply with how late a group is on each queue of a topic."""
    request = QueryTimeSpan.decode(command)
    topic = broker.topics.topic(request.topic)
    spans: list[TimeSpan] = []
    for queue_ids in steps_of(range(topic.read_queues), QUEUES_STEP):
        spans.extend(_time_span(broker, request.group, topic, queue_id) for queue_id in queue_ids)
        await broker.lane.turn()
    return await reply_with(broker, command, TimeSpans(tuple(spans)).encode, len(spans))


def _time_span(broker: Broker, group: str, topic: TopicConfig, queue_id: int) -> TimeSpan:
    store, name = broker.store, topic.name
    queue = MessageQueue(name, broker.config.broker_name, queue_id)
    low, high = max(store.min_offset(name, queue_id), 0), store.max_offset(name, queue_id)
    if high <= low:
        return TimeSpan(queue)
    first_ms, last_ms = store.store_time(name, queue_id, low), store.store_time(name, queue_id, high - 1)
    consumed = broker.offsets.find_offset(group, name, queue_id) or 0
    consumed_ms = store.store_time(name, queue_id, consumed - 1) if consumed > low else first_ms
    delay_ms = 0
    if consumed < high:
        waiting_ms = store.timeline.redated(store.store_time(name, queue_id, max(consumed, low)))
        delay_ms = max(broker.clock.now_ms() - waiting_ms, 0)
    return TimeSpan(queue, first_ms, last_ms, consumed_ms, delay_ms)


async def query_correction_offset(broker: Broker, _connection: Connection, command: Command) -> Command:
    """Handle QUERY_CORRECTION_OFFSET: reply with the smallest offset of all groups on each queue of a topic.

    A queue on which `compareGroup` is behind that offset gets the largest offset there is, as Apache answers.
    """
    request = QueryCorrectionOffset.decode(command)
    left_out = set((request.filter_groups or "").split(","))
    topic = broker.topics.topic(request.topic)
    smallest: dict[int, int] = {}
    for group in broker.offsets.groups_of(topic.name):
        for queue_id, offset in broker.offsets.of_group(group).get(topic.name, {}).items():
            if group not in left_out and offset >= broker.store.min_offset(topic.name, queue_id):
                smallest[queue_id] = min(offset, smallest.get(queue_id, offset))
        await broker.lane.turn()
    for queue_id, offset in broker.offsets.of_group(request.compare_group).get(topic.name, {}).items():
        if smallest.get(queue_id, 0) > offset:
            smallest[queue_id] = FAR_OFFSET
    return command.reply(body=CorrectionOffsets(smallest).encode())


async def clone_offsets(broker: Broker, _connection: Connection, command: Command) -> Command:
    """Handle CLONE_GROUP_OFFSET: set a group's offsets to those of another; running members go on from there."""
    request = CloneGroupOffset.decode(command)
    check_open(check_group(request.dest_group))
    for group in (request.src_group, request.dest_group):
        if broker.groups.find_known(group) is None:
            raise GroupNotFound(group)
    topics = [request.topic] if request.topic else broker.offsets.topics_of(request.src_group)
    source = broker.offsets.of_group(request.src_group)
    readers = broker.clients.find_consumers(request.dest_group)
    sharers = broker.clients.find_consumers(request.src_group)
    copied = 0
    for topic in topics:
        is_left = not request.offline and sharers is not None and topic not in sharers.subscriptions
        if broker.topics.find_topic(topic) is None or is_left:
            continue
        is_read = readers is not None and topic in readers.subscriptions
        for queue_id, offset in dict(source.get(topic, {})).items():
            broker.reset_offset(request.dest_group, topic, queue_id, offset, is_read=is_read)
            copied += 1
            if copied % QUEUES_STEP == 0:
                await broker.lane.turn()
    log.info("offsets cloned: from=%s to=%s queues=%d", request.src_group, request.dest_group, copied)
    return command.reply()


async def query_consume_queue(broker: Broker, _connection: Connection, command: Command) -> Command:
    """Handle QUERY_CONSUME_QUEUE: reply with entries of a consume queue, and whether a group wants them."""
    request = QueryConsumeQueue.decode(command)
    topic = broker.topics.topic(request.topic)
    if not 0 <= request.queue_id < max(topic.read_queues, topic.write_queues):
        raise InvalidParameter(f"topic {topic.name} has no queue {request.queue_id} on this broker")
    if request.count > MAX_ENTRIES:
        raise InvalidParameter(f"{request.count} entries are too many for one answer; ask for {MAX_ENTRIES} at most")
    low = max(broker.store.min_offset(topic.name, request.queue_id), 0)
    high = broker.store.max_offset(topic.name, request.queue_id)
    wanted = _subscription(broker, request.consumer_group, topic.name) if request.consumer_group else None
    begin = max(request.index, low)
    entries: list[QueueEntry] = []
    for offsets in steps_of(range(begin, min(begin + max(request.count, 0), high)), ENTRIES_STEP):
        entries.extend(_entry(broker, topic.name, request.queue_id, offset, wanted) for offset in offsets)
        await broker.lane.turn()
    body = QueueEntries(low, high, tuple(entries), wanted.expression if wanted is not None else "")
    return await reply_with(broker, command, body.encode, len(entries))


def _entry(broker: Broker, topic: str, queue_id: int, offset: int, wanted: Subscription | None) -> QueueEntry:
    try:
        entry = broker.store.entry(topic, queue_id, offset)
    except StoreError as error:
        return QueueEntry(-1, 0, 0, message=str(error))
    if entry is None:
        return QueueEntry(-1, 0, 0, message="the entry is gone: retention has deleted its file")
    is_wanted = wanted is None or not wanted.codes or entry[2] in wanted.codes
    return QueueEntry(entry[0], entry[1], entry[2], is_wanted)
