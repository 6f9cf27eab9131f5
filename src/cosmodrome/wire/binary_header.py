"""Apache's ROCKETMQ header: the binary twin of the JSON one.

    | code 2 | language 1 | version 2 | opaque 4 | flag 4 | remark size 4 | remark | fields size 4 | fields |

    field: | name size 2 | name | value size 4 | value |

A client sends headers of few shapes over and over: the same names with values of the same sizes. Walking the fields
costs several microseconds, so `decode` remembers shapes: one `Struct` cuts such a header into values and the bytes
between them, and if those are the ones seen before, so are all names and sizes.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from cosmodrome.errors import ProtocolError

# Bounds of what is remembered. A peer that varies its headers without end fills them and is then merely not sped up.
MAX_LENGTHS = 1_024
MAX_SHAPES_PER_LENGTH = 4
MAX_SHAPE_FIELDS = 32
MAX_SHAPE_BYTES = 1_024  # of names and sizes; the values may be longer

_FIXED = struct.Struct(">hBhiii")  # code, language, version, opaque, flag, remark size
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")


class BinaryHeader(NamedTuple):
    code: int
    language: int
    version: int
    opaque: int
    flag: int
    remark: str | None
    fields: dict[str, str]


class _Shape(NamedTuple):
    cut: struct.Struct
    between: tuple[bytes, ...]
    names: tuple[str, ...]


_shapes: dict[int, list[_Shape]] = {}


def encode(
    code: int, language: int, version: int, opaque: int, flag: int, remark: str | None, fields: dict[str, str]
) -> bytes:
    """The header's bytes; ProtocolError for a code or a name that does not fit its size."""
    text = remark.encode() if remark else b""
    parts = []
    try:
        for name, value in fields.items():
            key, data = name.encode(), value.encode()
            parts.append(_SHORT.pack(len(key)) + key + _INT.pack(len(data)) + data)
        fixed = _FIXED.pack(code, language, version, opaque, flag, len(text))
    except struct.error as error:
        raise ProtocolError(f"code {code} with these fields does not fit a binary header; use JSON") from error
    encoded = b"".join(parts)
    return b"".join((fixed, text, _INT.pack(len(encoded)), encoded))


def decode(header: bytes) -> BinaryHeader:
    """The header's parts, or ProtocolError."""
    for cut, between, names in _shapes.get(len(header), ()):
        parts = cut.unpack(header)
        if parts[5::2] == between:
            code, language, version, opaque, flag = parts[:5]
            try:
                values = list(map(bytes.decode, parts[6::2]))
            except UnicodeDecodeError as error:
                raise ProtocolError(f"a header value is not UTF-8: {error}") from error
            return BinaryHeader(code, language, version, opaque, flag, None, dict(zip(names, values, strict=True)))
    return _walk(header)


def _walk(header: bytes) -> BinaryHeader:
    """The slow way, which works for every header; what it learns makes the next one fast."""
    try:
        code, language, version, opaque, flag, remark_size = _FIXED.unpack_from(header)
        remark, position = _take_text(header, _FIXED.size, remark_size)
        (size,) = _INT.unpack_from(header, position)
        position += _INT.size
        if size < 0 or position + size != len(header):
            raise ProtocolError(f"the header's fields take {size} bytes of {len(header) - position}")
        sizes: list[tuple[int, int]] = []
        fields = _walk_fields(header, position, sizes)
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"not a binary header: {error}") from error
    if not remark and len(fields) == len(sizes) <= MAX_SHAPE_FIELDS:  # no empty values, no names given twice
        _learn(header, tuple(fields), sizes)
    return BinaryHeader(code, language, version, opaque, flag, remark or None, fields)


def _walk_fields(header: bytes, position: int, sizes: list[tuple[int, int]]) -> dict[str, str]:
    fields: dict[str, str] = {}
    end = len(header)
    while position < end:
        (name_size,) = _SHORT.unpack_from(header, position)
        name, position = _take_text(header, position + _SHORT.size, name_size)
        (value_size,) = _INT.unpack_from(header, position)
        value, position = _take_text(header, position + _INT.size, value_size)
        sizes.append((name_size, value_size))
        if value:  # Java reads an empty value as none at all
            fields[name] = value  # of duplicates the last counts: Java's hooks write some fields twice
    return fields


def _take_text(header: bytes, position: int, size: int) -> tuple[str, int]:
    end = position + size
    if size < 0 or end > len(header):
        raise ProtocolError(f"a text of {size} bytes at {position} leaves the header")
    return header[position:end].decode(), end


def _learn(header: bytes, names: tuple[str, ...], sizes: list[tuple[int, int]]) -> None:
    known = _shapes.get(len(header))
    if known is None:
        if len(_shapes) >= MAX_LENGTHS:
            return
        known = _shapes[len(header)] = []
    if len(known) >= MAX_SHAPES_PER_LENGTH or not sizes:
        return
    # The remark size and fields size are constant too, and stand right before the first field.
    gaps = [_SHORT.size + name_size + _INT.size for name_size, _ in sizes]
    gaps[0] += 2 * _INT.size
    if sum(gaps) > MAX_SHAPE_BYTES:
        return
    cuts = "".join(f"{gap}s{value_size}s" for gap, (_, value_size) in zip(gaps, sizes, strict=True))
    cut = struct.Struct(">hBhii" + cuts)
    known.append(_Shape(cut, cut.unpack(header)[5::2], names))
