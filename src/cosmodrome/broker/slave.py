"""The requests that a slave refuses: it writes nothing of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cosmodrome.codes import RequestCode
from cosmodrome.errors import RequestError, ServiceNotAvailable, SlaveNotAvailable
from cosmodrome.net.connection import Connection
from cosmodrome.wire.command import Command

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

_SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.RESUME_CHECK_HALF_MESSAGE,
    # A pop stores what is out, an ack that it is done.
    RequestCode.POP_MESSAGE,
    RequestCode.NOTIFICATION,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
)
_CHANGES = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
)
# Request code → how Apache's slaves refuse it.
REFUSED: Mapping[int, type[RequestError]] = {
    **dict.fromkeys(_SENDS, ServiceNotAvailable),
    **dict.fromkeys(_CHANGES, RequestError),
    RequestCode.END_TRANSACTION: SlaveNotAvailable,
    RequestCode.RECALL_MESSAGE: SlaveNotAvailable,
}


# What a master answers before it serves: what slaves ask about its log, and operators about the broker.
BEFORE_SERVICE = frozenset(
    {
        RequestCode.GET_BROKER_EPOCH_CACHE,
        RequestCode.GET_BROKER_ROLE,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.EXCHANGE_BROKER_HA_INFO,
        RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
    }
)


async def refuse_yet(broker: Broker, _connection: Connection, _command: Command) -> Command:
    """Refuse everything else: how far groups and services are is not known yet."""
    raise ServiceNotAvailable(
        f"service not available now: {broker.address}, the master of {broker.config.broker_name}, takes over from its "
        "slaves how far they are, and serves after that"
    )


async def refuse_write(broker: Broker, _connection: Connection, command: Command) -> Command:
    """Refuse what only a master does, and name it."""
    raise REFUSED[command.code](
        f"service not available now: {broker.address} is a slave of {broker.config.broker_name} and writes nothing of "
        f"its own; ask its master{_at(broker)}"
    )


async def refuse_resting(broker: Broker, _connection: Connection, command: Command) -> Command:
    """Refuse what only a master does while it hands over to a slave: it would be missing there."""
    raise REFUSED[command.code](f"service not available now: {broker.promotion.resting}; ask again in a moment")


def _at(broker: Broker) -> str:
    master = broker.registration.master
    return f", {master.address}" if master is not None else ", which no name server knows now"
