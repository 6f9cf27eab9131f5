"""Stored records to Arrow columns, a whole pull at a time.

A record is never looked at alone. One pass finds where each begins; the numbers of all of them are then gathered by
numpy, and bodies, topics and properties are cut out of the pulled bytes by Arrow. No object is made per message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cosmodrome.errors import ProtocolError
from cosmodrome.model import Property
from cosmodrome.wire import properties as properties_string
from cosmodrome.wire.compression import decompress
from cosmodrome.wire.record import (
    CRC_MASK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_SIZE,
    SEAL_PROPERTY,
    SEAL_SIZE,
    SysFlag,
    check_at,
    offset_msg_id,
    unpack_host,
)

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MAX_DECOMPRESSED_BYTES = 64 << 20
TIME = pa.timestamp("us", tz="UTC")
STRINGS = pa.map_(pa.string(), pa.string())

_NAME_END = ord(properties_string.NAME_END)
_VALUE_END = ord(properties_string.VALUE_END)
_MILLISECOND: Final = 1_000  # in microseconds

_I32 = struct.Struct(">i")
_HOST_AT = 48
_V6_EXTRA = 12
# The parts of a record between its hosts, whose length varies.
_HEAD = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">u4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
    ]
)
_STORE_TIME = np.dtype(">i8")
_TAIL = np.dtype([("reconsume_times", ">i4"), ("prepared_offset", ">i8"), ("body_size", ">i4")])
_BYTE = np.dtype("u1")
_SHORT = np.dtype(">u2")
_SEAL_BEGIN = f"{SEAL_PROPERTY}{properties_string.NAME_END}".encode()
_SEAL_NAME = np.dtype(f"S{len(_SEAL_BEGIN)}")


class Records:
    """Whole records, one behind the other, and their columns. ProtocolError when they are anything else."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._bytes = np.frombuffer(data, np.uint8)
        self._starts = _starts(data)
        head = self._head = self._at(self._starts, _HEAD)
        is_v2 = head["magic"] == MAGIC_V2
        if not np.all(is_v2 | (head["magic"] == MAGIC_V1)):
            raise ProtocolError("what was pulled are not records")
        sys_flag = self.sys_flags = head["sys_flag"].astype(np.int64)
        self._born_host_sizes = 8 + _V6_EXTRA * ((sys_flag & SysFlag.BORN_V6) != 0)
        self._store_host_sizes = 8 + _V6_EXTRA * ((sys_flag & SysFlag.STORE_V6) != 0)
        self._store_time_at = self._starts + _HOST_AT + self._born_host_sizes
        tail_at = self._store_time_at + 8 + self._store_host_sizes
        self._tail = self._at(tail_at, _TAIL)
        self._body_at = tail_at + _TAIL.itemsize
        self._body_end = self._body_at + self._tail["body_size"]
        self._check(self._body_end)
        short = self._at(self._body_end, _BYTE).astype(np.int64)
        topic_sizes = np.where(is_v2, self._at(self._body_end, _SHORT), short)
        self._topic_at = self._body_end + 1 + is_v2
        self._topic_end = self._topic_at + topic_sizes
        self._check(self._topic_end)
        self._properties_at = self._topic_end + 2
        ends = self._ends = self._properties_at + self._at(self._topic_end, _SHORT)
        if not np.array_equal(ends, self._starts + head["size"]):
            raise ProtocolError("what was pulled holds a damaged record")
        self._is_sealed: Bools = (ends - self._properties_at >= SEAL_SIZE) & (
            self._at(ends - SEAL_SIZE, _SEAL_NAME) == _SEAL_BEGIN
        )
        self._properties_end = ends - SEAL_SIZE * self._is_sealed

    def __len__(self) -> int:
        return len(self._starts)

    def _at(self, places: Ints, kind: np.dtype[Any]) -> npt.NDArray[Any]:
        """What stands at each of the places: taken out of a view in which one thing begins at every byte."""
        count = len(self._data) - kind.itemsize + 1
        if count <= 0 or not len(places):
            return np.empty(0, kind)
        everywhere: npt.NDArray[Any] = np.ndarray((count,), kind, self._data, strides=(1,))
        return everywhere[places]

    def _check(self, ends: Ints) -> None:
        """At least the size of the properties is to follow."""
        if np.any(ends < self._starts) or np.any(ends > self._starts + self._head["size"] - 2):
            raise ProtocolError("what was pulled holds a damaged record")

    def are_complete(self) -> bool:
        """Whether all were written to their ends, as `store.commit_log.is_complete` asks it of one."""
        has_properties = self._properties_end > self._properties_at
        is_cut = has_properties & (self._bytes[self._properties_end - 1] == 0)
        return not (
            not np.all(self.are_sound())
            or np.any(is_cut)
            or pc.any(pc.match_substring(self.topics, "\0"), min_count=0).as_py()
        )

    def are_sound(self) -> Bools:
        """Whether each matches its checksums."""
        data = memoryview(self._data)
        pairs = zip(self._body_at.tolist(), self._body_end.tolist(), strict=True)
        checksums = np.fromiter((crc32(data[begin:end]) & CRC_MASK for begin, end in pairs), np.int64, len(self))
        are_sound: Bools = (checksums == self._head["body_crc"]) | (self._body_end == self._body_at)
        for row in np.flatnonzero(self._is_sealed).tolist():
            try:
                check_at(self._data, int(self._starts[row]), int(self._ends[row]))
            except ProtocolError:
                are_sound[row] = False
        return are_sound

    def select(self, wanted: Bools) -> Records:
        """Those records alone."""
        if wanted.all():
            return self
        ends = self._ends
        pairs = zip(self._starts[wanted].tolist(), ends[wanted].tolist(), strict=True)
        return Records(b"".join([self._data[begin:end] for begin, end in pairs]))

    # --- numbers

    @property
    def queue_offsets(self) -> Ints:
        return self._head["queue_offset"].astype(np.int64)

    @property
    def queue_ids(self) -> Ints:
        return self._head["queue_id"].astype(np.int64)

    @property
    def commit_log_offsets(self) -> Ints:
        return self._head["physical_offset"].astype(np.int64)

    @property
    def reconsume_times(self) -> Ints:
        return self._tail["reconsume_times"].astype(np.int64)

    @property
    def flags(self) -> Ints:
        return self._head["flag"].astype(np.int64)

    @property
    def born_timestamps(self) -> Ints:
        return self._head["born_timestamp"].astype(np.int64)

    @property
    def store_timestamps(self) -> Ints:
        return self._at(self._store_time_at, _STORE_TIME).astype(np.int64)

    # --- text and bytes

    @property
    def topics(self) -> pa.StringArray:
        return _texts(_cut(self._data, self._topic_at, self._topic_end))

    @property
    def bodies(self) -> pa.BinaryArray:
        """Decompressed."""
        bodies = _cut(self._data, self._body_at, self._body_end)
        packed = (self.sys_flags & SysFlag.COMPRESSED) != 0
        if not packed.any():
            return bodies
        unpacked = [
            decompress(bodies[row].as_py(), int(self.sys_flags[row]), limit_bytes=MAX_DECOMPRESSED_BYTES)
            for row in np.flatnonzero(packed).tolist()
        ]
        return pc.replace_with_mask(bodies, pa.array(packed), pa.array(unpacked, pa.binary()))

    @property
    def born_hosts(self) -> pa.StringArray:
        return self._hosts(self._starts + _HOST_AT, self._born_host_sizes)

    @property
    def store_hosts(self) -> pa.StringArray:
        return self._hosts(self._store_time_at + 8, self._store_host_sizes)

    def _hosts(self, places: Ints, sizes: Ints) -> pa.StringArray:
        raw = [self._data[at : at + size] for at, size in zip(places.tolist(), sizes.tolist(), strict=True)]
        names = {host: "{}:{}".format(*unpack_host(host)) for host in set(raw)}
        return pa.array([names[host] for host in raw], pa.string())

    @property
    def message_ids(self) -> pa.StringArray:
        """The producers' unique ids; where there is none, the places of the messages."""
        ids = self.property(Property.UNIQ_KEY)
        if not ids.null_count:
            return ids
        places = (self._store_time_at + 8).tolist()
        sizes, offsets = self._store_host_sizes.tolist(), self.commit_log_offsets.tolist()
        made = [
            offset_msg_id(self._data[at : at + size], offset)
            for at, size, offset in zip(places, sizes, offsets, strict=True)
        ]
        return pc.coalesce(ids, pa.array(made, pa.string()))

    # --- properties

    @property
    def raw_properties(self) -> pa.StringArray:
        return _texts(_cut(self._data, self._properties_at, self._properties_end))

    @cached_property
    def _items(self) -> _Items:
        return _Items(_cut(self._data, self._properties_at, self._properties_end))

    @property
    def properties(self) -> pa.MapArray:
        items = self._items
        return pa.MapArray.from_arrays(pa.array(items.row_offsets, pa.int32()), items.names, items.values)

    def property(self, name: str) -> pa.StringArray:
        """The value of one property in each message, null where it is missing."""
        return self._items.value_of(name)

    def are_of_queue(self, topic: str, queue_id: int) -> bool:
        """Whether all of them are of one queue."""
        if not len(self):
            return True
        return bool(np.all(self._head["queue_id"] == queue_id)) and pc.all(pc.equal(self.topics, topic)).as_py() is True

    def is_of_topic(self, topics: Iterable[str]) -> Bools:
        """Whether each message is of one of the topics."""
        return _in(self.topics, topics)

    def has_property(self, name: str, values: Iterable[str]) -> Bools:
        """Whether each message has the property with one of the values."""
        return _in(self.property(name), values)


class _Items:
    """The properties of all rows: names, values, and how many there are in each row.

    The strings of all rows lie one behind the other, and are cut at every item's end and every row's; of an item, what
    stands before its first separator is the name. Items without a name or a value are left out, as `wire.properties`
    does.
    """

    def __init__(self, rows: pa.BinaryArray) -> None:
        _, row_bounds, data = rows.buffers()
        bounds = np.frombuffer(row_bounds, np.int32)[: len(rows) + 1].astype(np.int64)
        text = np.frombuffer(data, np.uint8)[: bounds[-1]] if data is not None else np.empty(0, np.uint8)
        separators, splits = np.flatnonzero(text == _VALUE_END), np.flatnonzero(text == _NAME_END)
        begins, middles, ends = _regular_items(separators, splits, bounds) or _items(separators, splits, bounds)
        self.names = _texts(_cut(data, begins.ravel(), middles.ravel()))
        self.values = _texts(_cut(data, middles.ravel() + 1, ends.ravel()))
        self.row_offsets = _row_offsets(begins, bounds)
        self._rows = len(rows)
        self._row_of_item = np.repeat(np.arange(len(rows)), np.diff(self.row_offsets))

    def value_of(self, name: str) -> pa.StringArray:
        """Of two with one name the last counts."""
        found = np.flatnonzero(pc.equal(self.names, name).to_numpy(zero_copy_only=False))
        chosen = np.full(self._rows, -1)
        chosen[self._row_of_item[found]] = found
        return self.values.take(pa.array(chosen, pa.int64(), mask=chosen < 0))


def _regular_items(separators: Ints, splits: Ints, bounds: Ints) -> tuple[Ints, Ints, Ints] | None:
    """Begins, middles and ends of items, a line for each row, where all rows have as many and each is whole.

    That is how messages of one producer look; it saves the searching. None where it is not so.
    """
    rows = len(bounds) - 1
    if not rows or len(separators) % rows:
        return None
    ends = separators.reshape(rows, -1)
    if not ends.size or not np.array_equal(ends[:, -1] + 1, bounds[1:]):  # the last items end with their rows
        ends = np.column_stack((ends, bounds[1:]))
    begins = np.column_stack((bounds[:-1], ends[:, :-1] + 1))
    if splits.size != ends.size:
        return None
    middles = splits.reshape(ends.shape)
    is_whole = (begins < middles) & (middles + 1 < ends)
    return (begins, middles, ends) if is_whole.all() else None


def _items(separators: Ints, splits: Ints, bounds: Ints) -> tuple[Ints, Ints, Ints]:
    """Begins, middles and ends of the items that are whole.

    Each ends before a separator, or with its row, whose last one may have none. Both kinds are sorted together by
    twice their places: a separator is a byte, and the end of a row comes before one.
    """
    stops = np.sort(np.concatenate((2 * separators + 1, 2 * bounds[1:])))
    begins, ends = np.concatenate(([0], stops[:-1] + 1 >> 1)), stops >> 1
    # The first split at or behind each begin; behind the last there is none.
    splits = np.append(splits, bounds[-1])
    middles = splits[np.searchsorted(splits, begins)]
    whole = (begins < middles) & (middles + 1 < ends)
    return begins[whole], middles[whole], ends[whole]


def _row_offsets(begins: Ints, bounds: Ints) -> Ints:
    """How many items stand before each row."""
    is_regular = begins.ndim == 2
    before: Ints = np.arange(len(bounds)) * begins.shape[1] if is_regular else np.searchsorted(begins, bounds)
    return before


def _in(texts: pa.StringArray, wanted: Iterable[str]) -> Bools:
    found = pc.is_in(texts, pa.array(wanted, pa.string()))
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)


def timestamps(milliseconds: Ints) -> pa.TimestampArray:
    return pa.array(milliseconds * _MILLISECOND, pa.int64()).cast(TIME)


def _starts(data: bytes) -> Ints:
    """Where each record begins."""
    starts: list[int] = []
    at, end, size_at, add = 0, len(data), _I32.unpack_from, starts.append
    last = end - MIN_SIZE
    while at <= last:
        add(at)
        (size,) = size_at(data, at)
        if size < MIN_SIZE:
            raise ProtocolError(f"a record of {size} bytes cannot be")
        at += size
    if at != end:
        raise ProtocolError("what was pulled does not end with a record")
    return np.array(starts, np.int64)


def _cut(data: bytes | pa.Buffer, begins: Ints, ends: Ints) -> pa.BinaryArray:
    """Pieces of `data`, ascending and apart: taken out of an array in which gaps and pieces alternate."""
    offsets = np.zeros(2 * len(begins) + 1, np.int32)
    offsets[1::2] = begins
    offsets[2::2] = ends
    pieces = pa.Array.from_buffers(pa.binary(), 2 * len(begins), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pieces.take(pa.array(np.arange(1, 2 * len(begins), 2)))


def _texts(raw: pa.BinaryArray) -> pa.StringArray:
    """Bytes that are no UTF-8 become question marks: a reader must not stumble over one bad property."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([piece.decode(errors="replace") for piece in raw.to_pylist()], pa.string())
