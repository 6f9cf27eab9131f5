"""Java's hashCode, with the reference values."""

from __future__ import annotations

import pytest

from cosmodrome.wire.java import java_hash


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("中文", 646394),
        ("😀", 1772899),
        ("AaAaAa", 1952508096),
        ("BBBBBB", 1952508096),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_hash_is_javas(text: str, code: int) -> None:
    assert java_hash(text) == code
