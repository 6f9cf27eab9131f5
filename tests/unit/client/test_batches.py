"""Cutting messages into batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.client.batches import split_batches
from cosmodrome.client.outgoing import encode_batch_body
from cosmodrome.errors import InvalidMessage
from cosmodrome.model import Message
from cosmodrome.wire.ids import UniqueIds

IDS = UniqueIds(bytes(4))
MESSAGES = st.builds(
    Message,
    topic=st.sampled_from(["T", "T", "T", "U"]),
    body=st.binary(min_size=1, max_size=300),
    tags=st.sampled_from(["", "paid", "ä"]),
    properties=st.dictionaries(st.sampled_from(["x", "y"]), st.text("abcä", min_size=1, max_size=9)),
    sharding_key=st.sampled_from(["", "", "", "k"]),
)


def encoded_bytes(batch: list[Message]) -> int:
    return len(encode_batch_body(batch, [IDS.next() for _ in batch]))


@given(st.lists(MESSAGES, max_size=30), st.integers(500, 2_000))
def test_every_message_is_in_one_batch_and_no_batch_is_too_large(messages: list[Message], max_bytes: int) -> None:
    batches = list(split_batches(messages, max_bytes))
    assert [message for batch in batches for message in batch] == messages
    for batch in batches:
        assert encoded_bytes(batch) <= max_bytes
        assert len({(message.topic, message.sharding_key) for message in batch}) == 1


@given(st.lists(MESSAGES.filter(lambda message: message.topic == "T" and not message.sharding_key), max_size=30))
def test_a_batch_ends_only_where_the_next_message_does_not_fit(messages: list[Message]) -> None:
    batches = list(split_batches(messages, 1_000))
    for batch, following in pairwise(batches):
        assert encoded_bytes([*batch, following[0]]) > 1_000


def test_messages_are_drawn_as_they_are_needed() -> None:
    drawn: list[int] = []

    def endless() -> Iterator[Message]:
        for number in count():
            drawn.append(number)
            yield Message("T", bytes(400))

    batches = split_batches(endless(), 1_000)
    assert [len(next(batches)) for _ in range(3)] == [2, 2, 2]
    assert len(drawn) == 7


def test_a_message_that_fits_into_no_batch_is_an_error_after_those_before_it() -> None:
    batches = split_batches([Message("T", b"a"), Message("T", bytes(999)), Message("T", b"b")], 1_000)
    assert [message.body for message in next(batches)] == [b"a"]
    with pytest.raises(InvalidMessage, match=r"takes \d+ bytes; a batch has at most 1000: send it by itself"):
        next(batches)


@pytest.mark.parametrize("message", [Message("T", b"a", delay_level=1), Message("%RETRY%g", b"a"), Message("T", b"")])
def test_a_message_that_cannot_be_in_a_batch_is_an_error(message: Message) -> None:
    with pytest.raises(InvalidMessage):
        next(split_batches([message]))
