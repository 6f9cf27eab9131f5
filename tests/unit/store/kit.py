"""What the tests of the store share."""

from __future__ import annotations

from pathlib import Path

from cosmodrome.clock import Clock
from cosmodrome.config import KIB, StoreConfig
from cosmodrome.store import MessageStore, StoreMessage
from cosmodrome.testing.clock import FakeClock
from cosmodrome.wire import properties
from cosmodrome.wire.record import Record, decode_records, pack_host

BORN = pack_host("192.0.2.7", 51234)
STORE = pack_host("127.0.0.1", 10911)
# Small files, so that tests cross from one to the next.
SMALL = StoreConfig(
    mapped_file_size_commit_log=64 * KIB,
    mapped_file_size_consume_queue=100 * 20,
    max_hash_slot_num=50,
    max_index_num=40,
)


def open_store(root: Path, config: StoreConfig = SMALL, clock: Clock | None = None) -> MessageStore:
    return MessageStore.open(root, config, clock or FakeClock())


def message(
    topic: str = "orders", queue_id: int = 0, body: bytes = b"body", *, sys_flag: int = 0, **props: str
) -> StoreMessage:
    return StoreMessage(topic, queue_id, body, properties.encode(props), 7, sys_flag, 1_600_000_000_000, BORN, STORE)


def records(views: tuple[memoryview, ...] | list[memoryview]) -> list[Record]:
    return decode_records(b"".join(views))


def bodies(store: MessageStore, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
    """Every body of a queue, read from its beginning as a consumer would."""
    found: list[bytes] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.read(topic, queue_id, offset, 32)
        assert result.next_offset > offset
        found += [record.body for record in records(result.views)]
        offset = result.next_offset
    return found


def kill(store: MessageStore) -> None:
    """Let go of the files as a killed process does: nothing is synced, nothing is written down."""
    store._log.close()
    store._queues.close()
    if store._index:
        store._index.close()
    store._lock.release()


def crash(store: MessageStore) -> None:
    """As `kill`, but the next start cannot know whether the machine survived."""
    store._abort.distrust_memory()
    kill(store)


def derived_bytes(root: Path) -> dict[str, bytes]:
    """Every queue and index file. Index files are named after the clock, so only their order counts."""
    queues = {
        str(path.relative_to(root)): path.read_bytes()
        for path in (root / "consumequeue").rglob("0*[0-9]")
        if path.is_file()
    }
    index = sorted(path for path in (root / "index").iterdir())
    return queues | {f"index/{number}": path.read_bytes() for number, path in enumerate(index)}
