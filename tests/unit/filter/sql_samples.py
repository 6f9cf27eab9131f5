"""Random SQL92 expressions and messages to try them on; what is drawn depends on the random source alone.

The lower the numbers it gives, the plainer the expression, so that Hypothesis finds the plainest that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from cosmodrome.filter.sql92.syntax import (
    And,
    Between,
    Compare,
    Equal,
    Has,
    In,
    IsNull,
    Negate,
    Node,
    Not,
    Or,
    Order,
    Part,
    Property,
    Real,
    Text,
    Truth,
    Whole,
)

T = TypeVar("T")

NAMES = ("a", "b", "c", "TAGS", "_x", "$y1", "missing")
WHOLES = (0, 1, 5, 10, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1)
REALS = (0.5, 1.0, 5.0, 5.5, 1e10, 2.0**53, 2.0**63, 1e308, 5e-324)
TEXTS = ("", "5", "red", "it's", "''", "RED", "true", "a b", "--", "/*", "grün", "\U0001f600", "\n", "5.5")
VALUES = (
    *(
        "0",
        "1",
        "5",
        "10",
        "-5",
        "+5",
        "-0",
        "05",
        "0000000000000000000000005",
        " 5",
        "5 ",
        "5L",
        "5f",
        "5d",
        "5x",
        "5_0",
    ),
    *("5.5", "5.", ".5", ".", "-5.0", "-0.0", "0.0", "1e3", "1E+3", "1e", "1e400", "-1e400", "1e-400", "\t5.5\x00"),
    *("NaN", "nan", "-NaN", "Infinity", "-Infinity", "inf", "0x10", "0x1p3", "0x.8p1", "0x1.8p99999", "-0x1p99999"),
    *("2147483647", "2147483648", "-2147483648", "-2147483649", "9007199254740993", "9223372036854775807"),
    *("9223372036854775808", "-9223372036854775808", "-9223372036854775809", "99999999999999999999"),
    *("true", "TRUE", "tRuE", "false", "True ", "", "red", "RED", "it's", "a red b", "reds", "grün", "\U0001f600 red"),
    *("٥", "５", "\U0001d7dd", "²", "+", "-", "+-5", "--5", "Ⅴ"),
)
KEYWORDS = ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS")
PART_KEYWORDS = tuple(part.value for part in Part)
SYMBOLS = ("=", "<>", "<", "<=", ">", ">=", "(", ")", ",", "+", "-")
ODDITIES = (
    "05",
    "0l",
    "5L",
    "5l",
    "5.",
    ".5",
    "0.0",
    "1e400",
    "9223372036854775808",
    "1e-400",
    "5e",
    "1.5f",
    "é",
    "!",
    '"',
)
TAILS = ("-- end", "--", "-- it's", ")", "LIKE 'x'", "5", "--\n", "/* end */", "/* end", "'", "garbage = 1", "; ")

_OR, _AND, _EQUALITY, _COMPARISON, _UNARY, _PRIMARY = range(6)


class Samples:
    def __init__(self, random: Random, parts: bool = True) -> None:
        """Without `parts`, nothing is drawn that Apache knows only since 5.x: CONTAINS and its kin."""
        self._random = random
        self._parts = parts

    def message(self) -> dict[str, str]:
        """The last name is never there."""
        return {name: self._choice(VALUES) for name in NAMES[:-1] if self._random.random() < 0.8}

    def expression(self, depth: int = 3) -> str:
        """Good or bad, from well formed to rubbish."""
        words = self._words(self.condition(depth))
        fate = self._random.random()
        if fate < 0.3:
            words = self._damaged(words)
        elif fate < 0.35:
            words = [self._word() for _ in range(self._random.randint(1, 12))]
        elif fate < 0.4:
            words.append(self._choice(TAILS))
        return self._spaced(words)

    def written(self, node: Node) -> str:
        """A text that means exactly this node: parentheses where they must be, and some where they may."""
        return self._spaced(self._words(node))

    def condition(self, depth: int) -> Node:
        kinds: list[Callable[[int], Node]] = [self._compare, self._equal, self._in, self._between, self._is_null]
        if self._parts:
            kinds.append(self._has)
        if depth <= 0:
            kinds += [lambda _: Property(self._choice(NAMES)), lambda _: self._truth()]
        else:
            kinds += [lambda d: Not(self.condition(d)), self._and, self._or, self._and, self._or]
        return self._choice(kinds)(depth - 1)

    def _compare(self, depth: int) -> Node:
        return Compare(self._choice(tuple(Order)), self._sortable(depth), self._sortable(depth))

    def _between(self, depth: int) -> Node:
        low, high, negated = self._sortable(depth), self._sortable(depth), self._flag()
        if isinstance(low, Whole | Real) and isinstance(high, Whole | Real) and float(low.value) >= float(high.value):
            high = low
        return Between(self._sortable(depth), low, high, negated)

    def _equal(self, depth: int) -> Node:
        left, right = self._comparable(depth), self._comparable(depth)
        if isinstance(left, Truth) and isinstance(right, Text | Whole | Real):
            left, right = right, left
        return self._maybe_not(Equal(left, right))

    def _is_null(self, depth: int) -> Node:
        operand = self._choice((Property(self._choice(NAMES)), self._any_value(depth), Truth(None)))
        return self._maybe_not(IsNull(operand))

    def _in(self, depth: int) -> Node:
        values = frozenset(self._choice((*TEXTS, *VALUES)) for _ in range(self._random.randint(1, 7)))
        return In(Property(self._choice(NAMES)), values, self._flag())

    def _has(self, depth: int) -> Node:
        return Has(self._choice(tuple(Part)), self._any_value(depth), self._choice(TEXTS), self._flag())

    def _and(self, depth: int) -> Node:
        return And(tuple(self.condition(depth) for _ in range(self._random.randint(2, 4))))

    def _or(self, depth: int) -> Node:
        return Or(tuple(self.condition(depth) for _ in range(self._random.randint(2, 4))))

    def _maybe_not(self, node: Node) -> Node:
        return Not(node) if self._flag() else node

    def _sortable(self, depth: int) -> Node:
        """What may stand beside < and its kin: mostly a property or a number."""
        name = Property(self._choice(NAMES))
        kinds: Sequence[Node] = (name, name, name, self._number(), self._number(), Negate(self._number()))
        if self._random.random() > 0.95:
            return Negate(self._any_value(depth))
        return self._choice(kinds)

    def _comparable(self, depth: int) -> Node:
        """What may stand beside = and <>: anything but a plain NULL."""
        node = self._any_value(depth)
        return node if node != Truth(None) else Not(node)

    def _any_value(self, depth: int) -> Node:
        if depth > 0 and self._random.random() > 0.9:
            return self._choice((self.condition(depth - 1), Negate(self.condition(depth - 1))))
        truth = Truth(self._flag())
        name = Property(self._choice(NAMES))
        return self._choice((name, name, name, self._number(), Negate(self._number()), self._text(), truth))

    def _number(self) -> Node:
        return Whole(self._choice(WHOLES)) if self._flag() else Real(self._choice(REALS))

    def _text(self) -> Node:
        return Text(self._choice((*TEXTS, *VALUES)))

    def _truth(self) -> Node:
        return Truth(self._choice((True, False, None)))

    def _words(self, node: Node, level: int = _OR) -> list[str]:
        words, own_level = self._bare_words(node)
        while own_level < level or self._random.random() > 0.95:
            words, own_level = ["(", *words, ")"], _PRIMARY
        return words

    def _bare_words(self, node: Node) -> tuple[list[str], int]:
        match node:
            case Or(terms):
                return self._joined("OR", terms, _AND), _OR
            case And(terms):
                return self._joined("AND", terms, _EQUALITY), _AND
            case Not(Equal(left, right)) if self._flag():
                return [*self._words(left, _EQUALITY), "<>", *self._words(right, _COMPARISON)], _EQUALITY
            case Equal(left, right):
                return [*self._words(left, _EQUALITY), "=", *self._words(right, _COMPARISON)], _EQUALITY
            case Not(IsNull(operand)) if self._flag():
                return [*self._words(operand, _EQUALITY), "IS", "NOT", "NULL"], _EQUALITY
            case IsNull(operand):
                return [*self._words(operand, _EQUALITY), "IS", "NULL"], _EQUALITY
            case Compare(order, left, right):
                return [*self._words(left, _COMPARISON), order.value, *self._words(right, _UNARY)], _COMPARISON
            case Between(operand, low, high, negated):
                words = [*self._words(operand, _COMPARISON), *_maybe(negated), "BETWEEN"]
                return [*words, *self._words(low, _UNARY), "AND", *self._words(high, _UNARY)], _COMPARISON
            case In(operand, values, negated):
                words = [*self._words(operand, _COMPARISON), *_maybe(negated), "IN", "("]
                for value in sorted(values):
                    words += [_quoted(value), ","]
                return [*words[:-1], ")"], _COMPARISON
            case Has(part, operand, text, negated):
                operand_words = self._words(operand, _COMPARISON)
                return [*operand_words, *_maybe(negated), part.value, _quoted(text)], _COMPARISON
            case Not(operand):
                return ["NOT", *self._words(operand, _UNARY)], _UNARY
            case Negate(operand):
                return ["-", *self._words(operand, _UNARY)], _UNARY
            case _:
                return [*["+"] * (self._random.random() > 0.95), _value_word(node)], _UNARY

    def _joined(self, word: str, terms: Sequence[Node], level: int) -> list[str]:
        words: list[str] = []
        for term in terms:
            words += [*self._words(term, level), word]
        return words[:-1]

    def _damaged(self, words: list[str]) -> list[str]:
        words = list(words)
        for _ in range(self._random.randint(1, 2)):
            place = self._random.randrange(len(words))
            words[place : place + self._random.randint(0, 1)] = [self._word()] * self._random.randint(0, 1)
            words = words or [self._word()]
        return words

    def _word(self) -> str:
        keywords = (*KEYWORDS, *PART_KEYWORDS) if self._parts else KEYWORDS
        values = [_value_word(value) for value in (self._number(), self._text(), self._truth())]
        return self._choice((*keywords, *SYMBOLS, *NAMES[:3], *values, *values, self._choice(ODDITIES)))

    def _spaced(self, words: Sequence[str]) -> str:
        """Keywords in any case, blanks and comments between."""
        text = ""
        for word in words:
            cased = (
                self._choice((word.lower(), word.capitalize(), word)) if word in (*KEYWORDS, *PART_KEYWORDS) else word
            )
            text += self._space() + cased
        return text[1:] + self._choice(("", "", " ", "\n"))

    def _space(self) -> str:
        spaces = (" ", "\t", "\r\n", "\f", " /* it's ** a */ ", " -- to '\n")
        return self._choice(spaces) if self._random.random() > 0.9 else " "

    def _flag(self) -> bool:
        return self._random.random() < 0.5

    def _choice(self, items: Sequence[T]) -> T:
        return items[self._random.randrange(len(items))]


def _value_word(node: Node) -> str:
    match node:
        case Property(name):
            return name
        case Text(text):
            return _quoted(text)
        case Whole(whole):
            return str(whole)
        case Real(real):
            return repr(real)
        case Truth(value):
            return "NULL" if value is None else str(value).upper()
    raise AssertionError(f"{node} is no value")


def _quoted(text: str) -> str:
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


def _maybe(negated: bool) -> list[str]:
    return ["NOT"] if negated else []
