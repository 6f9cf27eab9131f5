"""Whole numbers in text that comes from peers and files.

`str.isdigit` and `int` do not agree on what a number is: `int` refuses more than 4,300 digits, takes blanks,
underscores and the digits of every script, and returns what no field of the wire or the store has room for. Text that
this process did not write is read here, and only here.
"""

from __future__ import annotations

from typing import Final

MAX_PORT: Final = 65_535
MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1
MIN_LONG: Final = -(2**63)
# As many digits as the name of a file of the log has; the largest long has one less.
MAX_DIGITS: Final = 20

_SHOWN_CHARACTERS = 40
_MINUS = frozenset({"-", b"-"})


def parse_int(text: str | bytes | None, *, low: int = 0, high: int = MAX_LONG) -> int | None:
    """Return the number that `text` is, or None if it is none from `low` to `high`. Never raises.

    A number is 1 to 20 ASCII digits, with a leading minus where `low` is below zero; nothing else, no blanks either.
    """
    if text is None or len(text) > MAX_DIGITS + 1:
        return None
    if text.isdigit() and text.isascii() and len(text) <= MAX_DIGITS:  # nearly always
        number = int(text)
    else:
        minus, digits = text[:1], text[1:]
        if low >= 0 or minus not in _MINUS or not (digits.isdigit() and digits.isascii()):
            return None
        number = -int(digits)
    return number if low <= number <= high else None


def read_int(text: str | bytes, *, low: int = 0, high: int = MAX_LONG) -> int:
    """Return the number that `text` is; ValueError, which shows its beginning, if it is none from `low` to `high`."""
    number = parse_int(text, low=low, high=high)
    if number is None:
        raise ValueError(f"{shown(text)} is no whole number from {low} to {high}")
    return number


def shown(text: str | bytes) -> str:
    """Return the beginning of `text` for an error or a log line, however long it is."""
    more = f"… ({len(text)} characters)" if len(text) > _SHOWN_CHARACTERS else ""
    return f"{text[:_SHOWN_CHARACTERS]!r}{more}"
