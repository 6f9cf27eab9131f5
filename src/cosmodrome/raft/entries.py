"""Entries in bytes: the same on disk, between members, and in the files of Apache's DLedger.

    | magic 4 = 1 | size 4 | index 8 | term 8 | place 8 | channel 4 | 0 4 | crc 4 | body size 4 | body |

The size counts the head too; the place is where the entry begins in the log. DLedger leaves the channel and the
checksum 0. Ours keep the entry's kind in the channel (0 for a message) and a CRC-32 of everything else in `crc`, so
that a torn or rotten entry is noticed; 0 stands for "none".

Every body is one whole message record. The entry without content that begins a term, and a change of the members, are
records of a system topic whose sys flag says "rolled back": neither Apache's broker nor ours puts such a record into a
queue or an index.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import overload

from cosmodrome.errors import ProtocolError
from cosmodrome.raft.log import HEAD_BYTES
from cosmodrome.raft.messages import Entry, EntryKind
from cosmodrome.wire import record

MAGIC = 1  # the only one that DLedger 0.3.1.2 reads
EVENT_TOPIC = "RMQ_SYS_RAFT_EVENT"

HEAD = struct.Struct(">iiqqqiiIi")
_SUMMED = struct.Struct(">iiqqqi")
_CHECKED_BYTES = 36  # of a head: what stands before the checksums
_NO_HOST = bytes(record.HOST_V4_SIZE)
_NORMAL = EntryKind.NORMAL
_CHANNELS = {EntryKind.NORMAL: 0, EntryKind.NOOP: int(EntryKind.NOOP), EntryKind.MEMBERS: int(EntryKind.MEMBERS)}
_KINDS = {channel: kind for kind, channel in _CHANNELS.items()}

assert HEAD.size == HEAD_BYTES


def pack_head(index: int, term: int, place: int, kind: EntryKind, body: bytes | memoryview) -> bytes:
    """Return the head of an entry."""
    size, channel = HEAD_BYTES + len(body), _CHANNELS[kind]
    crc = zlib.crc32(body, zlib.crc32(_SUMMED.pack(MAGIC, size, index, term, place, channel))) or 1
    return HEAD.pack(MAGIC, size, index, term, place, channel, 0, crc, size - HEAD_BYTES)


def event_body(kind: EntryKind, data: bytes, place: int, now_ms: int) -> bytes:
    """Return the record that stands for an entry of the group itself at a place of the log."""
    return record.encode_record(
        EVENT_TOPIC.encode(),
        data,
        b"",
        0,
        int(kind),
        record.SysFlag.ROLLBACK,
        now_ms,
        _NO_HOST,
        now_ms,
        _NO_HOST,
        physical_offset=place + HEAD_BYTES,
    )


EVENT_BYTES = len(event_body(EntryKind.NOOP, b"", 0, 0))


def body_size(kind: EntryKind, data: bytes) -> int:
    """Return how long the body of an entry is on disk."""
    return len(data) if kind is _NORMAL else EVENT_BYTES + len(data)


def entry_at(view: memoryview, at: int, place: int | None = None) -> tuple[Entry, int, int]:
    """Return the entry at `at` with its size and its place; ProtocolError if there is none, or another's."""
    if len(view) - at < HEAD_BYTES:
        raise ProtocolError(f"an entry's head is cut off after {len(view) - at} bytes")
    magic, size, index, term, own_place, channel, _, crc, data_size = HEAD.unpack_from(view, at)
    kind = _KINDS.get(channel)
    if magic != MAGIC or size != HEAD_BYTES + data_size or data_size < 0 or index < 0 or term < 0 or kind is None:
        raise ProtocolError(f"not an entry: magic {magic}, size {size}, body {data_size}, index {index}, term {term}")
    if place is not None and own_place != place:
        raise ProtocolError(f"entry {index} says that it begins at {own_place}, but lies at {place}")
    if size > len(view) - at:
        raise ProtocolError(f"entry {index} of {size} bytes is cut off after {len(view) - at}")
    body = view[at + HEAD_BYTES : at + size]
    if crc and (zlib.crc32(body, zlib.crc32(view[at : at + _CHECKED_BYTES])) or 1) != crc:
        raise ProtocolError(f"entry {index} of term {term} is damaged: its checksum does not match")
    return Entry(index, term, kind, bytes(body) if kind is _NORMAL else _event_data(body)), size, own_place


def _event_data(body: memoryview) -> bytes:
    head = record.head_at(body, 0, len(body))
    return bytes(body[head.body_at : head.body_at + head.body_size])


class EntryRun(Sequence[Entry]):
    """Entries that lie behind one another, as bytes; they are read only when somebody looks at them.

    A leader sends them as they lie on its disk, and a follower writes them as they come.
    """

    __slots__ = ("_count", "_parsed", "_place", "raw")

    def __init__(self, raw: memoryview, count: int, place: int) -> None:
        self.raw = raw
        self._count = count
        self._place = place
        self._parsed: tuple[tuple[Entry, ...], tuple[int, ...]] | None = None

    @classmethod
    def parse(cls, raw: memoryview) -> EntryRun:
        """Return the entries that these bytes hold; ProtocolError if they are no entries, or not of one piece."""
        entries: list[Entry] = []
        bounds, at, begin = [0], 0, 0
        while at < len(raw):
            entry, size, place = entry_at(raw, at, begin + at if entries else None)
            if not entries:
                begin = place
            entries.append(entry)
            at += size
            bounds.append(at)
        run = cls(raw, len(entries), begin)
        run._parsed = tuple(entries), tuple(bounds)
        return run

    @property
    def place(self) -> int:
        """Where in the log the first of them begins."""
        return self._place

    def _read(self) -> tuple[tuple[Entry, ...], tuple[int, ...]]:
        if self._parsed is None:
            parsed = EntryRun.parse(self.raw)
            assert len(parsed) == self._count, "what is in the log was written whole"
            self._parsed = parsed._parsed
            assert self._parsed is not None
        return self._parsed

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._read()[0])

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        entries, bounds = self._read()
        if isinstance(index, int):
            return entries[index]
        begin, end, step = index.indices(self._count)
        if (begin, end, step) == (0, self._count, 1):
            return self
        if step != 1 or end <= begin:
            return entries[index]
        part = EntryRun(self.raw[bounds[begin] : bounds[end]], end - begin, self._place + bounds[begin])
        part._parsed = entries[begin:end], tuple(bound - bounds[begin] for bound in bounds[begin : end + 1])
        return part

    def sizes(self) -> list[int]:
        """Return how long each of them is, head and body."""
        bounds = self._read()[1]
        return [end - begin for begin, end in pairwise(bounds)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"EntryRun({list(self)!r})"
