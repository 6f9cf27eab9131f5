"""Every header class, whatever its fields: what goes out comes back, and what is missing is named."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmodrome.codes import RequestCode
from cosmodrome.errors import InvalidParameter, MissingField
from cosmodrome.wire import name_server_requests, requests
from cosmodrome.wire.command import Command
from cosmodrome.wire.frame import BINARY, JSON, FrameDecoder
from cosmodrome.wire.header import Header
from cosmodrome.wire.requests import PullMessage, PullReply, SendMessage, SendReply, UnregisterClient

HEADERS = [
    cls
    for module in (requests, name_server_requests)
    for _, cls in inspect.getmembers(module, inspect.isclass)
    if issubclass(cls, Header) and cls is not Header and cls.__module__ == module.__name__
]

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: INT64,
    bool: st.booleans(),
    str | None: st.none() | TEXT,
    int | None: st.none() | INT64,
    bool | None: st.none() | st.booleans(),
}


def values_of(cls: type[Header]) -> st.SearchStrategy[Header]:
    hints = get_type_hints(cls)
    return st.builds(cls, **{f.name: VALUES[hints[f.name]] for f in fields_of(cls)})


def fields_of(cls: type[Header]) -> tuple[dataclasses.Field[Any], ...]:
    assert dataclasses.is_dataclass(cls)
    return dataclasses.fields(cls)


def required_names(cls: type[Header]) -> list[str]:
    """Wire names of the fields a header can't do without, learnt from a header that has only those."""
    hints = get_type_hints(cls)
    least = {f.name: hints[f.name]() for f in fields_of(cls) if f.default is dataclasses.MISSING}
    present = cls(**least).fields()
    return [key for key in present if not _can_do_without(cls, present, key)]


def _can_do_without(cls: type[Header], fields: dict[str, str], name: str) -> bool:
    try:
        cls.decode(Command(0, {key: value for key, value in fields.items() if key != name}))
    except MissingField:
        return False
    return True


def sent(command: Command) -> Command:
    decoder = FrameDecoder()
    decoder.feed(command.encode())
    frame = decoder.take()
    assert frame is not None
    return Command.decode(frame)


def test_the_headers_were_found() -> None:
    assert {PullMessage, PullReply, SendMessage, SendReply, UnregisterClient} <= set(HEADERS)


@pytest.mark.parametrize("cls", HEADERS)
@given(data=st.data())
@settings(max_examples=20)
def test_what_goes_out_comes_back(cls: type[Header], data: st.DataObject) -> None:
    header = data.draw(values_of(cls))
    for serializer in (JSON, BINARY):
        assert cls.decode(sent(Command.request(1, header, serializer=serializer))) == header


@pytest.mark.parametrize("cls", HEADERS)
def test_all_values_are_text_and_names_are_apaches(cls: type[Header]) -> None:
    hints = get_type_hints(cls)
    full = cls(**{f.name: _some(hints[f.name]) for f in fields_of(cls)})
    fields = full.fields()
    assert len(fields) == len(fields_of(cls))
    assert all(type(value) is str for value in fields.values())
    assert all(name.isidentifier() and ("_" not in name or name.isupper()) for name in fields)


def _some(hint: Any) -> Any:
    return {str: "x", int: 1, bool: True}[hint if isinstance(hint, type) else hint.__args__[0]]


@pytest.mark.parametrize("cls", HEADERS)
def test_a_missing_field_is_named(cls: type[Header]) -> None:
    hints = get_type_hints(cls)
    full = cls(**{f.name: _some(hints[f.name]) for f in fields_of(cls)}).fields()
    required = [f for f in fields_of(cls) if f.default is dataclasses.MISSING]
    assert len(required_names(cls)) == len(required)
    for name in required_names(cls):
        with pytest.raises(MissingField, match=f"^{cls.__name__} needs the field '{name}'$"):
            cls.decode(Command(0, {key: value for key, value in full.items() if key != name}))


@pytest.mark.parametrize("cls", HEADERS)
def test_a_number_that_is_none_is_refused(cls: type[Header]) -> None:
    hints = get_type_hints(cls)
    full = cls(**{f.name: _some(hints[f.name]) for f in fields_of(cls)}).fields()
    for name in [key for key, value in full.items() if value == "1"]:
        for garbage in ("", "one", "1.5", str(2**63)):
            with pytest.raises(InvalidParameter, match=cls.__name__):
                cls.decode(Command(0, {**full, name: garbage}))


@pytest.mark.parametrize(
    "code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2]
)
@given(header=values_of(SendMessage))
@settings(max_examples=30)
def test_both_forms_of_a_send_say_the_same(code: RequestCode, header: SendMessage) -> None:
    named = Command(RequestCode.SEND_MESSAGE, header.fields())
    lettered = Command(code, header.lettered_fields())
    assert SendMessage.decode(named) == SendMessage.decode(lettered) == header
    assert all(len(letter) == 1 for letter in lettered.fields)
    assert list(named.fields.values()) == list(lettered.fields.values())


def test_the_letters_are_apaches() -> None:
    header = SendMessage("g", "t", "d", 1, 2, 3, 4, 5, "p", 6, True, 7, True, "b")
    assert "".join(header.lettered_fields()[letter] for letter in "abcdefghijklmn") == "gtd12345p6true7trueb"


def test_a_field_missing_in_a_lettered_send_is_named_by_its_letter() -> None:
    with pytest.raises(MissingField, match="SendMessage needs the field 'e'"):
        SendMessage.decode(Command(RequestCode.SEND_MESSAGE_V2, dict.fromkeys("abcdfgh", "1")))


def test_what_node_leaves_out_of_a_send_has_defaults() -> None:
    decoded = SendMessage.decode(Command(RequestCode.SEND_MESSAGE_V2, dict.fromkeys("abcdefgh", "1")))
    assert (decoded.batch, decoded.unit_mode, decoded.properties, decoded.reconsume_times) == (False, False, None, None)


def test_names_that_are_not_simply_camel_case() -> None:
    assert UnregisterClient("c", "p", "g").fields() == {"clientID": "c", "producerGroup": "p", "consumerGroup": "g"}
    query = requests.QueryMessage("t", "k", 1, 2, 3, unique_key_query=True)
    assert query.fields()["_UNIQUE_KEY_QUERY"] == "true"
    register = name_server_requests.RegisterBroker("b", "a", "c", 0, body_crc32=5).fields()
    assert register["bodyCrc32"] == "5"
    assert PullReply(0, 1, 2, 3).fields() == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "1",
        "minOffset": "2",
        "maxOffset": "3",
    }
