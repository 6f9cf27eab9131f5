"""fastjson's dialect: what Java, Go and Node send is read, what is written they all read."""

from __future__ import annotations

import json
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import pytest

from cosmodrome.errors import ProtocolError
from cosmodrome.model import MessageQueue
from cosmodrome.wire import fastjson
from cosmodrome.wire.fastjson import MAX_DEPTH, IntKeys, ObjectKey, dumps, loads

QUEUE = MessageQueue("T", "b", 0)
QUEUE_KEY = ObjectKey({"brokerName": "b", "queueId": 0, "topic": "T"})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":[1,2.5,"x",true,false,null]}', {"a": [1, 2.5, "x", True, False, None]}),
        ('{0:"1.1.1.1:10911",1:"x"}', {0: "1.1.1.1:10911", 1: "x"}),
        ("{ -3 : 4 , 5 : 6 }", {-3: 4, 5: 6}),
        ("{0:5,1:6}", {0: 5, 1: 6}),
        ("{0:5,1:6,}", {0: 5, 1: 6}),
        ("{\n\t0:5,\n\t1:6\n}", {0: 5, 1: 6}),
        ('{0:5,"a":6,1:7,2:[8]}', {0: 5, "a": 6, 1: 7, 2: [8]}),
        ('{"0":1}', {"0": 1}),
        ("{'a':'b\"c'}", {"a": 'b"c'}),
        ("{name:value,$x:_y1}", {"name": "value", "$x": "_y1"}),
        ("[true,false,null,undefined,NaN,Infinity]", [True, False, None, None, None, None]),
        ("[1,,2,]", [1, 2]),
        ("{,}", {}),
        ("/* c */ [1, // one\n 2 /* ** / */ ]", [1, 2]),
        ("\ufeff{}", {}),
        ('"a\x01b\x02\n"', "a\x01b\x02\n"),
        (r"'\u0001\x41\'\/\v\0\t'", "\x01A'/\v\0\t"),
        (r"'\ud83d\ude00'", "😀"),
        (r'"\ud83d"', "\ufffd"),
        ("[1L,2S,3B,4.5F,1.0E20,-0.0D]", [1, 2, 3, 4.5, 1e20, -0.0]),
        ("[123456789012345678901234567890L]", [1.2345678901234568e29]),
        ("", None),
        ("  // nothing\n", None),
    ],
)
def test_reads_what_fastjson_reads(text: str, value: Any) -> None:
    assert loads(text.encode()) == value


def test_objects_as_keys_are_equal_whatever_their_order() -> None:
    raw = b'{{"brokerName":"b","queueId":0,"topic":"T"}:7,{"topic":"T","queueId":1,"brokerName":"b"}:{"x":1}}'
    table = loads(raw)
    assert table[QUEUE_KEY] == 7
    assert table[ObjectKey({"queueId": 1, "brokerName": "b", "topic": "T"})] == {"x": 1}
    assert loads(b"{{{1:2}:3}:4}") == {ObjectKey({ObjectKey({1: 2}): 3}): 4}


def test_broken_utf8_is_replaced_not_refused() -> None:
    assert loads(b'"a\xff"') == "a\ufffd"


GARBAGE = """
{ [ } ] , : - " ' /* [1]/* [} [1} []] [-] 1, 1e999 {1} {1:} {:1} {] {1:2] {0:1,:2} {[1]:2} {"a":,} '\\q' '\\u12' "\\
"""


@pytest.mark.parametrize("text", [*GARBAGE.split(), "[1 2]", "{1:2 3:4}", "{} x"])
def test_garbage_is_a_protocol_error(text: str) -> None:
    with pytest.raises(ProtocolError):
        loads(text.encode())


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ("{a:", "}"), ("{", ":1}")])
def test_depth_is_bounded_on_every_road(opening: str, closing: str) -> None:
    inner = "{}" if opening == "{" else "1"
    spare = 1 if opening == "{" else 0  # its innermost object counts too
    levels = MAX_DEPTH - spare
    loads((opening * levels + inner + closing * levels).encode())
    with pytest.raises(ProtocolError, match="deeper"):
        loads((opening * (levels + 1) + inner + closing * (levels + 1)).encode())


def test_many_brackets_that_are_not_deep_are_fine() -> None:
    flat: list[Any] = [[]] * 1000 + ["[" * 1000]
    assert loads(json.dumps(flat).encode()) == flat


def test_size_and_tokens_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastjson, "MAX_SIZE_BYTES", 100)
    with pytest.raises(ProtocolError, match="101 bytes"):
        loads(b" " * 101)
    monkeypatch.setattr(fastjson, "MAX_TOKENS", 10)
    assert loads(b"{" + b"1:2," * 20 + b"}") == {1: 2}
    with pytest.raises(ProtocolError, match="tokens"):
        loads(b"['x'" + b",1" * 20 + b"]")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("$.a", {"x": [1, {"y": 2}]}),
        ("$.a.x", [1, {"y": 2}]),
        ("$.a.x[1]", {"y": 2}),
        (r"$.d\.e", {"z": 3}),
        ("$.m[7]", {"w": 4}),
        ("$.missing", {}),
        ("$.a.x[9]", {}),
        ("$.a.x.y.z", {}),
        ("..", {}),
        ("@", {}),
        ("$..", {}),
        ("", {}),
    ],
)
def test_references_are_resolved_where_they_can_be(path: str, value: Any) -> None:
    known = '"a":{"x":[1,{"y":2}]},"d.e":{"z":3}'
    assert loads(f'{{{known},"m":{{7:{{"w":4}}}},"r":{{"$ref":{json.dumps(path)}}}}}'.encode())["r"] == value


def test_a_reference_to_what_holds_it_ends() -> None:
    assert loads(b'{"a":{"$ref":"$"}}') == {"a": {"a": {}}}
    assert loads(b'{"$ref":"$"}') == {}
    assert loads(b'["$ref",{"$ref":1},{"$ref":"$[0]","b":1}]') == ["$ref", {"$ref": 1}, {"$ref": "$[0]", "b": 1}]


def test_references_cannot_blow_a_document_up() -> None:
    doubling = ",".join(f'"{level + 1}":[{{"$ref":"$.{level}"}},{{"$ref":"$.{level}"}}]' for level in range(60))
    many = b'{"0":[' + b"1," * 1000 + b"1]," + doubling.encode() + b"}"
    assert len(dumps(loads(many))) < 2 * len(many)
    with pytest.raises(ProtocolError, match="references"):
        loads(b"[[" + b"1," * 1000 + b"1]" + b',{"$ref":"$[0]"}' * 1000 + b"]")


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, 2.5, "x", True, None]}, '{"a":[1,2.5,"x",true,null]}'),
        ({0: "x", 1: "y"}, '{0:"x",1:"y"}'),
        ({"a": IntKeys({0: "x", 1: "y"}), "b": IntKeys({})}, '{"a":{0:"x",1:"y"},"b":{}}'),
        ({"a": IntKeys({0: "$ref", 1: "\ud83d"})}, '{"a":{0:"$ref",1:"\ufffd"}}'),
        ({"t": {QUEUE: 7}}, '{"t":{{"brokerName":"b","queueId":0,"topic":"T"}:7}}'),
        ({"q": QUEUE}, '{"q":{"brokerName":"b","queueId":0,"topic":"T"}}'),
        (
            {1: [QUEUE, QUEUE_KEY]},
            '{1:[{"brokerName":"b","queueId":0,"topic":"T"},{"brokerName":"b","queueId":0,"topic":"T"}]}',
        ),
        ({QUEUE_KEY: 1}, '{{"brokerName":"b","queueId":0,"topic":"T"}:1}'),
        ({"e": Colour.RED, "s": frozenset("ba"), "t": (1,)}, '{"e":"red","s":["a","b"],"t":[1]}'),
        ({1: Colour.RED, 2: {2, 1}}, '{1:"red",2:[1,2]}'),
        ({"b": b"\x01\x02\x03"}, '{"b":"AQID"}'),
        ({"m": MappingProxyType({"x": 1})}, '{"m":{"x":1}}'),
        ([float("nan"), float("inf")], "[null,null]"),
        ({1: float("nan")}, "{1:null}"),
        ("a\x01\n中", '"a\\u0001\\n中"'),
        ({"x": {"$ref": "$"}, "y": {"$ref": "$", "z": 1}}, '{"x":{},"y":{"$ref":"$","z":1}}'),
        ({"big": 1 << 70}, '{"big":1180591620717411303424}'),
        ("\ud83d", '"\ufffd"'),
        ({}, "{}"),
    ],
)
def test_writes_compact_json_in_the_dialect(value: Any, text: str) -> None:
    assert dumps(value).decode() == text


def test_a_table_with_integer_keys_is_written_in_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastjson, "_text", None)
    assert dumps({"brokers": [IntKeys({0: "x"}), IntKeys({1: "y"})]}) == b'{"brokers":[{0:"x"},{1:"y"}]}'


def test_pretty_is_apaches_config_file() -> None:
    value = {"dataVersion": {"counter": 1}, "offsetTable": {"T@g": {0: 12, 1: 3}}, "none": {}, "list": [1, []]}
    assert dumps(value, pretty=True).decode().splitlines() == [
        "{",
        '\t"dataVersion":{',
        '\t\t"counter":1',
        "\t},",
        '\t"offsetTable":{',
        '\t\t"T@g":{',
        "\t\t\t0:12,",
        "\t\t\t1:3",
        "\t\t}",
        "\t},",
        '\t"none":{},',
        '\t"list":[',
        "\t\t1,",
        "\t\t[]",
        "\t]",
        "}",
    ]
    assert loads(dumps(value, pretty=True)) == value


def test_what_has_no_json_form_is_the_writers_bug() -> None:
    for value in (object(), {object(): 1}, {1.5: 1}):
        with pytest.raises(TypeError):
            dumps(value)
    deep: Any = {1: 2}
    for _ in range(200):
        deep = [deep]
    with pytest.raises(ValueError, match="deeper"):
        dumps(deep)
