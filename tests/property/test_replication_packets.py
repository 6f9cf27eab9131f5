"""A network may cut the bytes between brokers anywhere, and anybody may send any bytes."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.errors import ProtocolError
from cosmodrome.replication.packets import (
    MAX_OFFSET,
    MAX_PACKET_BYTES,
    PACKET,
    Packet,
    PacketReader,
    ReportReader,
    encode_head,
    encode_report,
)

offsets = st.integers(0, MAX_OFFSET)
packets = st.builds(Packet, offsets, st.binary(max_size=60))


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return [stream[begin:end] for begin, end in pairwise(edges)]


@given(st.lists(packets, max_size=8), st.lists(st.integers(0, 700)))
def test_any_chunking_yields_the_same_packets(sent: list[Packet], cuts: list[int]) -> None:
    stream = b"".join(encode_head(packet.offset, len(packet.data)) + packet.data for packet in sent)
    reader = PacketReader()
    taken: list[Packet] = []
    for piece in pieces(stream, cuts):
        reader.feed(piece)
        taken += iter(reader.take, None)
    assert taken == sent
    assert reader.pending_bytes == 0


@given(st.lists(offsets, max_size=30), st.lists(st.integers(0, 300)))
def test_any_chunking_yields_the_same_reports(sent: list[int], cuts: list[int]) -> None:
    reader = ReportReader()
    taken = [report for piece in pieces(b"".join(map(encode_report, sent)), cuts) for report in reader.feed(piece)]
    assert taken == sent


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_any_bytes_are_packets_or_a_protocol_error(chunks: list[bytes]) -> None:
    reader = PacketReader()
    with suppress(ProtocolError):
        for chunk in chunks:
            reader.feed(chunk)
            while (packet := reader.take()) is not None:
                assert 0 <= packet.offset <= MAX_OFFSET
        assert reader.pending_bytes < PACKET.size + MAX_PACKET_BYTES


@given(st.lists(st.binary(max_size=50), max_size=10))
def test_any_bytes_are_reports_or_a_protocol_error(chunks: list[bytes]) -> None:
    reader = ReportReader()
    with suppress(ProtocolError):
        for chunk in chunks:
            assert all(0 <= offset <= MAX_OFFSET for offset in reader.feed(chunk))


@pytest.mark.parametrize("size", [-1, MAX_PACKET_BYTES + 1, 0x7FFFFFFF, -0x80000000])
def test_a_hostile_length_is_refused_before_its_bytes_arrive(size: int) -> None:
    reader = PacketReader()
    reader.feed(encode_head(0, 3) + b"abc" + encode_head(3, size))
    assert reader.take() == Packet(0, b"abc")  # what came before is good
    with pytest.raises(ProtocolError, match=str(size)):
        reader.take()


@pytest.mark.parametrize("offset", [-1, MAX_OFFSET + 1, int.from_bytes(b"GET / HT", "big")])
def test_an_offset_that_no_log_has_is_refused(offset: int) -> None:
    with pytest.raises(ProtocolError, match=str(offset)):
        ReportReader().feed(encode_report(offset))
    reader = PacketReader()
    reader.feed(encode_head(offset, 0))
    with pytest.raises(ProtocolError, match=str(offset)):
        reader.take()
