"""What goes into the store and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Self

from cosmodrome.wire.record import Record, offset_msg_id, offset_msg_ids, pack_host


@dataclass(slots=True)
class StoreMessage:
    """A message on its way into the log. Hosts are packed (`wire.record.pack_host`); properties are the raw string."""

    topic: str
    queue_id: int
    body: bytes
    properties: str
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    @classmethod
    def again(cls, record: Record, topic: str, queue_id: int, properties: str) -> Self:
        """A stored message on its way to another place."""
        return cls(
            topic,
            queue_id,
            record.body,
            properties,
            record.flag,
            record.sys_flag,
            record.born_timestamp,
            pack_host(record.born_host, record.born_port),
            pack_host(record.store_host, record.store_port),
            record.reconsume_times,
        )


class Appended(NamedTuple):
    """Where a message lies."""

    physical_offset: int
    size: int
    queue_offset: int
    store_timestamp: int
    store_host: bytes

    @property
    def end(self) -> int:
        """What `MessageStore.durable` waits for."""
        return self.physical_offset + self.size

    @property
    def msg_id(self) -> str:
        return offset_msg_id(self.store_host, self.physical_offset)


class AppendedBatch(NamedTuple):
    """Where the messages of a batch lie: side by side in the log, at `queue_offset` and the offsets after it."""

    physical_offsets: tuple[int, ...]
    end: int
    queue_offset: int
    store_timestamp: int
    store_host: bytes

    @property
    def physical_offset(self) -> int:
        return self.physical_offsets[0]

    @property
    def size(self) -> int:
        return self.end - self.physical_offsets[0]

    @property
    def msg_id(self) -> str:
        """The ids of all messages, comma-joined."""
        return offset_msg_ids(self.store_host, self.physical_offsets)


class Durability(StrEnum):
    """How safe a stored message is."""

    OK = "OK"  # as safe as the broker promises
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class GetStatus(StrEnum):
    """How a read went; the names are Apache's GetMessageStatus."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(slots=True)
class ReadResult:
    """What a read found. `views` are slices of the log, in order: their bytes, joined, are a pull's body."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    count: int = 0
    size: int = 0
    views: tuple[memoryview, ...] = ()
    slow: bool = False  # what was read lies further back than memory reaches: a replica should serve it
    took_ms: float = 0.0
