"""A store that leads, one that follows it, and what must be the same in both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

from cosmodrome.clock import Clock
from cosmodrome.config import StoreConfig
from cosmodrome.model import SCHEDULE_TOPIC, Property
from cosmodrome.store import MessageStore, StoreMessage
from cosmodrome.testing.clock import FakeClock
from cosmodrome.wire import properties
from cosmodrome.wire.batch import BatchItem
from cosmodrome.wire.record import SysFlag
from tests.unit.store.kit import SMALL, message, records

TOPICS = ("orders", "bills")
KEYS = 7  # keys that several messages share
STATES = (SysFlag.PREPARED, SysFlag.COMMIT, SysFlag.ROLLBACK)


def follower(root: Path, config: StoreConfig = SMALL, clock: Clock | None = None) -> MessageStore:
    return MessageStore.open(root, config, clock or FakeClock(), follows=True)


def append_any(store: MessageStore, random: Random, number: int) -> int:
    """Append one message, a batch, a delayed one, or a step of a transaction; returns its end."""
    topic, queue_id = random.choice(TOPICS), random.randrange(2)
    keys = {"UNIQ_KEY": f"u{number}", "KEYS": f"k{number % KEYS} all", "TAGS": f"t{number % 3}"}
    body = b"%d:" % number + random.randbytes(random.choice((0, 20, 300, 3_000, random.randrange(30_000))))
    match random.randrange(8):
        case 0 | 1:
            items = [BatchItem(0, body[:500], properties.encode({"UNIQ_KEY": f"u{number}.{i}"})) for i in range(5)]
            return store.append_batch(message(topic, queue_id), items[: random.randint(1, 5)]).end
        case 2:
            level = random.randint(1, 4)
            return store.append(
                with_keys(message(SCHEDULE_TOPIC, level - 1, body), keys | {Property.DELAY: f"{level}"})
            ).end
        case 3:
            return store.append(with_keys(message(topic, queue_id, body, sys_flag=random.choice(STATES)), keys)).end
    return store.append(with_keys(message(topic, queue_id, body), keys)).end


def with_keys(one: StoreMessage, keys: dict[str, str]) -> StoreMessage:
    return replace(one, properties=properties.encode(keys))


def ship(leader: MessageStore, copy: MessageStore, end: int, random: Random, most: int = 40_000) -> None:
    """Send what `copy` lacks of the log before `end`, in pieces that are cut anywhere."""
    while copy.max_physical_offset < end:
        at = copy.max_physical_offset
        data = leader.log_bytes(at, min(random.randint(1, most), end - at))
        assert data is not None
        copy.append_raw(at, data if random.random() < 0.5 else bytes(data))
        if random.random() < 0.5:
            copy.enter_raw()
    copy.enter_raw()


def flush(store: MessageStore) -> None:
    """What the flusher's thread and the loop do, without either."""
    for file in store._log.files_between(store.flusher.flushed, store.max_physical_offset):
        file.sync()
    store.flusher.flushed = store.max_physical_offset
    store._flushed(store.max_physical_offset, store._log.last_timestamp)


def log_of(store: MessageStore, begin: int = 0) -> bytes:
    parts, at = [], max(begin, store.min_physical_offset)
    while (data := store.log_bytes(at, 1 << 30)) is not None:
        parts.append(bytes(data))
        at += len(data)
    return b"".join(parts)


def queues_of(store: MessageStore) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    """The entries of every queue that has any."""
    found = {}
    for topic in store.topics():
        for queue_id in store.queues(topic):
            offsets = range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id))
            entries = [store.entry(topic, queue_id, offset) for offset in offsets]
            if entries:
                found[topic, queue_id] = [entry for entry in entries if entry is not None]
                assert len(found[topic, queue_id]) == len(entries)
    return found


def found_by_key(store: MessageStore, topic: str, key: str) -> list[int]:
    return [record.physical_offset for record in records(store.find_by_key(topic, key, 64, 0, 2**62))]


def check_same(copy: MessageStore, other: MessageStore, number: int) -> None:
    """Log, queues, offsets and lookups of both are the same; keys below `number` were used."""
    assert copy.max_physical_offset == other.max_physical_offset
    assert log_of(copy) == log_of(other, copy.min_physical_offset)
    assert queues_of(copy) == queues_of(other)
    for topic in (*TOPICS, SCHEDULE_TOPIC):
        for key in ("all", *(f"k{one}" for one in range(KEYS)), *(f"u{one}" for one in range(number))):
            assert found_by_key(copy, topic, key) == found_by_key(other, topic, key), (topic, key)
