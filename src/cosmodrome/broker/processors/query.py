"""Messages by id and by key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosmodrome.errors import QueryNotFound, RequestError
from cosmodrome.net.connection import Connection
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import QueryMessage, QueryMessageReply, ViewMessage

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

UNIQUE_KEY_RESULTS = 32  # a unique key may meet others with its hash: look at enough of them


async def query_message(broker: Broker, _connection: Connection, command: Command) -> Command:
    """QUERY_MESSAGE: stored records by key. Keys are found by hash, so the client compares them again."""
    request = QueryMessage.decode(command)
    count = UNIQUE_KEY_RESULTS if request.unique_key_query else request.max_num
    store = broker.store
    found: list[memoryview] = []
    begin_ms, end_ms = request.begin_timestamp, request.end_timestamp
    await broker.lane.run(store.finding_by_key(request.topic, request.key, count, begin_ms, end_ms, found))
    if not found:
        raise QueryNotFound("can not find message, maybe time range not correct")
    header = QueryMessageReply(*store.last_indexed)
    return command.reply(header=header, body=b"".join(_newest(found, broker.max_reply_bytes)))


def _newest(found: list[memoryview], most_bytes: int) -> list[memoryview]:
    """The newest of the records that fit into one answer; one that is larger than that is left to `view_message`."""
    first = len(found)
    for record in reversed(found):
        most_bytes -= len(record)
        if most_bytes < 0:
            break
        first -= 1
    return found[first:]


async def view_message(broker: Broker, _connection: Connection, command: Command) -> Command:
    """VIEW_MESSAGE_BY_ID: the stored record at a physical offset."""
    request = ViewMessage.decode(command)
    record = broker.store.record_at(request.offset)
    if record is None:
        raise RequestError(f"can not find message by the offset, {request.offset}")
    return command.reply(body=record)
