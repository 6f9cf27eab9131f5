"""The native part and its twin in pure Python make the same of every input, hostile ones included.

Where the native part is not used, these tests compare the twin with itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from cosmodrome.codes import RequestCode
from cosmodrome.errors import CosmodromeError
from cosmodrome.wire import binary_header
from cosmodrome.wire.command import Command
from cosmodrome.wire.frame import BINARY, JSON, Frame, FrameDecoder, PureFrameDecoder, encode_frame
from cosmodrome.wire.header import Header
from cosmodrome.wire.requests import PullMessage, PullReply, SendMessage, SendReply

LETTERS = "abcdefghijklmn"
SEND_NAMES = ["producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp"]
SEND_NAMES += ["flag", "properties", "reconsumeTimes"]
PULL_NAMES = ["consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset"]
PULL_NAMES += ["suspendTimeoutMillis", "subscription", "subVersion", "expressionType", "maxMsgBytes", "bulk"]
INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.sampled_from(["0", "7", "-1", "00012", "999999999999999999", "1000000000000000000", "9223372036854775808"])
VALUES = st.one_of(
    TEXT, NUMBERS, st.sampled_from(["true", "false", "TRUE", "", "x\x01y\x02", '"', "\\", "\x00", "€", "😀"])
)
GOOD = dict.fromkeys([*LETTERS, *SEND_NAMES, *PULL_NAMES], "5") | {"k": "false", "m": "true", "bulk": "true"}
CODES = st.sampled_from([RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE])


@st.composite
def field_tables(draw: st.DrawFn) -> dict[str, str]:
    """Fields that often make a typed header, in any order."""
    names = draw(st.sampled_from([LETTERS, SEND_NAMES, PULL_NAMES]))
    table = {name: GOOD[name] for name in draw(st.permutations(names))[draw(st.integers(0, 3)) :]}
    return table | draw(st.dictionaries(st.sampled_from([*names, "bname", "é", "other"]), VALUES, max_size=4))


@st.composite
def headers(draw: st.DrawFn) -> tuple[int, bytes]:
    """The bytes of a header, in many a spelling, and often with some changed."""
    code, opaque, flag = draw(CODES), draw(INT32), draw(st.integers(0, 3))
    fields = draw(field_tables())
    if draw(st.booleans()):
        raw, serializer = binary_header.encode(code, draw(st.integers(0, 20)), 475, opaque, flag, None, fields), BINARY
    else:
        values: dict[str, Any] = {
            "code": int(code),
            "extFields": fields,
            "flag": flag,
            "language": draw(st.sampled_from(["JAVA", "PYTHON", "GO", "java", "ELSE"])),
            "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": 475,
        }
        values |= draw(
            st.dictionaries(st.sampled_from(["remark", "flag", "extra"]), TEXT | st.none() | INT32, max_size=1)
        )
        raw = orjson.dumps(dict(draw(st.permutations(list(values.items())))), option=draw(st.sampled_from([0, 1])))
        serializer = JSON
        for before, after in draw(
            st.lists(st.sampled_from([(b"/", b"\\/"), (b"a", b"\\u0061"), (b",", b" ,\n")]), max_size=2)
        ):
            raw = raw.replace(before, after)
    if draw(st.integers(0, 2)) == 0:
        for at, byte in draw(st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), max_size=3)):
            at %= len(raw)
            raw = raw[:at] + bytes([byte]) + raw[at + draw(st.integers(0, 2)) :]
            if not raw:
                break
    return serializer, raw


def outcome(work: Callable[[], Any]) -> Any:
    """What some work returns, or how it fails."""
    try:
        return work()
    except CosmodromeError as error:
        return type(error), str(error)


def contents(command: Command) -> tuple[Any, ...]:
    names = ("code", "flag", "opaque", "version", "language", "remark", "serializer", "body")
    return tuple(getattr(command, name) for name in names)


def everything(decode: Callable[[], Command]) -> tuple[Any, ...]:
    """All that can be had of a command: each typed header before its fields were read, and after, and the fields."""
    found: list[Any] = []
    kinds: tuple[type[Header], ...] = (SendMessage, PullMessage, SendReply, PullReply)
    for kind in kinds:
        command = decode()
        found += [outcome(partial(kind.decode, command))]
        found += [contents(command), command.fields]
        found += [outcome(partial(kind.decode, command)), repr(command)]
    return tuple(found)


@given(headers(), st.binary(max_size=20))
@example((JSON, b'{"code":310,"extFields":{"a":"\xff"},"flag":0,"language":"JAVA","opaque":1}'), b"")
@example((JSON, b'{"code":310,"extFields":{"b":"x","b":"y"},"language":"JAVA"}'), b"")
@example((JSON, b'{"code":01,"extFields":{},"language":"JAVA"}'), b"")
@example((JSON, b'{"code":1,"extFields":{"a":"\\ud83d\\ude00"},"language":"JAVA"} '), b"")
@example((JSON, b'{"code":1,"extFields":{"a":"\\'), b"")
@example((JSON, b'{"code":1,"extFields":{"a":"b"}'), b"")
@example((BINARY, bytes(20)), b"")
@example((BINARY, bytes(21)), b"")
@example((BINARY, bytes(20) + b"\x06\x7f\xff\x00\x00\x00\x00"), b"")
def test_a_frame_is_read_as_by_pure_python(header: tuple[int, bytes], body: bytes) -> None:
    serializer, raw = header
    native = outcome(lambda: everything(lambda: Command.decode(Frame(serializer, raw, body))))
    assert native == outcome(lambda: everything(lambda: Command._decode(serializer, raw, body)))


@given(st.sampled_from([JSON, BINARY]), st.binary(max_size=200))
def test_any_bytes_are_read_as_by_pure_python(serializer: int, raw: bytes) -> None:
    native = outcome(lambda: everything(lambda: Command.decode(Frame(serializer, raw, b""))))
    assert native == outcome(lambda: everything(lambda: Command._decode(serializer, raw, b"")))


@given(
    st.lists(st.builds(Frame, st.integers(0, 255), st.binary(max_size=60), st.binary(max_size=90)), max_size=4),
    st.binary(max_size=12),
    st.lists(st.integers(0, 500), max_size=6),
    st.booleans(),
)
def test_a_stream_is_cut_as_by_pure_python(frames: list[Frame], rest: bytes, cuts: list[int], greedy: bool) -> None:
    stream = b"".join(map(encode_frame, frames)) + rest
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})

    def taken(decoder: PureFrameDecoder) -> list[Any]:
        found: list[Any] = []
        for begin, end in pairwise(edges):
            decoder.feed(stream[begin:end])
            found.append(decoder.pending_bytes)
            while (frame := outcome(decoder.take)) is not None:
                found += [frame, type(frame), decoder.pending_bytes]
                if not greedy or not isinstance(frame, Frame):
                    break
        return found

    assert taken(FrameDecoder(200)) == taken(PureFrameDecoder(200))


ODD_NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(), st.sampled_from([True, RequestCode.PULL_MESSAGE])
)
REPLIES = st.one_of(
    st.builds(SendReply, TEXT, ODD_NUMBERS, ODD_NUMBERS, st.none() | TEXT, st.none() | TEXT, st.none() | st.booleans()),
    st.builds(PullReply, ODD_NUMBERS, ODD_NUMBERS, ODD_NUMBERS, ODD_NUMBERS),
)


@given(
    REPLIES,
    st.sampled_from([JSON, BINARY]),
    INT32,
    st.none() | TEXT | st.sampled_from(['"', "\x7f", "\n", "x" * 10_000]),
    st.integers(-(2**31), 2**31 - 1) | st.sampled_from(RequestCode),
    st.binary(max_size=9),
)
def test_a_reply_is_written_as_by_pure_python(
    header: Header, serializer: int, opaque: int, remark: str | None, code: int, body: bytes
) -> None:
    request = Command(310, {}, opaque=opaque, serializer=serializer)
    native = request.reply(code, header, body, remark=remark)
    pure = request.reply(code, None, body, remark=remark, fields=header.fields())
    assert outcome(native.head) == outcome(pure.head)
    assert native.fields == pure.fields
    assert outcome(native.head) == outcome(pure.head)
