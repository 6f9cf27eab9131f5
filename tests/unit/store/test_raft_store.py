"""A store over the log of a Raft group: only what is committed is visible, and no leader loses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from cosmodrome.errors import MessageIllegal, NotCommitted, ServiceNotAvailable
from cosmodrome.store import Durability, MessageStore
from cosmodrome.store.raft_log import HEAD_BYTES
from cosmodrome.wire import properties
from cosmodrome.wire.batch import BatchItem
from tests.unit.store.following import append_any, found_by_key, queues_of
from tests.unit.store.kit import SMALL, bodies, crash, kill, message, open_store
from tests.unit.store.raft_kit import FakeEntries, commit, lead, raft_store

FILE = SMALL.mapped_file_size_commit_log
COUNT = 60


def leading(root: Path) -> tuple[MessageStore, FakeEntries]:
    store, entries = raft_store(root)
    lead(store, entries)
    return store, entries


@asynccontextmanager
async def running(store: MessageStore) -> AsyncIterator[None]:
    task = asyncio.ensure_future(store.flusher.run())
    try:
        yield
    finally:
        store.flusher.stop()
        await task


def test_a_message_is_visible_when_it_is_committed_and_not_before(tmp_path: Path) -> None:
    store, entries = leading(tmp_path)
    first, second = store.append(message(body=b"first")), store.append(message(body=b"second"))
    assert (first.queue_offset, second.queue_offset) == (0, 1)
    assert bodies(store) == []
    assert store.max_offset("orders", 0) == 0
    commit(store, first.end)
    assert bodies(store) == [b"first"]
    commit(store, entries.end)
    assert bodies(store) == [b"first", b"second"]
    store.close()


def test_a_record_lies_behind_its_entrys_head_and_says_so(tmp_path: Path) -> None:
    store, entries = leading(tmp_path)
    appended = [store.append(message(body=b"x" * 9_000)) for _ in range(20)]
    batch = store.append_batch(message(), [BatchItem(0, b"y" * 9_000, properties.encode({})) for _ in range(9)])
    commit(store, entries.end)
    assert entries.end > 2 * FILE
    places = [one.physical_offset for one in appended] + list(batch.physical_offsets)
    assert [place + 9_000 < FILE + place - place % FILE for place in places] == [True] * len(places)
    entry_places = [entry and entry[0] for entry in (store.entry("orders", 0, offset) for offset in range(29))]
    assert entry_places == places
    assert batch.end == entries.end == appended[-1].end + entries.end - appended[-1].end
    assert [place % FILE for place in places][:2] == [HEAD_BYTES, HEAD_BYTES + appended[0].size + HEAD_BYTES]
    store.close()


def test_queues_and_index_are_those_of_a_plain_store(tmp_path: Path) -> None:
    store, entries = leading(tmp_path / "raft")
    plain = open_store(tmp_path / "plain")
    for target in (store, plain):
        random = Random(3)
        for number in range(COUNT):
            append_any(target, random, number)
    commit(store, entries.end)
    got, wanted = queues_of(store), queues_of(plain)
    assert {queue: len(found) for queue, found in got.items()} == {queue: len(found) for queue, found in wanted.items()}
    for topic, queue_id in wanted:
        assert bodies(store, topic, queue_id) == bodies(plain, topic, queue_id)
    assert len(found_by_key(store, "orders", "k1")) == len(found_by_key(plain, "orders", "k1")) > 0
    store.close()
    plain.close()


def end_cleanly(store: MessageStore) -> None:
    store.close()


@pytest.mark.parametrize("leave", [end_cleanly, kill, crash])
@pytest.mark.parametrize("known", [0.0, 0.6, 1.0])
def test_a_start_shows_what_is_known_to_be_committed_and_the_rest_when_it_is(
    tmp_path: Path, leave: Callable[[MessageStore], None], known: float
) -> None:
    store, entries = leading(tmp_path)
    random = Random(5)
    for number in range(COUNT):
        append_any(store, random, number)
    commit(store, entries.end)
    wanted, end = queues_of(store), entries.end
    committed = entries.ends[int(len(entries.ends) * known) - 1] if known else 0
    leave(store)
    store, entries = raft_store(tmp_path, committed)
    assert entries.end == end
    assert all(entry[0] < committed for queue in queues_of(store).values() for entry in queue)
    commit(store, end)
    assert queues_of(store) == wanted
    lead(store, entries)
    queue_offset = store.max_offset("orders", 0)
    assert store.append(message()).queue_offset == queue_offset
    store.close()


def test_a_clean_start_reads_nothing_of_the_log(tmp_path: Path) -> None:
    store, entries = leading(tmp_path)
    for number in range(COUNT):
        store.append(message(body=b"%d" % number))
    commit(store, entries.end)
    store.close()
    store, entries = raft_store(tmp_path, entries.end)
    assert (store.recovered.scanned_from, store.recovered.records) == (entries.end, 0)
    assert len(bodies(store)) == COUNT
    store.close()


def test_a_new_leader_goes_on_behind_what_is_committed(tmp_path: Path) -> None:
    store, entries = leading(tmp_path)
    kept = store.append(message(body=b"kept"))
    commit(store, kept.end)
    assert [store.append(message(body=b"lost")).queue_offset for _ in range(3)] == [1, 2, 3]
    store.follow()
    entries.cut(3)
    entries.propose([b"\0" * 100], kind=2)
    assert not store.is_caught_up
    lead(store, entries)
    again = store.append(message(body=b"again"))
    assert again.queue_offset == 1
    commit(store, entries.end)
    assert bodies(store) == [b"kept", b"again"]
    assert store.topics() == ["orders"], "the group's own entries are in no queue"
    store.close()


def test_a_member_that_does_not_lead_takes_no_messages(tmp_path: Path) -> None:
    store, entries = raft_store(tmp_path)
    with pytest.raises(ServiceNotAvailable):
        store.append(message())
    lead(store, entries)
    entries.may_propose = False
    with pytest.raises(ServiceNotAvailable, match="n1 leads"):
        store.append(message())
    entries.may_propose = True
    assert store.append(message()).queue_offset == 0, "what was refused took no offset"
    with pytest.raises(MessageIllegal, match="Raft group"):
        store.append(message(body=b"x" * (FILE - 100)))
    store.close()


async def test_a_promise_is_kept_at_the_commit(tmp_path: Path) -> None:
    store, entries = leading(tmp_path)
    async with running(store):
        waiting = asyncio.ensure_future(store.durable(store.append(message(body=b"first")).end))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        assert bodies(store) == []
        store.commit_to(entries.end)
        assert await waiting is Durability.OK
        assert bodies(store) == [b"first"], "an acknowledged message is visible"
    store.close()


async def test_the_end_of_a_leadership_answers_its_senders(tmp_path: Path) -> None:
    store, entries = leading(tmp_path)
    async with running(store):
        first, late = store.append(message(body=b"first")), store.append(message(body=b"late"))
        waiting = asyncio.ensure_future(store.durable(first.end))
        await asyncio.sleep(0)
        store.follow()
        with pytest.raises(NotCommitted, match="may be stored or lost"):
            await waiting
        entries.cut(2)
        entries.propose([b"\0" * (first.size + late.size + HEAD_BYTES)], kind=2)
        store.commit_to(entries.end)
        lead(store, entries)
        with pytest.raises(NotCommitted):  # another entry lies there
            await store.durable(late.end)
    store.close()


async def test_no_answer_says_stored_before_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = leading(tmp_path)
    monkeypatch.setattr(store.flusher, "_timeout_ms", 10)
    async with running(store):
        with pytest.raises(NotCommitted, match="no majority"):
            await store.durable(store.append(message()).end)
    store.close()


def test_a_log_that_begins_again_takes_queues_and_index_with_it(tmp_path: Path) -> None:
    store, entries = leading(tmp_path)
    for number in range(5):
        store.append(message(body=b"%d" % number, KEYS="k"))
    commit(store, entries.end)
    store.follow()
    for file in entries.files:
        file.delete()
    entries.files.clear()
    entries.ends.clear()
    entries.end = 0
    store.log_begun_again()
    assert store.topics() == []
    assert found_by_key(store, "orders", "k") == []
    lead(store, entries)
    store.append(message(body=b"new"))
    commit(store, entries.end)
    assert bodies(store) == [b"new"]
    store.close()
