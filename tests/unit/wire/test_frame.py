"""Frames: where one ends and the next begins, and which lengths are refused."""

from __future__ import annotations

import struct

import pytest

from cosmodrome.errors import ProtocolError
from cosmodrome.wire.frame import BINARY, JSON, MAX_FRAME_BYTES, PREFIX_SIZE, Frame, FrameDecoder, encode_frame

FRAME = Frame(JSON, b"head", b"body")
LARGEST_LENGTH = MAX_FRAME_BYTES - 4


def prefix(length: int, header_size: int = 0, serializer: int = JSON) -> bytes:
    return struct.pack(">iI", length, serializer << 24 | header_size)


def taken(decoder: FrameDecoder) -> list[Frame]:
    return list(iter(decoder.take, None))


def test_a_frame_is_a_length_a_header_word_a_header_and_a_body() -> None:
    frame = Frame(BINARY, b"abc", b"de")
    assert encode_frame(frame) == bytes.fromhex("00000009 01000003") + b"abcde"


def test_a_frame_may_have_neither_header_nor_body() -> None:
    decoder = FrameDecoder()
    decoder.feed(prefix(4))
    assert taken(decoder) == [Frame(JSON, b"", b"")]


def test_nothing_is_handed_out_before_the_last_byte() -> None:
    decoder = FrameDecoder()
    stream = encode_frame(FRAME)
    for byte in stream[:-1]:
        decoder.feed(bytes([byte]))
        assert decoder.take() is None
    assert decoder.pending_bytes == len(stream) - 1
    decoder.feed(stream[-1:])
    assert taken(decoder) == [FRAME]
    assert decoder.pending_bytes == 0


def test_bytes_of_the_next_frame_wait_for_its_rest() -> None:
    decoder = FrameDecoder()
    stream = encode_frame(FRAME) * 3
    decoder.feed(stream[:-5])
    assert taken(decoder) == [FRAME, FRAME]
    decoder.feed(stream[-5:])
    assert taken(decoder) == [FRAME]


def test_frames_left_in_hand_are_not_lost_when_more_bytes_come() -> None:
    decoder = FrameDecoder()
    decoder.feed(encode_frame(FRAME) * 2)
    assert decoder.take() == FRAME
    decoder.feed(encode_frame(FRAME))
    assert taken(decoder) == [FRAME, FRAME]


@pytest.mark.parametrize(
    "bad",
    [
        prefix(-1),
        prefix(-0x80000000),
        prefix(0),
        prefix(3),
        prefix(0x7FFFFFFF),
        prefix(LARGEST_LENGTH + 1),
        prefix(10, header_size=7),
        prefix(4, header_size=0xFFFFFF),
        b"GET / HTTP/1.1\r\n",
    ],
)
def test_a_length_that_cannot_be_right_is_refused_on_sight(bad: bytes) -> None:
    decoder = FrameDecoder()
    decoder.feed(encode_frame(FRAME) + bad)
    assert decoder.take() == FRAME
    with pytest.raises(ProtocolError):
        decoder.take()


def test_a_refused_stream_stays_refused() -> None:
    decoder = FrameDecoder()
    decoder.feed(prefix(-1))
    for _ in range(2):
        with pytest.raises(ProtocolError, match="frame of -1 bytes"):
            decoder.take()
        decoder.feed(encode_frame(FRAME))


def test_the_largest_frame_has_exactly_16_mib() -> None:
    decoder = FrameDecoder()
    body = bytes(LARGEST_LENGTH - 4)
    decoder.feed(prefix(LARGEST_LENGTH) + body)
    frame = decoder.take()
    assert frame is not None
    assert len(frame.body) + PREFIX_SIZE == MAX_FRAME_BYTES == 16 * 1024 * 1024


def test_the_limit_counts_the_whole_frame() -> None:
    exact, one_more = Frame(JSON, b"", bytes(92)), Frame(JSON, b"", bytes(93))
    decoder = FrameDecoder(max_frame_bytes=100)
    decoder.feed(encode_frame(exact))
    assert taken(decoder) == [exact]
    decoder.feed(encode_frame(one_more))
    with pytest.raises(ProtocolError):
        decoder.take()


def test_a_large_frame_in_many_chunks_is_gathered_in_place() -> None:
    decoder = FrameDecoder()
    frame = Frame(JSON, b"head", bytes(8 * 1024 * 1024))
    stream = encode_frame(frame)
    chunk = 1_024
    decoder.feed(stream[:chunk])
    decoder.feed(stream[chunk : 2 * chunk])
    gathered = decoder._data
    for start in range(2 * chunk, len(stream), chunk):
        assert decoder.take() is None
        decoder.feed(stream[start : start + chunk])
        assert decoder._data is gathered, "what waits is copied for every chunk: quadratic"
    assert taken(decoder) == [frame]


@pytest.mark.parametrize(
    ("start", "protocol"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP"),
        (b"<!DOCTYPE HTML>", "HTTP"),
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"\x15\x03\x01\x00\x02\x02\x46\x00", "TLS"),
    ],
)
def test_another_protocol_is_named(start: bytes, protocol: str) -> None:
    decoder = FrameDecoder()
    decoder.feed(start)
    with pytest.raises(ProtocolError, match=f"it speaks {protocol}, not RocketMQ's protocol"):
        decoder.take()
