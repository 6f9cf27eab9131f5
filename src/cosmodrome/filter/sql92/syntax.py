"""The shape of an expression: what the parser builds and the evaluation walks.

`<>` is Not(Equal), IS NOT NULL is Not(IsNull); the other negated forms have no such equal, because they treat
a missing property in their own way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum


@dataclass(frozen=True, slots=True)
class Property:
    """The text of a message's property, or nothing when the message does not have it."""

    name: str


@dataclass(frozen=True, slots=True)
class Text:
    value: str


@dataclass(frozen=True, slots=True)
class Whole:
    """A number without a point: one of Java's ints if it fits, else a long."""

    value: int

    @property
    def is_int(self) -> bool:
        return self.value < 2**31


@dataclass(frozen=True, slots=True)
class Real:
    """A number with a point or an exponent: a double."""

    value: float


@dataclass(frozen=True, slots=True)
class Truth:
    """TRUE, FALSE or NULL."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Negate:
    operand: Node


class Order(Enum):
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="


@dataclass(frozen=True, slots=True)
class Compare:
    order: Order
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Between:
    operand: Node
    low: Node
    high: Node
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Equal:
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: Node


@dataclass(frozen=True, slots=True)
class In:
    operand: Property
    values: frozenset[str]
    negated: bool = False


class Part(Enum):
    """Where in a text another one is looked for."""

    CONTAINS = "CONTAINS"
    STARTSWITH = "STARTSWITH"
    ENDSWITH = "ENDSWITH"


@dataclass(frozen=True, slots=True)
class Has:
    part: Part
    operand: Node
    text: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Not:
    operand: Node


@dataclass(frozen=True, slots=True)
class And:
    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    terms: tuple[Node, ...]


Literal = Text | Whole | Real | Truth
Condition = Compare | Between | Equal | IsNull | In | Has | Not | And | Or | Truth
Node = Property | Text | Whole | Real | Negate | Condition


def properties(node: Node) -> Iterator[str]:
    """The name of every property a node reads, as often as it is written there."""
    if isinstance(node, Property):
        yield node.name
    children = node.terms if isinstance(node, And | Or) else [getattr(node, field.name) for field in fields(node)]
    for child in children:
        if isinstance(child, Node):
            yield from properties(child)
