"""SQL92 expressions: what they mean, what is refused and where, and what no input can do."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cosmodrome.codes import ResponseCode
from cosmodrome.errors import FilterSyntaxError, SubscriptionParseFailed
from cosmodrome.filter import sql92
from cosmodrome.filter.sql92 import NotComparable
from cosmodrome.filter.sql92.numbers import read_double, read_int, read_long
from cosmodrome.filter.sql92.parser import MAX_LENGTH, MAX_NESTING, parse
from cosmodrome.filter.sql92.syntax import And, Compare, Equal, Not, Or, Order, Property, Whole
from cosmodrome.wire import properties
from tests.unit.filter import sql_model
from tests.unit.filter.sql_samples import KEYWORDS, NAMES, ODDITIES, PART_KEYWORDS, SYMBOLS, Samples

ERROR = "error"

randoms = st.randoms(use_true_random=False)
thorough = settings(max_examples=150, deadline=None)


def outcome(expression: str, **message: str) -> bool | str | None:
    try:
        return sql92.compile(expression).evaluate(message)
    except NotComparable:
        return ERROR


@pytest.mark.parametrize(
    ("expression", "value", "expected"),
    [
        ("a > 5", "6", True),
        ("a > 5", "5", False),
        ("a >= 5", "5", True),
        ("a < 5", "4", True),
        ("a <= 5", "6", False),
        ("5 < a", "6", True),
        ("5 >= a", "6", False),
        ("5 < a", "5", False),
        ("5 <= a", "5", True),
        ("5 > a", "5", False),
        ("5 >= a", "5", True),
        ("a > 5.5", "5.6", True),
        ("a > 5.5", "6", True),
        ("a > - 5", "-4", True),
        ("a = 5", "5", True),
        ("a = 5", "+05", True),
        ("a <> 5", "6", True),
        ("5 = a", "5", True),
        ("a = 5.0", "5", True),
        ("a = 'red'", "red", True),
        ("a = 'red'", "Red", False),
        ("a <> 'red'", "blue", True),
        ("a = 'it''s'", "it's", True),
        ("a = TRUE", "tRuE", True),
        ("a = TRUE", "yes", False),
        ("a = FALSE", "yes", True),
        ("a = 2147483648", "2147483648", True),
        ("a BETWEEN 1 AND 5", "5", True),
        ("a BETWEEN 1 AND 5", "6", False),
        ("a NOT BETWEEN 1 AND 5", "6", True),
        ("a NOT BETWEEN 1 AND 5", "1", False),
        ("a NOT BETWEEN 5 AND 1", "3", True),
        ("a IN ('x', 'y')", "y", True),
        ("a IN ('x', 'y')", "z", False),
        ("a NOT IN ('x', 'y')", "z", True),
        ("a IS NULL", "x", False),
        ("a IS NOT NULL", "x", True),
        ("a CONTAINS 'b'", "abc", True),
        ("a NOT CONTAINS 'b'", "abc", False),
        ("a STARTSWITH 'ab'", "abc", True),
        ("a STARTSWITH 'bc'", "abc", False),
        ("a NOT STARTSWITH 'bc'", "abc", True),
        ("a ENDSWITH 'bc'", "abc", True),
        ("a NOT ENDSWITH 'bc'", "abc", False),
        ("NOT (a = 5)", "5", False),
        ("a > 1 AND a < 5", "3", True),
        ("a < 1 OR a > 5", "3", False),
        ("a", "true", False),
        ("NOT a", "true", True),
        ("TRUE", "x", True),
    ],
)
def test_a_property_that_is_there(expression: str, value: str, expected: bool) -> None:
    assert outcome(expression, a=value) is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        *((f"a {operator} 5", None) for operator in ("=", "<>", "<", "<=", ">", ">=")),
        *((f"5 {operator} a", None) for operator in ("<", "<=", ">", ">=")),
        ("a = 'x'", None),
        ("'x' = a", False),
        ("'x' <> a", True),
        ("a = b", True),
        ("a <> b", False),
        ("here = a", False),
        ("a = here", None),
        ("a < here", None),
        ("here < a", None),
        ("a BETWEEN 1 AND 2", None),
        ("a NOT BETWEEN 1 AND 2", None),
        ("3 BETWEEN a AND 2", False),
        ("a IN ('x')", None),
        ("a NOT IN ('x')", None),
        ("a IS NULL", True),
        ("a IS NOT NULL", False),
        ("NULL IS NULL", True),
        ("(a = 5) IS NULL", True),
        *((f"a {word}{part} 'x'", False) for word in ("", "NOT ") for part in ("CONTAINS", "STARTSWITH", "ENDSWITH")),
        ("a", None),
        ("NOT a", None),
        ("NULL", None),
        ("a = 5 AND TRUE", None),
        ("a = 5 AND FALSE", False),
        ("a = 5 OR TRUE", True),
        ("a = 5 OR FALSE", None),
        ("NOT (a = 5)", None),
        ("-a IS NULL", True),
        ("-here IS NULL", True),
    ],
)
def test_a_property_that_is_missing(expression: str, expected: bool | None) -> None:
    assert outcome(expression, here="7") is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("text > 5", ERROR),
        ("text = 5", ERROR),
        ("5 = text", ERROR),
        ("real = 5", ERROR),
        ("real > 5", ERROR),
        ("real > 5.0", True),
        ("big > 5", ERROR),
        ("big > 2147483648", True),
        ("blank > 5", ERROR),
        ("blank > 5.5", True),
        ("text > real", ERROR),
        ("real < big", True),
        ("nan > big", True),
        ("nan > 5.5", True),
        ("nan = nan", True),
        ("zero = minus", False),
        ("minus < zero", True),
        ("TRUE = text", ERROR),
        ("TRUE = missing", False),
        ("(text = 'red') = TRUE", True),
        ("(text = 'red') = text", ERROR),
        ("5 = TRUE", False),
        ("'5' = 5", True),
        ("'x' = 5", ERROR),
        ("5 = 5.0", True),
        ("9007199254740993 = 9007199254740992.0", True),
        ("9007199254740993 > 9007199254740992.0", False),
        ("5 CONTAINS '5'", False),
        ("text CONTAINS ''", False),
        ("text NOT CONTAINS ''", False),
        ("'abc' CONTAINS 'b'", True),
        ("text > 5 OR TRUE", ERROR),
        ("TRUE OR text > 5", True),
        ("FALSE AND text > 5", False),
        ("NULL AND text > 5", ERROR),
        ("NOT text = 5", False),
        ("- (text > 5) IS NULL", ERROR),
        ("5 > - text", None),
    ],
)
def test_types_that_differ(expression: str, expected: bool | str | None) -> None:
    message = {"text": "red", "real": "5.5", "big": "3000000000", "blank": " 7 ", "nan": "NaN"}
    assert outcome(expression, **message, zero="0.0", minus="-0.0") is expected


def test_what_cannot_be_compared_does_not_match() -> None:
    assert not sql92.compile("a > 5").matches({"a": "red"})
    assert not sql92.compile("a > 5 OR TRUE").matches_raw("a\x01red\x02")
    assert not sql92.compile("a > 5").matches({})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("5", 5), ("-5", -5), ("+5", 5), ("007", 7), ("0" * 5000 + "7", 7), ("٥", 5), ("-0", 0)),
        *(("2147483647", 2**31 - 1), ("-2147483648", -(2**31)), ("2147483648", None), ("-2147483649", None)),
        *(("", None), ("+", None), ("5 ", None), ("1_0", None), ("5L", None), ("5.0", None), ("\U0001d7dd", None)),
        ("9" * 5000, None),
    ],
)
def test_ints_are_read_as_java_does(text: str, value: int | None) -> None:
    if value is None:
        with pytest.raises(NotComparable):
            read_int(text)
    else:
        assert read_int(text) == read_long(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("9223372036854775807", 2**63 - 1), ("-9223372036854775808", -(2**63)), ("9223372036854775808", None)),
        *(("99999999999999999999", None), ("5d", None)),
    ],
)
def test_longs_are_read_as_java_does(text: str, value: int | None) -> None:
    if value is None:
        with pytest.raises(NotComparable):
            read_long(text)
    else:
        assert read_long(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(
            (" 5.5\t", 5.5),
            ("\x005\x1f", 5.0),
            ("\u00a05", None),
            ("5.", 5.0),
            (".5", 0.5),
            ("5f", 5.0),
            ("5.5D", 5.5),
            ("1e3", 1000.0),
            ("1e999", float("inf")),
        ),
        *(("-Infinity", float("-inf")), ("0x1.8p1", 3.0), ("-0x1p9999", float("-inf")), ("0x1p-9999", 0.0)),
        *(
            ("inf", None),
            ("nan", None),
            ("1_0", None),
            (".", None),
            ("", None),
            ("0x10", None),
            ("5ff", None),
            ("٥", None),
        ),
    ],
)
def test_doubles_are_read_as_java_does(text: str, value: float | None) -> None:
    if value is None:
        with pytest.raises(NotComparable):
            read_double(text)
    else:
        assert read_double(text) == value


def test_operators_bind_as_sql_says() -> None:
    a, b, one = Property("a"), Property("b"), Whole(1)
    assert parse("a = 1 OR b = 1 AND a") == Or((Equal(a, one), And((Equal(b, one), a))))
    assert parse("NOT a = 1") == Equal(Not(a), one)
    assert parse("a = b > 1") == Equal(a, Compare(Order.GREATER, b, one))
    assert parse("a = b = 1") == Equal(Equal(a, b), one)
    assert parse("+ a <> 1") == Not(Equal(a, one))


@pytest.mark.parametrize(
    "expression",
    [
        *("a=1and B is not null", "A = 1 AnD b Is NoT nUlL", "a = 1 /* it's */ AND-- or\n b IS NOT NULL"),
        *("(a)=(1)AND((b))IS NOT NULL", "\ta\r\n=\f1 AND b IS NOT NULL -- the end", "a = 1L AND b IS NOT NULL--"),
    ],
)
def test_blanks_comments_and_case_of_keywords_do_not_matter(expression: str) -> None:
    wanted = sql92.compile(expression)
    assert wanted.matches({"a": "1", "A": "1", "b": "x", "B": "x"})
    assert not wanted.matches({"a": "1", "A": "1"})


def test_the_case_of_properties_matters() -> None:
    assert outcome("Colour = 'red'", colour="red") is None


@pytest.mark.parametrize(
    ("expression", "position", "problem"),
    [
        ("", 0, "empty"),
        ("  ", 0, "empty"),
        ("a >", 3, "expected a property"),
        ("a > > 5", 4, "found '>'"),
        ("a = 5 AND", 9, "found the end"),
        ("(a = 5", 6, r"expected \)"),
        ("a = 5)", 5, "expected AND, OR or the end"),
        ("a LIKE 'x%'", 2, "no LIKE"),
        ("a = 1 + 1", 6, "no arithmetic"),
        ("a != 5", 2, "write <>"),
        ('a = "x"', 4, "single quotes"),
        ("a = 'x", 4, "no closing quote"),
        ("a = 1 && b = 2", 6, "write AND"),
        ("a = 1 /* open", 6, "comment"),
        ("a.b = 1", 1, "cannot read"),
        ("a > 'x'", 4, "compares numbers"),
        ("'x' > a", 0, "compares numbers"),
        ("a > TRUE", 4, "compares numbers"),
        ("a > b > c", 0, "compares numbers"),
        ("a BETWEEN 'a' AND 'b'", 10, "compares numbers"),
        ("a BETWEEN 5 AND 3", 10, "lower bound first"),
        ("a BETWEEN 5 OR 6", 12, "expected AND"),
        ("a IN (1)", 6, "expected a string"),
        ("a IN ()", 6, "expected a string"),
        ("5 IN ('5')", 0, "only a property"),
        ("a NOT 5", 6, "expected BETWEEN"),
        ("a IS 5", 5, "expected NULL"),
        ("a = NULL", 4, "IS NULL"),
        ("NULL <> a", 0, "IS NULL"),
        ("TRUE = 5", 0, "no number"),
        ("a CONTAINS 5", 11, "expected a string"),
        ("b = 1 AND 5", 10, "neither true nor false"),
        ("NOT 5", 4, "neither true nor false"),
        ("'x'", 0, "neither true nor false"),
        ("-a", 0, "neither true nor false"),
        ("a = 0.0", 4, "above zero"),
        ("a = 05", 5, "expected AND"),
        ("a = 0l", 5, "expected AND"),
        ("a = 1e999", 4, "at most"),
        ("a = 9223372036854775808", 4, "at most 9223372036854775807"),
        ("a = 1" + " " * MAX_LENGTH, MAX_LENGTH, "too many"),
    ],
)
def test_a_bad_expression_is_refused_with_its_place(expression: str, position: int, problem: str) -> None:
    with pytest.raises(FilterSyntaxError, match=problem) as refusal:
        sql92.compile(expression)
    assert refusal.value.position == position
    assert f"character {position + 1}," in str(refusal.value)
    assert refusal.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert isinstance(refusal.value, SubscriptionParseFailed)


def test_a_refusal_shows_only_the_surroundings_of_the_fault() -> None:
    with pytest.raises(FilterSyntaxError, match="near") as refusal:
        sql92.compile("a = 1 OR " * 1000 + "?" + " OR a = 1" * 1000)
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    ("before", "after", "levels"),
    [
        ("(", ")", MAX_NESTING),
        ("NOT ", "", MAX_NESTING - 1),
        ("", " IS NULL", MAX_NESTING - 1),
        ("", " = a", MAX_NESTING - 1),
        ("NOT (a AND ", ")", MAX_NESTING // 2 - 1),
        ("", " CONTAINS 'a'", MAX_NESTING - 1),
    ],
)
def test_nesting_is_bounded(before: str, after: str, levels: int) -> None:
    sql92.compile(before * levels + "a" + after * levels).matches({})
    with pytest.raises(FilterSyntaxError, match=f"{MAX_NESTING} levels"):
        sql92.compile(before * (levels + 1) + "a" + after * (levels + 1))


def test_a_chain_of_conditions_is_not_nested() -> None:
    chain = sql92.compile(" OR ".join(f"(a = {number})" for number in range(1000)))
    assert chain.matches({"a": "999"})
    assert not chain.matches({"a": "1000"})


@pytest.mark.parametrize(
    "expression",
    [
        *(
            "0" * MAX_LENGTH,
            "-" * MAX_LENGTH,
            "(" * MAX_LENGTH,
            "'" * MAX_LENGTH,
            "'" * (MAX_LENGTH - 1),
            "+" * MAX_LENGTH,
        ),
        *(
            "a = '" + "x" * (MAX_LENGTH - 5),
            "/*" * (MAX_LENGTH // 2),
            "a" * MAX_LENGTH,
            "a=--1 OR " * (MAX_LENGTH // 9),
        ),
        *("a = 1" + "0" * (MAX_LENGTH - 5), "a = 1e" + "9" * (MAX_LENGTH - 6), "NOT " * (MAX_LENGTH // 4)),
        *(
            "a=1 OR " * (MAX_LENGTH // 7 - 1) + "a=1",
            "a = a " * (MAX_LENGTH // 6),
            " " * MAX_LENGTH,
            "1." * (MAX_LENGTH // 2),
        ),
    ],
    ids=lambda expression: expression[:9],
)
def test_no_expression_costs_more_than_its_length_allows(expression: str) -> None:
    """Each of these takes minutes, or the stack, where reading goes back over what it has read."""
    try:
        sql92.compile(expression).matches({"a": "2"})
    except FilterSyntaxError:
        pass


@pytest.mark.parametrize(
    "value", ["1" * 30_000 + "x", " " * 30_000 + "x", "0x" + "f" * 30_000, "9" * 30_000, "1e" + "9" * 9999]
)
def test_no_value_costs_more_than_its_length_allows(value: str) -> None:
    for expression in ("a > 5", "a > 5.5", "a > 9999999999", "a < a", "a = TRUE"):
        sql92.compile(expression).matches({"a": value})


WORDS = st.sampled_from(
    (*KEYWORDS, *PART_KEYWORDS, *SYMBOLS, *NAMES, *ODDITIES, "'x'", "5", "/*", "*/", "--", "\n", "'")
)


@given(st.one_of(st.text(), st.lists(WORDS, max_size=30).map(" ".join), st.lists(WORDS, max_size=30).map("".join)))
@example("a = 1 -- '")
@thorough
def test_any_text_yields_a_filter_or_a_refusal(text: str) -> None:
    try:
        assert sql92.compile(text).matches({"a": "5"}) in (True, False)
    except FilterSyntaxError as error:
        refused_at = error.position
    else:
        refused_at = 0
    assert 0 <= refused_at <= len(text)


@given(randoms)
@thorough
def test_what_is_written_is_what_is_read(random: Random) -> None:
    samples = Samples(random)
    node = samples.condition(3)
    assert parse(samples.written(node)) == node


@given(randoms)
@thorough
def test_the_closures_agree_with_the_plain_model(random: Random) -> None:
    samples = Samples(random)
    node = samples.condition(3)
    wanted = sql92.compile(samples.written(node))
    for _ in range(4):
        message = samples.message()
        try:
            expected = sql_model.evaluate(node, message)
        except NotComparable:
            with pytest.raises(NotComparable):
                wanted.evaluate(message)
            expected = False
        else:
            assert wanted.evaluate(message) is expected
        assert wanted.matches(message) is (expected is True)


@given(randoms)
@thorough
def test_a_properties_string_matches_as_the_properties_do(random: Random) -> None:
    samples = Samples(random)
    wanted = sql92.compile(samples.written(samples.condition(3)))
    raw = properties.encode(samples.message())
    assert wanted.matches_raw(raw) is wanted.matches(properties.decode(raw))


def test_an_expression_that_reads_many_properties_takes_the_string_apart_once() -> None:
    wanted = sql92.compile(" AND ".join(f"{name} = '{name}'" for name in "abcdefgh"))
    raw = properties.encode({name: name for name in "abcdefgh"})
    assert wanted.matches_raw(raw)
    assert not wanted.matches_raw(properties.append(raw, "h", "x"))


def test_an_expression_is_compiled_once() -> None:
    assert sql92.compile("a = 'once'") is sql92.compile("a = 'once'")
