"""A header is read on the event loop, so what it may cost is bounded before it is looked at."""

from __future__ import annotations

import pytest

from cosmodrome.errors import ProtocolError
from cosmodrome.wire import fastjson
from cosmodrome.wire.command import MAX_LENIENT_HEADER_BYTES, MAX_LENIENT_HEADER_TOKENS, Command
from cosmodrome.wire.frame import BINARY, JSON, MAX_HEADER_BYTES, Frame, FrameDecoder, frame_head


@pytest.mark.parametrize("serializer", [JSON, BINARY])
def test_a_long_header_is_refused_before_it_is_waited_for(serializer: int) -> None:
    decoder = FrameDecoder()
    decoder.feed(frame_head(serializer, b" " * (MAX_HEADER_BYTES + 1), 0)[:8])
    with pytest.raises(ProtocolError, match=f"header of {MAX_HEADER_BYTES + 1}; limits .* and {MAX_HEADER_BYTES}"):
        decoder.take()


def test_a_header_of_the_largest_size_is_read() -> None:
    text = b'{"code":10,"extFields":{"k":"%s"}}' % (b"v" * (MAX_HEADER_BYTES - 33))
    assert len(text) <= MAX_HEADER_BYTES
    assert len(Command.decode(Frame(JSON, text, b"")).fields["k"]) == MAX_HEADER_BYTES - 33


def test_a_header_that_is_not_strict_json_may_be_less_long() -> None:
    def lenient(size: int) -> bytes:
        return b"{code:10,extFields:{k:'%s'}}" % (b"v" * (size - len(b"{code:10,extFields:{k:''}}")))

    assert Command.decode(Frame(JSON, lenient(MAX_LENIENT_HEADER_BYTES), b"")).code == 10
    with pytest.raises(ProtocolError, match=f"not strict JSON .* at most {MAX_LENIENT_HEADER_BYTES} of such are read"):
        Command.decode(Frame(JSON, lenient(MAX_LENIENT_HEADER_BYTES + 1), b""))


def test_nor_may_it_have_many_parts() -> None:
    header = b"{code:10,extFields:{%s}}" % b",".join(b"k%d:1" % number for number in range(MAX_LENIENT_HEADER_TOKENS))
    with pytest.raises(ProtocolError, match=f"more than {MAX_LENIENT_HEADER_TOKENS} tokens"):
        Command.decode(Frame(JSON, header, b""))


def test_bodies_of_peers_have_such_a_bound_too() -> None:
    lenient, strict = b"[" + b"a," * 1_000 + b"a]", b"[" + b"1," * 1_000 + b"1]"
    with fastjson.lenient_up_to(1_000):
        assert len(fastjson.loads(strict)) == 1_001
        with pytest.raises(
            ProtocolError, match=f"{len(lenient)} bytes that are not strict JSON .* at most 1000 of such"
        ):
            fastjson.loads(lenient)
    assert len(fastjson.loads(lenient)) == 1_001
