"""Numbers in text of peers and files are read by `cosmodrome.numbers` alone: `isdigit` and `int` do not agree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import cosmodrome

ROOT = Path(cosmodrome.__file__).parent

DIGIT_TESTS = frozenset({"isdigit", "isdecimal", "isnumeric"})

# These need not be looked at: the parser itself, and what never meets a peer or a file of a broker.
EXEMPT = frozenset({"numbers.py", "testing"})

# Calls whose text is bounded by what stands around them, or that are given numbers. Say why.
ALLOWED = {
    # A regex before it allows a few ASCII digits.
    "spark/options.py: int(match[1])",
    "config.py: port.isdecimal()",
    "filter/sql92/parser.py: int(digits)",
    "filter/sql92/numbers.py: text.isdecimal()",
    "filter/sql92/numbers.py: int(text)",
    "filter/sql92/numbers.py: int(f'{sign}{digits or 0}')",
    "net/tls.py: int(found[2])",
    "spark/options.py: text.isdecimal()",
    "wire/bodies/fields.py: int(number[1])",
    "wire/fastjson.py: text.lstrip('-').isdigit()",
    "wire/fastjson.py: int(code[1:], 16)",
    "wire/fastjson.py: int(index)",
    "wire/fastjson.py: int(key)",
    "wire/fastjson.py: int(value)",
    "wire/fastjson.py: int(text)",
    # Compared with digits, and never read.
    "wire/record.py: raw[end - 11:end - 1].isdigit()",
    # In the text of a function that is compiled: bounded by what stands behind it.
    "wire/header.py: '(number if (number := small({0})) is not None else int({0}) if {0}.isdigit() and {0}.isascii() "
    "and len({0}) < 19 else read_long({0}))'",
    # The line before it bounds the text.
    "wire/pop.py: int(word)",
    "wire/pop.py: int(start)",
    "wire/pop.py: int(popped)",
    "wire/pop.py: int(invisible)",
    "wire/pop.py: int(revive_queue_id)",
    # Digits that the caller made.
    "net/addresses.py: int(row[0], 16)",
    "store/memory_faults.py: int(first, 16)",
    "store/memory_faults.py: int(text, 16)",
    "net/listeners.py: int(columns[1].rpartition(':')[2], 16)",
    "wire/java.py: int(raw.translate(_HIGH), 31)",
    "wire/java.py: int(raw.translate(_LOW), 31)",
    # Numbers already.
    "client/offsets.py: int(found.value)",
    "client/requesting.py: int(timeout_ms)",
    "wire/bodies/fields.py: int(value)",
    "wire/bodies/registration.py: int(count)",
    "wire/command.py: int(code)",
    "wire/command.py: int(value)",
    "wire/record.py: int(size)",
    "broker/overload.py: int(waited_ms)",
    "broker/overload.py: map(int, _ACKS)",
    "broker/overload.py: map(int, _SENDS)",
    "broker/statistics.py: int(value)",
    "broker/topics.py: int(unit_flag)",
    "pipelines/charts.py: int(value)",
    "pipelines/replay.py: int(end_ms)",
    "pipelines/replay.py: int(sent.get['messages'])",
    "pipelines/reports.py: int(total)",
    "pipelines/reports.py: int(total[0])",
    "pipelines/running.py: int(told['batchId'])",
    "pipelines/store_scan.py: int(count)",
    "pipelines/trace_report.py: int(count)",
    "spark/positions.py: int(found.value)",
    "spark/watching.py: int(source.get('numInputRows') or 0)",
    # Elements of arrays of numpy.
    "spark/decoding.py: int(self._ends[row])",
    "spark/decoding.py: int(self._starts[row])",
    "spark/decoding.py: int(self.sys_flags[row])",
    "spark/encoding.py: int(np.count_nonzero(np.asarray(pc.binary_length(parts))))",
    "spark/encoding.py: int(np.searchsorted(begins, at, 'right'))",
    "spark/encoding.py: int(np.searchsorted(ends, ends[begin] + self._options.batch_bytes, 'right'))",
    "spark/encoding.py: int(offsets[0])",
    "spark/reading.py: int(edges[before[0] + 1])",
    "spark/reading.py: int(edges[before[0]])",
    "spark/reading.py: int(records.queue_offsets[0])",
}

# Packages in which every `int(…)` is looked at: they read what peers and files bring.
READERS = ("broker", "client", "filter", "nameserver", "net", "pipelines", "spark", "store", "wire")


def suspicious(path: str, source: str) -> Iterator[str]:
    """Every digit test, and in READERS every `int` of something that may be text, as `path: expression`; also where the
    code that does so is made of text."""
    for node in ast.walk(ast.parse(source)):
        is_code = isinstance(node, ast.Constant) and isinstance(node.value, str) and "int({" in node.value
        if is_code and path.split("/")[0] in READERS:  # a template of code
            yield f"{path}: {ast.unparse(node)}"
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        is_test = isinstance(called, ast.Attribute) and called.attr in DIGIT_TESTS
        is_int = isinstance(called, ast.Name) and called.id == "int" and not (node.args and is_number(node.args[0]))
        hands_on = any(isinstance(argument, ast.Name) and argument.id == "int" for argument in node.args)
        hands_on &= ast.unparse(called) in ("map", "filter", "starmap")
        if is_test or ((is_int or hands_on) and path.split("/")[0] in READERS):
            yield f"{path}: {ast.unparse(node)}"


def is_number(node: ast.expr) -> bool:
    """Arithmetic, and the members of enums: `int(RequestCode.PULL_MESSAGE)`."""
    if isinstance(node, ast.BinOp):
        return True
    if isinstance(node, ast.Call):  # what a function of time or of another module returns is its own affair
        return ast.unparse(node.func).startswith(("time.", "math.", "float"))
    return (isinstance(node, ast.Attribute) and ast.unparse(node)[0].isupper()) or ast.unparse(node) == "OUR_VERSION"


@cache
def found() -> set[str]:
    names = set()
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT)
        if relative.parts[0] not in EXEMPT:
            names |= set(suspicious(relative.as_posix(), path.read_text()))
    return names


def test_only_the_bounded_parser_reads_numbers_of_peers_and_files() -> None:
    assert found() - ALLOWED == set(), "use parse_int or read_int of cosmodrome.numbers"


def test_nothing_is_allowed_that_is_not_there() -> None:
    assert ALLOWED - found() == set()


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("broker/half_messages.py", "int(text)"),
        ("store/dispatcher.py", "x = int(level) if level.isascii() else 0"),
        ("store/survey.py", "name.isdigit()"),
        ("wire/pop.py", "queue_id, offset = (int(word) for word in words)"),
        ("cli/find.py", "text.isnumeric()"),
        ("wire/pop.py", "numbers = list(map(int, words))"),
        ("wire/header.py", "TEMPLATE = 'int({0})'"),
    ],
)
def test_a_bare_one_is_named(path: str, source: str) -> None:
    assert [name.partition(": ")[0] for name in suspicious(path, source)] == [path]


@pytest.mark.parametrize("source", ["int(RequestCode.PULL_MESSAGE)", "int(time.time() * 1000)", "parse_int(text)"])
def test_what_is_a_number_already_is_fine(source: str) -> None:
    assert list(suspicious("broker/x.py", source)) == []
