"""Commands: the bytes of both header forms, and what peers in other languages make of them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from cosmodrome.codes import OUR_VERSION, Language, RequestCode, ResponseCode
from cosmodrome.errors import ProtocolError
from cosmodrome.wire import binary_header as headers
from cosmodrome.wire.command import ONEWAY_BIT, RESPONSE_BIT, Command
from cosmodrome.wire.frame import BINARY, JSON, MAX_HEADER_BYTES, Frame, FrameDecoder
from cosmodrome.wire.requests import ConsumerGroupHeader, SendMessage, SendReply

# Made with Apache's own encoders: GET_CONSUMER_LIST_BY_GROUP of group g, opaque 1, by a Java client 4.9.8.
JAVA_JSON = bytes.fromhex(
    "00000086 00000082 7b22636f6465223a33382c226578744669656c6473223a7b22636f6e73756d657247726f7570223a2267227d2c22"
    "666c6167223a302c226c616e6775616765223a224a415641222c226f7061717565223a312c2273657269616c697a65547970654375727265"
    "6e74525043223a224a534f4e222c2276657273696f6e223a3430397d"
)
JAVA_BINARY = bytes.fromhex(
    "0000002d 01000029 0026 00 0199 00000001 00000000 00000000 00000014 000d 636f6e73756d657247726f7570 00000001 67"
)
JAVA_REPLY = b'{"code":0,"flag":1,"language":"JAVA","opaque":5,"serializeTypeCurrentRPC":"JSON","version":409}'
JAVA_SEND_V2 = (
    b'{"code":310,"extFields":{"a":"p","b":"T","c":"TBW102","d":"4","e":"0","f":"0","g":"1","h":"0",'
    b'"i":"A\\u0001B\\u0002","j":"0","k":"false","m":"false","n":"b"},"flag":0,"language":"JAVA","opaque":2,'
    b'"serializeTypeCurrentRPC":"JSON","version":409}'
)


def decoded(stream: bytes) -> Command:
    decoder = FrameDecoder()
    decoder.feed(stream)
    frame = decoder.take()
    assert frame is not None
    return Command.decode(frame)


def from_json(header: bytes | dict[str, Any]) -> Command:
    return Command.decode(Frame(JSON, header if isinstance(header, bytes) else orjson.dumps(header), b""))


def fields_of(text: str) -> dict[str, str]:
    return from_json(f'{{"code":1,"extFields":{text}}}'.encode()).fields


def binary_header(fields: list[tuple[bytes, bytes]], *, language: int = 0, remark: bytes = b"") -> bytes:
    entries = b"".join(len(k).to_bytes(2, "big") + k + len(v).to_bytes(4, "big") + v for k, v in fields)
    fixed = bytes.fromhex("0026") + bytes([language]) + bytes.fromhex("0199 00000001 00000000")
    return fixed + len(remark).to_bytes(4, "big") + remark + len(entries).to_bytes(4, "big") + entries


def from_binary(header: bytes) -> Command:
    return Command._decode(BINARY, header, b"")  # tests/property/test_native.py compares it with the native part


# --- the bytes


@pytest.mark.parametrize(("stream", "serializer"), [(JAVA_JSON, JSON), (JAVA_BINARY, BINARY)])
def test_a_java_request_is_read_and_written_byte_for_byte(stream: bytes, serializer: int) -> None:
    command = decoded(stream)
    assert (command.code, command.opaque, command.flag) == (RequestCode.GET_CONSUMER_LIST_BY_GROUP, 1, 0)
    assert (command.language, command.version) == (Language.JAVA, 409)
    assert (command.remark, command.body, command.serializer) == (None, b"", serializer)
    assert ConsumerGroupHeader.decode(command).consumer_group == "g"
    assert command.encode() == stream


@pytest.mark.parametrize(("stream", "serializer"), [(JAVA_JSON, JSON), (JAVA_BINARY, BINARY)])
def test_our_own_request_differs_from_javas_only_in_language_and_version(stream: bytes, serializer: int) -> None:
    header = ConsumerGroupHeader("g")
    command = Command.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header, serializer=serializer)
    assert (command.language, command.version) == (Language.PYTHON, OUR_VERSION)
    command.opaque, command.language, command.version = 1, Language.JAVA, 409
    assert command.encode() == stream


def test_javas_shortest_reply_is_read() -> None:
    reply = from_json(JAVA_REPLY)
    assert (reply.code, reply.opaque, reply.is_response, reply.is_oneway) == (0, 5, True, False)
    assert (reply.fields, reply.remark) == ({}, None)


def test_javas_lettered_send_is_read_and_written() -> None:
    command = from_json(JAVA_SEND_V2)
    send = SendMessage.decode(command)
    assert send == SendMessage("p", "T", "TBW102", 4, 0, 0, 1, 0, "A\x01B\x02", 0, broker_name="b")
    assert send.lettered_fields() == command.fields
    assert command.encode()[8:] == JAVA_SEND_V2


# --- requests and replies


@pytest.mark.parametrize("serializer", [JSON, BINARY])
def test_a_reply_has_the_opaque_and_the_header_form_of_its_request(serializer: int) -> None:
    request = Command(10, {}, opaque=-7, flag=0, serializer=serializer)
    reply = decoded(request.reply(ResponseCode.SUCCESS, SendReply("id", 1, 2), b"x", fields={"k": "v"}).encode())
    assert (reply.opaque, reply.serializer, reply.is_response) == (-7, serializer, True)
    assert reply.fields == {"msgId": "id", "queueId": "1", "queueOffset": "2", "k": "v"}
    assert (reply.code, reply.remark, reply.body) == (0, None, b"x")


def test_the_flags_are_two_bits() -> None:
    oneway = Command.request(RequestCode.SEND_MESSAGE, oneway=True)
    assert (oneway.flag, oneway.is_oneway, oneway.is_response) == (ONEWAY_BIT, True, False)
    reply = oneway.reply()
    assert (reply.flag, reply.is_oneway, reply.is_response) == (RESPONSE_BIT, False, True)


def test_extra_fields_lie_over_those_of_the_header() -> None:
    request = Command.request(38, ConsumerGroupHeader("g"), fields={"consumerGroup": "h", "ns": "n"})
    assert request.fields == {"consumerGroup": "h", "ns": "n"}


@pytest.mark.parametrize("serializer", [JSON, BINARY])
def test_a_body_may_be_a_view_and_follows_the_head(serializer: int) -> None:
    command = Command(0, {"a": "b"}, memoryview(b"0123456789")[2:5], serializer=serializer)
    assert command.encode() == command.head() + b"234"
    assert decoded(command.encode()).body == b"234"


def test_a_command_shows_its_kind() -> None:
    assert repr(Command(10, {"a": "b"}, b"xy", opaque=3)) == "<request 10 opaque=3 {'a': 'b'} body=2 B>"
    assert repr(Command(1, {}, flag=RESPONSE_BIT, remark="no")) == "<reply 1 opaque=0 {}, remark='no' body=0 B>"
    assert repr(Command(1, {}, flag=ONEWAY_BIT)).startswith("<oneway 1 ")


# --- JSON headers of other peers


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ("1", "1"),
        ("-9007199254740993", "-9007199254740993"),
        ("true", "true"),
        ("false", "false"),
        ("1.5", "1.5"),
        ('"1"', "1"),
        ('""', ""),
        ("[1,2]", "[1,2]"),
        ('{"a":1}', '{"a":1}'),
    ],
)
def test_numbers_and_booleans_of_node_become_javas_text(sent: str, text: str) -> None:
    assert fields_of(f'{{"a":{sent},"b":"x"}}') == {"a": text, "b": "x"}


def test_a_null_field_is_no_field() -> None:
    assert fields_of('{"a":null,"b":"x"}') == {"b": "x"}
    assert fields_of("null") == {}


def test_fastjsons_looser_spelling_is_read() -> None:
    command = from_json(b"{code:11,'opaque':3,extFields:{1:'a',b:2,},}")
    assert (command.code, command.opaque, command.fields) == (11, 3, {"1": "a", "b": "2"})
    assert decoded(command.encode()).fields == command.fields


def test_keys_are_text_even_when_all_values_are() -> None:
    assert fields_of("{1:'a'}") == {"1": "a"}


def test_numbers_may_come_as_text() -> None:
    command = from_json({"code": "11", "opaque": "-3", "flag": "1", "version": "409"})
    assert (command.code, command.opaque, command.flag, command.version) == (11, -3, 1, 409)


def test_absent_numbers_are_zero_and_an_absent_language_is_java() -> None:
    command = from_json({})
    assert (command.code, command.opaque, command.flag, command.version) == (0, 0, 0, 0)
    assert command.language == Language.JAVA


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("GO", Language.GO),
        ("node_js", Language.NODE_JS),
        ("COBOL", Language.OTHER),
        (9, Language.GO),
        (99, Language.OTHER),
        (None, Language.JAVA),
    ],
)
def test_languages_come_in_any_spelling(language: Any, expected: Language) -> None:
    assert from_json({"code": 1, "language": language}).language == expected


def test_fields_that_nobody_knows_are_ignored() -> None:
    assert from_json({"code": 3, "hashCode": 1, "x": [1]}).code == 3


def test_a_remark_that_is_not_text_becomes_it() -> None:
    assert from_json({"remark": 5}).remark == "5"
    assert from_json({"remark": "ä"}).remark == "ä"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"1",
        b"null",
        b"\xff\xfe",
        b'{"code":',
        b'{"code":2147483648}',
        b'{"opaque":-2147483649}',
        b'{"code":"x"}',
        b'{"code":[]}',
        b'{"code":1e400}',
        b'{"extFields":[]}',
        b'{"extFields":"a"}',
        b'{"extFields":{"a":' + b"[" * 1_000 + b"]" * 1_000 + b"}}",
        b'{"remark":' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"extFields":' + b'{"a":' * 100_000,
    ],
)
def test_a_json_header_that_makes_no_sense_is_a_protocol_error(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        from_json(header)


# --- binary headers


def test_of_duplicate_fields_the_last_counts() -> None:
    header = binary_header([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
    assert from_binary(header).fields == {"a": "3", "b": "2"}


def test_an_empty_value_or_remark_is_none_at_all() -> None:
    command = from_binary(binary_header([(b"a", b""), (b"b", b"2")]))
    assert (command.fields, command.remark) == ({"b": "2"}, None)


def test_a_binary_remark_is_read() -> None:
    assert from_binary(binary_header([], remark="nö".encode())).remark == "nö"


def test_an_unknown_language_byte_is_kept_and_shown_as_other() -> None:
    command = from_binary(binary_header([], language=200))
    assert command.language == 200
    assert orjson.loads(Command(0, {}, language=command.language).encode()[8:])["language"] == "OTHER"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        bytes(20),
        binary_header([]) + b"x",
        binary_header([(b"a", b"1")])[:-1],
        binary_header([])[:-4] + (-1).to_bytes(4, "big", signed=True),
        binary_header([], remark=b"\xff"),
        binary_header([(b"\xff", b"1")]),
        binary_header([])[:-4] + bytes.fromhex("00000002 ffff"),
        binary_header([])[:-4] + bytes.fromhex("00000006 0000 ffffffff"),
        binary_header([])[:13] + bytes.fromhex("7fffffff 00000000"),
        binary_header([])[:13] + bytes.fromhex("ffffffff 00000000"),
    ],
)
def test_a_binary_header_that_makes_no_sense_is_a_protocol_error(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        from_binary(header)


@pytest.mark.parametrize("serializer", [2, 7, 255])
def test_an_unknown_header_type_is_a_protocol_error(serializer: int) -> None:
    with pytest.raises(ProtocolError, match=f"header type {serializer}"):
        Command.decode(Frame(serializer, b"{}", b""))


@pytest.mark.parametrize(
    "command",
    [
        Command(200_050, {}, serializer=BINARY),
        Command(1, {"k" * 40_000: "v"}, serializer=BINARY),
        Command(1, {"k": "v" * MAX_HEADER_BYTES}, serializer=BINARY),
        Command(1, {"k": "v" * MAX_HEADER_BYTES}, serializer=JSON),
    ],
)
def test_what_does_not_fit_a_header_is_not_sent(command: Command) -> None:
    with pytest.raises(ProtocolError):
        command.encode()


# --- binary headers of a shape seen before


@pytest.fixture
def _no_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "_shapes", {})


@pytest.mark.usefixtures("_no_shapes")
def test_headers_of_one_shape_keep_their_own_values() -> None:
    for first, second in ((b"1", b"22"), (b"3", b"44"), (b"5", b"66")):
        fields = from_binary(binary_header([(b"a", first), (b"b", second)])).fields
        assert fields == {"a": first.decode(), "b": second.decode()}


@pytest.mark.usefixtures("_no_shapes")
def test_headers_of_one_length_need_not_have_one_shape() -> None:
    shapes = [
        [(b"a", b"11"), (b"b", b"2")],
        [(b"a", b"1"), (b"b", b"22")],
        [(b"a", b"11"), (b"c", b"2")],
        [(b"ab", b"1"), (b"c", b"2")],
        [(b"a", b"11"), (b"a", b"2")],
        [(b"a", b""), (b"b", b"222")],
    ]
    for _ in range(3):
        for fields in shapes:
            expected = {name.decode(): value.decode() for name, value in fields if value}
            assert from_binary(binary_header(fields)).fields == expected


@pytest.mark.usefixtures("_no_shapes")
def test_a_known_shape_with_values_that_are_no_text_is_a_protocol_error() -> None:
    from_binary(binary_header([(b"a", b"1")]))
    with pytest.raises(ProtocolError):
        from_binary(binary_header([(b"a", b"\xff")]))


@pytest.mark.usefixtures("_no_shapes")
def test_what_is_remembered_of_shapes_is_bounded() -> None:
    from_binary(binary_header([(bytes([65 + number]) * 30_000, b"1") for number in range(30)]))
    assert not any(headers._shapes.values()), "a peer could make us keep its long names"
    for size in range(2 * headers.MAX_LENGTHS):
        from_binary(binary_header([(b"a", b"x" * size)]))
    for number in range(100):
        from_binary(binary_header([(f"{number:03}".encode(), b"x")]))
    assert len(headers._shapes) <= headers.MAX_LENGTHS
    assert max(map(len, headers._shapes.values())) <= headers.MAX_SHAPES_PER_LENGTH
