"""Taking timed messages back before they are delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosmodrome.broker.timers import deletion_key
from cosmodrome.errors import IllegalOperation, NoPermission, ProtocolError, ServiceNotAvailable, TopicNotFound
from cosmodrome.model import Perm, Property, is_broker_only
from cosmodrome.net.connection import Connection
from cosmodrome.store.message import StoreMessage
from cosmodrome.wire import properties as props
from cosmodrome.wire.command import Command
from cosmodrome.wire.recall_handle import RecallHandle
from cosmodrome.wire.requests import RecallMessage, RecallReply

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

_TAG = "_RECALL_TAG_"
_BODY = b"0"


async def recall_message(broker: Broker, connection: Connection, command: Command) -> Command:
    """RECALL_MESSAGE: set a deletion beside the message; when their second is over, the two cancel each other."""
    request = RecallMessage.decode(command)
    _check_served(broker)
    if is_broker_only(request.topic):
        raise NoPermission(f"recall failed: topic[{request.topic}] holds the broker's own records")
    if broker.topics.find_topic(request.topic) is None:
        raise TopicNotFound(request.topic)
    handle = _checked_handle(broker, request)
    await broker.put(_deletion(broker, connection, request, handle))
    return command.reply(header=RecallReply(handle.unique_key, broker.config.region_id))


def _check_served(broker: Broker) -> None:
    config = broker.config
    if not config.recall_message_enable:
        raise NoPermission("recall failed, operation is forbidden; recallMessageEnable=true allows it")
    if not config.broker_permission & Perm.WRITE and not config.allow_recall_when_broker_not_writeable:
        raise ServiceNotAvailable("recall failed, broker service not available")


def _checked_handle(broker: Broker, request: RecallMessage) -> RecallHandle:
    try:
        handle = RecallHandle.decode(request.recall_handle)
    except ProtocolError as error:
        raise IllegalOperation(str(error)) from error
    if handle.topic != request.topic:
        raise IllegalOperation("recall failed, topic not match")
    if props.NAME_END in handle.unique_key or props.VALUE_END in handle.unique_key:
        raise IllegalOperation("recall failed: the unique key in the handle holds a separator of properties")
    if handle.broker_name != broker.config.broker_name:
        raise IllegalOperation("recall failed, broker service not available")
    left_ms = handle.deliver_ms - broker.store.timeline.now_ms()
    if not 0 < left_ms < broker.timers.max_delay_ms:
        raise IllegalOperation("recall failed, timestamp invalid")
    return handle


def _deletion(broker: Broker, connection: Connection, request: RecallMessage, handle: RecallHandle) -> StoreMessage:
    now_ms = broker.clock.now_ms()
    properties = {
        Property.TIMER_DEL_UNIQKEY: deletion_key(handle.topic, handle.unique_key),
        Property.UNIQ_KEY: handle.unique_key,
        Property.TIMER_DELIVER_MS: str(broker.store.timeline.date(handle.deliver_ms)),
        Property.TAGS: _TAG,
    }
    if request.producer_group:
        properties[Property.PGROUP] = request.producer_group
    host, local = connection.packed_peer, broker.packed_address
    return StoreMessage(handle.topic, 0, _BODY, props.encode_foreign(properties), 0, 0, now_ms, host, local)
