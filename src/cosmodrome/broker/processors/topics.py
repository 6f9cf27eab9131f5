"""Topics and groups: create, change, delete, list, and what is in them."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cosmodrome.broker.bodies import check_readable, read_body, reply_with
from cosmodrome.broker.groups import check_open
from cosmodrome.broker.topic_attributes import changed
from cosmodrome.broker.topics import check_config
from cosmodrome.errors import GroupNotFound, InvalidParameter, LimitReached
from cosmodrome.model import MessageQueue, TopicConfig, check_group
from cosmodrome.net.connection import Connection
from cosmodrome.net.lane import steps_of
from cosmodrome.wire.bodies import (
    ConsumeOffset,
    ConsumeStats,
    ConsumeStatsList,
    GroupConfigBody,
    GroupConfigList,
    GroupConfigWrapper,
    GroupList,
    TopicConfigBody,
    TopicConfigList,
    TopicConfigWrapper,
    TopicList,
    TopicOffset,
    TopicStats,
)
from cosmodrome.wire.command import Command
from cosmodrome.wire.pop import all_pop_retry_topics
from cosmodrome.wire.requests import (
    BrokerConsumeStats,
    ConsumeStatsRequest,
    CreateTopic,
    DeleteGroup,
    GroupHeader,
    TopicHeader,
)

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

MEMBERS_TOLD = 20_000  # of all groups together, beside their progress
QUEUES_STEP = 100  # queues looked at in one step; each may have to be read from a disk


async def create_topic(broker: Broker, _connection: Connection, command: Command) -> Command:
    """UPDATE_AND_CREATE_TOPIC: answered when the topic is on disk and the name servers were told."""
    request = CreateTopic.decode(command)
    known = broker.topics.find_topic(request.topic)
    topic = TopicConfig(
        request.topic,
        request.read_queue_nums,
        request.write_queue_nums,
        request.perm,
        request.topic_filter_type,
        request.topic_sys_flag or 0,
        request.order,
        changed(request.topic, known.attributes if known else None, request.attributes),
    )
    _check_topic(broker, topic)
    broker.topics.put(topic)
    await broker.topics.saved()
    await broker.registration.announce()
    return command.reply()


def _check_topic(broker: Broker, topic: TopicConfig) -> None:
    if broker.topics.is_system(topic.name):
        raise InvalidParameter(f"The topic[{topic.name}] is conflict with system topic.")
    check_config(topic)
    broker.topics.check_room(topic.name)
    check_readable(TopicConfigWrapper(broker.topics.data_version, {topic.name: topic}))


async def create_topics(broker: Broker, _connection: Connection, command: Command) -> Command:
    """Handle UPDATE_AND_CREATE_TOPIC_LIST: make or change topics.

    If one of them is illegal, nothing is changed. When there are too many, those before that one are made.
    """
    topics: list[TopicConfig] = []
    for given in (await read_body(broker, TopicConfigList, command)).topics:
        known = broker.topics.find_topic(given.name)
        wanted = ",".join(f"+{name.removeprefix('+')}={value}" for name, value in given.attributes.items())
        attributes = changed(given.name, known.attributes if known else None, wanted or None)
        topics.append(dataclasses.replace(given, attributes=attributes))
    for topic in topics:
        _check_topic(broker, topic)
        await broker.lane.turn()
    for topic in topics:
        broker.topics.check_room(topic.name)
        broker.topics.put(topic)
    await broker.topics.saved()
    await broker.registration.announce()
    return command.reply()


async def delete_topic(broker: Broker, _connection: Connection, command: Command) -> Command:
    """DELETE_TOPIC_IN_BROKER: its config, its queues, every group's offsets on it, and what groups popped of it."""
    name = TopicHeader.decode(command).topic
    if broker.topics.is_system(name):
        raise InvalidParameter(f"The topic[{name}] is conflict with system topic.")
    retries = [retry for group in broker.offsets.groups_of(name) for retry in all_pop_retry_topics(name, group)]
    names = [name, *(retry for retry in retries if broker.topics.find_topic(retry) is not None)]
    with broker.topics.leaving(names):
        for topic in names:
            broker.topics.delete(topic)
            broker.offsets.forget_topic(topic)
            broker.statistics.forget_reached(topic)
        await broker.topics.saved()
        for topic in names:
            await delete_queues(broker, topic)
    return command.reply()


async def delete_queues(broker: Broker, topic: str) -> None:
    """Delete the queues of a topic in steps; a broker that stops meanwhile takes the rest in one."""
    steps = broker.store.deleting_topic(topic)
    try:
        await broker.lane.run(steps)
    finally:
        deque(steps, 0)


async def get_all_topics(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_ALL_TOPIC_CONFIG."""
    topics = {config.name: config for config in broker.topics}
    return await reply_with(broker, command, TopicConfigWrapper(broker.topics.data_version, topics).encode, len(topics))


async def get_topic(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_TOPIC_CONFIG."""
    config = broker.topics.topic(TopicHeader.decode(command).topic)
    return command.reply(body=TopicConfigBody(config).encode())


async def get_system_topics(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
    names = tuple(config.name for config in broker.topics if broker.topics.is_system(config.name))
    return command.reply(body=TopicList(names).encode())


async def get_topic_stats(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_TOPIC_STATS_INFO: where each queue begins and ends."""
    topic = broker.topics.topic(TopicHeader.decode(command).topic)
    count = max(topic.read_queues, topic.write_queues)
    stats: dict[MessageQueue, TopicOffset] = {}
    await broker.lane.run(
        stats.update(_queue_offsets(broker, topic, queue_ids)) for queue_ids in steps_of(range(count), QUEUES_STEP)
    )
    return await reply_with(broker, command, TopicStats(stats).encode, len(stats))


def _queue_offsets(broker: Broker, topic: TopicConfig, queue_ids: Sequence[int]) -> dict[MessageQueue, TopicOffset]:
    stats = {}
    for queue_id in queue_ids:
        low = max(0, broker.store.min_offset(topic.name, queue_id))
        high = broker.store.max_offset(topic.name, queue_id)
        updated = broker.store.store_time(topic.name, queue_id, high - 1) if high > low else 0
        queue = MessageQueue(topic.name, broker.config.broker_name, queue_id)
        stats[queue] = TopicOffset(min_offset=low, max_offset=high, last_update_timestamp=updated)
    return stats


async def query_topic_groups(broker: Broker, _connection: Connection, command: Command) -> Command:
    """QUERY_TOPIC_CONSUME_BY_WHO: groups that subscribe to a topic now, or have consumed it."""
    topic = TopicHeader.decode(command).topic
    online = [group.name for group in broker.clients.consumer_groups() if topic in group.subscriptions]
    return command.reply(body=GroupList(tuple(sorted({*online, *broker.offsets.groups_of(topic)}))).encode())


async def put_group(broker: Broker, _connection: Connection, command: Command) -> Command:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
    group = (await read_body(broker, GroupConfigBody, command)).group
    broker.groups.check_room(group.name)
    check_readable(GroupConfigWrapper(broker.groups.data_version, {group.name: group}))
    broker.groups.put(group)
    await broker.groups.saved()
    return command.reply()


async def put_groups(broker: Broker, _connection: Connection, command: Command) -> Command:
    """Handle UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: make or change groups.

    If one of them is illegal, nothing is changed. When there are too many, those before that one are made.
    """
    groups = (await read_body(broker, GroupConfigList, command)).groups
    for group in groups:
        check_group(group.name)
        check_readable(GroupConfigWrapper(broker.groups.data_version, {group.name: group}))
    for group in groups:
        broker.groups.check_room(group.name)
        broker.groups.put(group)
    await broker.groups.saved()
    return command.reply()


async def delete_group(broker: Broker, _connection: Connection, command: Command) -> Command:
    """DELETE_SUBSCRIPTIONGROUP."""
    request = DeleteGroup.decode(command)
    check_open(request.group_name)
    broker.groups.delete(request.group_name)
    if request.clean_offset or request.remove_offset:
        broker.offsets.forget_group(request.group_name)
    await broker.groups.saved()
    return command.reply()


async def get_all_groups(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
    groups = {config.name: config for config in broker.groups}
    return await reply_with(broker, command, GroupConfigWrapper(broker.groups.data_version, groups).encode, len(groups))


async def get_group(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_SUBSCRIPTIONGROUP_CONFIG."""
    name = GroupHeader.decode(command).group
    config = broker.groups.find_group(name)
    if config is None:
        raise GroupNotFound(name)
    return command.reply(body=GroupConfigBody(config).encode())


async def get_consume_stats(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_CONSUME_STATS: how far a group is behind on each queue."""
    request = ConsumeStatsRequest.decode(command)
    group = request.consumer_group
    names = [request.topic] if request.topic else broker.offsets.topics_of(group)
    topics = [topic for name in names if (topic := broker.topics.find_topic(name)) is not None]
    _check_queue_count(broker, sum(topic.read_queues for topic in topics), "name one topic")
    stats: dict[MessageQueue, ConsumeOffset] = {}
    await broker.lane.run(
        stats.update(_queue_stats(broker, group, topic, queue_ids))
        for topic in topics
        for queue_ids in steps_of(range(topic.read_queues), QUEUES_STEP)
    )
    tps = sum(_consume_tps(broker, group, topic.name) for topic in topics)
    return await reply_with(broker, command, ConsumeStats(stats, tps).encode, len(stats))


async def get_all_consume_stats(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_BROKER_CONSUME_STATS: how far every group is on each queue of each topic that it consumed."""
    is_order = BrokerConsumeStats.decode(command).is_order
    wanted: list[tuple[str, TopicConfig]] = []
    for group in [config.name for config in broker.groups]:
        topics = [broker.topics.find_topic(name) for name in broker.offsets.topics_of(group)]
        wanted += [(group, topic) for topic in topics if topic is not None and (topic.order or not is_order)]
    count = sum(topic.read_queues for _, topic in wanted)
    _check_queue_count(broker, count, "ask about one group at a time (GET_CONSUME_STATS)")
    groups: dict[str, list[ConsumeStats]] = {}

    def looking() -> Iterator[None]:
        looked_at = 0
        for group, topic in wanted:
            stats: dict[MessageQueue, ConsumeOffset] = {}
            for queue_ids in steps_of(range(topic.read_queues), QUEUES_STEP):
                stats.update(_queue_stats(broker, group, topic, queue_ids))
                looked_at += len(queue_ids)
                if looked_at >= QUEUES_STEP:
                    looked_at = 0
                    yield
            groups.setdefault(group, []).append(ConsumeStats(stats, _consume_tps(broker, group, topic.name)))

    await broker.lane.run(looking())
    online = None if len(broker.clients) > MEMBERS_TOLD else broker.clients.consumer_groups()
    members = None if online is None else {group.name: tuple(sorted(set(group.client_ids))) for group in online}
    body = ConsumeStatsList(broker.address, {group: tuple(stats) for group, stats in groups.items()}, members)
    return await reply_with(broker, command, body.encode, count)


def _consume_tps(broker: Broker, group: str, topic: str) -> float:
    rates = broker.statistics.view("GROUP_GET_NUMS", f"{topic}@{group}")
    return rates[0].tps if rates is not None else 0.0


def _check_queue_count(broker: Broker, count: int, advice: str) -> None:
    if count > (limit := broker.config.max_queues_in_stats):
        raise LimitReached(f"figures of {count} queues are too many; maxQueuesInStats allows {limit}: {advice}")


def _queue_stats(
    broker: Broker, group: str, topic: TopicConfig, queue_ids: Sequence[int]
) -> dict[MessageQueue, ConsumeOffset]:
    stats = {}
    for queue_id in queue_ids:
        end = broker.store.max_offset(topic.name, queue_id)
        consumed = broker.offsets.find_offset(group, topic.name, queue_id) or 0
        reached = broker.statistics.reached(topic.name, queue_id, group) or 0
        last_ms = broker.store.store_time(topic.name, queue_id, consumed - 1) if consumed else 0
        queue = MessageQueue(topic.name, broker.config.broker_name, queue_id)
        stats[queue] = ConsumeOffset(
            broker_offset=end, consumer_offset=consumed, pull_offset=max(consumed, reached), last_timestamp=last_ms
        )
    return stats
