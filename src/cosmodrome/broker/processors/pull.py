"""Serving messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosmodrome.broker.clients import ConsumerGroup
from cosmodrome.codes import ResponseCode
from cosmodrome.errors import (
    InvalidParameter,
    NoPermission,
    RequestError,
    SubscriptionNotFound,
    SubscriptionOutdated,
)
from cosmodrome.filter import tags
from cosmodrome.model import ALL_TAGS, MASTER_ID, GroupConfig, Perm, Subscription, TopicConfig
from cosmodrome.net.connection import Connection
from cosmodrome.store.message import GetStatus, ReadResult
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
_NOT_FOUND = ResponseCode.PULL_NOT_FOUND
_MAX_PULL_BYTES = 128 * 1024 * 1024

MAX_HOLD_MS = 60_000  # clients ask for 15 or 20 s; a dead one must not keep its place for longer than this


async def pull_message(broker: Broker, connection: Connection, command: Command) -> Command:
    """PULL_MESSAGE: the stored records from an offset on; with nothing there, wait for the next one."""
    request = PullMessage.decode(command)
    broker.check_permission(Perm.READ)
    group = broker.groups.group(request.consumer_group)
    _check_readable(request, group, broker.topics.topic(request.topic))
    codes = _wanted_codes(broker, request, group)
    if request.sys_flag & PullFlag.COMMIT_OFFSET and request.commit_offset >= 0:
        broker.offsets.commit(request.consumer_group, request.topic, request.queue_id, request.commit_offset)
    result = _read(broker, request, codes)
    code = _code(request, result)
    if code == _NOT_FOUND and request.sys_flag & PullFlag.SUSPEND:
        await broker.arrival(request.topic, request.queue_id, request.queue_offset, codes, _hold_ms(broker, request))
        result = _read(broker, request, codes)
        code = _code(request, result)
    header = PullReply(MASTER_ID, result.next_offset, result.min_offset, result.max_offset)
    return command.reply(code, header, _body(result), remark=result.status)


def _check_readable(request: PullMessage, group: GroupConfig, topic: TopicConfig) -> None:
    if not group.consume_enable:
        raise NoPermission(f"subscription group no permission, {group.name}")
    if not topic.readable:
        raise NoPermission(f"the topic[{topic.name}] pulling message is forbidden")
    if not 0 <= request.queue_id < topic.read_queues:
        raise InvalidParameter(
            f"queueId[{request.queue_id}] is illegal, topic:[{topic.name}] has readQueueNums:[{topic.read_queues}]"
        )


def _wanted_codes(broker: Broker, request: PullMessage, group: GroupConfig) -> frozenset[int] | None:
    """The tag hashes this pull wants; None wants everything."""
    if request.sys_flag & PullFlag.SUBSCRIPTION:
        subscription = _own_subscription(request)
    else:
        subscription = _registered_subscription(broker, request, group)
    return None if subscription.expression == ALL_TAGS else subscription.codes


def _own_subscription(request: PullMessage) -> Subscription:
    if request.expression_type not in (None, "", "TAG"):
        raise RequestError(NO_SQL)
    return tags.subscription(request.topic, request.subscription or ALL_TAGS, request.sub_version)


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
    if subscription.expression_type != "TAG":
        raise RequestError(NO_SQL)
    return subscription


NO_SQL = "The broker does not support consumer to filter message by SQL92"


def _check_model(consumers: ConsumerGroup, group: GroupConfig) -> None:
    if consumers.broadcasting and not group.consume_broadcast_enable:
        raise NoPermission(f"the consumer group[{group.name}] can not consume by broadcast way")


def _read(broker: Broker, request: PullMessage, codes: frozenset[int] | None) -> ReadResult:
    max_bytes = request.max_msg_bytes or _MAX_PULL_BYTES
    return broker.store.read(
        request.topic, request.queue_id, request.queue_offset, request.max_msg_nums, max_bytes, codes
    )


def _code(request: PullMessage, result: ReadResult) -> int:
    if result.status in _EMPTY_QUEUE and request.queue_offset != 0:
        return ResponseCode.PULL_OFFSET_MOVED
    return _CODES[result.status]


def _hold_ms(broker: Broker, request: PullMessage) -> int:
    config = broker.config
    wanted = request.suspend_timeout_millis if config.long_polling_enable else config.short_polling_time_mills
    return min(wanted, MAX_HOLD_MS)


def _body(result: ReadResult) -> bytes | memoryview:
    views = result.views
    return views[0] if len(views) == 1 else b"".join(views)
