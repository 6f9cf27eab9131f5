"""Popping messages: from any queue of a topic, and from its retry topic."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from cosmodrome.broker.pop.polls import ANY_QUEUE, PollKey
from cosmodrome.broker.processors.pull import MAX_HOLD_MS
from cosmodrome.broker.statistics import CHECKPOINTS
from cosmodrome.broker.wanted import EVERYTHING, LONG_EXPRESSION, Wanted, asked_for, prepare
from cosmodrome.codes import ResponseCode
from cosmodrome.config import KIB
from cosmodrome.errors import FlushTimeout, InvalidParameter, NoPermission, RequestError
from cosmodrome.model import Perm, Property, TopicConfig, check_topic
from cosmodrome.net.connection import Connection
from cosmodrome.store.message import Durability, GetStatus, ReadResult
from cosmodrome.wire import properties as props
from cosmodrome.wire.bodies import MAX_POPPED, CheckPoint
from cosmodrome.wire.command import Command
from cosmodrome.wire.pop import (
    NORMAL,
    ORDER_QUEUE_ID,
    Handle,
    message_offset_info,
    retry_mark,
    start_offset_info,
)
from cosmodrome.wire.record import Record, decode_records, queue_offsets
from cosmodrome.wire.requests import (
    Notification,
    NotificationReply,
    PeekMessage,
    PollingInfo,
    PollingInfoReply,
    PopMessage,
    PopReply,
)

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

# A request that comes this much after its own deadline is not looked at: its client no longer waits.
TOO_LATE_MS = 500
# No request is under way for so long: one that says so, or comes from the future, has another clock than we have.
MAX_UNDER_WAY_MS = 120_000
FROM_LAST = 1
PLACES_STEP = 200  # queues looked at in one step
LOOK_AGAIN_MS = 1_000  # after having looked at more queues than that
# A pop with so much takes from no further queue: with one more message of the largest size it still fits into a frame.
ENOUGH_BYTES = 512 * KIB

_MOVED = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL)
_NONE_WANTED = (GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING)

R = TypeVar("R", PopMessage, PeekMessage, Notification, PollingInfo)


@dataclass(slots=True)
class _Taken:
    """What one pop has taken so far."""

    pop_time_ms: int
    revive_queue_id: int
    bodies: list[bytes | memoryview] = field(default_factory=list)
    start_offsets: list[str] = field(default_factory=list)
    offsets: list[str] = field(default_factory=list)
    order_counts: list[str] = field(default_factory=list)
    count: int = 0
    size_bytes: int = 0
    rest: int = 0  # messages that were there and not taken
    has_skipped: bool = False  # unwanted messages were passed: there may be wanted ones behind them
    look_again_ms: int | None = None  # when a queue that is blocked now is free
    log_end: int = 0


async def pop_message(broker: Broker, connection: Connection, command: Command) -> Command:
    """POP_MESSAGE: take messages that nobody else has; with none there, wait for the next one."""
    request = PopMessage.decode(command)
    broker.timers.check_time(request.invisible_time, 0)
    now_ms = broker.clock.steady_ms()
    deadline_ms = _deadline_ms(broker, request, now_ms)
    if now_ms - deadline_ms > TOO_LATE_MS:
        return command.reply(
            ResponseCode.POLLING_TIMEOUT, remark=f"the broker[{broker.address}] pop message is timeout too much"
        )
    topic = _popped_topic(broker, request)
    if request.exp is not None and len(request.exp) > LONG_EXPRESSION:
        await prepare(broker.lane, request.exp, request.exp_type)
    wanted = asked_for(request.topic, request.exp, request.exp_type, sql_allowed=broker.filters is not None)
    key = PollKey(request.topic, request.consumer_group, max(request.queue_id, ANY_QUEUE))
    while True:
        taken = await _take(broker, connection, request, topic, wanted)
        if taken.count:
            await _durable(broker, taken.log_end)
            if taken.rest > 0:
                broker.pops.more(key)
            return command.reply(header=_header(request, taken), body=_joined(taken.bodies), remark=GetStatus.FOUND)
        if taken.has_skipped and broker.clock.steady_ms() <= deadline_ms + TOO_LATE_MS:
            await asyncio.sleep(0)  # others have their turn
            continue
        code = ResponseCode.POLLING_TIMEOUT
        if broker.clock.steady_ms() < deadline_ms and not broker.pops.polls.closed:
            wake_ms = min(deadline_ms, taken.look_again_ms or deadline_ms)
            if not await broker.pops.arrival(broker.pops.polls, key, wanted.codes, wake_ms):
                code = ResponseCode.POLLING_FULL
            elif connection.closed:  # its turn is another's
                broker.pops.more(key)
            else:
                continue
        return command.reply(code, _header(request, taken), remark=GetStatus.NO_MESSAGE_IN_QUEUE)


def _deadline_ms(broker: Broker, request: PopMessage | Notification, now_ms: int) -> int:
    """Until when its client waits, in steady time. What it spent on its way counts, unless our clocks disagree."""
    under_way_ms = broker.clock.now_ms() - (request.born_time or broker.clock.now_ms())
    if not 0 <= under_way_ms <= request.poll_time + MAX_UNDER_WAY_MS:
        under_way_ms = 0
    return now_ms + min(request.poll_time - under_way_ms, MAX_HOLD_MS)


async def peek_message(broker: Broker, _connection: Connection, command: Command) -> Command:
    """PEEK_MESSAGE: what a pop of any of these queues would bring, left where it is."""
    request = PeekMessage.decode(command)
    topic = _popped_topic(broker, request)
    bodies: list[bytes | memoryview] = []
    count = rest = 0
    for number, (name, queue_id) in enumerate(_places(broker, request, topic)):
        if number and number % PLACES_STEP == 0:
            await broker.lane.turn()
        offset = _offset(broker, request.consumer_group, name, queue_id)
        result = broker.store.read(name, queue_id, offset, request.max_msg_nums - count)
        if result.status in _MOVED:
            result = broker.store.read(name, queue_id, result.next_offset, request.max_msg_nums - count)
        rest += result.max_offset - result.next_offset
        count += result.count
        bodies += result.views
        if count >= request.max_msg_nums:
            break
    code = ResponseCode.SUCCESS if count else ResponseCode.PULL_NOT_FOUND
    return command.reply(code, PopReply(broker.clock.now_ms(), 0, 0, rest), _joined(bodies))


async def notification(broker: Broker, connection: Connection, command: Command) -> Command:
    """NOTIFICATION: answer when there is something to pop, or when the time is up."""
    request = Notification.decode(command)
    topic = _popped_topic(broker, request)
    deadline_ms = _deadline_ms(broker, request, broker.clock.steady_ms())
    key = PollKey(request.topic, request.consumer_group, max(request.queue_id, ANY_QUEUE))
    polls = broker.pops.notifications
    is_wide = topic.read_queues > PLACES_STEP
    while not (has_message := await _has_message(broker, request, topic)):
        if broker.clock.steady_ms() >= deadline_ms or polls.closed or connection.closed:
            break
        again_ms = broker.clock.steady_ms() + LOOK_AGAIN_MS if is_wide else deadline_ms
        if not await broker.pops.arrival(polls, key, None, min(deadline_ms, again_ms)):
            return command.reply(header=NotificationReply(False, polling_full=True))
    return command.reply(header=NotificationReply(has_message))


async def polling_info(broker: Broker, _connection: Connection, command: Command) -> Command:
    """POLLING_INFO: how many pops of a group wait for the same as this one would."""
    request = PollingInfo.decode(command)
    _popped_topic(broker, request)
    key = PollKey(request.topic, request.consumer_group, max(request.queue_id, ANY_QUEUE))
    return command.reply(header=PollingInfoReply(broker.pops.polls.count(key)))


def _popped_topic(broker: Broker, request: R) -> TopicConfig:
    """The topic, if this group may pop it."""
    broker.check_permission(Perm.READ)
    if isinstance(request, PopMessage | PeekMessage) and not 0 < request.max_msg_nums <= MAX_POPPED:
        raise InvalidParameter(f"the broker[{broker.address}] pop message's num is not 1 to {MAX_POPPED}")
    if not broker.timers.is_enabled:
        raise RequestError(f"the broker[{broker.address}] pop message is forbidden because timerWheelEnable is false")
    topic = broker.topics.topic(request.topic)
    if not topic.readable:
        raise NoPermission(f"the topic[{topic.name}] peeking message is forbidden")
    if request.queue_id >= topic.read_queues:
        raise InvalidParameter(
            f"queueId[{request.queue_id}] is illegal, topic:[{topic.name}] has readQueueNums:[{topic.read_queues}]"
        )
    group = broker.groups.group(request.consumer_group)
    if not group.consume_enable:
        raise NoPermission(f"subscription group no permission, {group.name}")
    for name in broker.pops.retry_topics(topic.name, group.name):
        check_topic(name)  # what is popped must be able to come again
    return topic


# --- taking messages


async def _take(
    broker: Broker, connection: Connection, request: PopMessage, topic: TopicConfig, wanted: Wanted
) -> _Taken:
    """Take what there is, queue by queue. Each happens in one go: no other pop comes between what is read of it and
    what is noted about that. Many queues are looked at in steps; what arrives meanwhile in one that was looked at
    before may wake nobody, so it is looked for again soon."""
    revive_queue_id = ORDER_QUEUE_ID if request.order else broker.pops.next_revive_queue()
    taken = _Taken(broker.store.timeline.today_ms(), revive_queue_id)
    for number, (name, queue_id) in enumerate(_places(broker, request, topic)):
        if number and number % PLACES_STEP == 0:
            await broker.lane.turn()
            if connection.closed:
                break
            again_ms = broker.clock.steady_ms() + LOOK_AGAIN_MS
            taken.look_again_ms = min(again_ms, taken.look_again_ms or again_ms)
        try:
            _take_from(broker, request, taken, name, queue_id, wanted if name == topic.name else EVERYTHING)
        except RequestError:
            if not taken.count:
                raise
            break  # what was taken before is the client's; it will hear of this with its next pop
    return taken


def _places(
    broker: Broker, request: PopMessage | PeekMessage | Notification, topic: TopicConfig
) -> Iterator[tuple[str, int]]:
    """The queues to look at: sometimes those of the retry topic first, so that a busy topic does not starve it."""
    places = [(topic.name, request.queue_id)] if request.queue_id >= 0 else _queues(topic)
    if isinstance(request, PeekMessage) or not request.order:
        found = map(broker.topics.find_topic, broker.pops.retry_topics(topic.name, request.consumer_group))
        retries = [place for retry in found if retry is not None for place in _queues(retry)]
        is_first = random.randrange(100) < broker.config.pop_from_retry_probability
        places = [*retries, *places] if is_first else [*places, *retries]
    return iter(places)


def _queues(topic: TopicConfig) -> list[tuple[str, int]]:
    """All queues of a topic, beginning with any of them."""
    first = random.randrange(max(topic.read_queues, 1))
    return [(topic.name, (first + number) % topic.read_queues) for number in range(topic.read_queues)]


def _take_from(broker: Broker, request: PopMessage, taken: _Taken, topic: str, queue_id: int, wanted: Wanted) -> None:
    group = request.consumer_group
    broker.offsets.take_reset(group, topic, queue_id)  # `_first_offset` finds it; the rest follows it
    start = _first_offset(broker, request, topic, queue_id)
    if request.order:
        until_ms = broker.pops.orders.blocked_until(topic, group, queue_id, request.attempt_id, taken.pop_time_ms)
        if until_ms is not None:
            again_ms = broker.clock.steady_ms() + until_ms - taken.pop_time_ms
            taken.look_again_ms = min(again_ms, taken.look_again_ms or again_ms)
            return
    if taken.count >= request.max_msg_nums or taken.size_bytes >= ENOUGH_BYTES:
        taken.rest += max(broker.store.max_offset(topic, queue_id) - start, 0)
        return
    result = _read(broker, topic, queue_id, start, request.max_msg_nums - taken.count, wanted)
    if result.status in _MOVED:
        start = result.next_offset
        broker.offsets.commit_ahead(group, topic, queue_id, start, broker.store.max_physical_offset)
        result = _read(broker, topic, queue_id, start, request.max_msg_nums - taken.count, wanted)
    if result.status is GetStatus.FOUND:
        _note(broker, request, taken, topic, queue_id, start, result)
    elif result.status in _NONE_WANTED and result.next_offset > start:
        broker.offsets.commit_ahead(group, topic, queue_id, result.next_offset, broker.store.max_physical_offset)
        taken.has_skipped |= result.next_offset < result.max_offset
    taken.rest += result.max_offset - result.next_offset


def _note(
    broker: Broker, request: PopMessage, taken: _Taken, topic: str, queue_id: int, start: int, result: ReadResult
) -> None:
    """Remember who has the messages, then hand them out: never the other way round."""
    group, mark = request.consumer_group, retry_mark(topic)
    offsets = tuple(offset for view in result.views for offset in queue_offsets(view))
    if request.order:
        taken.order_counts += broker.pops.orders.popped(
            topic, group, queue_id, offsets, taken.pop_time_ms, request.invisible_time, request.attempt_id
        )
    else:
        point = CheckPoint(
            topic, group, queue_id, start, offsets, taken.pop_time_ms, request.invisible_time, broker.config.broker_name
        )
        message = broker.pops.checkpoint_message(point, taken.revive_queue_id, broker.packed_address)
        taken.log_end = broker.append(message).end
        broker.statistics.note(CHECKPOINTS, topic, group)
        broker.offsets.commit_ahead(group, topic, queue_id, result.next_offset, taken.log_end)
    taken.start_offsets.append(start_offset_info(mark, queue_id, start))
    taken.offsets.append(message_offset_info(mark, queue_id, offsets))
    taken.count += len(offsets)
    taken.size_bytes += result.size
    broker.statistics.got(topic, queue_id, group, result)
    if mark == NORMAL or broker.config.pop_response_return_actual_retry_topic:
        taken.bodies += result.views
    else:
        records = [record for view in result.views for record in decode_records(view)]
        taken.bodies += (_retried(broker, request, taken, record, start) for record in records)


def _retried(broker: Broker, request: PopMessage, taken: _Taken, record: Record, start: int) -> bytes:
    """A message of the retry topic as one of the topic itself; its handle says where it really is."""
    handle = Handle(
        start,
        taken.pop_time_ms,
        request.invisible_time,
        taken.revive_queue_id,
        retry_mark(record.topic),
        broker.config.broker_name,
        record.queue_id,
        record.queue_offset,
    )
    properties = props.append(record.properties, Property.POP_CK, handle.encode())
    if len(properties.encode()) > props.MAX_SIZE_BYTES:  # no room for the handle: it comes as the record it is
        return record.encode()
    return dataclasses.replace(record, topic=request.topic, properties=properties).encode()


def _read(broker: Broker, topic: str, queue_id: int, offset: int, count: int, wanted: Wanted) -> ReadResult:
    began = monotonic()
    is_copied = not (retry_mark(topic) == NORMAL or broker.config.pop_response_return_actual_retry_topic)
    result = broker.store.read(
        topic, queue_id, offset, count, codes=wanted.codes, matches=wanted.matches, verify=is_copied
    )
    result.took_ms = (monotonic() - began) * 1000
    return result


def _first_offset(broker: Broker, request: PopMessage, topic: str, queue_id: int) -> int:
    """Where the group is. A new one begins at the first message or, if it wants, at the last; that is for good."""
    group = request.consumer_group
    found = broker.offsets.find_offset(group, topic, queue_id)
    if found is not None:
        return found
    is_last = request.init_mode == FROM_LAST and topic == request.topic and not broker.store.is_young(topic, queue_id)
    offset = broker.store.max_offset(topic, queue_id) - 1 if is_last else broker.store.min_offset(topic, queue_id)
    broker.offsets.accept(group, topic, queue_id, max(offset, 0))
    return max(offset, 0)


def _offset(broker: Broker, group: str, topic: str, queue_id: int) -> int:
    found = broker.offsets.find_offset(group, topic, queue_id)
    return broker.store.min_offset(topic, queue_id) if found is None else found


async def _has_message(broker: Broker, request: Notification, topic: TopicConfig) -> bool:
    group, now_ms = request.consumer_group, broker.store.timeline.today_ms()
    for number, (name, queue_id) in enumerate(_places(broker, request, topic)):
        if number and number % PLACES_STEP == 0:
            await broker.lane.turn()
        until_ms = broker.pops.orders.blocked_until(name, group, queue_id, request.attempt_id, now_ms)
        is_free = not request.order or until_ms is None
        if is_free and broker.store.max_offset(name, queue_id) > _offset(broker, group, name, queue_id):
            return True
    return False


# --- answers


def _header(request: PopMessage, taken: _Taken) -> PopReply:
    return PopReply(
        taken.pop_time_ms,
        request.invisible_time,
        taken.revive_queue_id,
        taken.rest,
        ";".join(taken.start_offsets),
        ";".join(taken.offsets),
        ";".join(taken.order_counts) if request.order else None,
    )


def _joined(views: list[bytes | memoryview]) -> bytes | memoryview:
    return views[0] if len(views) == 1 else b"".join(views)


async def _durable(broker: Broker, log_end: int) -> None:
    """Whoever gets messages may be sure that the broker will not forget it."""
    if broker.promises and await broker.durable(log_end) is Durability.FLUSH_DISK_TIMEOUT:
        raise FlushTimeout("FLUSH_DISK_TIMEOUT: the disk did not answer in time; the messages come again")
