"""Message bodies, compressed: zlib always, LZ4 and ZSTD with the `compression` extra.

Producers compress, consumers decompress; a broker stores the bytes as they came.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from importlib import import_module
from typing import Any

from cosmodrome.errors import ConfigError, ProtocolError

DEFAULT_LEVEL = 5
COMPRESSED_FLAG = 0x1
KIND_MASK = 0x700

# What ZSTD's levels up to 19 need. A frame may ask for more than 2 GiB, and would get it.
_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024


class Compression(IntEnum):
    """How a body is compressed; the number is its bits in the message's sys flag."""

    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


def compress(body: bytes, level: int = DEFAULT_LEVEL, kind: Compression = Compression.ZLIB) -> tuple[bytes, int]:
    """The smaller body, and the bits its sys flag needs so that the consumer can undo it."""
    match kind:
        case Compression.ZLIB:
            packed = zlib.compress(body, level)
        case Compression.LZ4:
            packed = _module("lz4.frame", kind).compress(body, compression_level=level)
        case Compression.ZSTD:
            packed = _module("zstandard", kind).ZstdCompressor(level=level).compress(body)
    return packed, COMPRESSED_FLAG | kind


def decompress(body: bytes, sys_flag: int, *, limit_bytes: int) -> bytes:
    """The original body. ProtocolError when it would pass `limit_bytes` (it is never inflated beyond) or is damaged."""
    if not sys_flag & COMPRESSED_FLAG:
        return body
    match sys_flag & KIND_MASK:
        case Compression.ZLIB | 0:  # 0: producers that knew of nothing but zlib
            return _unzip(zlib.decompressobj(), body, zlib.error, limit_bytes)
        case Compression.LZ4:
            frame = _module("lz4.frame", Compression.LZ4)
            return _unzip(frame.LZ4FrameDecompressor(), body, RuntimeError, limit_bytes)
        case Compression.ZSTD:
            return _decompress_zstd(body, limit_bytes)
        case unknown:
            raise ProtocolError(f"the body is compressed in the unknown way {unknown:#x}")


def _unzip(decompressor: Any, body: bytes, damage: type[Exception], limit_bytes: int) -> bytes:
    try:
        original: bytes = decompressor.decompress(body, limit_bytes + 1)
        complete = decompressor.eof
    except damage as error:
        raise ProtocolError(f"the body cannot be decompressed: {error}") from None
    if len(original) > limit_bytes:
        raise _too_large(limit_bytes)
    if not complete:
        raise ProtocolError("the compressed body is cut off")
    return original


def _decompress_zstd(body: bytes, limit_bytes: int) -> bytes:
    zstandard = _module("zstandard", Compression.ZSTD)
    try:
        declared = zstandard.get_frame_parameters(body).content_size
        if declared != zstandard.CONTENTSIZE_UNKNOWN and declared > limit_bytes:
            raise _too_large(limit_bytes)
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        # One byte of room even for a limit of 0: there, 0 means "no limit".
        original: bytes = decompressor.decompress(body, max_output_size=max(limit_bytes, 1))
    except zstandard.ZstdError as error:
        raise ProtocolError(f"the body cannot be decompressed into {limit_bytes} bytes: {error}") from None
    if len(original) > limit_bytes:
        raise _too_large(limit_bytes)
    return original


def _too_large(limit_bytes: int) -> ProtocolError:
    return ProtocolError(f"the decompressed body has more than the {limit_bytes} bytes allowed")


def _module(name: str, kind: Compression) -> Any:
    try:
        return import_module(name)
    except ImportError:
        text = f"bodies compressed with {kind.name} need a library: pip install cosmodrome[compression]"
        raise ConfigError(text) from None
