"""Reading the bodies of requests that are not messages: JSON whose cost a peer decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from cosmodrome.config import KIB
from cosmodrome.errors import InvalidParameter
from cosmodrome.wire.bodies.fields import Body
from cosmodrome.wire.command import Command

if TYPE_CHECKING:
    from cosmodrome.broker.broker import Broker

# Read when it comes: nearly all heartbeats.
READ_AT_ONCE_BYTES = 2 * KIB
# Read on the loop, in the lane's turn: at worst, as nothing but empty objects, it takes some ten milliseconds.
READ_IN_TURN_BYTES = 4 * KIB

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
    return await broker.lane.aside(lambda: kind.decode(body))
