"""Frames: how commands are laid end to end on a connection.

| bytes that follow 4 | serializer 1 | header size 3 | header | body |
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from cosmodrome.errors import ProtocolError
from cosmodrome.native import wire as _native

JSON = 0
BINARY = 1

PREFIX_SIZE = 8
MAX_FRAME_BYTES = 16 * 1024 * 1024
# What a header may cost is bounded with it: the properties of a message have at most 32 KiB.
MAX_HEADER_BYTES = 256 * 1024

_PREFIX = struct.Struct(">iI")  # a negative length is refused like one that is too large


class Frame(NamedTuple):
    serializer: int
    header: bytes
    body: bytes


_new_tuple = tuple.__new__  # what Frame(…) does in the end, without the call around it


class FrameDecoder:
    """Cut a byte stream into frames. Bytes in, whole frames out; it has never heard of a socket.

    A length that cannot be right is refused on sight, before its bytes are waited for; frames that came before it
    are still handed out. What waits here is at most one frame and the bytes of one read.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_size = max_frame_bytes - 4
        self._data: bytes | bytearray = b""
        self._position = 0
        self.pending_bytes = 0  # behind the frames that were taken

    def feed(self, data: bytes) -> None:
        if not self.pending_bytes:  # the usual case: every frame was taken, so nothing is copied
            self._data = data
            self._position = 0
            self.pending_bytes = len(data)
            return
        self.pending_bytes += len(data)
        position = self._position
        pending = self._data
        if isinstance(pending, bytearray):
            del pending[:position]
            pending += data
        else:
            self._data = bytearray(pending[position:]) + data
        self._position = 0

    def take(self) -> Frame | None:
        """The next whole frame, or None until more bytes come."""
        available = self.pending_bytes
        if available < PREFIX_SIZE:
            return None
        data = self._data
        start = self._position
        size, word = _PREFIX.unpack_from(data, start)
        header_size = word & 0xFFFFFF
        if not 4 + header_size <= size <= self._max_size or header_size > MAX_HEADER_BYTES:
            raise _refusal(bytes(data[start : start + PREFIX_SIZE]), size, header_size, self._max_size)
        if available < size + 4:
            return None
        body = start + PREFIX_SIZE + header_size
        end = start + 4 + size
        self._position = end
        self.pending_bytes = available - 4 - size
        header_bytes, body_bytes = data[start + PREFIX_SIZE : body], data[body:end]
        if type(data) is bytearray:
            header_bytes, body_bytes = bytes(header_bytes), bytes(body_bytes)
        return _new_tuple(Frame, (word >> 24, header_bytes, body_bytes))


def _refusal(prefix: bytes, size: int, header_size: int, max_size: int) -> ProtocolError:
    """Return the error for a prefix that cannot be right."""
    foreign = _foreign(prefix)
    told = f"frame of {size} bytes with a header of {header_size}; limits {max_size} and {MAX_HEADER_BYTES}"
    return ProtocolError(f"it speaks {foreign}, not RocketMQ's protocol" if foreign else told)


PureFrameDecoder = FrameDecoder
if _native is not None and not TYPE_CHECKING:
    _native.know_frames(Frame, _refusal)
    FrameDecoder = _native.FrameDecoder


def _foreign(start: bytes) -> str | None:
    """Return the protocol of another kind of program, told by its first bytes."""
    if start.startswith((b"HTTP/", b"GET ", b"POST ", b"PUT ", b"HEAD ", b"OPTIONS ", b"<!DOCTY", b"<html")):
        return "HTTP"
    if start.startswith((b"\x15\x03", b"\x16\x03")):  # an alert or a greeting
        return "TLS"
    return None


def frame_head(serializer: int, header: bytes, body_size: int) -> bytes:
    """Everything of a frame but its body."""
    size = len(header)
    return _PREFIX.pack(4 + size + body_size, serializer << 24 | size) + header


def encode_frame(frame: Frame) -> bytes:
    return frame_head(frame.serializer, frame.header, len(frame.body)) + frame.body
