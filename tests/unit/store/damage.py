"""Stores to look at, and ways to spoil them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from cosmodrome.store import Appended, MessageStore
from cosmodrome.store.consume_queue import ENTRY, ENTRY_SIZE, FILLER_SIZE
from cosmodrome.store.survey import QueueKey, Survey, survey
from cosmodrome.wire.record import RecordHead, SysFlag
from tests.unit.store.kit import SMALL, message, open_store

LOG = Path("commitlog")
FIRST_LOG_FILE = LOG / f"{0:020d}"
QUEUE_FILE = Path("consumequeue") / "orders" / "0" / f"{0:020d}"
INDEX_SLOTS = SMALL.max_hash_slot_num
INDEX_ENTRIES_AT = 40 + INDEX_SLOTS * 4

Spoil = Callable[[Path], None]


def fill(store: MessageStore, count: int = 120) -> list[Appended]:
    """Messages of every kind, over several files of each kind."""
    appended = []
    for number in range(count):
        topic, queue_id = ("orders", 0) if number % 2 == 0 else (f"topic-{number % 3}", number % 4)
        flag = SysFlag.PREPARED if number % 22 == 1 else 0
        body = b"%d" % number + b"." * (number * 37 % 2_000)
        keys = {"UNIQ_KEY": f"u{number}", "KEYS": f"k{number % 5} l{number}"} if number % 3 else {}
        appended.append(store.append(message(topic, queue_id, body, sys_flag=flag, TAGS=f"t{number % 4}", **keys)))
        if number % 10 == 9:
            store.append(message("SCHEDULE_TOPIC_XXXX", 2, body, DELAY="3", TAGS="later"))
    return appended


def stopped_store(root: Path, count: int = 120) -> list[Appended]:
    """A healthy store whose broker left in order."""
    store = open_store(root)
    appended = fill(store, count)
    store.close()
    return appended


def flip(path: Path, position: int, mask: int = 0x01) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ mask]))


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def set_entry(root: Path, queue_offset: int, entry: tuple[int, int, int]) -> None:
    overwrite(root / QUEUE_FILE, queue_offset * ENTRY_SIZE, ENTRY.pack(*entry))


def entry(root: Path, queue_offset: int) -> tuple[int, int, int]:
    data = (root / QUEUE_FILE).read_bytes()
    physical_offset, size, code = ENTRY.unpack_from(data, queue_offset * ENTRY_SIZE)
    return physical_offset, size, code


def index_file(root: Path) -> Path:
    return min((root / "index").iterdir())


def set_index_number(root: Path, position: int, number: int) -> None:
    overwrite(index_file(root), position, struct.pack(">i", number))


def index_number(root: Path, position: int) -> int:
    return int.from_bytes(index_file(root).read_bytes()[position : position + 4], signed=True)


def folder_state(root: Path) -> dict[str, tuple[int, bytes]]:
    """Everything in a folder: whether anything was changed shows in this."""
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(root.rglob("*"))
    }


def queued_bodies(root: Path) -> dict[QueueKey, list[bytes]]:
    """What every queue leads to."""
    found = survey(root)
    bodies: dict[QueueKey, list[bytes]] = {}
    for key, queue in found.queues.items():
        heads = [found.log.head_at(place) for _, (place, size, _) in queue.entries() if size != FILLER_SIZE]
        bodies[key] = [body_of(found, head) for head in heads if head is not None]
    return bodies


def body_of(found: Survey, head: RecordHead) -> bytes:
    file = found.log.file_at(head.physical_offset)
    assert file is not None
    return bytes(found.log.view(file)[head.body_at : head.body_at + head.body_size])
