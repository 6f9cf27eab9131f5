"""Messages between members: each comes out as it went in, and random bytes are refused."""

from __future__ import annotations

import struct
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.errors import ProtocolError
from cosmodrome.raft.entries import EntryRun, event_body, pack_head
from cosmodrome.raft.messages import (
    AppendReject,
    AppendRequest,
    AppendResponse,
    Base,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    Message,
    ResetRequest,
    StaleTerm,
    TakeLeadership,
    VoteRequest,
    VoteResponse,
)
from cosmodrome.raft.quorum import Membership
from cosmodrome.raft.wire_messages import decode, encode

terms = st.integers(0, 2**63 - 1)
indexes = st.integers(-1, 2**63 - 1)
names = st.text(min_size=1, max_size=8)
ends = (names, names, terms)
memberships = st.lists(names, unique=True, min_size=1, max_size=5).map(lambda ids: Membership.of(ids[1:], ids[:1]))


@st.composite
def runs(draw: st.DrawFn) -> EntryRun:
    place, index, term = draw(st.integers(0, 2**40)), draw(st.integers(0, 2**40)), draw(st.integers(0, 2**40))
    parts = []
    for number in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(EntryKind))
        data = draw(memberships).encode() if kind is EntryKind.MEMBERS else draw(st.binary(max_size=50))
        body = data if kind is EntryKind.NORMAL else event_body(kind, data, place, 7)
        parts.append(pack_head(index + number, term, place, kind, body) + body)
        place += len(parts[-1])
    return EntryRun.parse(memoryview(b"".join(parts)))


messages = st.one_of(
    st.builds(VoteRequest, *ends, indexes, terms, st.booleans(), st.booleans()),
    st.builds(VoteResponse, *ends, st.booleans(), st.booleans()),
    st.builds(AppendRequest, *ends, indexes, terms, st.one_of(st.just(()), runs()), indexes),
    st.builds(AppendResponse, *ends, indexes),
    st.builds(AppendReject, *ends, indexes, indexes, terms),
    st.builds(Heartbeat, *ends, indexes, terms),
    st.builds(HeartbeatResponse, *ends, terms),
    st.builds(ResetRequest, *ends, st.builds(Base, indexes, terms, memberships, terms)),
    st.builds(TakeLeadership, *ends),
    st.builds(StaleTerm, *ends),
)


@given(messages, names)
def test_any_message_comes_out_as_it_went_in(message: Message, group: str) -> None:
    found = decode(group, encode(group, message))
    assert type(found) is type(message)
    assert found == message


@given(st.binary(max_size=200))
def test_random_bytes_are_messages_or_refused(data: bytes) -> None:
    try:
        decode("g", data)
    except ProtocolError:
        pass


@given(messages, st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_is_a_message_or_refused(message: Message, place: int, change: int) -> None:
    data = bytearray(encode("g", message))
    data[place % len(data)] ^= change
    try:
        decode("g", bytes(data))
    except ProtocolError:
        pass


@given(messages, st.integers(0, 10_000))
def test_a_message_that_is_cut_off_is_refused(message: Message, place: int) -> None:
    data = encode("g", message)
    cut = data[: place % len(data)]
    try:
        found = decode("g", cut)
    except ProtocolError:
        return
    assert isinstance(found, AppendRequest), "whole entries may be missing, or all"
    assert isinstance(message, AppendRequest)
    assert tuple(found.entries) == tuple(message.entries)[: len(found.entries)]


def test_a_message_of_another_group_is_refused() -> None:
    with pytest.raises(ProtocolError, match="'other' sent a message to a member of group 'mine'"):
        decode("mine", encode("other", StaleTerm("a", "b", 3)))


def test_an_entry_that_changed_on_the_way_is_refused() -> None:
    body = b"some message"
    raw = pack_head(4, 2, 4096, EntryKind.NORMAL, body) + body
    request = AppendRequest("a", "b", 2, 3, 2, EntryRun.parse(memoryview(raw)), 1)
    good = encode("g", request)
    random = Random(1)
    for bit in random.sample(range(len(raw) * 8), 200):
        data = bytearray(good)
        data[len(good) - len(raw) + bit // 8] ^= 1 << bit % 8
        try:
            found = decode("g", bytes(data))
        except ProtocolError:
            continue
        field = bit // 8
        assert struct.calcsize(">iiqqqi") <= field < 40, f"a change of byte {field} went unseen: {found}"  # always 0
