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
