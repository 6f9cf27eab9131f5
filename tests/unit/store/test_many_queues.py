"""Thousands of queues: what is open at once does not grow with them, and a start looks only at those it must."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome.config import MIB, StoreConfig
from cosmodrome.store import MessageStore, message_store
from tests.unit.store.kit import crash, kill, message, open_store

QUEUES = 3_000
FEWER = 400
PER_TOPIC = 8
OPEN_FILES = 100
OTHER_DESCRIPTORS = 20  # the log, the index, the lock and what a sync opens for a moment
# The queue files have Apache's size: they are sparse.
CONFIG = StoreConfig(mapped_file_size_commit_log=64 * MIB, max_hash_slot_num=50, max_index_num=40)


@pytest.fixture(autouse=True)
def few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_store, "open_files_limit", lambda: OPEN_FILES)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def maps_of(root: Path) -> int:
    return sum(str(root / "consumequeue") in line for line in Path("/proc/self/maps").read_text().splitlines())


def key(number: int) -> tuple[str, int]:
    return f"topic-{number // PER_TOPIC}", number % PER_TOPIC


def fill(store: MessageStore, queues: int = QUEUES) -> None:
    for number in range(queues):
        store.append(message(*key(number)))


@pytest.mark.parametrize("leave", [MessageStore.close, kill, crash])
def test_open_files_stay_few(tmp_path: Path, leave: Callable[[MessageStore], None]) -> None:
    before = descriptors()
    store = open_store(tmp_path, CONFIG)
    fill(store)
    assert descriptors() - before <= 2 * OPEN_FILES + OTHER_DESCRIPTORS
    assert maps_of(tmp_path) <= OPEN_FILES
    leave(store)
    assert descriptors() <= before
    assert maps_of(tmp_path) == 0

    store = open_store(tmp_path, CONFIG)
    assert descriptors() - before <= 2 * OPEN_FILES + OTHER_DESCRIPTORS
    assert maps_of(tmp_path) <= OPEN_FILES
    assert {store.max_offset(*key(number)) for number in range(QUEUES)} == {1}
    assert maps_of(tmp_path) <= OPEN_FILES
    store.close()
    assert descriptors() <= before
    assert maps_of(tmp_path) == 0


def test_after_a_clean_exit_no_queue_is_looked_at(tmp_path: Path) -> None:
    store = open_store(tmp_path, CONFIG)
    fill(store, FEWER)
    store.close()
    store = open_store(tmp_path, CONFIG)
    assert (len(store._queues._queues), maps_of(tmp_path)) == (0, 0)
    assert len(store.topics()) == FEWER // PER_TOPIC


def test_after_a_kill_only_queues_of_the_last_file_of_the_log_are_opened(tmp_path: Path) -> None:
    # Without an index, for which more of the log may be read.
    config = dataclasses.replace(CONFIG, mapped_file_size_commit_log=1 * MIB, message_index_enable=False)
    store = open_store(tmp_path, config)
    fill(store, FEWER)
    while store.max_physical_offset < MIB:  # into the next file
        store.append(message("busy", body=b"x" * 30_000))
    store.close()
    store = open_store(tmp_path, config)
    for _ in range(5):
        store.append(message("busy", body=b"y"))
    kill(store)
    store = open_store(tmp_path, config)
    assert set(store._queues._queues) == {("busy", 0)}
    assert {store.max_offset(*key(number)) for number in range(FEWER)} == {1}


def test_what_is_looked_at_takes_no_memory_for_what_was_never_written(tmp_path: Path) -> None:
    """Most of a young queue's file is a hole; reading there would fill memory with zeros."""
    store = open_store(tmp_path, CONFIG)
    store.append(message())
    kill(store)
    path = tmp_path / "consumequeue/orders/0/00000000000000000000"
    blocks = path.stat().st_blocks
    assert blocks * 512 <= 4096 + 4096
    store = open_store(tmp_path, CONFIG)
    (queue,) = store._queues._queues.values()
    (file,) = queue._files
    assert file.written_end() == 4096
    assert path.stat().st_blocks == blocks
