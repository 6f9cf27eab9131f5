"""Recall handles: as Java makes and reads them, and never anything but a handle or a refusal."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.errors import ProtocolError
from cosmodrome.wire.recall_handle import RecallHandle

# From Java's RecallMessageHandle.
GOLDEN = RecallHandle("T", "broker-a", 1_700_000_001_000, "0A000001")
GOLDEN_TEXT = "djEgVCBicm9rZXItYSAxNzAwMDAwMDAxMDAwIDBBMDAwMDAx"

words = st.text("abcABC019_-%|.", min_size=1)


def test_a_handle_is_what_java_makes_of_it() -> None:
    assert GOLDEN.encode() == GOLDEN_TEXT
    assert RecallHandle.decode(GOLDEN_TEXT) == GOLDEN


@given(words, words, st.integers(0, 2**62), words)
def test_what_was_encoded_is_decoded_with_and_without_padding(
    topic: str, broker_name: str, deliver_ms: int, unique_key: str
) -> None:
    handle = RecallHandle(topic, broker_name, deliver_ms, unique_key)
    assert RecallHandle.decode(handle.encode()) == handle
    assert RecallHandle.decode(handle.encode().rstrip("=")) == handle


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v1",
        "äöü",
        "*" * 48,
        *(base64.b64encode(raw).decode() for raw in (b"v2 T b 1 k", b"v1 T b 1", b"v1 T b x k", b"\xff")),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="recall handle is invalid"):
        RecallHandle.decode(text)


@given(st.text())
def test_garbage_is_a_handle_or_refused(text: str) -> None:
    try:
        RecallHandle.decode(text)
    except ProtocolError:
        pass
