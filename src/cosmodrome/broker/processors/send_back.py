"""Taking messages back that a consumer could not handle."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from cosmodrome.broker.retries import NO_DELAY, is_dead, retry_level, returned
from cosmodrome.broker.statistics import DEAD_LETTERS, SENT_BACK, SENT_BACK_TO_DEATH
from cosmodrome.broker.topics import check_writable
from cosmodrome.errors import NoPermission, RequestError
from cosmodrome.model import READABLE_SYSTEM_TOPICS, Perm, Property, is_broker_only
from cosmodrome.net.connection import Connection
from cosmodrome.wire import properties as props
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import decode_records
from cosmodrome.wire.requests import SendBack

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

log = logging.getLogger(__name__)


async def send_back(broker: Broker, _connection: Connection, command: Command) -> Command:
    """CONSUMER_SEND_MSG_BACK: deliver a message to its group again, later; after too many times it is a dead letter."""
    request = SendBack.decode(command)
    group = broker.groups.group(request.group)
    broker.check_permission(Perm.WRITE)
    if group.retry_queues <= 0:  # such a group wants no message twice
        return command.reply()
    view = broker.store.record_at(request.offset)
    if view is None:
        raise RequestError(f"look message by offset failed, {request.offset}")
    (record,) = decode_records(view)
    if is_broker_only(record.topic) and record.topic not in READABLE_SYSTEM_TOPICS:
        raise NoPermission(f"the message at {request.offset} is a record of the broker itself in {record.topic}")
    if is_dead(record, group, request):
        topic, level = broker.topics.ensure_dead_letter_topic(group.name), NO_DELAY
    else:
        topic = broker.topics.ensure_retry_topic(group.name, group.retry_queues, request.unit_mode)
        level = retry_level(record, request)
    check_writable(topic)
    if broker.topics.is_unsaved(topic.name):
        await broker.topics.saved()
    queue_id = random.randrange(max(topic.write_queues, 1))
    await broker.put(returned(record, topic.name, queue_id, level, broker.packed_address, request.last_error))
    origin = props.find(record.properties, Property.RETRY_TOPIC) or record.topic
    broker.statistics.count(SENT_BACK, f"{origin}@{group.name}")
    if level == NO_DELAY:
        msg_id = props.find(record.properties, Property.UNIQ_KEY) or record.offset_msg_id
        log.warning(
            "dead letter stored: group=%s topic=%s msg_id=%s attempt=%d reason=%r",
            group.name,
            origin,
            msg_id,
            record.reconsume_times + 1,
            request.last_error or "not told",
        )
        broker.statistics.count(DEAD_LETTERS, f"{origin}@{group.name}")
        owner, asked = command.fields.get("Owner", "null"), request.origin_topic or "null"
        broker.statistics.count(SENT_BACK_TO_DEATH, f"{owner}@{asked}@{group.name}@SEND_BACK_TO_DLQ")
    return command.reply()
