"""From the rows of a write to what goes on the wire. Column by column; pure.

Rows become batches for one queue each; what RocketMQ takes no batch of goes singly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cosmodrome.client.outgoing import (
    MAX_BODY_BYTES,
    RESERVED_PROPERTIES,
    batch_properties,
    check_sendable_topic,
    joined_keys,
)
from cosmodrome.config import MAX_BATCH, MIB
from cosmodrome.errors import InvalidMessage
from cosmodrome.model import DLQ_PREFIX, RETRY_PREFIX, MessageQueue, Property
from cosmodrome.spark.sink_options import Reserved, SinkOptions
from cosmodrome.wire import properties as props
from cosmodrome.wire.ids import UniqueIds
from cosmodrome.wire.record import SysFlag

SPARK_ID = "SPARK_ID"
# An item of a batch is the head, the body, the size of the properties and those, as in wire.batch.
_HEAD = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_size", ">i4")])
_FRAME_BYTES = _HEAD.itemsize + 2
# Rows are encoded so many bytes at a time; Arrow's arrays have 2 GiB at most.
_AT_ONCE_BYTES = 64 * MIB
_HEX = np.array([f"{number:04X}" for number in range(2**16)], "S4")
_MICROSECONDS_PER_MS = 1_000
_MAX_ROWS = 2**32
_NOT_TAKEN = RESERVED_PROPERTIES | {SPARK_ID}
# Of the transaction that a row came from: Apache 5 would refuse to commit ours when it is as old as this says.
_OF_ANOTHER_TRANSACTION = Property.CHECK_IMMUNITY_TIME_IN_SECONDS
_DRAWN_IDS = UniqueIds(bytes(4))


class Place(NamedTuple):
    """Where a row goes: to a given queue, or to one that follows from its sharding key; else anywhere."""

    topic: str
    sharding_key: str = ""
    broker_name: str = ""
    queue_id: int = -1


# The queue of a place that has one; None for a place that is any queue.
Locate = Callable[[Place], MessageQueue | None]


@dataclass(slots=True)
class Shipment:
    """What one request carries: a message, or several as a batch."""

    topic: str
    queue: MessageQueue | None  # None: any of the topic
    rows: Sequence[int]
    body: bytes
    properties: str
    flag: int = 0
    sys_flag: int = 0
    is_batch: bool = False
    tries: int = 0
    failed_broker: str | None = None


class RowNames:
    """What the rows of a task are called, the same in every attempt and in every repetition.

    The unique id has the layout of a client's, so that Java's tools read it; where they look for the time since the
    month began there are zeros, and elsewhere a hash of the task's name and the number of the row.
    """

    def __init__(self, scope: str, partition: int) -> None:
        self._spark_id = f"{scope}:{partition}:"
        self._prefix = hashlib.blake2b(self._spark_id.encode(), digest_size=8).hexdigest().upper()

    def unique_id(self, row: int) -> str:
        return f"{self._prefix}{row >> 16:04X}00000000{row & 0xFFFF:04X}"

    def properties(self, rows: range) -> pa.StringArray:
        numbers = np.arange(rows.start, rows.stop)
        return _joined(
            f"UNIQ_KEY\x01{self._prefix}",
            _text(_HEX[numbers >> 16]),
            "00000000",
            _text(_HEX[numbers & 0xFFFF]),
            f"\x02WAIT\x01true\x02{SPARK_ID}\x01{self._spark_id}",
            pa.array(numbers).cast(pa.string()),
            "\x02",
        )


def drawn_name() -> str:
    """The properties of a message that needs no name of its own: a new id whenever it is sent."""
    return f"UNIQ_KEY\x01{_DRAWN_IDS.next()}\x02WAIT\x01true\x02"


class Encoder:
    """Makes the shipments of one task, batch after batch of its rows."""

    def __init__(self, options: SinkOptions, names: RowNames | None, locate: Locate) -> None:
        self._options = options
        self._names = names
        self._locate = locate
        self._next_row = 0
        self._half = f"TRAN_MSG\x01true\x02PGROUP\x01{options.group}\x02" if options.exactly_once else ""
        self._known_topics: set[str] = set()

    def shipments(self, batch: pa.RecordBatch) -> Iterator[Shipment]:
        slices = batch.nbytes // _AT_ONCE_BYTES + 1
        step = max(batch.num_rows // slices, 1)
        for at in range(0, batch.num_rows, step):
            yield from self._shipments(batch.slice(at, step))

    def _shipments(self, batch: pa.RecordBatch) -> Iterator[Shipment]:
        rows = range(self._next_row, self._next_row + batch.num_rows)
        self._next_row = rows.stop
        if rows.stop > _MAX_ROWS:
            raise InvalidMessage(f"a task has more than {_MAX_ROWS} rows; repartition them")
        columns = _Columns(batch, rows.start)
        bodies, properties, flags = columns.bodies(), self._properties(columns, rows), columns.flags()
        for (topic, queue, singly), members in self._grouped(columns, columns.is_delayed(), len(rows)):
            table = _Rows(rows, bodies, properties, flags)
            if not isinstance(members, range):
                table = table.select(members)
            if singly:
                yield from self._singles(topic, queue, table)
            else:
                yield from self._batches(topic, queue, table)

    # --- properties

    def _properties(self, columns: _Columns, rows: range) -> pa.StringArray:
        if self._names is not None:
            parts, separators = [self._names.properties(rows)], 3 * len(rows)
        else:
            parts, separators = [pa.array([drawn_name() for _ in rows])], 2 * len(rows)
        for name, values in columns.simple_properties():
            part = _or_nothing(_joined(f"{name}\x01", values, "\x02"), values)
            separators += _count(part)
            parts.append(part)
        if (maps := columns.maps("properties")) is not None:
            begins, items = self._items(maps, rows.start)
            separators += _count(items)
            parts.append(pc.binary_join(pa.ListArray.from_arrays(begins, items), ""))
        if self._half:
            separators += 2 * len(rows)
        found = _joined(*parts, self._half) if len(parts) > 1 or self._half else parts[0]
        _check_encoded(found, separators, rows.start)
        return found

    def _items(self, maps: pa.MapArray, first_row: int) -> tuple[pa.Array, pa.StringArray]:
        """Where the entries of each map begin, and each as it is sent, or nothing: one without a value would not be
        seen by a reader. Of an array that is part of another, only the part counts."""
        offsets = np.asarray(maps.offsets)
        first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
        begins, names, values = offsets - offsets[0], maps.keys.slice(first, count), maps.items.slice(first, count)
        items = _or_nothing(_joined(names, "\x01", values, "\x02"), values)
        if self._half:
            items = pc.if_else(pc.equal(names, _OF_ANOTHER_TRANSACTION), "", items)
        reserved = [name for name in pc.unique(names).to_pylist() if not name or name in _NOT_TAKEN]
        if reserved:
            is_reserved = pc.is_in(names, pa.array(reserved, names.type))
            if self._options.reserved_properties is not Reserved.DROP:
                at = pc.index(is_reserved, True).as_py()
                row = first_row + int(np.searchsorted(begins, at, "right")) - 1
                raise InvalidMessage(
                    f"the column properties has the name {names[at].as_py()!r} in row {row} of the task, which is "
                    "RocketMQ's own or empty; leave it out, or set the option reservedProperties to drop"
                )
            items = pc.if_else(is_reserved, "", items)
        return pa.array(begins), items

    # --- where to

    def _grouped(
        self, columns: _Columns, is_delayed: Sequence[bool] | None, count: int
    ) -> Iterable[tuple[tuple[str, MessageQueue | None, bool], Sequence[int]]]:
        """The rows by where they go, and whether singly, each group in the order of the rows."""
        exactly_once, topic = self._options.exactly_once, self._options.topic
        places = columns.places(topic)
        if places is None and is_delayed is None:
            return [((self._known(topic), None, exactly_once or _is_single_topic(topic)), range(count))]
        groups: dict[tuple[str, MessageQueue | None, bool], list[int]] = {}
        located: dict[Place, tuple[str, MessageQueue | None]] = {}
        place = Place(topic)
        for index in range(count):
            if places is not None:
                place = places[index]
            where = located.get(place)
            if where is None:
                where = located[place] = (self._known(place.topic), self._locate(place))
            singly = exactly_once or (is_delayed is not None and is_delayed[index]) or _is_single_topic(where[0])
            groups.setdefault((*where, singly), []).append(index)
        return groups.items()

    def _known(self, topic: str) -> str:
        if topic not in self._known_topics:
            if not topic:
                raise InvalidMessage("a row has no topic; fill the column topic, or give the option topic")
            check_sendable_topic(topic)
            self._known_topics.add(topic)
        return topic

    # --- requests

    def _singles(self, topic: str, queue: MessageQueue | None, table: _Rows) -> Iterator[Shipment]:
        sys_flag = SysFlag.PREPARED if self._half else 0
        messages = zip(
            table.numbers, table.bodies.to_pylist(), table.properties.to_pylist(), table.flags.tolist(), strict=True
        )
        for row, body, properties, flag in messages:
            yield Shipment(topic, queue, (row,), body, properties, flag, sys_flag)

    def _batches(self, topic: str, queue: MessageQueue | None, table: _Rows) -> Iterator[Shipment]:
        items = table.items()
        ends, data = _offsets(items), memoryview(items.buffers()[2])
        begin, count = 0, len(items)
        while begin < count:
            end = int(np.searchsorted(ends, ends[begin] + self._options.batch_bytes, "right")) - 1
            end = min(end, begin + MAX_BATCH)
            if end <= begin + 1:
                yield from self._singles(topic, queue, table.select(range(begin, begin + 1)))
                end = begin + 1
            else:
                body = bytes(data[ends[begin] : ends[end]])
                yield Shipment(topic, queue, table.numbers[begin:end], body, _BATCH_PROPERTIES, is_batch=True)
            begin = end


_BATCH_PROPERTIES = batch_properties(True)


class _Rows(NamedTuple):
    """Rows that go to one place."""

    numbers: Sequence[int]
    bodies: pa.BinaryArray
    properties: pa.StringArray
    flags: np.ndarray[Any, Any]

    def select(self, members: Sequence[int]) -> _Rows:
        wanted = pa.array(members, pa.int64())
        numbers = [self.numbers[member] for member in members]
        return _Rows(numbers, self.bodies.take(wanted), self.properties.take(wanted), self.flags[members])

    def items(self) -> pa.BinaryArray:
        """Each row as an item of a batch."""
        body_sizes = np.asarray(pc.binary_length(self.bodies))
        properties_sizes = np.asarray(pc.binary_length(self.properties))
        heads = np.zeros(len(self.numbers), _HEAD)
        heads["size"] = body_sizes + properties_sizes + _FRAME_BYTES
        heads["flag"], heads["body_size"] = self.flags, body_sizes
        return pc.binary_join_element_wise(
            _binary(heads),
            self.bodies,
            _binary(properties_sizes.astype(">i2")),
            self.properties.cast(pa.binary()),
            pa.scalar(b""),
        )


def _is_single_topic(topic: str) -> bool:
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def _joined(*parts: pa.StringArray | str) -> pa.StringArray:
    """Row by row, one behind the other; null where one of them is."""
    return pc.binary_join_element_wise(*parts, "")


def _or_nothing(made: pa.StringArray, values: pa.StringArray) -> pa.StringArray:
    """What was made of values, and an empty text where there is none."""
    return pc.if_else(pc.fill_null(pc.equal(pc.binary_length(values), 0), True), "", made)


def _count(parts: pa.StringArray) -> int:
    """How many of them are not empty."""
    return int(np.count_nonzero(np.asarray(pc.binary_length(parts))))


def _binary(data: np.ndarray[Any, Any]) -> pa.BinaryArray:
    """The bytes of each element."""
    buffers = [None, pa.py_buffer(data.tobytes())]
    return pa.Array.from_buffers(pa.binary(data.itemsize), len(data), buffers).cast(pa.binary())


def _text(data: np.ndarray[Any, Any]) -> pa.StringArray:
    return _binary(data).cast(pa.string())


def _offsets(array: pa.BinaryArray) -> np.ndarray[Any, Any]:
    """Where each element of a new array begins, and the end."""
    return np.frombuffer(array.buffers()[1], np.int32)[: len(array) + 1]


def _check_encoded(found: pa.StringArray, separators: int, first_row: int) -> None:
    """Exactly our own separators, and no more than fits."""
    data = memoryview(found.buffers()[2])[: _offsets(found)[-1]]
    text = bytes(data)
    for separator in (props.NAME_END, props.VALUE_END):
        if text.count(separator.encode()) != separators:
            raise InvalidMessage(
                rf"tags, keys and properties must not contain the characters \x01 and \x02; see row {first_row} and on"
            )
    sizes = pc.binary_length(found)
    if (largest := pc.max(sizes).as_py()) > props.MAX_SIZE_BYTES:
        row = first_row + pc.index(sizes, largest).as_py()
        raise InvalidMessage(
            f"row {row} of the task: tags, keys and properties take {largest} bytes together; "
            f"at most {props.MAX_SIZE_BYTES} are allowed"
        )


# With spark.sql.execution.arrow.useLargeVarTypes, Spark has columns of larger types.
_PLAIN = {
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.map_(pa.large_string(), pa.large_string()): pa.map_(pa.string(), pa.string()),
}


class _Columns:
    """The columns of one batch, as lists."""

    def __init__(self, batch: pa.RecordBatch, first_row: int) -> None:
        self._batch = batch
        self._first_row = first_row

    def _column(self, name: str) -> pa.Array | None:
        at = self._batch.schema.get_field_index(name)
        if at < 0:
            return None
        column = self._batch.column(at)
        if pa.types.is_null(column.type):
            return None
        plain = _PLAIN.get(column.type)
        return column if plain is None else column.cast(plain)

    def _list(self, name: str) -> list[Any] | None:
        column = self._column(name)
        return None if column is None or column.null_count == len(column) else column.to_pylist()

    def bodies(self) -> pa.BinaryArray:
        column = self._column("body")
        assert column is not None, "checked before"
        if column.type != pa.binary():
            column = column.cast(pa.binary())
        sizes = pc.binary_length(column)
        if column.null_count or pc.min(sizes).as_py() == 0:
            row = self._first_row + next(row for row, size in enumerate(sizes.to_pylist()) if not size)
            raise InvalidMessage(f"the column body has nothing in row {row} of the task; RocketMQ takes no empty body")
        if (largest := pc.max(sizes).as_py()) > MAX_BODY_BYTES:
            raise InvalidMessage(f"the column body has {largest} bytes in a row; at most {MAX_BODY_BYTES} are allowed")
        return column

    def flags(self) -> np.ndarray[Any, Any]:
        column = self._column("flag")
        if column is None:
            return np.zeros(self._batch.num_rows, np.int32)
        try:
            return np.asarray(pc.fill_null(column, 0).cast(pa.int32()))
        except pa.ArrowInvalid as error:
            raise InvalidMessage(f"the column flag has a number that is no int: {error}") from None

    def maps(self, name: str) -> pa.MapArray | None:
        return self._column(name)

    def simple_properties(self) -> Iterator[tuple[str, pa.StringArray]]:
        """Names and values of the properties that have a column; null where a row has none."""
        if (tags := self._column("tags")) is not None:
            yield Property.TAGS, tags
        if (keys := self._column("keys")) is not None:
            yield Property.KEYS, keys if keys.type == pa.string() else _joined_keys(keys)
        if (sharding := self._column("shardingKey")) is not None:
            yield Property.SHARDING_KEY, sharding
        if (levels := self._column("delayLevel")) is not None:
            if pc.any(pc.less(levels, 0)).as_py():
                raise InvalidMessage("the column delayLevel has a number below 0; levels begin with 1, 0 is no delay")
            yield Property.DELAY, pc.if_else(pc.equal(levels, 0), None, levels).cast(pa.string())
        if (times := self._times_ms()) is not None:
            yield Property.TIMER_DELIVER_MS, pa.array([None if time is None else str(time) for time in times])

    def _times_ms(self) -> list[int | None] | None:
        column = self._column("deliverAt")
        if column is None or column.null_count == len(column):
            return None
        return [None if time is None else time // _MICROSECONDS_PER_MS for time in column.cast(pa.int64()).to_pylist()]

    def is_delayed(self) -> list[bool] | None:
        """Which rows are to be delivered later; None if none is."""
        levels, times = self._list("delayLevel"), self._times_ms()
        if levels is None or times is None:
            given = levels if levels is not None else times
            return None if given is None else [bool(each) for each in given]
        if any(level and time is not None for level, time in zip(levels, times, strict=True)):
            raise InvalidMessage("a row has both a delayLevel and a time to deliverAt; give it one of them")
        return [bool(level) or time is not None for level, time in zip(levels, times, strict=True)]

    def places(self, topic: str) -> list[Place] | None:
        """Where each row goes; None if all go anywhere into the given topic."""
        count = self._batch.num_rows
        topics = None if topic else self._list("topic")
        sharding, brokers, queues = self._list("shardingKey"), self._list("brokerName"), self._list("queueId")
        if not topic and topics is None:
            raise InvalidMessage("a row has no topic; fill the column topic, or give the option topic")
        if topics is None and sharding is None and brokers is None and queues is None:
            return None
        none: list[Any] = [None] * count
        return [
            Place(name or "", key or "", broker or "", -1 if queue_id is None else queue_id)
            for name, key, broker, queue_id in zip(
                topics or [topic] * count, sharding or none, brokers or none, queues or none, strict=True
            )
        ]


def _joined_keys(lists: pa.ListArray) -> pa.StringArray:
    return pa.array([joined_keys(keys) if keys else None for keys in lists.to_pylist()], pa.string())
