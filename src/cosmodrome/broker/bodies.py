"""The bodies of requests and answers that are not messages: JSON whose cost a peer decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from cosmodrome.config import KIB
from cosmodrome.errors import InvalidParameter, LimitReached, ProtocolError
from cosmodrome.wire import fastjson
from cosmodrome.wire.bodies.fields import Body
from cosmodrome.wire.command import Command

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

# Read when it comes: nearly all heartbeats.
READ_AT_ONCE_BYTES = 2 * KIB
# Read on the loop, in the lane's turn: at worst, as nothing but empty objects, it takes some ten milliseconds.
READ_IN_TURN_BYTES = 4 * KIB

# What an answer may name and is still encoded on the loop, in a few milliseconds.
ENCODED_AT_ONCE = 500

B = TypeVar("B", bound=Body)


async def read_body(broker: Broker, kind: type[B], command: Command) -> B:
    """Decode the body of a request: a long one beside the loop, and none that is too large.

    What an object costs does not depend on its size, so both are bounded.
    """
    body, config = command.body, broker.config
    if len(body) <= READ_AT_ONCE_BYTES:
        return kind.decode(body)
    if len(body) <= READ_IN_TURN_BYTES:
        await broker.lane.turn()
        return kind.decode(body)
    if len(body) > config.max_request_body_size:
        raise InvalidParameter(
            f"the body of request {command.code} has {len(body)} bytes; "
            f"maxRequestBodySize allows {config.max_request_body_size}"
        )
    body = bytes(body)
    objects = body.count(b"{") + body.count(b"[") + body.count(b",")
    if objects > config.max_request_body_values:
        raise InvalidParameter(
            f"the body of request {command.code} has {objects} values; "
            f"maxRequestBodyValues allows {config.max_request_body_values}"
        )

    def read() -> B:
        with fastjson.lenient_up_to(fastjson.PEERS_LENIENT_BYTES):
            return kind.decode(body)

    return await broker.lane.aside(read)


def check_readable(table: Body) -> None:
    """Refuse what a start could not read again: it would be refused for the sake of one entry that a peer asked for."""
    try:
        type(table).decode(table.encode())
    except ProtocolError as error:
        raise InvalidParameter(f"this is not kept, for no start could read it again: {error}") from error


async def reply_with(broker: Broker, command: Command, encode: Callable[[], bytes], count: int) -> Command:
    """Answer with a body that names `count` queues, topics or groups: many are encoded beside the loop."""
    body = encode() if count <= ENCODED_AT_ONCE else await broker.lane.aside(encode)
    if len(body) > broker.max_reply_bytes:  # clients take no larger frame either
        raise LimitReached(
            f"the answer to request {command.code} would have {len(body)} bytes, and a frame takes "
            f"{broker.max_reply_bytes}; ask about less at once"
        )
    return command.reply(body=body)
