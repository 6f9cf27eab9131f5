"""Looking at a store without touching it."""

from pathlib import Path

import pytest

from cosmodrome.errors import StoreError
from cosmodrome.store.consume_queue import FILLER_SIZE
from cosmodrome.store.inspection import inspect
from cosmodrome.testing.clock import FakeClock
from tests.unit.store.damage import entry, folder_state, set_entry, stopped_store
from tests.unit.store.kit import SMALL, kill, message, open_store


async def test_what_lies_in_a_store(tmp_path: Path) -> None:
    clock = FakeClock()
    first_ms = clock.now_ms()
    store = open_store(tmp_path, clock=clock)
    store.append(message("a", 0))
    store.append(message("a", 5, KEYS="x y"))
    await clock.advance(5_000)
    last = store.append(message("b", 1, UNIQ_KEY="u"))
    store.close()
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "topics.json").write_text("{}")

    found = inspect(tmp_path)
    assert found.clean
    assert (found.log.start, found.log.end, found.log.file_size) == (0, last.end, SMALL.mapped_file_size_commit_log)
    assert (found.log.first_store_timestamp, found.log.last_store_timestamp) == (first_ms, first_ms + 5_000)
    assert [file.name for file in found.log.files] == [f"{0:020d}"]
    assert found.queue_count == 3
    a, b = found.topics
    assert (a.topic, a.messages, a.first_store_timestamp, a.last_store_timestamp) == ("a", 2, first_ms, first_ms)
    assert [(queue.queue_id, queue.min_offset, queue.max_offset) for queue in a.queues] == [(0, 0, 1), (5, 0, 1)]
    assert (b.topic, b.messages, b.first_store_timestamp) == ("b", 1, first_ms + 5_000)
    (index,) = found.index
    assert (index.entries, index.end_offset, index.end_timestamp) == (3, last.physical_offset, first_ms + 5_000)
    assert found.checkpoint
    assert found.checkpoint.log_timestamp == first_ms + 5_000
    assert [file.name for file in found.config] == ["logEpochs.json", "logEpochs.json.bak", "topics.json"]


def test_a_store_in_use_is_only_looked_at(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    appended = [store.append(message(body=b"x" * 1_000)) for _ in range(150)]
    before = folder_state(tmp_path)
    found = inspect(tmp_path)
    assert not found.clean
    assert (found.log.end, found.topics[0].messages) == (appended[-1].end, 150)
    assert folder_state(tmp_path) == before
    store.close()


def test_messages_are_those_still_in_the_log(tmp_path: Path) -> None:
    appended = stopped_store(tmp_path)
    first, second, *_ = sorted((tmp_path / "commitlog").iterdir())
    first.unlink()
    found = inspect(tmp_path)
    assert found.log.start == int(second.name)
    gone = sum(a.physical_offset < int(second.name) for a in appended[::2])
    (orders,) = [topic for topic in found.topics if topic.topic == "orders"]
    assert (orders.messages, orders.queues[0].min_offset) == (60 - gone, gone)


def test_messages_before_a_lost_one_are_counted(tmp_path: Path) -> None:
    """Whichever it is: a filler in the middle of a queue does not mislead the search for its beginning."""
    stopped_store(tmp_path, count=40)
    for lost in range(1, 19):
        kept = entry(tmp_path, lost)
        set_entry(tmp_path, lost, (0, FILLER_SIZE, 0))
        (orders,) = (topic for topic in inspect(tmp_path).topics if topic.topic == "orders")
        assert [(queue.min_offset, queue.max_offset) for queue in orders.queues] == [(0, 20)]
        set_entry(tmp_path, lost, kept)


def test_an_empty_store(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    found = inspect(tmp_path)
    assert (found.log.start, found.log.end, found.log.files, found.topics, found.index) == (0, 0, [], [], [])


def test_a_store_whose_broker_was_killed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    last = [store.append(message()) for _ in range(3)][-1]
    kill(store)
    found = inspect(tmp_path)
    assert (found.clean, found.log.end) == (False, last.end)


def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no folder"):
        inspect(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="is not a store: it has no folder commitlog"):
        inspect(tmp_path)
    assert list(tmp_path.iterdir()) == []
