"""Reading the bodies of requests beside the loop, within bounds: what they cost is for a peer to say."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from cosmodrome.config import KIB
from cosmodrome.errors import InvalidParameter
from cosmodrome.wire import fastjson
from cosmodrome.wire.command import Command

if TYPE_CHECKING:
    from cosmodrome.nameserver.server import NameServer

# Read when it comes: every heartbeat, and the registration of a broker with a few topics.
READ_AT_ONCE_BYTES = 4 * KIB
COUNTED_AT_ONCE_BYTES = 64 * KIB
SMALL_BODY_BYTES = 64 * KIB  # of requests whose body is no table

T = TypeVar("T")


async def read_body(server: NameServer, command: Command, decode: Callable[[bytes], T]) -> T:
    """Decode a table that a broker sends: a long one in a thread, and none that is too large."""
    body, config = bytes(command.body), server.config
    if len(body) <= READ_AT_ONCE_BYTES and not _is_compressed(body):
        return decode(body)
    if len(body) > config.max_request_body_size:
        raise InvalidParameter(
            f"the body of request {command.code} has {len(body)} bytes; the name server's maxRequestBodySize allows "
            f"{config.max_request_body_size}"
        )
    if not _is_compressed(body) and _has_more_values(body, config.max_request_body_values):
        raise InvalidParameter(
            f"the body of request {command.code} has more values than the {config.max_request_body_values} that the "
            "name server's maxRequestBodyValues allows"
        )

    def read() -> T:
        with fastjson.lenient_up_to(fastjson.PEERS_LENIENT_BYTES):
            return decode(body)

    return await server.lane.aside(read)


def _has_more_values(body: bytes, limit: int) -> bool:
    """Whether there are more, as far as punctuation tells. Looking ends where there are: counting costs time too."""
    values = 0
    for begin in range(0, len(body), COUNTED_AT_ONCE_BYTES):
        values += sum(body.count(mark, begin, begin + COUNTED_AT_ONCE_BYTES) for mark in (b"{", b"[", b","))
        if values > limit:
            return True
    return False


def small_body(command: Command) -> bytes:
    """A body that is no table."""
    if len(command.body) > SMALL_BODY_BYTES:
        raise InvalidParameter(
            f"the body of request {command.code} has {len(command.body)} bytes; at most {SMALL_BODY_BYTES} are read"
        )
    return bytes(command.body)


def _is_compressed(body: bytes) -> bool:
    """A registration that is: a few bytes may become megabytes."""
    return body[:1] == b"\x78"
