"""Typed headers: from text to fields and back, and what is said of those that can't be read."""

from __future__ import annotations

import pytest

from cosmodrome.errors import InvalidParameter, MissingField
from cosmodrome.wire.command import Command
from cosmodrome.wire.header import Header, header, wire


@header
class Sample(Header):
    group_name: str
    queue_id: int
    committed: bool
    broker_name: str | None = wire("bname", default=None)
    max_nums: int | None = None
    order: bool | None = None
    filter_type: str = "TAG"
    version: int = 7
    compressed: bool = False


LEAST = {"groupName": "g", "queueId": "3", "committed": "true"}


def decode(fields: dict[str, str]) -> Sample:
    return Sample.decode(Command(0, fields))


def test_names_are_camel_case_on_the_wire_and_none_is_left_out() -> None:
    sample = Sample("g", 3, True, broker_name="b", max_nums=-1, order=False)
    assert sample.fields() == {
        "groupName": "g",
        "queueId": "3",
        "committed": "true",
        "bname": "b",
        "maxNums": "-1",
        "order": "false",
        "filterType": "TAG",
        "version": "7",
        "compressed": "false",
    }
    assert Sample("g", 3, True).fields().keys() == {*LEAST, "filterType", "version", "compressed"}


def test_absent_fields_get_their_defaults_and_strange_ones_are_ignored() -> None:
    assert decode({**LEAST, "ns": "x", "oway": "true"}) == Sample("g", 3, True)


def test_text_becomes_the_type_of_the_field() -> None:
    sample = decode({**LEAST, "maxNums": "-5", "order": "TRUE", "compressed": "True", "version": "0"})
    assert (sample.max_nums, sample.order, sample.compressed, sample.version) == (-5, True, True, 0)


@pytest.mark.parametrize("text", ["false", "False", "0", "1", "yes", ""])
def test_only_true_is_true(text: str) -> None:
    assert decode({**LEAST, "committed": text}).committed is False


@pytest.mark.parametrize("name", LEAST)
def test_a_missing_field_is_named(name: str) -> None:
    fields = {key: value for key, value in LEAST.items() if key != name}
    with pytest.raises(MissingField, match=f"Sample needs the field '{name}'"):
        decode(fields)


@pytest.mark.parametrize(
    "text", ["", "x", "1.0", "0x10", "null", "1e3", "--1", "1_0", " 1", "1\n", "+1", "٣", "9" * 5_000]
)
@pytest.mark.parametrize("name", ["queueId", "maxNums", "version"])
def test_a_number_that_is_none_is_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidParameter, match="Sample: ") as refusal:
        decode({**LEAST, name: text})
    assert len(str(refusal.value)) < 300


def test_numbers_have_at_most_64_bits() -> None:
    for edge in (2**63 - 1, -(2**63)):
        assert decode({**LEAST, "queueId": str(edge)}).queue_id == edge
    for beyond in (2**63, -(2**63) - 1):
        with pytest.raises(InvalidParameter, match="no whole number from"):
            decode({**LEAST, "queueId": str(beyond)})
