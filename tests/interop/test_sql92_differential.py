"""Our SQL92 filter beside Apache's: the same expressions compile, and every message gets the same answer.

We differ on purpose in one point: Apache reads as far as it understands and silently ignores the rest (`a = 1 LIKE 'x'`
is `a = 1` to it); we refuse such an expression, at the place where Apache stopped reading.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from cosmodrome.errors import FilterSyntaxError
from cosmodrome.filter import sql92
from interop.setup import SERVER_VERSIONS
from interop.sql_filter import Verdict, verdicts
from tests.unit.filter.sql_samples import VALUES, Samples

EXPRESSIONS = 4_000
MESSAGES = 6

OPERATORS = ("=", "<>", "<", "<=", ">", ">=")
CONSTANTS = ("5", "0", "- 5", "2147483648", "9007199254740993", "5.5", "5.", "1e10", "TRUE", "FALSE", "'5'", "b")
CORNERS = (
    *("a = 1 -- the end", "a = 1 --", "a = 1 -- it's", "a = --1", "a = --1\n", "a = 1 - - 1", "a = 1 --\r\n AND b = 2"),
    *("/**/a/***/=/* * / */1", "a = 1 /* open", "a/**/b", "a = 'x''", "a = 'x'''", "a = ''''", "a = '''", "a=1AND b=2"),
    *("a = 05", "a = 0l", "a = 00.5", "a = 5LL", "a = 1.5f", "a = 5e", "a = 5e1", "a = .5e-1", "a = 5.e+1", "a = ..5"),
    *("NULL", "TRUE", "NOT NULL", "NULL IS NULL", "NOT TRUE", "a", "(a)", "((a = 1))", "()", "(a", "a)", "", "   "),
    *("-- x\n", "NOT a = 1", "NOT a > 1", "NOT (a > 1)", "NOT NOT a", "- - 5 = a", "-a = 5", "-a IS NULL"),
    *("+a IN ('1')", "-a IN ('1')", "a = b = c", "a = 1 = TRUE", "TRUE = (a = 1)", "a = TRUE", "TRUE = a"),
    *("5 = TRUE", "TRUE = 5", "TRUE = TRUE", "1 = 1", "a > b > c", "a IS NULL IS NULL", "a IS NOT NULL IS NULL"),
    *("a > 1 = b > 1", "a BETWEEN 1 AND 2 AND b = 3", "a BETWEEN 2 AND 1", "a BETWEEN 2 AND - 1"),
    *("a NOT BETWEEN 2 AND 1", "a BETWEEN 1 AND 1.5", "a BETWEEN 'a' AND 'b'", "a BETWEEN b AND c"),
    *("1 BETWEEN a AND b", "a BETWEEN NULL AND 2", "1 IN ('1')", "a IN ()", "a IN ('x',)", "a IN (b)", "a != 1"),
    *("a == 1", "a LIKE 'x'", 'a = "x"', "a && b", "a || b", "a; b", "a.b = 1", "a-b = 1", "é = 1", "a = 'é'"),
    *("a NOT = 1", "a IS 1", "a IS NOT 1", "a NOT 1", "a AND", "AND", "a OR OR b", "a > 'x'", "a > TRUE"),
    *("a > (b = 1)", "a = +NULL", "a = NOT NULL", "a = -NULL", "\x0ba = 1", "a\u00a0= 1", "a = '\U0001f600' x"),
)


def ours(expression: str, message: dict[str, str]) -> str:
    try:
        return str(sql92.compile(expression).evaluate(message)).upper().replace("NONE", "NULL")
    except sql92.NotComparable:
        return "ERROR"


def refused(expression: str) -> FilterSyntaxError | None:
    try:
        sql92.compile(expression)
    except FilterSyntaxError as refusal:
        return refusal
    return None


def check(expression: str, messages: list[dict[str, str]], apache: Verdict) -> str:
    """Fail unless we agree with Apache; else tell how it ended."""
    where = f"expression {expression!r}, Apache: {apache}"
    refusal = refused(expression)
    if refusal is not None:
        assert not apache.compiled or apache.rest == refusal.position, f"only we refuse: {refusal}; {where}"
        return "rest refused" if apache.compiled else "refused"
    assert apache.compiled, f"only we accept: {where}"
    assert apache.rest is None or expression.startswith("--", apache.rest), f"we read on: {where}"
    for message, result in zip(messages, apache.results, strict=True):
        assert ours(expression, message) == result, f"message {message}, {where}"
    return "accepted"


def check_all(version: str, cases: list[tuple[str, list[dict[str, str]]]], home: Path) -> Counter[str]:
    answers = verdicts(version, cases, home)
    return Counter(check(*case, answer) for case, answer in zip(cases, answers, strict=True))


@pytest.mark.parametrize("version", SERVER_VERSIONS)
@pytest.mark.parametrize("seed", [1, 2])
def test_random_expressions_mean_what_they_mean_to_apache(version: str, seed: int, tmp_path: Path) -> None:
    samples = Samples(Random(seed), parts=not version.startswith("4."))
    cases = [(samples.expression(), [samples.message() for _ in range(MESSAGES)]) for _ in range(EXPRESSIONS)]
    ends = check_all(version, cases, tmp_path)
    # The generator must keep drawing every kind, or the agreement says little.
    assert ends["accepted"] > EXPRESSIONS / 2, ends
    assert ends["refused"] > EXPRESSIONS / 20, ends
    assert ends["rest refused"] > EXPRESSIONS / 100, ends


@pytest.mark.parametrize("version", SERVER_VERSIONS)
def test_every_operator_reads_every_value_as_apache_does(version: str, tmp_path: Path) -> None:
    messages = [{}, *({"a": value} for value in VALUES), *({"a": value, "b": "5"} for value in VALUES)]
    texts = [
        f"{left} {operator} {right}"
        for operator in OPERATORS
        for c in CONSTANTS
        for left, right in (("a", c), (c, "a"))
    ]
    check_all(version, [(text, messages) for text in texts], tmp_path)


@pytest.mark.parametrize("version", SERVER_VERSIONS)
def test_corner_cases_end_as_they_do_at_apache(version: str, tmp_path: Path) -> None:
    messages: list[dict[str, str]] = [{}, {"a": "1"}, {"a": "x", "b": "1"}, {"a": "1", "b": "2", "c": "3"}]
    ends = check_all(version, [(text, messages) for text in CORNERS], tmp_path)
    assert min(ends["accepted"], ends["refused"], ends["rest refused"]) > 10, ends
