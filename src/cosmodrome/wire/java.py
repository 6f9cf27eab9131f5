"""Java's hashCode: tags and keys are compared through it, on disk and on the wire."""

from __future__ import annotations

import struct
from functools import lru_cache

# Tags and index keys repeat from message to message; a hot one costs a dictionary lookup.
_CACHED_HASHES = 8192


@lru_cache(maxsize=_CACHED_HASHES)
def java_hash(text: str) -> int:
    """`String.hashCode()`: 31·h + unit over the UTF-16 units, wrapped to a signed 32-bit number."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for unit in struct.unpack(f">{len(encoded) // 2}H", encoded):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code - 0x1_0000_0000 if code & 0x8000_0000 else code
