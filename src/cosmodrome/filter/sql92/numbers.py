"""Numbers as Java reads them from a property: neither more lenient nor stricter than `Integer.valueOf` and its kin."""

from __future__ import annotations

import re
from math import copysign, inf, isnan
from unicodedata import decimal

_WHOLE = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)")
_HEX = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?")
_BLANKS = "".join(map(chr, range(0x21)))
_SUFFIXES = "fFdD"

_SAFE_DIGITS = 9  # as many always fit an int
_MAX_DIGITS = 19  # no long has more


class NotComparable(ValueError):
    """Values that cannot be compared, like `a > 5` where a holds "red". Such a message does not match."""


def read_int(text: str) -> int:
    if len(text) <= _SAFE_DIGITS and text.isdecimal() and text.isascii():
        return int(text)
    return _read_whole(text, 2**31)


def read_long(text: str) -> int:
    if len(text) <= _SAFE_DIGITS and text.isdecimal() and text.isascii():
        return int(text)
    return _read_whole(text, 2**63)


def read_double(text: str) -> float:
    text = text.strip(_BLANKS)
    if _DECIMAL.fullmatch(text):
        return float(text.rstrip(_SUFFIXES))
    if not _HEX.fullmatch(text):
        raise NotComparable(f"{text!r} is no number")
    try:
        return float.fromhex(text.rstrip(_SUFFIXES))
    except OverflowError:
        return -inf if text[0] == "-" else inf


def read_boolean(text: str) -> bool:
    return text.lower() == "true"


def rank(number: float) -> tuple[bool, float, float]:
    """A key that sorts doubles as Java does: NaN is above all and equal to itself, -0.0 is below 0.0."""
    return (True, 0.0, 0.0) if isnan(number) else (False, number, copysign(1.0, number))


def _read_whole(text: str, limit: int) -> int:
    """Any sign, any decimal digits of the basic plane, no blanks; from -limit to limit - 1."""
    if not _WHOLE.fullmatch(text) or max(text) > "\uffff":
        raise NotComparable(f"{text!r} is no whole number")
    sign = text[0] if text[0] in "+-" else ""
    digits = "".join([str(decimal(digit)) for digit in text[len(sign) :]]).lstrip("0")
    value = int(f"{sign}{digits or 0}") if len(digits) <= _MAX_DIGITS else limit
    if not -limit <= value < limit:
        raise NotComparable(f"{text!r} is beyond the range of the number it is compared with")
    return value
