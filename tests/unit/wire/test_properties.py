"""The properties string: written with its last separator, read without minding it."""

from __future__ import annotations

import pytest

from cosmodrome.errors import InvalidParameter
from cosmodrome.wire import properties


def test_writes_every_property_with_a_closing_separator() -> None:
    assert properties.encode({"A": "B", "C": "D"}) == "A\x01B\x02C\x01D\x02"
    assert properties.encode({}) == ""


@pytest.mark.parametrize("value", ["a\x02C\x01d", "a\x02", "a\x01b"])
def test_a_value_of_a_peer_begins_no_other_property(value: str) -> None:
    assert properties.encode_foreign({"A": "B", "C": "D"}) == "A\x01B\x02C\x01D\x02"
    with pytest.raises(InvalidParameter, match="the property A"):
        properties.encode_foreign({"B": "b", "A": value})


def test_reads_items_that_have_a_name_and_a_value() -> None:
    assert properties.decode("A\x01B\x02C\x01\x02D\x01E") == {"A": "B", "D": "E"}
    assert properties.decode("\x01x\x02noseparator\x02\x02") == {}


def test_only_the_first_separator_of_an_item_ends_the_name() -> None:
    assert properties.decode("A\x01B\x01C\x02") == {"A": "B\x01C"}


def test_the_last_of_two_equal_names_wins() -> None:
    raw = "A\x01first\x02B\x01b\x02A\x01last\x02"
    assert properties.decode(raw) == {"A": "last", "B": "b"}
    assert properties.find(raw, "A") == "last"


@pytest.mark.parametrize("end", ["", "\x02"])
def test_find_sees_the_first_the_middle_and_the_last_item(end: str) -> None:
    raw = "KEYS\x01k\x02TAGS\x01t\x02UNIQ_KEY\x01u" + end
    assert [properties.find(raw, name) for name in ("KEYS", "TAGS", "UNIQ_KEY")] == ["k", "t", "u"]


@pytest.mark.parametrize(
    "raw", ["", "XTAGS\x01a\x02", "A\x01TAGS\x01a\x02", "TAGSX\x01a\x02", "TAGS\x02", "TAGS\x01\x02", "TAGS"]
)
def test_find_takes_nothing_else_for_the_name(raw: str) -> None:
    assert properties.find(raw, "TAGS") is None


def test_an_empty_value_does_not_hide_an_earlier_one() -> None:
    assert properties.find("TAGS\x01a\x02TAGS\x01\x02", "TAGS") == "a"


@pytest.mark.parametrize(("raw", "joined"), [("", "N\x01v\x02"), ("A\x01B", "A\x01B\x02N\x01v\x02")])
def test_append_closes_what_is_open(raw: str, joined: str) -> None:
    assert properties.append(raw, "N", "v") == joined
    assert properties.append(joined, "A", "c") == joined + "A\x01c\x02"
