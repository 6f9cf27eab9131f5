"""Trace records: what Java, Go and we write, and what nobody should have written."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.wire import trace
from cosmodrome.wire.trace import EndTransaction, Pub, Recall, SubAfter, SubBefore, TraceRecord

JAVA_PUB = (
    "Pub\x011700000000000\x01DefaultRegion\x01p\x01orders\x01ID\x01paid\x01k1 k2\x01127.0.0.1:10911"
    "\x0112\x013\x010\x01OFFSETID\x01true\x02"
)
PUB = Pub(1700000000000, "DefaultRegion", "p", "orders", "ID", "paid", "k1 k2", "127.0.0.1:10911", 12, 3, 0, "OFFSETID")


def test_a_record_is_written_as_java_writes_it() -> None:
    assert trace.encode([PUB]) == JAVA_PUB.encode()
    assert trace.encode([SubAfter("R", "ID", 5, False, "", 2, 7, "g")]) == (
        b"SubAfter\x01R\x01ID\x015\x01false\x01null\x012\x017\x01g\x02"
    )


def test_a_body_holds_several_records() -> None:
    before = "SubBefore\x015\x01null\x01g\x01R\x01ID\x012\x01k\x02"
    assert trace.decode((JAVA_PUB + before).encode()) == [PUB, SubBefore(5, "", "g", "R", "ID", 2, "k")]


@pytest.mark.parametrize(
    "line",
    [
        JAVA_PUB.replace("true\x02", "true\x01192.0.2.1\x02"),  # Go adds the client's host
        JAVA_PUB.replace("\x01true\x02", "\x02"),
        "\n" + JAVA_PUB,
        "Nonsense\x01a\x02" + JAVA_PUB,
        "Pub\x01soon\x02Pub\x01\x02" + JAVA_PUB,
    ],
)
def test_more_fields_fewer_fields_and_nonsense_do_no_harm(line: str) -> None:
    assert trace.decode(line.encode()) == [PUB]


def test_the_short_form_of_an_old_client() -> None:
    assert trace.decode(b"SubAfter\x01R\x01ID\x015\x01true\x01k\x010\x02") == [SubAfter("R", "ID", 5, True, "k", 0)]


_TEXTS = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), max_size=5).filter(lambda t: t != "null")
_BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "str": _TEXTS,
    "int": st.integers(-(2**63), 2**63 - 1),
    "bool": st.booleans(),
}


def _records(kind: type) -> st.SearchStrategy[TraceRecord]:
    drawn: st.SearchStrategy[TraceRecord] = st.builds(kind, *(_BY_TYPE[str(f.type)] for f in dataclasses.fields(kind)))
    return drawn


@given(st.lists(st.one_of(*map(_records, (Pub, SubBefore, SubAfter, EndTransaction, Recall))), max_size=4))
def test_what_is_written_is_read_again(records: list[TraceRecord]) -> None:
    assert trace.decode(trace.encode(records)) == records


@given(st.binary(max_size=60))
def test_garbage_is_read_as_something_or_nothing(body: bytes) -> None:
    assert isinstance(trace.decode(body), list)
