"""The scrub finds what has rotted, in files that nobody reads, and mends what is derived."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmodrome.clock import SystemClock
from cosmodrome.store import MessageStore
from cosmodrome.store.scrub import SCRUB_FILE, check_slice
from cosmodrome.testing.clock import FakeClock
from tests.unit.store.kit import SMALL, open_store
from tests.unit.store.test_rot import COUNT, filled, flip, flip_entry, flip_record, read_all

FAST = dataclasses.replace(SMALL, scrub_mebibytes_per_second=1_024)


def scrubbed(store: MessageStore) -> tuple[int, int, int]:
    """Damaged records, wrong queue entries, rebuilt ones."""
    asyncio.run(asyncio.wait_for(store.scrub.round(), 60))
    return store.rot.records, store.rot.entries, store.rot.rebuilt


def test_a_sound_store_is_found_sound(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store = filled(tmp_path, SystemClock())
    assert scrubbed(store) == (0, 0, 0)
    assert store.scrub.state.rounds == 1
    assert f"scrub ended: to={store.max_physical_offset} damaged_records=0 damaged_queue_entries=0" in caplog.text
    store.close()


def test_rot_is_named_once_with_its_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = filled(tmp_path, SystemClock())
    for offset in (3, 120):
        flip_record(store, offset, 200)
    flip_record(store, 50, 0, 5)  # its size
    assert scrubbed(store)[0] == 3
    assert scrubbed(store)[0] == 3
    entry = store.entry("orders", 0, 120)
    assert entry is not None
    assert f"record damaged: place={entry[0]} " in caplog.text
    assert "(topic=orders queue=0 offset=120)" in caplog.text
    store.close()


@pytest.mark.parametrize("byte", [0, 7, 11, 12, 19])
def test_wrong_entries_are_rebuilt_also_those_with_a_wrong_tag_hash(tmp_path: Path, byte: int) -> None:
    """A wrong hash hides a message from all who filter by tag, and nothing else tells of it."""
    store = filled(tmp_path, SystemClock())
    before = [store.entry("orders", 0, offset) for offset in (0, 77, COUNT - 1)]
    for offset in (0, 77, COUNT - 1):
        flip_entry(store, offset, byte)
    records, _, rebuilt = scrubbed(store)
    assert (records, rebuilt) == (0, 3)
    assert [store.entry("orders", 0, offset) for offset in (0, 77, COUNT - 1)] == before
    assert len(read_all(store)) == COUNT
    store.close()


def test_a_rotten_index_file_is_named_and_built_again_by_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, SystemClock()).close()
    store = open_store(tmp_path, clock=SystemClock())
    path = sorted(store.paths.index.iterdir())[0]
    key = next(f"k{number}" for number in range(COUNT))
    for position in range(60, path.stat().st_size, 20):
        flip(path, position, 3)
    asyncio.run(asyncio.wait_for(store.scrub.round(), 60))
    assert store.rot.index_files == 1
    assert (
        f"index file damaged, some keys may not be found: the next start builds the index again: {path}" in caplog.text
    )
    asyncio.run(asyncio.wait_for(store.scrub.round(), 60))
    assert store.rot.index_files == 1
    store.close()
    store = open_store(tmp_path, clock=SystemClock())
    assert len(store.find_by_key("orders", key, 32, 0, 2**62)) == 1
    assert scrubbed(store) == (0, 0, 0)
    assert store.rot.index_files == 0
    store.close()


def test_the_next_start_goes_on_where_the_scrub_was(tmp_path: Path) -> None:
    store = filled(tmp_path, SystemClock())
    flip_record(store, 3, 200)
    store.scrub.state.place = 64 * 1024
    store.scrub.state.save()
    store.close()
    store = open_store(tmp_path, clock=SystemClock())
    assert store.scrub.state.place == 64 * 1024
    assert scrubbed(store)[0] == 0
    assert scrubbed(store)[0] == 1
    store.close()


def test_a_rotten_state_begins_a_new_interval(tmp_path: Path) -> None:
    store = filled(tmp_path, SystemClock())
    store.scrub.state.save()
    store.close()
    (tmp_path / "config" / SCRUB_FILE).write_bytes(b'{"place": "x"}')
    store = open_store(tmp_path, clock=SystemClock())
    assert store.scrub.state.place is None
    store.close()


async def test_a_round_begins_when_it_is_due_and_keeps_its_rate(tmp_path: Path) -> None:
    clock = FakeClock()
    config = dataclasses.replace(SMALL, scrub_interval_hours=24, scrub_mebibytes_per_second=1)
    store = open_store(tmp_path, config, clock)
    store.close()
    filled(tmp_path, clock).close()
    store = open_store(tmp_path, config, clock)
    running = asyncio.create_task(store.scrub.run())
    for _ in range(23):
        await clock.advance(3_600_000)
    assert store.scrub.state.rounds == 0
    await clock.advance(3_600_000)
    while store.scrub.state.place is None:  # noqa: ASYNC110  # a thread works
        await asyncio.sleep(0.01)
    while not store.scrub.state.rounds:
        await asyncio.sleep(0.01)
        await clock.advance(1_000)
    assert store.scrub.state.place is None
    running.cancel()
    await asyncio.wait([running])
    store.close()


async def test_no_scrub_runs_where_none_is_wanted(tmp_path: Path) -> None:
    store = open_store(tmp_path, dataclasses.replace(SMALL, scrub_interval_hours=0))
    await asyncio.wait_for(store.scrub.run(), 60)
    store.close()


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_whatever_is_flipped_in_the_log_the_rest_is_found_whole(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Slices of any size: each sound record is found exactly once."""
    random = Random(seed)
    store = filled(tmp_path_factory.mktemp("store"))
    path = store.paths.commit_log / f"{0:020d}"
    whole = path.read_bytes()
    sound = {head.physical_offset for head in check_slice(whole, 0, len(whole), is_all=True).heads}
    flips = [random.randrange(60_000) for _ in range(random.randrange(1, 4))]
    for place in flips:
        flip(path, place, random.randrange(8))
    data = path.read_bytes()
    found: list[int] = []
    place, step = 0, random.choice([700, 2_000, 30_000])
    while place < len(data):
        for size in (step, len(data)):
            seen = check_slice(data[place : place + size], place, len(data), is_all=place + size >= len(data))
            if seen.end > place:
                break
        found += [head.physical_offset for head in seen.heads]
        assert seen.end > place
        place = seen.end
    assert len(found) == len(set(found))
    assert set(found) <= sound
    assert len(sound - set(found)) <= len(flips)
    store.close()


def test_what_the_disk_cannot_read_is_named_and_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(tmp_path, SystemClock())
    second = f"{SMALL.mapped_file_size_commit_log:020d}"
    read = os.pread

    def failing(descriptor: int, count: int, place: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(f"commitlog/{second}"):
            raise OSError(errno.EIO, "Input/output error")
        return read(descriptor, count, place)

    assert store.max_offset("orders", 0) == COUNT  # opens the queue, which would mend its last entry
    flip_entry(store, COUNT - 1, 0)
    monkeypatch.setattr(os, "pread", failing)
    assert scrubbed(store) == (1, 1, 1)
    assert f"record damaged: place={SMALL.mapped_file_size_commit_log} " in caplog.text
    assert "the disk cannot read it" in caplog.text
    assert store.scrub.state.rounds == 1
    monkeypatch.undo()
    store.close()
