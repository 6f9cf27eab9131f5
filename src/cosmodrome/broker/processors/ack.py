"""What becomes of popped messages: acked, or to come again at another time."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from cosmodrome.broker.bodies import read_body
from cosmodrome.broker.pop.polls import ANY_QUEUE, PollKey
from cosmodrome.broker.statistics import ACKS, CHECKPOINTS
from cosmodrome.errors import InvalidParameter, MessageIllegal, NoMessage
from cosmodrome.net.connection import Connection
from cosmodrome.wire.bodies import Ack, BatchAck, BatchAckBody, CheckPoint
from cosmodrome.wire.command import Command
from cosmodrome.wire.pop import ORDER_QUEUE_ID, Handle, marked_topic
from cosmodrome.wire.requests import AckMessage, ChangeInvisibleTime, ChangeInvisibleTimeReply

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

ACKS_STEP = 50  # acks of a batch that are stored in one step


async def ack_message(broker: Broker, _connection: Connection, command: Command) -> Command:
    """ACK_MESSAGE: the message does not come again."""
    request = AckMessage.decode(command)
    handle = _handle(broker, request)
    if handle.is_orderly:
        ack_in_order(
            broker, request.consumer_group, request.topic, request.queue_id, request.offset, handle.pop_time_ms
        )
    else:
        await _put_ack(broker, _ack(request, handle), handle.revive_queue_id, _revive_ms(broker, handle))
    broker.statistics.note(ACKS, request.topic, request.consumer_group)
    return command.reply()


async def batch_ack(broker: Broker, _connection: Connection, command: Command) -> Command:
    """BATCH_ACK_MESSAGE: none of the messages comes again."""
    body = await read_body(broker, BatchAckBody, command)
    if not body.acks:
        raise NoMessage("a batch ack without acks")
    for number, batch in enumerate(body.acks):
        if number and number % ACKS_STEP == 0:
            await broker.lane.turn()
        await _ack_batch(broker, batch, body.broker_name or broker.config.broker_name)
    return command.reply()


async def change_invisible_time(broker: Broker, _connection: Connection, command: Command) -> Command:
    """CHANGE_MESSAGE_INVISIBLETIME: the message comes again in so many milliseconds from now."""
    request = ChangeInvisibleTime.decode(command)
    broker.timers.check_time(request.invisible_time, 0)
    handle = _handle(broker, request)
    if handle.is_orderly:
        return command.reply(header=_change_in_order(broker, request, handle))
    # Two checkpoints of one message must differ, even if all this happens within a millisecond.
    now_ms = broker.store.timeline.today_ms()
    now_ms += now_ms == handle.pop_time_ms
    point = CheckPoint(
        request.topic,
        request.consumer_group,
        request.queue_id,
        request.offset,
        (request.offset,),
        now_ms,
        request.invisible_time,
        handle.broker_name,
    )
    await broker.put(broker.pops.checkpoint_message(point, handle.revive_queue_id, broker.packed_address))
    await _put_ack(broker, _ack(request, handle), handle.revive_queue_id, _revive_ms(broker, handle))
    broker.statistics.note(CHECKPOINTS, request.topic, request.consumer_group)
    broker.statistics.note(ACKS, request.topic, request.consumer_group)
    return command.reply(header=ChangeInvisibleTimeReply(now_ms, request.invisible_time, handle.revive_queue_id))


def _handle(broker: Broker, request: AckMessage | ChangeInvisibleTime) -> Handle:
    """The handle of a message that this broker may have handed out."""
    broker.groups.group(request.consumer_group)
    topic = broker.topics.topic(request.topic)
    if not 0 <= request.queue_id < topic.read_queues:
        raise MessageIllegal(
            f"queueId[{request.queue_id}] is illegal, topic:[{topic.name}] has readQueueNums:[{topic.read_queues}]"
        )
    low = broker.store.min_offset(topic.name, request.queue_id)
    high = broker.store.max_offset(topic.name, request.queue_id)
    if not low <= request.offset < high:
        raise NoMessage(
            f"offset is illegal, key:{topic.name}@{request.queue_id}, commit:{request.offset}, store:{low}~{high}"
        )
    handle = Handle.decode(request.extra_info)
    _check_revive_queue(broker, handle.revive_queue_id)
    return handle


def _check_revive_queue(broker: Broker, queue_id: int) -> None:
    if queue_id != ORDER_QUEUE_ID and not 0 <= queue_id < broker.config.revive_queue_num:
        raise InvalidParameter(f"there is no revive queue {queue_id}; has reviveQueueNum been made smaller?")


def _ack(request: AckMessage | ChangeInvisibleTime, handle: Handle) -> Ack:
    return Ack(
        request.topic,
        request.consumer_group,
        request.queue_id,
        handle.start_offset,
        (request.offset,),
        handle.pop_time_ms,
        handle.broker_name,
    )


def _revive_ms(broker: Broker, handle: Handle) -> int:
    """When the message would come again, as a date of the clock as it is set now."""
    return broker.store.timeline.redated(handle.pop_time_ms) + handle.invisible_ms


async def _put_ack(broker: Broker, ack: Ack, revive_queue_id: int, revive_ms: int) -> None:
    await broker.put(broker.pops.ack_message(ack, revive_queue_id, revive_ms, broker.packed_address))


async def _ack_batch(broker: Broker, batch: BatchAck, broker_name: str) -> None:
    broker.groups.group(batch.group)
    topic = broker.topics.topic(marked_topic(batch.topic, batch.group, batch.retry)).name
    low, high = broker.store.min_offset(topic, batch.queue_id), broker.store.max_offset(topic, batch.queue_id)
    offsets = tuple(offset for offset in batch.offsets if low <= offset < high)
    _check_revive_queue(broker, batch.revive_queue_id)
    if batch.revive_queue_id == ORDER_QUEUE_ID:
        for offset in offsets:
            ack_in_order(broker, batch.group, topic, batch.queue_id, offset, batch.pop_time_ms)
    elif offsets:
        single = Ack(topic, batch.group, batch.queue_id, batch.start_offset, offsets, batch.pop_time_ms, broker_name)
        revive_ms = broker.store.timeline.redated(batch.pop_time_ms) + batch.invisible_ms
        await _put_ack(broker, dataclasses.replace(single, is_batch=True), batch.revive_queue_id, revive_ms)
    if offsets:
        broker.statistics.note(ACKS, topic, batch.group, len(offsets))


# --- in order


def ack_in_order(broker: Broker, group: str, topic: str, queue_id: int, offset: int, pop_time_ms: int) -> None:
    """Let the group go on behind the message, and the next pop of the queue go when nothing of it is out."""
    if offset < (broker.offsets.find_offset(group, topic, queue_id) or 0):
        return
    try:
        next_offset = broker.pops.orders.acked(topic, group, queue_id, offset, pop_time_ms)
    except KeyError:
        raise MessageIllegal(
            f"offset is illegal, key:{topic}@{group}@{queue_id}, commit:{offset}: it was not popped in order"
        ) from None
    if next_offset is None:
        return
    broker.offsets.commit(group, topic, queue_id, next_offset)
    if broker.pops.orders.blocked_until(topic, group, queue_id, None, broker.store.timeline.today_ms()) is None:
        broker.pops.more(PollKey(topic, group, ANY_QUEUE))
        broker.pops.more(PollKey(topic, group, queue_id))


def _change_in_order(broker: Broker, request: ChangeInvisibleTime, handle: Handle) -> ChangeInvisibleTimeReply:
    group, topic, queue_id = request.consumer_group, request.topic, request.queue_id
    visible_ms = broker.store.timeline.today_ms() + request.invisible_time
    if request.offset >= (broker.offsets.find_offset(group, topic, queue_id) or 0):
        broker.pops.orders.visible_at(topic, group, queue_id, request.offset, handle.pop_time_ms, visible_ms)
    return ChangeInvisibleTimeReply(handle.pop_time_ms, visible_ms - handle.pop_time_ms, handle.revive_queue_id)
