"""Compressed bodies: every kind there and back, bombs stopped, damage named."""

from __future__ import annotations

import os
import sys
import zlib

import pytest
import zstandard

from cosmodrome.errors import ConfigError, ProtocolError
from cosmodrome.wire.compression import Compression, compress, decompress

KINDS = list(Compression)
BODY = b"cosmodrome " * 1000


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_comes_back_and_the_flag_tells_how(kind: Compression) -> None:
    packed, flag = compress(BODY, kind=kind)
    assert flag == 1 | kind
    assert len(packed) < len(BODY) / 5
    assert decompress(packed, flag, limit_bytes=len(BODY)) == BODY


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", [b"", b"x", os.urandom(5000)])
def test_any_body_comes_back(kind: Compression, body: bytes) -> None:
    packed, flag = compress(body, kind=kind)
    assert decompress(packed, flag, limit_bytes=len(body)) == body


def test_old_producers_set_no_kind_and_mean_zlib() -> None:
    assert decompress(zlib.compress(BODY), 1, limit_bytes=len(BODY)) == BODY


def test_a_body_that_is_not_compressed_is_handed_through() -> None:
    assert decompress(b"plain", 0x300, limit_bytes=1) == b"plain"


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_is_stopped_at_the_limit(kind: Compression) -> None:
    packed, flag = compress(bytes(50_000_000), kind=kind)
    with pytest.raises(ProtocolError):
        decompress(packed, flag, limit_bytes=1_000_000)


@pytest.mark.parametrize("kind", KINDS)
def test_one_byte_beyond_the_limit_is_too_much(kind: Compression) -> None:
    packed, flag = compress(BODY, kind=kind)
    with pytest.raises(ProtocolError):
        decompress(packed, flag, limit_bytes=len(BODY) - 1)


def test_a_zstd_stream_that_does_not_tell_its_size_is_capped_too() -> None:
    stream = zstandard.ZstdCompressor().compressobj()
    packed = stream.compress(bytes(50_000_000)) + stream.flush()
    with pytest.raises(ProtocolError):
        decompress(packed, 0x201, limit_bytes=1_000_000)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_a_protocol_error(kind: Compression) -> None:
    packed, flag = compress(BODY, kind=kind)
    for damaged in (b"", b"garbage", packed[:-1], packed[: len(packed) // 2], b"\xff" + packed):
        with pytest.raises(ProtocolError):
            decompress(damaged, flag, limit_bytes=len(BODY))


def test_an_unknown_kind_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="0x400"):
        decompress(b"x", 0x401, limit_bytes=10)


@pytest.mark.parametrize(("kind", "module"), [(Compression.LZ4, "lz4.frame"), (Compression.ZSTD, "zstandard")])
def test_without_the_library_the_error_says_what_to_install(
    kind: Compression, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"pip install cosmodrome\[compression\]"):
        compress(BODY, kind=kind)
    with pytest.raises(ConfigError, match=kind.name):
        decompress(b"", 1 | kind, limit_bytes=10)
