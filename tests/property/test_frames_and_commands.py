"""However a stream is cut, the same frames come out; whatever a peer sends, a command or a ProtocolError does."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.codes import Language
from cosmodrome.errors import ProtocolError
from cosmodrome.wire.command import Command
from cosmodrome.wire.frame import BINARY, JSON, Frame, FrameDecoder, encode_frame

INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
CONTENTS = ("body", "code", "fields", "flag", "language", "opaque", "remark", "serializer", "version")
FRAMES = st.builds(Frame, st.integers(0, 255), st.binary(max_size=60), st.binary(max_size=200))


@st.composite
def commands(draw: st.DrawFn, serializer: int) -> Command:
    """Commands that survive the trip unchanged: a binary header has no empty texts and only 16 bits for the code."""
    small = serializer == BINARY
    texts = TEXT.filter(bool) if small else TEXT
    return Command(
        draw(INT16 if small else INT32),
        draw(st.dictionaries(TEXT, texts, max_size=8)),
        draw(st.binary(max_size=100)),
        opaque=draw(INT32),
        flag=draw(INT32),
        remark=draw(st.none() | texts),
        language=draw(st.integers(0, 255)) if small else draw(st.sampled_from(Language)),
        version=draw(INT16 if small else INT32),
        serializer=serializer,
    )


def contents(command: Command) -> tuple[Any, ...]:
    return tuple(getattr(command, name) for name in CONTENTS)


def decoded(stream: bytes) -> Command:
    decoder = FrameDecoder()
    decoder.feed(stream)
    frame = decoder.take()
    assert frame is not None
    assert decoder.pending_bytes == 0
    return Command.decode(frame)


def chunks(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return [stream[start:end] for start, end in pairwise(edges)]


@given(st.lists(FRAMES, max_size=6), st.lists(st.integers(0, 2_000)))
def test_any_chunking_yields_the_same_frames(frames: list[Frame], cuts: list[int]) -> None:
    decoder = FrameDecoder()
    taken: list[Frame] = []
    for chunk in chunks(b"".join(map(encode_frame, frames)), cuts):
        decoder.feed(chunk)
        taken += iter(decoder.take, None)
    assert taken == frames
    assert decoder.pending_bytes == 0


@given(st.lists(FRAMES, max_size=6), st.lists(st.integers(0, 2_000)), st.data())
def test_taking_late_or_never_more_than_one_frame_loses_nothing(
    frames: list[Frame], cuts: list[int], data: st.DataObject
) -> None:
    decoder = FrameDecoder()
    taken: list[Frame] = []
    for chunk in chunks(b"".join(map(encode_frame, frames)), cuts):
        decoder.feed(chunk)
        taken += islice(iter(decoder.take, None), data.draw(st.integers(0, 2)))
    taken += iter(decoder.take, None)
    assert taken == frames


@given(st.lists(FRAMES, max_size=4), st.integers(-(2**31), 3), st.lists(st.integers(0, 1_000)))
def test_frames_before_a_bad_length_are_handed_out(frames: list[Frame], length: int, cuts: list[int]) -> None:
    bad = length.to_bytes(4, "big", signed=True) + bytes(4)
    decoder = FrameDecoder()
    taken: list[Frame] = []

    def take_all() -> None:
        for chunk in chunks(b"".join(map(encode_frame, frames)) + bad, cuts):
            decoder.feed(chunk)
            while (frame := decoder.take()) is not None:
                taken.append(frame)

    with pytest.raises(ProtocolError):
        take_all()
    assert taken == frames


@given(st.lists(st.binary(max_size=64), max_size=20))
def test_garbage_yields_frames_or_a_protocol_error(pieces: list[bytes]) -> None:
    decoder = FrameDecoder(max_frame_bytes=256)
    fed = sum(map(len, pieces))
    try:
        for piece in pieces:
            decoder.feed(piece)
            while (frame := decoder.take()) is not None:
                fed -= len(encode_frame(frame))
            assert decoder.pending_bytes <= 256 + len(piece)
    except ProtocolError:
        return
    assert decoder.pending_bytes == fed


@given(commands(JSON))
def test_a_json_command_comes_back_as_it_was(command: Command) -> None:
    assert contents(decoded(command.encode())) == contents(command)


@given(commands(BINARY))
def test_a_binary_command_comes_back_as_it_was(command: Command) -> None:
    assert contents(decoded(command.encode())) == contents(command)


@given(commands(BINARY), st.binary(max_size=8), st.data())
def test_a_damaged_binary_header_yields_a_command_or_a_protocol_error(
    command: Command, junk: bytes, data: st.DataObject
) -> None:
    header = command.encode()[8 : len(command.encode()) - len(command.body)]
    at = data.draw(st.integers(0, len(header)))
    cut = data.draw(st.integers(at, len(header)))
    check_decoding(Frame(BINARY, header[:at] + junk + header[cut:], b""))


@given(st.sampled_from([JSON, BINARY, 2, 255]), st.binary(max_size=200))
def test_any_bytes_yield_a_command_or_a_protocol_error(serializer: int, header: bytes) -> None:
    check_decoding(Frame(serializer, header, b""))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(TEXT, children, max_size=3),
    max_leaves=6,
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("code", "flag", "language", "opaque", "version", "remark"), JSON_VALUES),
        "extFields": JSON_VALUES | st.dictionaries(TEXT, JSON_VALUES, max_size=4),
    },
)


@given(HEADERS)
def test_any_json_yields_a_command_or_a_protocol_error(header: dict[str, Any]) -> None:
    try:
        encoded = orjson.dumps(header)
    except orjson.JSONEncodeError:  # numbers of more than 64 bits
        return
    check_decoding(Frame(JSON, encoded, b""))


TOKENS = ["{", "}", "[", "]", ":", ",", "'", '"', "\\", "1", "-1", "0.5", "1e9", "true", "null", "NaN", "a", "\\ud800"]
FASTJSON = st.lists(st.sampled_from([*TOKENS, '"a"', "{1:", '"code":', '"extFields":{', "'b':", "$ref"])).map("".join)


@given(FASTJSON, st.booleans())
def test_any_text_like_json_yields_a_command_or_a_protocol_error(text: str, inside: bool) -> None:
    whole = '{"code":1,"extFields":{' + text + "}}" if inside else text
    check_decoding(Frame(JSON, whole.encode(), b""))


def check_decoding(frame: Frame) -> None:
    """A command whose parts have the types they claim, and which can be sent on; or ProtocolError."""
    try:
        command = Command.decode(frame)
    except ProtocolError:
        return
    assert all(type(key) is str and type(value) is str for key, value in command.fields.items())
    assert all(type(getattr(command, name)) is int for name in ("code", "opaque", "flag", "version", "language"))
    assert command.remark is None or type(command.remark) is str
    again = decoded(command.encode())
    assert (again.code, again.opaque, again.flag, again.fields) == (
        command.code,
        command.opaque,
        command.flag,
        command.fields,
    )
    repr(command)
