"""Serving messages."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from cosmodrome.broker.clients import ConsumerGroup
from cosmodrome.broker.wanted import LONG_EXPRESSION, Wanted, asked_for, prepare, registered, wanted_again
from cosmodrome.codes import ResponseCode
from cosmodrome.errors import (
    InvalidParameter,
    NoPermission,
    SubscriptionNotFound,
    SubscriptionOutdated,
)
from cosmodrome.model import MASTER_ID, RETRY_PREFIX, GroupConfig, Perm, Subscription, TopicConfig
from cosmodrome.net.connection import Answering, Connection, completed
from cosmodrome.store.message import GetStatus, ReadResult
from cosmodrome.store.queue_reader import MAX_PULL_BYTES
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import PullFlag, PullMessage, PullReply

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_EMPTY_QUEUE = (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)
_CORRECTED = (*_EMPTY_QUEUE, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_TOO_SMALL)  # the offset, by a master
_NOT_FOUND = ResponseCode.PULL_NOT_FOUND
_OFFSET_MOVED = ResponseCode.PULL_OFFSET_MOVED

OFFSET_RESET = "OFFSET_RESET"
MAX_HOLD_MS = 60_000  # clients ask for 15 or 20 s; a dead one must not keep its place for longer than this


def pull_message(broker: Broker, connection: Connection, command: Command) -> Answering:
    """PULL_MESSAGE: the stored records from an offset on; with nothing there, wait for the next one."""
    request = PullMessage.decode(command)
    broker.check_permission(Perm.READ)
    group = broker.groups.group(request.consumer_group)
    _check_readable(request, group, broker.topics.topic(request.topic))
    expression = request.subscription or ""
    if len(expression) > LONG_EXPRESSION:
        return _pull_prepared(broker, connection, command, request, group, expression)
    wanted = _wanted(broker, request, group)
    _commit(broker, request)
    return _pull(broker, connection, command, request, group, wanted)


async def _pull_prepared(
    broker: Broker,
    connection: Connection,
    command: Command,
    request: PullMessage,
    group: GroupConfig,
    expression: str,
) -> Command:
    """Pull by an expression that takes long to compile."""
    _commit(broker, request)  # now: a newer offset may come while the expression is compiled
    await prepare(broker.lane, expression, request.expression_type)
    wanted = _wanted(broker, request, group)
    return await completed(_pull(broker, connection, command, request, group, wanted))


def _pull(
    broker: Broker, connection: Connection, command: Command, request: PullMessage, group: GroupConfig, wanted: Wanted
) -> Answering:
    result = _read(broker, request, request.queue_offset, wanted)
    code = _code(request, result)
    if code == _NOT_FOUND and request.sys_flag & PullFlag.SUSPEND and not broker.offsets.has_reset(*_place(request)):
        return _pull_arriving(broker, connection, command, request, group, wanted)
    return _reply(broker, connection, command, request, group, result)


async def _pull_arriving(
    broker: Broker, connection: Connection, command: Command, request: PullMessage, group: GroupConfig, wanted: Wanted
) -> Command:
    result = await _read_arriving(broker, connection, request, wanted)
    return _reply(broker, connection, command, request, group, result)


def _reply(
    broker: Broker,
    connection: Connection,
    command: Command,
    request: PullMessage,
    group: GroupConfig,
    result: ReadResult,
) -> Command:
    code = _code(request, result)
    # A pull whose client is gone must not take it: nobody would hear of it.
    if not connection.closed and (reset := broker.offsets.take_reset(*_place(request))) is not None:
        header = PullReply(MASTER_ID, reset, result.min_offset, result.max_offset)
        return command.reply(ResponseCode.PULL_OFFSET_MOVED, header, remark=OFFSET_RESET)
    if result.count:
        broker.statistics.got(request.topic, request.queue_id, group.name, result)
    else:
        broker.statistics.missed()
    header = PullReply(_next_broker(broker, group, result), result.next_offset, result.min_offset, result.max_offset)
    if broker.is_slave and not broker.replication.offset_check_in_slave and result.status in _CORRECTED:
        # A slave may be behind, or have begun with its master's last file: the offset may be right all the same.
        header.next_begin_offset = request.queue_offset
        if code == _OFFSET_MOVED:
            code, header.suggest_which_broker_id = ResponseCode.PULL_RETRY_IMMEDIATELY, group.broker_id
    return command.reply(code, header, _body(result), remark=result.status)


def _place(request: PullMessage) -> tuple[str, str, int]:
    return request.consumer_group, request.topic, request.queue_id


def _check_readable(request: PullMessage, group: GroupConfig, topic: TopicConfig) -> None:
    if not group.consume_enable:
        raise NoPermission(f"subscription group no permission, {group.name}")
    if not topic.readable:
        raise NoPermission(f"the topic[{topic.name}] pulling message is forbidden")
    if not 0 <= request.queue_id < topic.read_queues:
        raise InvalidParameter(
            f"queueId[{request.queue_id}] is illegal, topic:[{topic.name}] has readQueueNums:[{topic.read_queues}]"
        )


def _commit(broker: Broker, request: PullMessage) -> None:
    """Take the offset that a pull brings along; a slave leaves that to its master."""
    if request.sys_flag & PullFlag.COMMIT_OFFSET and request.commit_offset >= 0 and not broker.is_slave:
        broker.offsets.accept(request.consumer_group, request.topic, request.queue_id, request.commit_offset)


def _wanted(broker: Broker, request: PullMessage, group: GroupConfig) -> Wanted:
    if request.sys_flag & PullFlag.SUBSCRIPTION:
        is_sql_allowed = broker.filters is not None
        return asked_for(request.topic, request.subscription, request.expression_type, sql_allowed=is_sql_allowed)
    subscription = _registered_subscription(broker, request, group)
    if broker.config.filter_support_retry and broker.filters is not None and request.topic.startswith(RETRY_PREFIX):
        return wanted_again(group.name, broker.filters)
    return registered(subscription, group.name, request.sub_version, broker.filters)


def _registered_subscription(broker: Broker, request: PullMessage, group: GroupConfig) -> Subscription:
    consumers = broker.clients.find_consumers(request.consumer_group)
    if consumers is None:
        raise SubscriptionNotFound(
            f"the consumer's group info not exist: {request.consumer_group}; send a heartbeat first"
        )
    _check_model(consumers, group)
    subscription = consumers.subscriptions.get(request.topic)
    if subscription is None:
        raise SubscriptionNotFound(
            f"the consumer's subscription not exist: {request.consumer_group} on {request.topic}"
        )
    if subscription.version < request.sub_version:
        raise SubscriptionOutdated(
            f"the consumer's subscription not latest: {request.consumer_group} on {request.topic}"
        )
    return subscription


def _check_model(consumers: ConsumerGroup, group: GroupConfig) -> None:
    if consumers.broadcasting and not group.consume_broadcast_enable:
        raise NoPermission(f"the consumer group[{group.name}] can not consume by broadcast way")


async def _read_arriving(broker: Broker, connection: Connection, request: PullMessage, wanted: Wanted) -> ReadResult:
    """Wait for a wanted message, at most as long as the pull may be held. Properties are seen only by reading, so with
    SQL92 every message that comes is looked at, and the wait goes on behind it if it is not wanted."""
    deadline_ms = broker.clock.steady_ms() + _hold_ms(broker, request)
    offset, left_ms = request.queue_offset, _hold_ms(broker, request)
    while True:
        await broker.arrival(request.topic, request.queue_id, offset, wanted.codes, left_ms, connection)
        result = _read(broker, request, offset, wanted)
        left_ms = deadline_ms - broker.clock.steady_ms()
        seen_all = result.status is GetStatus.NO_MATCHED_MESSAGE and result.next_offset == result.max_offset
        if wanted.matches is None or not seen_all or left_ms <= 0:
            return result
        offset = result.next_offset


def _read(broker: Broker, request: PullMessage, offset: int, wanted: Wanted) -> ReadResult:
    max_bytes = request.max_msg_bytes or MAX_PULL_BYTES
    topic, queue_id, max_count = request.topic, request.queue_id, request.max_msg_nums
    began = monotonic()
    codes, matches, bulk = wanted.codes, wanted.matches, bool(request.bulk)
    result = broker.store.read(topic, queue_id, offset, max_count, max_bytes, codes, matches, bulk=bulk)
    result.took_ms = (monotonic() - began) * 1000
    return result


def _code(request: PullMessage, result: ReadResult) -> int:
    if result.status in _EMPTY_QUEUE and request.queue_offset != 0:
        return ResponseCode.PULL_OFFSET_MOVED
    return _CODES[result.status]


def _next_broker(broker: Broker, group: GroupConfig, result: ReadResult) -> int:
    """Which broker of this name should serve the next pull: a replica when it would keep our disk busy."""
    if not broker.config.slave_read_enable:
        return MASTER_ID
    return group.which_broker_when_consume_slowly if result.slow else group.broker_id


def _hold_ms(broker: Broker, request: PullMessage) -> int:
    config = broker.config
    wanted = request.suspend_timeout_millis if config.long_polling_enable else config.short_polling_time_mills
    return min(wanted, MAX_HOLD_MS)


def _body(result: ReadResult) -> bytes | memoryview:
    views = result.views
    return views[0] if len(views) == 1 else b"".join(views)
