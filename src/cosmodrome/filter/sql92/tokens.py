"""Text to tokens, one at a time: what stands behind a fault is never looked at."""

from __future__ import annotations

import re
from typing import NamedTuple

from cosmodrome.errors import FilterSyntaxError

NAME = "a property"
TEXT = "a string"
WHOLE = "a whole number"
REAL = "a number"
END = "the end"

KEYWORDS = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)

_SKIPPED = re.compile(r"(?:[ \t\n\r\f]|/\*.*?\*/)*", re.DOTALL)
_LINE_END = re.compile(r"[\n\r]")
_TOKEN = re.compile(
    r"""
      (?P<word>   [A-Za-z_$][A-Za-z0-9_$]* )
    | (?P<real>   (?: [0-9]+\.[0-9]* | \.[0-9]+ ) (?: [eE][+-]?[0-9]+ )? | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<whole>  0 | [1-9][0-9]*[lL]? )
    | (?P<text>   '[^']*(?:''[^']*)*' )
    | (?P<symbol> <> | <= | >= | [=<>(),+-] )
    """,
    re.VERBOSE,
)
_KINDS = {"real": REAL, "whole": WHOLE, "text": TEXT}

# What people write who know another dialect, and what it is called here.
_ADVICE = {
    "!": "; write <> for not equal",
    '"': "; write strings in single quotes, like 'paid'",
    "'": "; this string has no closing quote",
    "&": "; write AND",
    "|": "; write OR",
    "/": "; a comment is /* ... */, and there is no arithmetic",
}


class Token(NamedTuple):
    """`kind` is one of the names above, a keyword in capitals, or the symbol itself."""

    kind: str
    text: str
    position: int

    def __str__(self) -> str:
        return "the end of the expression" if self.kind is END else repr(self.text)


class Tokens:
    """The tokens of one expression: `current` is the next one, `take` hands it out and moves on."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        # A line comment ends with its line; two minus signs on a last line without an end are two minus signs.
        self._last_line_end = max(expression.rfind("\n"), expression.rfind("\r"))
        self._position = 0
        self.current = self._read()

    def take(self) -> Token:
        token = self.current
        self.current = self._read()
        return token

    def take_if(self, *kinds: str) -> Token | None:
        return self.take() if self.current.kind in kinds else None

    def at_end(self) -> bool:
        """Whether nothing is left, but for a comment on a last line without an end."""
        token = self.current
        return token.kind is END or self.expression.startswith("--", token.position)

    def _read(self) -> Token:
        expression = self.expression
        start = self._skip()
        if start == len(expression):
            return Token(END, "", start)
        found = _TOKEN.match(expression, start)
        if found is None:
            raise self._unreadable(start)
        self._position = found.end()
        return Token(_kind(found), found.group(), start)

    def _skip(self) -> int:
        """Pass blanks and comments."""
        while True:
            found = _SKIPPED.match(self.expression, self._position)
            assert found is not None, "it matches nothing too"
            start = self._position = found.end()
            if start > self._last_line_end or not self.expression.startswith("--", start):
                return start
            line_end = _LINE_END.search(self.expression, start)
            assert line_end is not None, "the last one is further on"
            self._position = line_end.end()

    def _unreadable(self, position: int) -> FilterSyntaxError:
        found = self.expression[position]
        return FilterSyntaxError(f"cannot read {found!r}{_ADVICE.get(found, '')}", self.expression, position)


def _kind(found: re.Match[str]) -> str:
    text, group = found.group(), found.lastgroup
    if group == "symbol":
        return text
    if group == "word":
        return keyword if (keyword := text.upper()) in KEYWORDS else NAME
    assert group is not None, "every alternative has a name"
    return _KINDS[group]
