"""The body of SEND_BATCH_MESSAGE: several messages for one queue, one behind the other.

| size 4 | magic 4 (0) | body crc 4 (0) | flag 4 | body size 4 | body | properties size 2 | properties |
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from cosmodrome.errors import ProtocolError

_HEAD = struct.Struct(">iiiii")
_PROPERTIES_SIZE = struct.Struct(">h")
_FIXED_SIZE = _HEAD.size + _PROPERTIES_SIZE.size


class BatchItem(NamedTuple):
    flag: int
    body: bytes
    properties: str


def encode_batch(items: Iterable[tuple[int, bytes, str]]) -> bytes:
    """The items, each (flag, body, properties); ProtocolError when properties pass 32767 bytes."""
    parts: list[bytes] = []
    for flag, body, properties in items:
        raw = properties.encode()
        try:
            head = _HEAD.pack(_FIXED_SIZE + len(body) + len(raw), 0, 0, flag, len(body))
            parts += (head, body, _PROPERTIES_SIZE.pack(len(raw)), raw)
        except struct.error as error:
            raise ProtocolError(f"a message does not fit into a batch: {error}") from None
    return b"".join(parts)


def decode_batch(body: bytes | memoryview) -> list[BatchItem]:
    """Every item, or ProtocolError unless the items fill the body exactly."""
    items: list[BatchItem] = []
    position, end = 0, len(body)
    while position < end:
        if position + _FIXED_SIZE > end:
            raise ProtocolError(f"a batch item is cut off at byte {position} of {end}")
        size, _, _, flag, body_size = _HEAD.unpack_from(body, position)
        body_at = position + _HEAD.size
        body_end = body_at + body_size
        if not 0 <= body_size <= size - _FIXED_SIZE or position + size > end:
            raise ProtocolError(
                f"a batch item of {size} bytes at {position} with a body of {body_size}; the batch has {end}"
            )
        (properties_size,) = _PROPERTIES_SIZE.unpack_from(body, body_end)
        if properties_size != size - _FIXED_SIZE - body_size:
            raise ProtocolError(
                f"a batch item of {size} bytes at {position} with {properties_size} bytes of properties"
            )
        properties = str(body[body_end + 2 : position + size], "utf-8", "replace")
        items.append(BatchItem(flag, bytes(body[body_at:body_end]), properties))
        position += size
    return items
