"""SQL92 once more, as plainly as it can be said: every value carries its Java type and every node is worked out anew.

It shares nothing with the closures but the syntax and the reading of numbers, and has no regard for speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cosmodrome.filter.sql92.numbers import NotComparable, rank, read_boolean, read_double, read_int, read_long
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

Typed = tuple[str, Any] | None  # None is SQL's NULL

_READERS = {"int": read_int, "long": read_long, "double": read_double, "boolean": read_boolean}
_NUMBERS = ("int", "long", "double")


def evaluate(node: Node, message: Mapping[str, str]) -> bool | None:
    value = _condition(node, message)
    return None if value is None else value[1]


def _condition(node: Node, message: Mapping[str, str]) -> Typed:
    value = _value(node, message)
    if isinstance(node, Property) and value is not None:
        return "boolean", False
    return value


def _value(node: Node, message: Mapping[str, str]) -> Typed:
    match node:
        case Property(name):
            return ("string", message[name]) if name in message else None
        case Text(text):
            return "string", text
        case Whole(number):
            return ("int" if number < 2**31 else "long"), number
        case Real(number):
            return "double", number
        case Truth(value):
            return None if value is None else ("boolean", value)
        case Negate(operand):
            inner = _value(operand, message)
            return (inner[0], -inner[1]) if inner is not None and inner[0] in _NUMBERS else None
        case Compare(order, left, right):
            return _ordered(order, left, right, message)
        case Between(operand, low, high, negated):
            if negated:
                return _value(Or((Compare(Order.LESS, operand, low), Compare(Order.GREATER, operand, high))), message)
            low_side, high_side = (
                Compare(Order.GREATER_OR_EQUAL, operand, low),
                Compare(Order.LESS_OR_EQUAL, operand, high),
            )
            return _value(And((low_side, high_side)), message)
        case Equal(left, right):
            return _equal(_value(left, message), _value(right, message))
        case IsNull(operand):
            return "boolean", _value(operand, message) is None
        case In(operand, values, negated):
            found = _value(operand, message)
            return None if found is None else ("boolean", (found[1] in values) != negated)
        case Has(part, operand, text, negated):
            return "boolean", bool(text) and _has(part, _value(operand, message), text, negated)
        case Not(operand):
            inner = _condition(operand, message)
            return None if inner is None else ("boolean", not inner[1])
        case And(terms):
            return _joined(terms, message, decisive=False)
        case Or(terms):
            return _joined(terms, message, decisive=True)


def _joined(terms: tuple[Node, ...], message: Mapping[str, str], decisive: bool) -> Typed:
    first, *others = terms
    left = _condition(first, message)
    for term in others:
        if left == ("boolean", decisive):
            return left
        right = _condition(term, message)
        if right == ("boolean", decisive):
            return right
        left = None if left is None or right is None else ("boolean", not decisive)
    return left


def _ordered(order: Order, left_node: Node, right_node: Node, message: Mapping[str, str]) -> Typed:
    left = _value(left_node, message)
    right = _value(right_node, message) if left is not None else None
    if left is None or right is None:
        return None
    if left[0] == right[0] == "string":
        left, right = ("double", read_double(left[1])), ("double", read_double(right[1]))
    sign = _sign(left, right)
    wanted = {Order.LESS: (-1,), Order.LESS_OR_EQUAL: (-1, 0), Order.GREATER: (1,), Order.GREATER_OR_EQUAL: (0, 1)}
    return "boolean", sign in wanted[order]


def _equal(left: Typed, right: Typed) -> Typed:
    if left is None:
        return ("boolean", True) if right is None else None
    if right is None:
        return "boolean", False
    return "boolean", _sign(left, right) == 0


def _sign(left: tuple[str, Any], right: tuple[str, Any]) -> int:
    """-1, 0 or 1; -1 also for what has nothing in common."""
    kinds = left[0], right[0]
    if kinds == ("boolean", "string"):
        raise NotComparable("a boolean stands left of a text")
    if left[0] == "string" and right[0] != "string":
        left = right[0], _READERS[right[0]](left[1])
    elif right[0] == "string" and left[0] != "string":
        right = left[0], _READERS[left[0]](right[1])
    if left[0] != right[0] and "boolean" in (left[0], right[0]):
        return -1
    if "double" in (left[0], right[0]):
        return _order_of(rank(float(left[1])), rank(float(right[1])))
    return _order_of(left[1], right[1])


def _order_of(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def _has(part: Part, value: Typed, text: str, negated: bool) -> bool:
    if value is None or value[0] != "string":
        return False
    whole: str = value[1]
    places = {
        Part.CONTAINS: text in whole,
        Part.STARTSWITH: whole[: len(text)] == text,
        Part.ENDSWITH: whole[-len(text) :] == text,
    }
    return places[part] != negated
