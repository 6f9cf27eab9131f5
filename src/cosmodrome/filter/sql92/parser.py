"""Tokens to syntax, by recursive descent.

    or       := and ( OR and )*
    and      := equality ( AND equality )*
    equality := comparison ( ("=" | "<>") comparison | IS [NOT] NULL )*
    compare  := unary ( ("<" | "<=" | ">" | ">=") unary | [NOT] BETWEEN unary AND unary
                      | [NOT] IN "(" text ("," text)* ")" | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text )*
    unary    := ("+" | "-" | NOT)* ( text | number | TRUE | FALSE | NULL | property | "(" or ")" )

NOT binds tighter than any comparison: `NOT a = 1` is `(NOT a) = 1`.
"""

from __future__ import annotations

from typing import NamedTuple

from cosmodrome.errors import FilterSyntaxError
from cosmodrome.filter.sql92.syntax import (
    And,
    Between,
    Compare,
    Condition,
    Equal,
    Has,
    In,
    IsNull,
    Literal,
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
from cosmodrome.filter.sql92.tokens import END, NAME, REAL, TEXT, WHOLE, Token, Tokens

MAX_LENGTH = 32 * 1024
MAX_NESTING = 64

_MAX_LONG = 2**63 - 1
_MAX_LONG_DIGITS = 19
_TRUTHS = {"TRUE": True, "FALSE": False, "NULL": None}
_ORDERS = tuple(order.value for order in Order)
_NEGATABLE = ("BETWEEN", "IN", *(part.value for part in Part))
_A_VALUE = 'a property, a string, a number, TRUE, FALSE, NULL or "("'
_ADVICE = {
    "LIKE": "; there is no LIKE, use CONTAINS, STARTSWITH or ENDSWITH",
    "+": "; there is no arithmetic",
    "-": "; there is no arithmetic",
}


class _Parsed(NamedTuple):
    node: Node
    position: int
    depth: int


def parse(expression: str) -> Node:
    """The syntax of an expression that yields true or false; FilterSyntaxError says where it does not."""
    if len(expression) > MAX_LENGTH:
        problem = f"{len(expression)} characters are too many, at most {MAX_LENGTH} are allowed"
        raise FilterSyntaxError(problem, expression, MAX_LENGTH)
    return _Parser(expression).whole()


class _Parser:
    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = Tokens(expression)
        self._open = 0

    def whole(self) -> Node:
        if self._tokens.current.kind is END:
            raise self._fault("the expression is empty", 0)
        parsed = self._condition(self._or())
        if not self._tokens.at_end():
            token = self._tokens.current
            advice = _ADVICE.get(token.text.upper(), "")
            raise self._fault(f"expected AND, OR or the end, found {token}{advice}", token.position)
        return parsed.node

    def _or(self) -> _Parsed:
        first = self._and()
        terms = [first]
        while self._tokens.take_if("OR"):
            terms.append(self._and())
        return first if len(terms) == 1 else self._joined(Or, terms)

    def _and(self) -> _Parsed:
        first = self._equality()
        terms = [first]
        while self._tokens.take_if("AND"):
            terms.append(self._equality())
        return first if len(terms) == 1 else self._joined(And, terms)

    def _equality(self) -> _Parsed:
        left = self._comparison()
        while token := self._tokens.take_if("=", "<>", "IS"):
            if token.kind == "IS":
                negated = self._tokens.take_if("NOT")
                self._expect("NULL")
                node: Node = IsNull(left.node)
            else:
                negated = token if token.kind == "<>" else None
                right = self._comparison()
                node = self._equal(left, right)
                left = left._replace(depth=max(left.depth, right.depth))
            left = self._grown(Not(node) if negated else node, left)
        return left

    def _comparison(self) -> _Parsed:
        left = self._unary()
        while token := self._tokens.take_if("NOT", *_ORDERS, *_NEGATABLE):
            negated = token.kind == "NOT"
            if negated:
                token = self._expect(*_NEGATABLE)
            if token.kind in _ORDERS:
                left = self._ordered(Order(token.kind), left, self._unary())
            elif token.kind == "BETWEEN":
                left = self._between(left, negated)
            elif token.kind == "IN":
                left = self._in(left, negated)
            else:
                text = _unquoted(self._expect(TEXT))
                left = self._grown(Has(Part(token.kind), left.node, text, negated), left)
        return left

    def _unary(self) -> _Parsed:
        signs = []
        while token := self._tokens.take_if("+", "-", "NOT"):
            signs.append(token)
        parsed = self._primary()
        for sign in reversed(signs):
            if sign.kind == "-":
                parsed = self._grown(Negate(parsed.node), parsed)
            elif sign.kind == "NOT":
                parsed = self._grown(Not(self._condition(parsed).node), parsed)
            parsed = parsed._replace(position=sign.position)
        return parsed

    def _primary(self) -> _Parsed:
        token = self._expect(NAME, TEXT, WHOLE, REAL, *_TRUTHS, "(", wanted=_A_VALUE)
        if token.kind == "(":
            self._open += 1
            if self._open > MAX_NESTING:
                raise self._too_deep(token.position)
            inner = self._or()
            self._expect(")")
            self._open -= 1
            return inner._replace(position=token.position)
        return _Parsed(self._value(token), token.position, 1)

    def _value(self, token: Token) -> Node:
        if token.kind == NAME:
            return Property(token.text)
        if token.kind == TEXT:
            return Text(_unquoted(token))
        if token.kind == WHOLE:
            return self._whole_number(token)
        if token.kind == REAL:
            return self._real_number(token)
        return Truth(_TRUTHS[token.kind])

    def _whole_number(self, token: Token) -> Whole:
        digits = token.text.rstrip("lL")
        if len(digits) > _MAX_LONG_DIGITS or int(digits) > _MAX_LONG:
            raise self._fault(f"a whole number may be at most {_MAX_LONG}", token.position)
        return Whole(int(digits))

    def _real_number(self, token: Token) -> Real:
        """Apache refuses what a double cannot hold, and with it a plain zero."""
        value = float(token.text)
        if value == 0:
            raise self._fault("a number with a point or an exponent must be above zero; write 0", token.position)
        if value == float("inf"):
            raise self._fault("a number may be at most 1.797e308", token.position)
        return Real(value)

    def _equal(self, left: _Parsed, right: _Parsed) -> Equal:
        for side in (left, right):
            if side.node == Truth(None):
                raise self._fault("nothing equals NULL; write IS NULL or IS NOT NULL", side.position)
        if isinstance(left.node, Truth) and isinstance(right.node, Literal) and not isinstance(right.node, Truth):
            raise self._fault("TRUE and FALSE equal no number and no string", left.position)
        return Equal(left.node, right.node)

    def _ordered(self, order: Order, left: _Parsed, right: _Parsed) -> _Parsed:
        for side in (left, right):
            self._check_number(order.value, side)
        deepest = left._replace(depth=max(left.depth, right.depth))
        return self._grown(Compare(order, left.node, right.node), deepest)

    def _between(self, left: _Parsed, negated: bool) -> _Parsed:
        low = self._unary()
        self._expect("AND")
        high = self._unary()
        for side in (left, low, high):
            self._check_number("BETWEEN", side)
        if not negated and isinstance(low.node, Whole | Real) and isinstance(high.node, Whole | Real):
            self._check_bounds(low.node, high.node, low.position)
        deepest = left._replace(depth=max(left.depth, low.depth, high.depth))
        return self._grown(Between(left.node, low.node, high.node, negated), deepest)

    def _check_bounds(self, low: Whole | Real, high: Whole | Real, position: int) -> None:
        exact = isinstance(low, Whole) and isinstance(high, Whole)
        if low.value > high.value if exact else float(low.value) > float(high.value):
            problem = f"BETWEEN needs the lower bound first, {low.value} is above {high.value}"
            raise self._fault(problem, position)

    def _in(self, left: _Parsed, negated: bool) -> _Parsed:
        if not isinstance(left.node, Property):
            raise self._fault("only a property can be looked up with IN", left.position)
        self._expect("(")
        values = [_unquoted(self._expect(TEXT))]
        while self._tokens.take_if(","):
            values.append(_unquoted(self._expect(TEXT)))
        self._expect(")")
        return self._grown(In(left.node, frozenset(values), negated), left)

    def _joined(self, kind: type[And | Or], terms: list[_Parsed]) -> _Parsed:
        nodes = tuple(self._condition(term).node for term in terms)
        deepest = terms[0]._replace(depth=max(term.depth for term in terms))
        return self._grown(kind(nodes), deepest)

    def _condition(self, parsed: _Parsed) -> _Parsed:
        if not isinstance(parsed.node, Condition | Property):
            raise self._fault("this is neither true nor false; write a condition, like a = 1", parsed.position)
        return parsed

    def _check_number(self, operator: str, side: _Parsed) -> None:
        if isinstance(side.node, Text | Condition):
            problem = f"{operator} compares numbers, and properties that hold numbers"
            raise self._fault(problem, side.position)

    def _grown(self, node: Node, inner: _Parsed) -> _Parsed:
        if inner.depth >= MAX_NESTING:
            raise self._too_deep(inner.position)
        return _Parsed(node, inner.position, inner.depth + 1)

    def _too_deep(self, position: int) -> FilterSyntaxError:
        return self._fault(f"the expression is nested too deep; {MAX_NESTING} levels are allowed", position)

    def _expect(self, *kinds: str, wanted: str = "") -> Token:
        token = self._tokens.take_if(*kinds)
        if token is None:
            found = self._tokens.current
            raise self._fault(f"expected {wanted or ' or '.join(kinds)}, found {found}", found.position)
        return token

    def _fault(self, problem: str, position: int) -> FilterSyntaxError:
        return FilterSyntaxError(problem, self._expression, position)


def _unquoted(token: Token) -> str:
    return token.text[1:-1].replace("''", "'")
