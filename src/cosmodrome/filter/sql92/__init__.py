"""SQL92 expressions over the properties of a message: `region = 'north' AND price BETWEEN 10 AND 20`.

`compile` refuses a bad expression and says where the fault is; what it gives is asked once per message. The language
and its rules for what is missing are in docs/filters.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial

from cosmodrome.filter.sql92.evaluation import decide
from cosmodrome.filter.sql92.numbers import NotComparable
from cosmodrome.filter.sql92.parser import MAX_LENGTH, MAX_NESTING, parse
from cosmodrome.filter.sql92.syntax import Node, properties
from cosmodrome.wire.properties import decode, find

__all__ = ["EXPRESSION_TYPE", "MAX_LENGTH", "MAX_NESTING", "NotComparable", "SqlFilter", "compile"]

EXPRESSION_TYPE = "SQL92"

_CACHED_FILTERS = 100
# Up to here, looking for each property in the string costs less than taking the string apart.
_MAX_FINDS = 4


class SqlFilter:
    """A compiled expression."""

    __slots__ = ("_decide", "_finds", "expression")

    def __init__(self, expression: str, node: Node) -> None:
        self.expression = expression
        self._decide = decide(node)
        self._finds = sum(1 for _ in properties(node)) <= _MAX_FINDS

    def matches(self, message: Mapping[str, str]) -> bool:
        """Whether a message with these properties is wanted. Values that cannot be compared are not."""
        try:
            return self._decide(message.get) is True
        except NotComparable:
            return False

    def matches_raw(self, raw: str) -> bool:
        """The same of a stored message's properties string, which is read only as far as needed."""
        get = partial(find, raw) if self._finds else decode(raw).get
        try:
            return self._decide(get) is True
        except NotComparable:
            return False

    def evaluate(self, message: Mapping[str, str]) -> bool | None:
        """True, false or nothing, as SQL has it; NotComparable where `matches` says no."""
        return self._decide(message.get)

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"


@lru_cache(_CACHED_FILTERS)
def compile(expression: str) -> SqlFilter:
    """The filter an expression stands for; FilterSyntaxError says what is wrong with it, and where."""
    return SqlFilter(expression, parse(expression))
