"""The batch body, against the reference bytes."""

from __future__ import annotations

import pytest

from cosmodrome.errors import ProtocolError
from cosmodrome.wire.batch import BatchItem, decode_batch, encode_batch

REFERENCE = bytes.fromhex(
    "0000002d 00000000 00000000 00000000 00000002 6869 0015 57414954017472756502 554e49515f4b4559015802"
)
ITEM = BatchItem(0, b"hi", "WAIT\x01true\x02UNIQ_KEY\x01X\x02")


def test_an_item_is_the_reference_bytes() -> None:
    assert encode_batch([ITEM]) == REFERENCE
    assert decode_batch(REFERENCE) == [ITEM]


def test_items_follow_each_other() -> None:
    items = [ITEM, BatchItem(7, b"", ""), BatchItem(-1, b"x" * 300, "A\x01ü\x02")]
    assert decode_batch(memoryview(encode_batch(items))) == items
    assert decode_batch(b"") == []


def test_magic_and_checksum_are_not_looked_at() -> None:
    assert decode_batch(REFERENCE[:4] + b"\xff" * 8 + REFERENCE[12:]) == [ITEM]


@pytest.mark.parametrize("cut", range(1, len(REFERENCE)))
def test_a_cut_item_is_refused(cut: int) -> None:
    with pytest.raises(ProtocolError):
        decode_batch(REFERENCE + REFERENCE[:cut])


@pytest.mark.parametrize(
    ("at", "field"), [(0, "7fffffff"), (0, "80000000"), (16, "7fffffff"), (16, "ffffffff"), (22, "ffff"), (22, "0014")]
)
def test_sizes_that_disagree_are_refused(at: int, field: str) -> None:
    raw = bytes.fromhex(field)
    with pytest.raises(ProtocolError):
        decode_batch(REFERENCE[:at] + raw + REFERENCE[at + len(raw) :])


def test_properties_beyond_their_size_field_are_refused() -> None:
    with pytest.raises(ProtocolError):
        encode_batch([(0, b"", "x" * 32768)])
