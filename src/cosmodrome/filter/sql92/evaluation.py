"""Syntax to closures that ask for properties and answer true, false or nothing (SQL's NULL).

Every part of an expression has a type that is known before any message is seen, so each comparison is chosen once,
here, and a message pays only for reading its properties.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
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

Get = Callable[[str], str | None]
Decide = Callable[[Get], bool | None]
_Evaluate = Callable[[Get], Any]
_Test = Callable[[Any, Any], bool]


class _Type(Enum):
    TEXT = auto()
    INT = auto()
    LONG = auto()
    DOUBLE = auto()
    BOOLEAN = auto()
    NOTHING = auto()


@dataclass(frozen=True, slots=True)
class _Operand:
    """One side of a comparison, with its name if it is a property and its value if it is a constant."""

    type: _Type
    evaluate: _Evaluate
    name: str | None = None
    constant: str | int | float | None = None


_READERS: dict[_Type, Callable[[str], int | float]] = {
    _Type.INT: read_int,
    _Type.LONG: read_long,
    _Type.DOUBLE: read_double,
}
_TESTS: dict[Order, _Test] = {
    Order.LESS: operator.lt,
    Order.LESS_OR_EQUAL: operator.le,
    Order.GREATER: operator.gt,
    Order.GREATER_OR_EQUAL: operator.ge,
}
_MIRRORED = {
    Order.LESS: Order.GREATER,
    Order.LESS_OR_EQUAL: Order.GREATER_OR_EQUAL,
    Order.GREATER: Order.LESS,
    Order.GREATER_OR_EQUAL: Order.LESS_OR_EQUAL,
}
_FINDERS: dict[Part, Callable[[str, str], bool]] = {
    Part.CONTAINS: operator.contains,
    Part.STARTSWITH: str.startswith,
    Part.ENDSWITH: str.endswith,
}


def decide(node: Node) -> Decide:
    """The closure of a condition. It raises NotComparable when a message's values do not fit."""
    match node:
        case And(terms):
            return _all([decide(term) for term in terms])
        case Or(terms):
            return _any([decide(term) for term in terms])
        case Not(operand):
            return _not(decide(operand))
        case Compare(order, left, right):
            return _compare(order, _operand(left), _operand(right))
        case Between(operand, low, high, negated):
            return _between(_operand(operand), _operand(low), _operand(high), negated)
        case Equal(left, right):
            return _equal(_operand(left), _operand(right))
        case IsNull(operand):
            return _is_null(_operand(operand).evaluate)
        case In(Property(name), values, negated):
            return _in(name, values, negated)
        case Has(part, operand, text, negated):
            return _has(part, _operand(operand).evaluate, text, negated)
        case Truth(value):
            return lambda get: value
        case Property(name):
            # Properties are text, and no text is true.
            return lambda get: None if get(name) is None else False
    raise AssertionError(f"the parser lets no {node} stand for a condition")


def _operand(node: Node) -> _Operand:
    match node:
        case Property(name):
            return _Operand(_Type.TEXT, lambda get: get(name), name=name)
        case Text(text):
            return _constant(_Type.TEXT, text)
        case Whole(whole):
            return _constant(_Type.INT if node.is_int else _Type.LONG, whole)
        case Real(real):
            return _constant(_Type.DOUBLE, real)
        case Negate(inner):
            return _negated(_operand(inner))
        case _:
            return _Operand(_Type.BOOLEAN, decide(node))


def _constant(kind: _Type, value: str | int | float) -> _Operand:
    return _Operand(kind, lambda get: value, constant=value)


def _negated(operand: _Operand) -> _Operand:
    """Only numbers can be negated; anything else becomes nothing, though working it out may still fail."""
    if isinstance(operand.constant, int | float):
        return _constant(operand.type, -operand.constant)

    def nothing(get: Get) -> None:
        operand.evaluate(get)

    return _Operand(_Type.NOTHING, nothing)


def _all(terms: list[Decide]) -> Decide:
    def conjunction(get: Get) -> bool | None:
        known: bool | None = True
        for term in terms:
            value = term(get)
            if value is None:
                known = None
            elif not value:
                return False
        return known

    return conjunction


def _any(terms: list[Decide]) -> Decide:
    def disjunction(get: Get) -> bool | None:
        known: bool | None = False
        for term in terms:
            value = term(get)
            if value is None:
                known = None
            elif value:
                return True
        return known

    return disjunction


def _not(inner: Decide) -> Decide:
    def negation(get: Get) -> bool | None:
        value = inner(get)
        return None if value is None else not value

    return negation


def _is_null(evaluate: _Evaluate) -> Decide:
    return lambda get: evaluate(get) is None


def _in(name: str, values: frozenset[str], negated: bool) -> Decide:
    def membership(get: Get) -> bool | None:
        value = get(name)
        return None if value is None else (value in values) is not negated

    return membership


def _has(part: Part, evaluate: _Evaluate, text: str, negated: bool) -> Decide:
    """False for what is missing or no text, and for an empty text to look for: with NOT and without."""
    if not text:
        return lambda get: False
    find = _FINDERS[part]

    def search(get: Get) -> bool:
        value = evaluate(get)
        return isinstance(value, str) and find(value, text) is not negated

    return search


def _between(operand: _Operand, low: _Operand, high: _Operand, negated: bool) -> Decide:
    if negated:
        return _any([_compare(Order.LESS, operand, low), _compare(Order.GREATER, operand, high)])
    return _all([_compare(Order.GREATER_OR_EQUAL, operand, low), _compare(Order.LESS_OR_EQUAL, operand, high)])


def _compare(order: Order, left: _Operand, right: _Operand) -> Decide:
    """The parser lets only numbers, properties and negated things in here."""
    if left.name is not None and right.constant is not None:
        return _compare_property(order, left.name, right)
    if left.constant is not None and right.name is not None:
        return _compare_property(_MIRRORED[order], right.name, left)
    if left.constant is not None and right.constant is not None:
        result = _TESTS[order](*_widened(left, right))
        return lambda get: result
    return _compare_texts(order, left.evaluate, right.evaluate)


def _compare_property(order: Order, name: str, number: _Operand) -> Decide:
    test, constant = _TESTS[order], number.constant
    read = _read_sortable if number.type is _Type.DOUBLE else _READERS[number.type]

    def comparison(get: Get) -> bool | None:
        value = get(name)
        return None if value is None else test(read(value), constant)

    return comparison


def _read_sortable(text: str) -> float:
    """For Java, NaN is above every number one can write in an expression; so is infinity, and that sorts."""
    value = read_double(text)
    return value if value == value else float("inf")


def _compare_texts(order: Order, left: _Evaluate, right: _Evaluate) -> Decide:
    """Two properties, both read as doubles; or nothing, on either side."""
    test = _TESTS[order]

    def comparison(get: Get) -> bool | None:
        left_text = left(get)
        if left_text is None:
            return None
        right_text = right(get)
        if right_text is None:
            return None
        return test(rank(read_double(left_text)), rank(read_double(right_text)))

    return comparison


def _equal(left: _Operand, right: _Operand) -> Decide:
    """A missing left side makes it nothing, a missing right side false, and two missing sides are equal."""
    same = _sameness(left.type, right.type)
    if left.name is not None and right.constant is not None:
        return _property_equals(left.name, same, right.constant)

    def equality(get: Get) -> bool | None:
        left_value = left.evaluate(get)
        right_value = right.evaluate(get)
        if left_value is None:
            return True if right_value is None else None
        return False if right_value is None else same(left_value, right_value)

    return equality


def _property_equals(name: str, same: _Test, constant: str | int | float) -> Decide:
    def equality(get: Get) -> bool | None:
        value = get(name)
        return None if value is None else same(value, constant)

    return equality


def _sameness(left: _Type, right: _Type) -> _Test:
    """How two values that are there compare; text is read as what stands on the other side."""
    if left is right:
        return operator.eq
    if left is _Type.TEXT and right in _READERS:
        read = _READERS[right]
        return lambda text, number: read(text) == number
    if left in _READERS and right is _Type.TEXT:
        read = _READERS[left]
        return lambda number, text: number == read(text)
    if left in _READERS and right in _READERS:
        return _same_number if _Type.DOUBLE in (left, right) else operator.eq
    if left is _Type.TEXT and right is _Type.BOOLEAN:
        return lambda text, truth: read_boolean(text) is truth
    if left is _Type.BOOLEAN and right is _Type.TEXT:
        return _refuse
    return lambda left_value, right_value: False


def _same_number(left: float, right: float) -> bool:
    """As doubles: a long loses what a double cannot hold."""
    return float(left) == float(right)


def _refuse(truth: bool, text: str) -> bool:
    """Apache fails here, where the other way round it would read the text as true or false."""
    raise NotComparable(f"{truth} stands left of the text {text!r}; write the property first")


def _widened(left: _Operand, right: _Operand) -> tuple[int | float, int | float]:
    """Two numbers as Java compares them."""
    assert isinstance(left.constant, int | float), "checked by the parser"
    assert isinstance(right.constant, int | float), "checked by the parser"
    if _Type.DOUBLE in (left.type, right.type):
        return float(left.constant), float(right.constant)
    return left.constant, right.constant
