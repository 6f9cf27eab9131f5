"""Numbers of peers and files: what is one, what is none, and that nothing raises."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cosmodrome.numbers import MAX_INT, MAX_LONG, parse_int, read_int, shown

LONGS = st.integers(-(2**63), MAX_LONG)


@given(LONGS, LONGS, LONGS)
def test_a_number_is_read_if_it_lies_within_its_bounds(number: int, one: int, other: int) -> None:
    low, high = min(one, other), max(one, other)
    expected = number if low <= number <= high else None
    assert parse_int(str(number), low=low, high=high) == expected
    assert parse_int(str(number).encode(), low=low, high=high) == expected


@given(st.one_of(st.text(), st.binary(), st.from_regex(r"\A[+-]?[0-9٣_. ]*\Z")), LONGS, LONGS)
@example("9" * 5_000, 0, MAX_LONG)
@example("0" * 5_000, 0, MAX_LONG)
@example("-" * 5_000, -1, 1)
@example("\ud800", 0, MAX_LONG)
def test_any_text_is_a_number_within_its_bounds_or_none(text: str | bytes, low: int, high: int) -> None:
    number = parse_int(text, low=low, high=high)
    assert number is None or low <= number <= high


@pytest.mark.parametrize(
    "text",
    ["", "-", "--1", "+1", " 1", "1 ", "1\n", "1_0", "1.0", "1e3", "0x1", "٣", "²", "½", "1\0", "nan", "9" * 21],
)
def test_what_only_resembles_a_number_is_none(text: str) -> None:
    assert parse_int(text, low=-5) is None
    assert parse_int(text.encode(), low=-5) is None


def test_bounds_are_those_of_a_long_from_zero_unless_told() -> None:
    assert parse_int("9223372036854775807") == MAX_LONG
    assert parse_int("9223372036854775808") is None
    assert parse_int("-1") is None
    assert parse_int("-0") is None
    assert parse_int("2147483648", high=MAX_INT) is None
    assert parse_int(None) is None


def test_leading_zeros_are_those_of_file_names() -> None:
    assert parse_int("00000000001073741824") == 1_073_741_824


def test_the_raising_one_shows_the_beginning_of_what_it_refuses() -> None:
    assert read_int("17", high=17) == 17
    with pytest.raises(
        ValueError, match=r"^'7{40}'… \(5000 characters\) is no whole number from 0 to 9223372036854775807$"
    ):
        read_int("7" * 5_000)
    assert shown(b"ab") == "b'ab'"
