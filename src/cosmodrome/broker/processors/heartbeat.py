"""Clients: who is there, and what belongs to whom."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING

from cosmodrome.broker.bodies import read_body, reply_with
from cosmodrome.broker.clients import Member
from cosmodrome.broker.wanted import LONG_EXPRESSION, check_sql, prepare
from cosmodrome.codes import Language
from cosmodrome.errors import ConsumerNotOnline, InvalidParameter, RequestError
from cosmodrome.filter import sql92
from cosmodrome.model import MessageQueue
from cosmodrome.net.connection import Connection
from cosmodrome.net.lane import steps_of
from cosmodrome.wire.bodies import (
    AllProducerInfo,
    CheckClientConfig,
    ClientConnection,
    ConsumerConnection,
    ConsumerData,
    ConsumerIds,
    HeartbeatData,
    LockBatch,
    ProducerConnection,
    ProducerInfo,
    encode_locked,
)
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import ConsumerGroupHeader, ProducerGroupHeader, UnregisterClient

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

log = logging.getLogger(__name__)


# Groups, filters and tens of subscriptions that one heartbeat registers before others have their turn.
STEP = 50
SUBSCRIPTIONS_AS_ONE = 10
CHARACTERS_AS_ONE = 100  # of a filter's expression
MEMBERS_STEP = 1_000  # told to operators
LOCKS_STEP = 2_000  # queues locked or unlocked in one step


async def heartbeat(broker: Broker, connection: Connection, command: Command) -> Command:
    """HEART_BEAT: the client is alive, with these producers and these consumers."""
    async with connection.in_order:
        data = await read_body(broker, HeartbeatData, command)
        broker.clients.check_room(data, connection)
        _check_subscriptions(broker, data)
        await broker.lane.run(_registering(broker, connection, command, data))
    return command.reply()


def _check_subscriptions(broker: Broker, data: HeartbeatData) -> None:
    limit = broker.config.max_subscriptions_per_group
    for consumer in data.consumers:
        if len(consumer.subscriptions) > limit:
            raise InvalidParameter(
                f"consumer group {consumer.group[:255]} subscribes to {len(consumer.subscriptions)} topics; "
                f"maxSubscriptionsPerGroup allows {limit}"
            )


def _registering(broker: Broker, connection: Connection, command: Command, data: HeartbeatData) -> Iterator[None]:
    """Register in steps. A connection that is closed meanwhile has been dropped: it must not come back.

    A group that is refused keeps none of the others out: they are alive. The first refusal is raised at the end.
    """
    if connection.closed:  # while its body was read
        return
    member = Member(data.client_id, connection.peer, command.language, command.version, broker.clock.steady_ms())
    for number, group in enumerate(data.producers, 1):
        broker.clients.register_producer(group, connection, member)
        if number % (STEP * 10) == 0:  # each costs a microsecond
            yield
            if connection.closed:
                return
    done = 0
    refusal: RequestError | None = None
    for consumer in data.consumers:
        try:
            for _ in _registering_consumer(broker, connection, consumer, member):
                done += 1
                if done >= STEP:
                    done = 0
                    yield
                    if connection.closed:
                        return
        except RequestError as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal


def _registering_consumer(broker: Broker, connection: Connection, data: ConsumerData, member: Member) -> Iterator[None]:
    """Register one consumer; yield for every subscription and filter, as far as they cost anything."""
    group = broker.groups.find_group(data.group)
    if group is None:
        return  # Apache answers success here too; the client's pull is then told that the group does not exist
    if not broker.is_slave:  # which gets the topic from its master
        broker.topics.ensure_retry_topic(group.name, group.retry_queues, data.unit_mode)
    if broker.filters is not None:
        for fault, characters in broker.filters.registering(group.name, data.subscriptions, member.seen_ms):
            if fault is not None:
                log.warning("group %s, member %s: %s", group.name, member.client_id, fault)
            yield from repeat(None, 1 + characters // CHARACTERS_AS_ONE)
            if connection.closed:
                return
    changed = broker.clients.register_consumer(data, connection, member)
    broker.watch_agreement(group.name)
    if changed:
        broker.notify_members(group.name)
    yield from repeat(None, 1 + len(data.subscriptions) // SUBSCRIPTIONS_AS_ONE)


async def check_client_config(broker: Broker, _connection: Connection, command: Command) -> Command:
    """CHECK_CLIENT_CONFIG: refuse a subscription this broker can't serve before its consumer starts."""
    subscription = (await read_body(broker, CheckClientConfig, command)).subscription
    if subscription.expression_type != "TAG":
        check_sql(subscription.expression_type, broker.filters is not None)
        if len(subscription.expression) > LONG_EXPRESSION:
            await prepare(broker.lane, subscription.expression, sql92.EXPRESSION_TYPE)
        else:
            sql92.compile(subscription.expression)
    return command.reply()


async def unregister_client(broker: Broker, connection: Connection, command: Command) -> Command:
    """UNREGISTER_CLIENT: leave one producer or consumer group."""
    request = UnregisterClient.decode(command)
    async with connection.in_order:
        if request.producer_group:
            broker.clients.unregister_producer(request.producer_group, connection)
        if request.consumer_group and broker.clients.unregister_consumer(request.consumer_group, connection):
            broker.member_left(request.consumer_group)
    return command.reply()


async def get_consumer_list(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_CONSUMER_LIST_BY_GROUP: the client ids that share a group's queues."""
    group = ConsumerGroupHeader.decode(command).consumer_group
    consumers = broker.clients.find_consumers(group)
    if consumers is None:
        raise RequestError(f"no consumer for this group, {group}")
    return command.reply(body=ConsumerIds(tuple(consumers.client_ids)).encode())


async def lock_queues(broker: Broker, connection: Connection, command: Command) -> Command:
    """LOCK_BATCH_MQ: take or renew the queues of an orderly consumer; answers those it holds now."""
    taken: list[MessageQueue] = []

    def locking(request: LockBatch) -> Iterator[None]:
        now_ms = broker.clock.steady_ms()
        for queues in steps_of(request.queues, LOCKS_STEP):
            taken.extend(broker.locks.lock(request.consumer_group, request.client_id, queues, now_ms))
            yield

    async with connection.in_order:
        request = await read_body(broker, LockBatch, command)
        await _in_steps(broker, locking(request), len(request.queues))
    if len(taken) <= LOCKS_STEP:
        return command.reply(body=encode_locked(taken))
    return command.reply(body=await broker.lane.aside(lambda: encode_locked(taken)))


async def _in_steps(broker: Broker, steps: Iterator[None], count: int) -> None:
    """Go through the steps for `count` queues; a few are locked with no wait between."""
    if count <= LOCKS_STEP:
        deque(steps, 0)
    else:
        await broker.lane.run(steps)


async def unlock_queues(broker: Broker, connection: Connection, command: Command) -> Command:
    """UNLOCK_BATCH_MQ: let queues go."""

    def unlocking(request: LockBatch) -> Iterator[None]:
        for queues in steps_of(request.queues, LOCKS_STEP):
            broker.locks.unlock(request.consumer_group, request.client_id, queues)
            yield

    async with connection.in_order:
        request = await read_body(broker, LockBatch, command)
        await _in_steps(broker, unlocking(request), len(request.queues))
    return command.reply()


async def get_consumer_connections(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_CONSUMER_CONNECTION_LIST: the members of a group and its subscriptions."""
    name = ConsumerGroupHeader.decode(command).consumer_group
    group = broker.clients.find_consumers(name)
    if group is None:
        raise ConsumerNotOnline(f"the consumer group[{name}] not online")
    connections = await _connections_of(broker, list(group.members.values()))
    body = ConsumerConnection(
        connections=connections,
        subscriptions=dict(group.subscriptions),
        consume_type=group.consume_type,
        message_model=group.message_model,
        consume_from=group.consume_from,
        disagreement=group.disagreement,
    )
    return await reply_with(broker, command, body.encode, len(connections) + len(body.subscriptions))


async def get_producer_connections(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_PRODUCER_CONNECTION_LIST: the members of a producer group."""
    name = ProducerGroupHeader.decode(command).producer_group
    members = broker.clients.producers(name)
    if not members:
        raise RequestError(f"the producer group[{name}] not exist")
    connections = await _connections_of(broker, list(members.values()))
    return await reply_with(broker, command, ProducerConnection(connections).encode, len(connections))


async def get_all_producers(broker: Broker, _connection: Connection, command: Command) -> Command:
    """GET_ALL_PRODUCER_INFO: the members of every producer group."""
    away_ms = broker.clock.now_ms() - broker.clock.steady_ms()
    groups: dict[str, list[ProducerInfo]] = {}

    def telling() -> Iterator[None]:
        every = [(group, one) for group, members in broker.clients.producer_groups().items() for one in members]
        for step in steps_of(every, MEMBERS_STEP):
            for group, member in step:
                groups.setdefault(group, []).append(_producer_of(member, away_ms))
            yield

    await broker.lane.run(telling())
    body = AllProducerInfo({group: tuple(members) for group, members in groups.items()})
    return await reply_with(broker, command, body.encode, sum(map(len, groups.values())))


def _producer_of(member: Member, away_ms: int) -> ProducerInfo:
    seen_ms = member.seen_ms + away_ms
    return ProducerInfo(member.client_id, member.address, _language(member.language), member.version, seen_ms)


async def _connections_of(broker: Broker, members: list[Member]) -> tuple[ClientConnection, ...]:
    connections: list[ClientConnection] = []

    def telling() -> Iterator[None]:
        for step in steps_of(members, MEMBERS_STEP):
            connections.extend(map(_connection_of, step))
            yield

    await broker.lane.run(telling())
    return tuple(connections)


def _connection_of(member: Member) -> ClientConnection:
    return ClientConnection(member.client_id, member.address, _language(member.language), member.version)


def _language(number: int) -> Language:
    return Language(number) if number in Language.__members__.values() else Language.OTHER
