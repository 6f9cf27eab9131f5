"""The stored message: the same bytes on disk, to replicas and to consumers.

    | size 4 | magic 4 | body crc 4 | queue id 4 | flag 4 | queue offset 8 | physical offset 8 | sys flag 4 |
    | born time 8 | born ip 4 or 16 | born port 4 | store time 8 | store ip 4 or 16 | store port 4 |
    | reconsume times 4 | prepared transaction offset 8 | body size 4 | body |
    | topic size 1 (V1) or 2 (V2) | topic | properties size 2 | properties |

Sizes always agree: the parts fill the record exactly, or it is not a record. Everything up to the born host lies at
the same place in every record; the sys flag says how long the two hosts are.

The body crc speaks of the body alone. A sealed record (`enabledAppendPropCRC`) ends with a property that speaks of all
bytes before it: `__CRC32#` \\x01, ten decimal digits of which the lowest comes first, \\x02.
"""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from cosmodrome.errors import DamagedRecord, ProtocolError
from cosmodrome.native import log as _native_log
from cosmodrome.native import store as _native
from cosmodrome.wire.properties import MAX_SIZE_BYTES as MAX_PROPERTIES_BYTES

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
BLANK_MAGIC = 0xCBD43194  # the rest of a commit log file holds no record; never sent

MAX_V1_TOPIC_BYTES = 127
_MAX_TOPIC_BYTES = {MAGIC_V1: MAX_V1_TOPIC_BYTES, MAGIC_V2: 32767}  # Java's size fields are signed
CRC_MASK = 0x7FFFFFFF
SEAL_PROPERTY = "__CRC32#"
SEAL_SIZE = 20
_SEAL_NAME = SEAL_PROPERTY.encode()
_SEAL_LETTER = ord("#")  # rare, and found in a tenth of the time that the name is
# What a lost page of the disk leaves of properties. It may have taken a seal with it; nobody sends such.
_WIPED_SIZE = 4
_WIPED = bytes(_WIPED_SIZE)
_SEAL_BEGIN = _SEAL_NAME + b"\x01"

# Where the queue offset, with the physical one behind it, and the flags lie.
QUEUE_OFFSET_AT = 20
SYS_FLAG_AT = 36

HOST_V4_SIZE = 8
HOST_V6_SIZE = 20

_CACHED_HOSTS = 4096


class SysFlag:
    """The bits of a record's sys flag."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC
    TRANSACTION_MASK = 0xC
    BORN_V6 = 0x10
    STORE_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80
    COMPRESSION_MASK = 0x700


_V6_MASK = SysFlag.BORN_V6 | SysFlag.STORE_V6
_HEAD_V4 = struct.Struct(">iIiiiqqiq8sq8siqi")
# By the two IPv6 bits of the sys flag.
_HEADS = {
    0: _HEAD_V4,
    SysFlag.BORN_V6: struct.Struct(">iIiiiqqiq20sq8siqi"),
    SysFlag.STORE_V6: struct.Struct(">iIiiiqqiq8sq20siqi"),
    _V6_MASK: struct.Struct(">iIiiiqqiq20sq20siqi"),
}
_HEAD_V4_SIZE = _HEAD_V4.size
_unpack_head = _HEAD_V4.unpack_from
_TOPIC_V4_AT = _HEAD_V4_SIZE + 1
_KNOWN_TOPICS = 10_000
_known_topics: dict[bytes, str] = {}
_PREFIX = struct.Struct(">iI")
_I32 = struct.Struct(">i")
_PLACE = struct.Struct(">qq")
_TIME = struct.Struct(">q")

MIN_SIZE = _HEAD_V4_SIZE + 3
# What stands for the reconsume times of a record that took the place of a lost message of its queue.
VOID_MARK = 0x564F4944


def encode_record(
    topic: bytes,
    body: bytes | memoryview,
    properties: bytes,
    queue_id: int,
    flag: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    queue_offset: int = 0,
    physical_offset: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    *,
    sealed: bool = False,
) -> bytes:
    """One record; hosts as `pack_host` makes them, and the sys flag's IPv6 bits follow from them.

    A topic above 127 bytes makes it a V2 record. A seal among the properties is another record's: it is left out.
    ProtocolError when a part does not fit its size field.
    """
    if _native is not None and not sealed:
        record: bytes | None = _native.encode_record(
            topic,
            body,
            properties,
            queue_id,
            flag,
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            queue_offset,
            physical_offset,
            reconsume_times,
            prepared_transaction_offset,
        )
        if record is not None:
            return record
    if _SEAL_LETTER in properties and _SEAL_NAME in properties:
        properties = _unsealed(properties)
    if sealed and properties and properties[-1] != 2:
        properties += b"\x02"
    body_size = len(body)
    topic_size = len(topic)
    properties_size = len(properties) + SEAL_SIZE if sealed else len(properties)
    if len(born_host) == 8 == len(store_host):
        head, sys_flag, size = _HEAD_V4, sys_flag & ~0x30, 91 + body_size + topic_size + properties_size
    else:
        sys_flag = _with_v6_bits(sys_flag, born_host, store_host)
        head = _HEADS[sys_flag & _V6_MASK]
        size = head.size + 3 + body_size + topic_size + properties_size
    try:
        if topic_size <= 127:
            magic, topic_mark = MAGIC_V1, topic_size.to_bytes(1)
        else:
            magic, topic_mark, size = MAGIC_V2, _short(topic_size), size + 1
        data = b"".join(
            (
                head.pack(
                    size,
                    magic,
                    zlib.crc32(body) & 0x7FFFFFFF,
                    queue_id,
                    flag,
                    queue_offset,
                    physical_offset,
                    sys_flag,
                    born_timestamp,
                    born_host,
                    store_timestamp,
                    store_host,
                    reconsume_times,
                    prepared_transaction_offset,
                    body_size,
                ),
                body,
                topic_mark,
                topic,
                _short(properties_size),
                properties,
            )
        )
    except (struct.error, OverflowError) as error:
        raise ProtocolError(f"a message that no record can hold: {error}") from None
    return data + _seal(zlib.crc32(data)) if sealed else data


def _seal(crc: int) -> bytes:
    return _SEAL_BEGIN + (b"%010d" % (crc & CRC_MASK))[::-1] + b"\x02"


def _unsealed(properties: bytes) -> bytes:
    """The properties without any seal, and without what looks like one at their end: a sender may have put it there, in
    the value of another property, and a record whose seal does not fit counts as damaged."""
    kept = b"\x02".join(item for item in properties.split(b"\x02") if not item.startswith(_SEAL_BEGIN))
    return kept + b"\x02" if kept[-SEAL_SIZE:-11] == _SEAL_BEGIN else kept


_short = struct.Struct(">h").pack
# Heads in which everything from the sys flag to the prepared transaction offset is one field, by its size.
_pack_head = {
    head.size - SYS_FLAG_AT - 4: struct.Struct(f">i4siiiqq{head.size - SYS_FLAG_AT - 4}si").pack
    for head in _HEADS.values()
}


def encode_records(
    topic: bytes,
    items: Iterable[tuple[int, bytes, str]],
    queue_id: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    queue_offset: int,
    physical_offset: int,
    reconsume_times: int,
    *,
    sealed: bool = False,
) -> tuple[bytes, list[int]]:
    """What `encode_record` makes of each (flag, body, properties), side by side and at consecutive queue offsets.

    Returns the records, and where in the log each begins and the last ends.
    """
    if _native is not None and not sealed:
        records: tuple[bytes, list[int]] | None = _native.encode_records(
            topic,
            items,
            queue_id,
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            queue_offset,
            physical_offset,
            reconsume_times,
        )
        if records is not None:
            return records
    empty = encode_record(
        topic,
        b"",
        b"",
        queue_id,
        0,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        0,
        0,
        reconsume_times,
    )
    empty_size, topic_at = len(empty), _HEAD_V4_SIZE - 2 * HOST_V4_SIZE + len(born_host) + len(store_host)
    magic, shared, topic_field = empty[4:8], empty[SYS_FLAG_AT : topic_at - 4], empty[topic_at:-2]
    pack_head = _pack_head[len(shared)]
    parts: list[bytes] = []
    bounds = [physical_offset]
    try:
        for flag, body, properties in items:
            raw = properties.encode()
            if _SEAL_LETTER in raw and _SEAL_NAME in raw:
                raw = _unsealed(raw)
            if sealed and raw and raw[-1] != 2:
                raw += b"\x02"
            body_size, raw_size = len(body), len(raw) + SEAL_SIZE if sealed else len(raw)
            size = empty_size + body_size + raw_size
            crc = zlib.crc32(body) & 0x7FFFFFFF
            head = pack_head(size, magic, crc, queue_id, flag, queue_offset, physical_offset, shared, body_size)
            record = (head, body, topic_field, _short(raw_size), raw)
            parts += record
            if sealed:
                parts.append(_seal(zlib.crc32(b"".join(record))))
            queue_offset += 1
            physical_offset += size
            bounds.append(physical_offset)
    except struct.error as error:
        raise ProtocolError(f"a message that no record can hold: {error}") from None
    return b"".join(parts), bounds


def _with_v6_bits(sys_flag: int, born_host: bytes, store_host: bytes) -> int:
    for host in (born_host, store_host):
        if len(host) not in (HOST_V4_SIZE, HOST_V6_SIZE):
            raise ProtocolError(f"a packed host has 8 or 20 bytes, not {len(host)}")
    born = SysFlag.BORN_V6 if len(born_host) == HOST_V6_SIZE else 0
    store = SysFlag.STORE_V6 if len(store_host) == HOST_V6_SIZE else 0
    return sys_flag & ~_V6_MASK | born | store


def store_timestamp_at(sys_flag: int) -> int:
    """Where the store time lies, counted from the record's start."""
    return 68 if sys_flag & SysFlag.BORN_V6 else 56


def place(
    buffer: bytearray | memoryview,
    position: int,
    *,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
) -> None:
    """Write into an encoded record what is known only once its place in the log is."""
    _PLACE.pack_into(buffer, position + QUEUE_OFFSET_AT, queue_offset, physical_offset)
    (sys_flag,) = _I32.unpack_from(buffer, position + SYS_FLAG_AT)
    _TIME.pack_into(buffer, position + store_timestamp_at(sys_flag), store_timestamp)


class RecordHead(NamedTuple):
    """Everything of a record but its body and where it came from: what dispatch and recovery look at."""

    size: int
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    store_timestamp: int
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    body_at: int
    body_size: int
    properties: str

    @property
    def is_lost_message(self) -> bool:
        """The message was lost to damage; this record only keeps its number in its queue."""
        return (
            self.reconsume_times == VOID_MARK
            and self.prepared_transaction_offset == ~self.physical_offset
            and self.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.ROLLBACK
        )


_new_head = tuple.__new__  # half the time of RecordHead(…)


def head_at(view: bytes | bytearray | memoryview, position: int, limit: int) -> RecordHead:
    """The head of the record at `position`, which must end at or before `limit`; ProtocolError if there is none.

    The body is not touched; `body_at` says where in `view` it lies.
    """
    fields, topic_at, topic_end, end = _bounds(view, position, limit)
    size, _, crc, queue_id, _, queue_offset, physical_offset, sys_flag = fields[:8]
    store_timestamp, _, reconsume_times, prepared_offset, body_size = fields[10:]
    return _new_head(
        RecordHead,
        (
            size,
            str(view[topic_at:topic_end], "utf-8", "replace"),
            queue_id,
            queue_offset,
            physical_offset,
            sys_flag,
            store_timestamp,
            reconsume_times,
            prepared_offset,
            crc,
            position + _HEADS[sys_flag & _V6_MASK].size,
            body_size,
            str(view[topic_end + 2 : end], "utf-8", "replace"),
        ),
    )


def heads_between(view: memoryview, begin: int, end: int, place: int) -> tuple[list[RecordHead], int]:
    """The heads of the whole records from `begin` on that end at or before `end`, and where the last of them ends.

    `place` is where in the log `begin` lies; each record must say its own. What follows the last may be the first
    part of a record, or none. One loop over a copy: a slave takes every message through here.
    """
    heads: list[RecordHead] = []
    known = _known_topics
    if _native_log is not None:
        heads, at = _native_log.heads(view, begin, end, place, known, _new_head, RecordHead)
        begin, place = at, place + at - begin
    if end - begin < MIN_SIZE or _PREFIX.unpack_from(view, begin)[0] > end - begin:
        return heads, begin  # a long record that comes in many parts is not copied for each
    data, at, limit = bytes(view[begin:end]), 0, end - begin
    while at + MIN_SIZE <= limit:
        fields: tuple[Any, ...] = _unpack_head(data, at)
        size, magic, crc, queue_id, _, queue_offset, physical_offset, sys_flag = fields[:8]
        timestamp, _, again, prepared, body = fields[10:]
        record_end = at + size
        if physical_offset != place + at or record_end > limit:
            break
        topic_at = at + _TOPIC_V4_AT + body
        if magic != MAGIC_V1 or sys_flag & _V6_MASK or not 0 <= body <= size - MIN_SIZE:
            try:
                head = head_at(data, at, limit)
            except ProtocolError:
                break
            heads.append(head._replace(body_at=head.body_at + begin))
            at = record_end
            continue
        topic_end = topic_at + data[topic_at - 1]
        if topic_end + 2 > record_end:
            break
        properties_size = data[topic_end] << 8 | data[topic_end + 1]
        if topic_end + 2 + properties_size != record_end or properties_size > MAX_PROPERTIES_BYTES:
            break
        if topic_end - topic_at > MAX_V1_TOPIC_BYTES:
            break
        raw = data[topic_at:topic_end]
        topic = known.get(raw)
        if topic is None:
            if len(known) >= _KNOWN_TOPICS:
                known.clear()
            topic = known[raw] = raw.decode("utf-8", "replace")
        heads.append(
            _new_head(
                RecordHead,
                (
                    size,
                    topic,
                    queue_id,
                    queue_offset,
                    physical_offset,
                    sys_flag,
                    timestamp,
                    again,
                    prepared,
                    crc,
                    begin + at + _HEAD_V4_SIZE,
                    body,
                    data[topic_end + 2 : record_end].decode("utf-8", "replace"),
                ),
            )
        )
        at = record_end
    return heads, begin + at


def head_size(sys_flag: int) -> int:
    """How many bytes stand before the body."""
    return _HEADS[sys_flag & _V6_MASK].size


def properties_of(record: bytes | memoryview) -> str:
    """The properties string of one whole record; ProtocolError if it is none."""
    _, _, topic_end, end = _bounds(record, 0, len(record))
    return str(record[topic_end + 2 : end], "utf-8", "replace")


def check_at(
    view: bytes | bytearray | memoryview, position: int, limit: int, *, crc: bool = True, topic: bytes | None = None
) -> int:
    """The size of the whole, sound record at `position`, ending at or before `limit`; ProtocolError if there is none.

    With `crc`, its body is read too, and all of it if it is sealed; with `topic`, it is to be of that one.
    """
    fields, topic_at, topic_end, end = _bounds(view, position, limit)
    size, body_crc, body_size = fields[0], fields[2], fields[14]
    if topic is not None and view[topic_at:topic_end] != topic:
        raise DamagedRecord("it says that it is of another topic")
    if crc:
        if end - topic_end >= SEAL_SIZE + 2 and view[end - SEAL_SIZE : end - 11] == _SEAL_BEGIN:
            _check_seal(view, position, end)
        elif body_size:
            body_end = topic_at - (1 if fields[1] == MAGIC_V1 else 2)
            if zlib.crc32(view[body_end - body_size : body_end]) & CRC_MASK != body_crc:
                raise DamagedRecord("its body does not match its checksum")
        # One without a topic fills a gap; it ends in zeros as it is.
        if view[end - _WIPED_SIZE : end] == _WIPED and topic_end > topic_at:
            raise DamagedRecord("its properties end in zeros")
    return int(size)


def _check_seal(view: bytes | bytearray | memoryview, position: int, end: int) -> None:
    """DamagedRecord unless the seal at the end of a record fits to all that stands before it."""
    seal_at = end - SEAL_SIZE
    if view[seal_at:end] != _seal(zlib.crc32(memoryview(view)[position:seal_at])):
        raise DamagedRecord("it does not match the checksum over its head, body and properties")


def body_span(view: bytes | bytearray | memoryview, position: int) -> tuple[int, int, int]:
    """Where a body begins, its size and its checksum, as the head at `position` says; ProtocolError if that is cut off.

    Nothing else of the record needs to be right.
    """
    try:
        fields = _HEAD_V4.unpack_from(view, position)
        head = _HEADS[fields[7] & _V6_MASK]
        fields = head.unpack_from(view, position)
    except struct.error:
        raise ProtocolError(f"the record at {position} is cut off") from None
    return position + head.size, fields[14], fields[2]


def queue_offsets(view: bytes | memoryview) -> list[int]:
    """Where each of the whole records of `view` lies in its queue."""
    offsets, position, limit = [], 0, len(view)
    while position < limit:
        offsets.append(_PLACE.unpack_from(view, position + QUEUE_OFFSET_AT)[0])
        position += _I32.unpack_from(view, position)[0]
    return offsets


def magic_at(view: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """The (size, magic) that begin a record or a blank rest; ProtocolError when fewer than 8 bytes are left."""
    try:
        size, magic = _PREFIX.unpack_from(view, position)
    except struct.error:
        raise ProtocolError(f"no record begins at {position}: fewer than 8 bytes are left") from None
    return size, magic


def _bounds(view: bytes | bytearray | memoryview, position: int, limit: int) -> tuple[tuple[Any, ...], int, int, int]:
    """The unpacked head, the topic's begin and end, and the record's end; ProtocolError unless all sizes agree."""
    if position < 0 or position + _HEAD_V4_SIZE > limit:
        raise ProtocolError(f"the record at {position} is cut off")
    try:
        fields = _HEAD_V4.unpack_from(view, position)
        magic, v6 = fields[1], fields[7] & _V6_MASK
        topic_at = position + _HEAD_V4_SIZE
        if v6:
            head = _HEADS[v6]
            fields = head.unpack_from(view, position)
            topic_at = position + head.size
        size, body_size = fields[0], fields[14]
        end = position + size
        topic_at += body_size
        if magic == MAGIC_V1:
            topic_size = view[topic_at]
            topic_at += 1
        elif magic == MAGIC_V2:
            topic_size = view[topic_at] << 8 | view[topic_at + 1]
            topic_at += 2
        else:
            raise ProtocolError(f"no record begins at {position}: magic {magic:#010x}")
        topic_end = topic_at + topic_size
        properties_size = view[topic_end] << 8 | view[topic_end + 1]
    except (struct.error, IndexError):
        raise ProtocolError(f"the record at {position} is cut off") from None
    agree = body_size >= 0 and end == topic_end + 2 + properties_size <= limit
    if not agree or properties_size > MAX_PROPERTIES_BYTES or topic_size > _MAX_TOPIC_BYTES[magic]:
        raise ProtocolError(f"the record at {position} says {size} bytes; its parts or the data disagree")
    return fields, topic_at, topic_end, end


@dataclass(slots=True)
class Record:
    """One stored message, read whole. `properties` is the raw string without a seal; `body` may be compressed."""

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: str
    born_port: int
    store_timestamp: int
    store_host: str
    store_port: int
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties: str

    def encode(self) -> bytes:
        """The record anew: size, magic, checksum and IPv6 bits follow from its parts."""
        return encode_record(
            self.topic.encode(),
            self.body,
            self.properties.encode(),
            queue_id=self.queue_id,
            flag=self.flag,
            queue_offset=self.queue_offset,
            physical_offset=self.physical_offset,
            sys_flag=self.sys_flag,
            born_timestamp=self.born_timestamp,
            born_host=pack_host(self.born_host, self.born_port),
            store_timestamp=self.store_timestamp,
            store_host=pack_host(self.store_host, self.store_port),
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=self.prepared_transaction_offset,
        )

    @property
    def offset_msg_id(self) -> str:
        """Where the message lies: store host and physical offset."""
        return offset_msg_id(pack_host(self.store_host, self.store_port), self.physical_offset)


def decode_records(data: bytes | bytearray | memoryview) -> list[Record]:
    """Every record of a pull's body; ProtocolError unless whole records fill it and match their checksums."""
    records, damage = read_records(data)
    if damage is not None:
        raise damage
    return records


def read_records(data: bytes | bytearray | memoryview) -> tuple[list[Record], ProtocolError | None]:
    """The records of a pull's body up to the first that is not sound, and what is wrong with that one."""
    raw = bytes(data)
    records: list[Record] = []
    position, limit = 0, len(raw)
    try:
        while position < limit:
            fields, topic_at, topic_end, end = _bounds(raw, position, limit)
            records.append(_record(raw, position, fields, topic_at, topic_end, end))
            position = end
    except ProtocolError as damage:
        return records, damage
    return records, None


def sound_records(
    data: bytes | bytearray | memoryview, on_damage: Callable[[ProtocolError], None] | None = None
) -> list[Record]:
    """The sound records of a pull's body; `on_damage` is told of each part that is none and is passed over."""
    view = memoryview(data)
    found: list[Record] = []
    while view:
        records, damage = read_records(view)
        found += records
        if damage is None:
            break
        if on_damage is not None:
            on_damage(damage)
        at = sum(record.total_size for record in records)
        view = view[at + _claimed_size(view, at) :]
    return found


def cut_records(data: bytes) -> list[bytes]:
    """The pieces of a pull's body, one for each record, sound or not."""
    pieces: list[bytes] = []
    while data:
        size = _claimed_size(memoryview(data), 0)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def _claimed_size(view: memoryview, position: int) -> int:
    """How long a record says to be that is not sound; all that is left if no other one begins behind it."""
    left = len(view) - position
    if left < _PREFIX.size:
        return left
    (size,) = _I32.unpack_from(view, position)
    follows = 0 < size <= left - _PREFIX.size and magic_at(view, position + size)[1] in _MAX_TOPIC_BYTES
    return int(size) if follows else left


def _record(raw: bytes, position: int, fields: tuple[Any, ...], topic_at: int, topic_end: int, end: int) -> Record:
    (
        size,
        magic,
        crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        born,
        store_timestamp,
        store,
        reconsume_times,
        prepared_offset,
        body_size,
    ) = fields
    born_host, born_port = unpack_host(born)
    store_host, store_port = unpack_host(store)
    body_end = topic_at - (1 if magic == MAGIC_V1 else 2)
    body = raw[body_end - body_size : body_end]
    properties_end = end
    if raw[end - 20 : end - 11] == _SEAL_BEGIN and end - topic_end >= 22:
        _check_seal(raw, position, end)
        properties_end = end - 20
    elif body_size and zlib.crc32(body) & 0x7FFFFFFF != crc:
        raise DamagedRecord("its body does not match its checksum")
    elif raw[end - _WIPED_SIZE : end] == _WIPED and topic_end > topic_at:
        raise DamagedRecord("its properties end in zeros")
    elif raw[end - 11 : end - 1].isdigit() and raw[end - 11 : end] == _seal(zlib.crc32(raw[position : end - 20]))[9:]:
        properties_end = end - 20  # only the name of the seal is damaged
    return Record(
        size,
        magic,
        crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        born_host,
        born_port,
        store_timestamp,
        store_host,
        store_port,
        reconsume_times,
        prepared_offset,
        body,
        str(raw[topic_at:topic_end], "utf-8", "replace"),
        str(raw[topic_end + 2 : properties_end], "utf-8", "replace"),
    )


def claimed_id(data: bytes | memoryview, position: int) -> str:
    """The offset id that a damaged record claims to have; empty if too little of it is left."""
    try:
        sys_flag = _I32.unpack_from(data, position + SYS_FLAG_AT)[0]
        host_at = position + store_timestamp_at(sys_flag) + _TIME.size
        host_end = host_at + (HOST_V6_SIZE if sys_flag & SysFlag.STORE_V6 else HOST_V4_SIZE)
        physical_offset = _PLACE.unpack_from(data, position + QUEUE_OFFSET_AT)[1]
    except struct.error:
        return ""
    return offset_msg_id(bytes(data[host_at:host_end]), physical_offset) if host_end <= len(data) else ""


_LOOPBACK_V6 = b"\x00" * 15 + b"\x01"
_MAPPED_V4 = b"\x00" * 10 + b"\xff\xff"


@lru_cache(maxsize=_CACHED_HOSTS)
def pack_host(ip: str, port: int) -> bytes:
    """8 bytes for IPv4, 20 for IPv6. What IPv4 can say is said in IPv4: some clients cannot read the other."""
    try:
        if ":" not in ip:
            return socket.inet_pton(socket.AF_INET, ip) + _I32.pack(port)
        address = socket.inet_pton(socket.AF_INET6, ip.partition("%")[0])
        if address == _LOOPBACK_V6:
            address = b"\x7f\x00\x00\x01"
        elif address.startswith(_MAPPED_V4):
            address = address[12:]
        return address + _I32.pack(port)
    except (OSError, ValueError, struct.error):
        raise ProtocolError(f"{ip!r} with port {port} is not a host a message can name") from None


@lru_cache(maxsize=_CACHED_HOSTS)
def unpack_host(host: bytes) -> tuple[str, int]:
    """(ip, port) of 8 or 20 bytes."""
    if len(host) not in (HOST_V4_SIZE, HOST_V6_SIZE):
        raise ProtocolError(f"a packed host has 8 or 20 bytes, not {len(host)}")
    family = socket.AF_INET if len(host) == HOST_V4_SIZE else socket.AF_INET6
    (port,) = _I32.unpack_from(host, len(host) - 4)
    return socket.inet_ntop(family, host[:-4]), port


def offset_msg_id(host: bytes, physical_offset: int) -> str:
    """The id that says where a message lies: its broker's packed host and its place in the log."""
    return (host + (physical_offset & 0xFFFFFFFFFFFFFFFF).to_bytes(8)).hex().upper()


def offset_msg_ids(host: bytes, physical_offsets: Iterable[int]) -> str:
    """The ids of several messages of one broker, comma-joined; none of the offsets is negative."""
    return b"".join([host + offset.to_bytes(8) for offset in physical_offsets]).hex(",", len(host) + 8).upper()


def parse_offset_msg_id(text: str) -> tuple[str, int, int]:
    """(ip, port, physical offset); ProtocolError for anything else."""
    try:
        raw = bytes.fromhex(text)
        if len(raw) * 2 != len(text):  # fromhex() skips blanks
            raise ValueError
    except ValueError:
        raise ProtocolError(f"{text!r} is not an offset message id") from None
    ip, port = unpack_host(raw[:-8])
    return ip, port, int.from_bytes(raw[-8:], signed=True)
