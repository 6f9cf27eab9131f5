"""A copy of a log, shipped in pieces cut anywhere, however often its broker stops: it says what its master says."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from cosmodrome.config import FlushDiskType, StoreConfig
from cosmodrome.store import MessageStore
from cosmodrome.store.verification import verify
from tests.unit.store.following import append_any, check_same, flush, follower, queues_of, ship
from tests.unit.store.kit import SMALL, crash, kill, open_store

SYNC, ASYNC = FlushDiskType.SYNC_FLUSH, FlushDiskType.ASYNC_FLUSH
flushes = st.sampled_from([SYNC, ASYNC])
seeds = st.integers(0, 2**32)


def config_of(flush_type: FlushDiskType) -> StoreConfig:
    return dataclasses.replace(SMALL, flush_disk_type=flush_type)


@settings(max_examples=25, deadline=None)
@given(seed=seeds, flush_type=flushes)
def test_a_copy_says_what_its_master_says(seed: int, flush_type: FlushDiskType) -> None:
    random, config = Random(seed), config_of(flush_type)
    root = Path(tempfile.mkdtemp(prefix="following-"))
    leader, copy, end, number = open_store(root / "leader"), follower(root / "copy", config), 0, 0
    try:
        for _ in range(random.randint(1, 12)):
            for _ in range(random.randint(1, 12)):
                end = append_any(leader, random, number)
                number += 1
            behind = random.choice((0, 0, random.randrange(2_000)))
            ship(leader, copy, max(end - behind, copy.max_physical_offset), random)
            copy = _something_happens(copy, root / "copy", config, random)
        ship(leader, copy, end, random)
        flush(copy)
        assert copy.settle() == end
        check_same(copy, leader, number)
        copy.close()
        copy = follower(root / "copy", config)
        check_same(copy, leader, number)
        copy.close()
        found = verify(root / "copy")
        assert found.is_sound, found.problems
    finally:
        leader.close()
        copy.close()
        shutil.rmtree(root)


def _something_happens(copy: MessageStore, root: Path, config: StoreConfig, random: Random) -> MessageStore:
    match random.randrange(8):
        case 0:
            copy.close()
        case 1:
            kill(copy)
        case 2:
            crash(copy)
        case 3:
            before = copy.max_physical_offset
            assert copy.settle() <= before
            assert copy.settle() == copy.max_physical_offset
            return copy
        case 4:
            copy._take_checkpoint()()
            return copy
        case _:
            flush(copy)
            return copy
    return follower(root, config)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, flush_type=flushes)
def test_a_cut_store_is_one_that_never_had_more(seed: int, flush_type: FlushDiskType) -> None:
    """Of a log with several files; sometimes the last broker left it open."""
    random, config = Random(seed), config_of(flush_type)
    root = Path(tempfile.mkdtemp(prefix="cut-"))
    store, short, number, ends = open_store(root / "long", config), follower(root / "short", config), 0, [0]
    try:
        for _ in range(random.randint(2, 80)):
            ends.append(append_any(store, random, number))
            number += 1
            if random.random() < 0.2:
                flush(store)
            if random.random() < 0.05:
                store._take_checkpoint()()
        end = random.choice(ends)
        ship(store, short, end, random)
        flush(short)
        if random.random() < 0.5:
            flush(store)
        if random.random() < 0.3:
            store.close()
            store = open_store(root / "long", config)
        store.follow()
        store.truncate_log(end + random.choice((0, 0, random.randrange(90) if end < ends[-1] else 0)))
        flush(store)
        check_same(store, short, number)
        store = _restarted(store, root / "long", config, random)
        check_same(store, short, number)
        store.lead()
        short.lead()
        before = queues_of(store)
        for one in (store, short):
            places = [append_any(one, Random(seed), number + i) for i in range(5)]
            flush(one)
            assert places == sorted(places)
        assert {key: len(entries) for key, entries in queues_of(store).items()} == {
            key: len(entries) for key, entries in queues_of(short).items()
        }
        assert all(queues_of(store)[key][: len(entries)] == entries for key, entries in before.items())
        store.close()
        found = verify(root / "long")
        assert found.is_sound, found.problems
    finally:
        short.close()
        store.close()
        shutil.rmtree(root)


def _restarted(store: MessageStore, root: Path, config: StoreConfig, random: Random) -> MessageStore:
    match random.randrange(4):
        case 0:
            return store
        case 1:
            store.close()
        case 2:
            kill(store)
        case _:
            crash(store)
    return MessageStore.open(root, config, store._clock, follows=True)
