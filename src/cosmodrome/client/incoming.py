"""From a pulled body to messages an application can use. Pure."""

from __future__ import annotations

import logging
from typing import NamedTuple

from cosmodrome.client.pulling import PullAnswer
from cosmodrome.config import MIB
from cosmodrome.errors import CosmodromeError, DamagedMessage
from cosmodrome.filter.tags import chooses, matches
from cosmodrome.model import RETRY_PREFIX, MessageQueue, Property, ReceivedMessage, Subscription
from cosmodrome.wire import properties as properties_string
from cosmodrome.wire.compression import decompress
from cosmodrome.wire.record import SEAL_PROPERTY, Record, SysFlag, claimed_id, read_records

log = logging.getLogger(__name__)

# A compressed body may not grow beyond this, whatever it claims.
MAX_DECOMPRESSED_BYTES = 64 * MIB


# Queues whose entries point to records of other queues: Apache's light queues, and those of static topics.
_LIGHT_PREFIX = "%LMQ%"
_STATIC_FIELD = "offsetDelta"


class Pulled(NamedTuple):
    """The wanted messages of a pull, up to the first record that is damaged.

    `end` is the offset behind the last sound record, or where the pull began.
    """

    messages: list[ReceivedMessage]
    end: int
    damage: DamagedMessage | None = None


def received_messages(
    queue: MessageQueue,
    wanted: Subscription,
    answer: PullAnswer,
    kind: type[ReceivedMessage] = ReceivedMessage,
) -> Pulled:
    """Check and decode what a pull brought; bodies stay as stored.

    A record is sound if it matches its checksums and lies where it was asked for.
    """
    request, command, reply = answer
    body = bytes(command.body)
    records, error = read_records(body)
    reason = None if error is None else str(error)
    end = request.queue_offset
    if not (queue.topic.startswith(_LIGHT_PREFIX) or _STATIC_FIELD in command.fields):
        gap = None  # the first record that others seem to be missing before: its offset may be a wrong one
        is_alone = request.max_msg_nums == len(records) == 1  # then it is the last that the broker looked at
        low = reply.next_begin_offset - 1 if is_alone else 0
        for number, record in enumerate(records):
            if (misplaced := _misplaced(record, queue, max(end, low), reply.next_begin_offset)) is not None:
                records, reason = records[: number if gap is None else gap], misplaced
                end = records[-1].queue_offset + 1 if records else request.queue_offset
                break
            if record.queue_offset != end and gap is None:
                gap = number
            end = record.queue_offset + 1
    elif records:
        end = records[-1].queue_offset + 1
    bounds = {Property.MIN_OFFSET: str(reply.min_offset), Property.MAX_OFFSET: str(reply.max_offset)}
    found = [received(record, queue, bounds, kind) for record in records]
    if chooses(wanted):
        found = [message for message in found if matches(wanted, message.tags)]
    if reason is None:
        return Pulled(found, max(end, reply.next_begin_offset))
    # What comes alone is the last that the broker looked at; of several, the first that is missing.
    offset = max(end, reply.next_begin_offset - 1) if request.max_msg_nums == 1 else end
    at = sum(record.total_size for record in records)
    return Pulled(
        found,
        end,
        DamagedMessage(queue.topic, queue.broker_name, queue.queue_id, offset, reason, claimed_id(body, at)),
    )


def _misplaced(record: Record, queue: MessageQueue, begin: int, end: int) -> str | None:
    """What is wrong with the place of a record that was asked for in [begin, end) of a queue; None if nothing is."""
    if record.topic != queue.topic or record.queue_id != queue.queue_id:
        return f"the record says that it is of queue {record.queue_id} of topic {record.topic}"
    if not begin <= record.queue_offset < end:
        return f"the record says that its offset is {record.queue_offset}, not {begin} to {end - 1}"
    return None


class Isolation:
    """Pulls around a damaged record, one message at a time: only what comes alone can be named for sure, whatever its
    bytes say. Pulled again, a record that was damaged on its way is whole."""

    def __init__(self) -> None:
        self._below = 0

    def count(self, wanted: int, offset: int) -> int:
        """How many messages to ask for at an offset."""
        return 1 if offset < self._below else wanted

    def settle(self, answer: PullAnswer, pulled: Pulled) -> tuple[int, DamagedMessage | None]:
        """Return where to go on, and the damaged message that is passed over there."""
        asked, behind = answer.request.queue_offset, answer.offsets.next_begin_offset
        if pulled.damage is None:
            return behind, None
        if answer.request.max_msg_nums > 1 or pulled.end > asked:
            self._below = max(behind, pulled.end + 1)
            return pulled.end, None
        return max(behind, asked + 1), pulled.damage


def received(
    record: Record, queue: MessageQueue, bounds: dict[str, str], kind: type[ReceivedMessage] = ReceivedMessage
) -> ReceivedMessage:
    properties = properties_string.decode(record.properties)
    properties.pop(SEAL_PROPERTY, None)  # of another record, which this one is a copy of
    properties.update(bounds)
    topic = record.topic
    if topic.startswith(RETRY_PREFIX):
        topic = properties.get(Property.RETRY_TOPIC, topic)
    return kind(
        topic,
        record.body,
        properties,
        record.flag,
        record.sys_flag,
        queue,
        record.queue_offset,
        record.physical_offset,
        record.born_timestamp,
        f"{record.born_host}:{record.born_port}",
        record.store_timestamp,
        f"{record.store_host}:{record.store_port}",
        record.reconsume_times,
        record.offset_msg_id,
        record.total_size,
    )


def unpack_body(message: ReceivedMessage) -> None:
    """Decompress the body in place, once. ProtocolError or ConfigError when that can't be done."""
    if message.sys_flag & SysFlag.COMPRESSED:
        message.body = decompress(message.body, message.sys_flag, limit_bytes=MAX_DECOMPRESSED_BYTES)
        message.sys_flag &= ~SysFlag.COMPRESSED


def unpacked(message: ReceivedMessage) -> ReceivedMessage:
    """With its body decompressed, or as it is if that can't be done: whoever looks on wants to see it all the same."""
    try:
        unpack_body(message)
    except CosmodromeError as error:
        log.warning("the body of %s stays compressed: %s", message.msg_id, error)
    return message
