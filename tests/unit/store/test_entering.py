"""From the log into queues and index in steps: each is short, whatever is sent, and nothing is lost between two."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cosmodrome.config import FlushDiskType
from cosmodrome.errors import ServiceNotAvailable
from cosmodrome.store import dispatcher
from cosmodrome.store.consume_queue import ConsumeQueue
from cosmodrome.store.dispatcher import Dispatcher
from cosmodrome.store.index_file import Index, Key
from cosmodrome.store.message import Durability
from cosmodrome.store.message_store import MessageStore
from cosmodrome.wire.batch import BatchItem
from tests.turns import Turns
from tests.unit.store.kit import SMALL, kill, message, open_store
from tests.unit.store.test_gate import no_room

ROOMY = dataclasses.replace(SMALL, mapped_file_size_commit_log=4 * 1024 * 1024, max_index_num=40_000)
MANY = 4_000
ITEMS = [BatchItem(0, b"%d" % number, f"TAGS\x01t\x02KEYS\x01a{number} b{number}\x02") for number in range(MANY)]


def check_whole(store: MessageStore, first: int = 0) -> None:
    assert store.max_offset("orders", 0) == first + MANY
    for number in (0, MANY // 2, MANY - 1):
        entry = store.entry("orders", 0, first + number)
        assert entry is not None
        assert bytes(found := store.record_at(entry[0]) or b"").endswith(f"KEYS\x01a{number} b{number}\x02".encode())
        assert store.find_by_key("orders", f"b{number}", 9, 0, 2**62) == [found]


def test_a_batch_enters_in_steps_of_so_many_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path, ROOMY)
    put, keys = Index.put, list[int]()

    def counting(self: Index, topic: str, given: list[Key], timestamp: int) -> None:
        keys.append(len(given))
        put(self, topic, given, timestamp)

    monkeypatch.setattr(Index, "put", counting)
    store.append_batch(message(), ITEMS)
    assert keys == [dispatcher.KEYS_STEP]
    assert store.max_offset("orders", 0) == dispatcher.KEYS_STEP // 2
    for _ in store.entering_batch():
        pass
    assert keys == [dispatcher.KEYS_STEP] * (2 * MANY // dispatcher.KEYS_STEP)
    assert not store.is_entering_batch
    check_whole(store)


def test_messages_without_keys_enter_in_steps_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path, ROOMY)
    put, counts = ConsumeQueue.put_batch, list[int]()

    def counting(self: ConsumeQueue, queue_offset: int, bounds: Sequence[int], codes: Sequence[int]) -> None:
        counts.append(len(codes))
        put(self, queue_offset, bounds, codes)

    monkeypatch.setattr(ConsumeQueue, "put_batch", counting)
    store.append_batch(message(), [BatchItem(0, b"x", "")] * (2 * dispatcher.MESSAGES_STEP + 1))
    for _ in store.entering_batch():
        pass
    assert counts == [dispatcher.MESSAGES_STEP, dispatcher.MESSAGES_STEP, 1]


@pytest.mark.parametrize("steps", range(9))
def test_a_kill_between_two_steps_loses_nothing(tmp_path: Path, steps: int) -> None:
    store = open_store(tmp_path, ROOMY)
    store.append(message(body=b"before"))
    store.append_batch(message(), ITEMS)
    entering = store.entering_batch()
    for _ in range(steps + 1):
        next(entering, None)
    kill(store)
    store = open_store(tmp_path, ROOMY)
    check_whole(store, first=1)
    assert store.append(message(body=b"after")).queue_offset == MANY + 1


def single(store: MessageStore) -> None:
    assert store.append(message(body=b"next")).queue_offset == MANY


def batch(store: MessageStore) -> None:
    assert store.append_batch(message(), [BatchItem(0, b"next", "")]).queue_offset == MANY


def delete_other(store: MessageStore) -> None:
    store.delete_topic("other")


@pytest.mark.parametrize("then", [single, batch, delete_other])
def test_whatever_comes_next_is_entered_behind_the_whole_batch(
    tmp_path: Path, then: Callable[[MessageStore], None]
) -> None:
    store = open_store(tmp_path, ROOMY)
    entered = list[int]()
    store._dispatcher.on_arrival = lambda _topic, _queue_id, next_offset, _code: entered.append(next_offset)
    store.append_batch(message(), ITEMS)
    assert store.is_entering_batch
    then(store)
    assert not store.is_entering_batch
    assert entered == sorted(set(entered))
    assert store.max_offset("orders", 0) == MANY + (then is not delete_other)
    for _ in store.entering_batch():
        raise AssertionError("nothing is left of it")


def test_a_store_that_closes_enters_the_rest(tmp_path: Path) -> None:
    store = open_store(tmp_path, ROOMY)
    store.append_batch(message(), ITEMS)
    store.close()
    check_whole(open_store(tmp_path, ROOMY))


def test_a_disk_that_fills_up_between_two_steps_keeps_what_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, ROOMY)
    store.append_batch(message(), ITEMS)
    with monkeypatch.context() as full:
        full.setattr(ConsumeQueue, "put_batch", no_room)
        full.setattr(ConsumeQueue, "put", no_room)
        for _ in store.entering_batch():
            pass
        with pytest.raises(ServiceNotAvailable, match="No space left"):
            store.append(message(body=b"refused"))
    assert store.append(message(body=b"next")).queue_offset == MANY
    assert store.max_offset("orders", 0) == MANY + 1


def test_a_mistake_of_ours_costs_no_message_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a mistake")

    store = open_store(tmp_path, ROOMY)
    store.append_batch(message(), ITEMS)
    monkeypatch.setattr(ConsumeQueue, "put_batch", broken)
    for _ in store.entering_batch():
        pass
    assert "a batch cannot be entered at once" in caplog.text
    check_whole(store)


async def test_what_a_flush_made_safe_is_entered_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(ROOMY, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    store = open_store(tmp_path, config)
    with Turns() as turns:
        monkeypatch.setattr(Dispatcher, "_joins", turns.counting(Dispatcher._joins))
        monkeypatch.setattr(Dispatcher, "dispatch", turns.counting(Dispatcher.dispatch))
        end = store.append_batch(message(), ITEMS).end
        large = store.append(message("large", body=b"x" * 100_000)).end
        flushing = asyncio.create_task(store.flusher.run())
        assert await store.durable(end) is Durability.OK
        assert store.max_offset("orders", 0) == MANY
        assert await store.durable(large) is Durability.OK
        store.flusher.stop()
        await flushing
    assert turns.total == MANY + 1
    assert turns.most < MANY / 10
    check_whole(store)
