"""A copy of a log on a disk that loses power: it follows one master, is cut where that one's log parted, and follows
another. What it holds after a crash is the beginning of a log that it was told to copy, and all that it promised."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from bisect import bisect_right
from pathlib import Path
from random import Random
from typing import NamedTuple

from cosmodrome.config import FlushDiskType
from cosmodrome.errors import ServiceNotAvailable, StoreError
from cosmodrome.store import MessageStore
from cosmodrome.store.verification import verify
from cosmodrome.testing import FakeClock, FaultyDisk, Killed, SeededLoop
from tests.simulation.store_lives import Promise, boot, drawn_fault, tiny
from tests.unit.store.following import (
    TOPICS,
    append_any,
    flush,
    follower,
    found_by_key,
    log_of,
    queues_of,
    ship,
)
from tests.unit.store.kit import kill, open_store

MAX_PIECE = 20_000
CRASHES_PER_SEED = 6


class Masters(NamedTuple):
    """Two stores whose logs are the same up to `parting`."""

    first: MessageStore
    second: MessageStore
    parting: int
    number: int

    def close(self) -> None:
        self.first.close()
        self.second.close()


def two_masters(folder: Path, random: Random) -> Masters:
    first, second, number = open_store(folder / "first", tiny(FlushDiskType.ASYNC_FLUSH)), None, 0
    for _ in range(random.randint(1, 25)):
        append_any(first, random, number)
        number += 1
    parting = first.max_physical_offset
    second = follower(folder / "second", tiny(FlushDiskType.ASYNC_FLUSH))
    ship(first, second, parting, random)
    second.lead()
    for store in (first, second):
        for _ in range(random.randint(1, 25)):
            append_any(store, random, number)
            number += 1
    return Masters(first, second, parting, number)


@dataclasses.dataclass
class Story:
    """What the copy was told, and what it promised about it."""

    masters: Masters
    is_second: bool = False  # whom it follows
    may_be_first_until: int | None = None  # the moment from which on nothing of the first master is left but the shared
    may_be_second_from: int | None = None
    promises: list[Promise] = dataclasses.field(default_factory=list)

    @property
    def master(self) -> MessageStore:
        return self.masters.second if self.is_second else self.masters.first

    def promised_at(self, moment: int) -> int:
        """The last promise counts: cutting the log takes back the ones before. Of a record that was on disk in part,
        nothing is promised."""
        end = next((promise.value for promise in reversed(self.promises) if promise.moment <= moment), 0)
        return min(_last_end(self.masters.first, end), _last_end(self.masters.second, end))


def _last_end(master: MessageStore, end: int) -> int:
    """Where the last record ends that lies before `end`."""
    ends = [0, *(head.physical_offset + head.size for head in master._log.heads(0))]
    return ends[bisect_right(ends, end) - 1]


class Life:
    """One process that holds the copy."""

    def __init__(self, root: Path, flush_type: FlushDiskType, clock: FakeClock, disk: FaultyDisk, story: Story) -> None:
        self._root = root
        self._config = tiny(flush_type)
        self._clock = clock
        self._disk = disk
        self._story = story

    def run(self, random: Random, steps: int, *, killed: bool) -> None:
        loop = SeededLoop(random)
        try:
            loop.run_until_complete(self._live(random, steps, killed=killed))
            loop.kill()
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
                loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            loop.close()

    @property
    def _has_struck(self) -> bool:
        return self._disk.fault is not None and self._disk.fault.has_struck

    def _make_room(self, store: MessageStore) -> None:
        """On a full disk, what a start could not enter into queues and index waits for room; here it comes at once."""
        if store.refusal is not None:
            fault, self._disk.fault = self._disk.fault, None
            store._catch_up()
            self._disk.fault = fault
            assert store.refusal is None, "there is room again"

    async def _live(self, random: Random, steps: int, *, killed: bool) -> None:
        try:
            store = follower(self._root, self._config, self._clock)
        except (Killed, OSError, ServiceNotAvailable, StoreError):
            assert self._has_struck
            return
        self._make_room(store)
        check_prefix(store, self._story, allow_both=True)
        flushing = asyncio.ensure_future(store.flusher.run())
        preparing = asyncio.ensure_future(store.preallocator.run())
        for _ in range(steps):
            try:
                await self._step(store, random)
            except (Killed, OSError, ServiceNotAvailable, StoreError):
                assert self._has_struck
                killed = True
                break
            self._promise(store)
            if flushing.done():
                killed = True
                break
        if killed:
            kill(store)
            return
        preparing.cancel()
        await asyncio.gather(preparing, return_exceptions=True)
        try:
            store.flusher.stop()
            await flushing
            self._promise(store)
            store.close()
        except (Killed, OSError, ServiceNotAvailable, StoreError):
            assert self._has_struck

    async def _step(self, store: MessageStore, random: Random) -> None:
        story = self._story
        choice = random.random()
        if choice < 0.1:
            await self._clock.advance(random.choice((1, 300, 600, 3_000, 61_000)))
        elif choice < 0.15:
            store.settle()
        elif (choice < 0.2 and not story.is_second) or self._needs_cut(store):
            self._change_master(store)
        else:
            at = store.max_physical_offset
            data = story.master.log_bytes(at, random.randint(1, MAX_PIECE))
            if data is not None:
                store.append_raw(at, data)
                if at % 10 < 7:  # sometimes the next bytes come first
                    store.enter_raw()
        await asyncio.sleep(0)

    def _needs_cut(self, store: MessageStore) -> bool:
        """The process died while it changed its master, and the log is still that of the first."""
        return self._story.is_second and self._story.may_be_first_until is None

    def _change_master(self, store: MessageStore) -> None:
        story = self._story
        if not story.is_second:
            story.is_second = True
            story.may_be_second_from = len(self._disk.moments)
        story.promises.append(Promise(len(self._disk.moments), min(store.flusher.flushed, story.masters.parting)))
        store.settle()
        store.truncate_log(story.masters.parting)
        story.may_be_first_until = len(self._disk.moments)

    def _promise(self, store: MessageStore) -> None:
        end = store.flusher.flushed
        if not self._story.promises or self._story.promises[-1].value != end:
            self._disk.mark("promise")
            if end < store.flusher.flushed or not self._has_struck:
                self._story.promises.append(Promise(len(self._disk.moments), end))


def live_and_lose_power(folder: Path, flush_type: FlushDiskType, seed: int) -> int:
    """Several lives, then what a machine finds that lost its power at some moments; returns how many."""
    random, clock = Random(f"following {flush_type} {seed}"), FakeClock()
    masters = two_masters(folder, random)
    story = Story(masters)
    root = folder / "copy"
    root.mkdir()
    with boot(0), FaultyDisk(root) as disk:
        for _ in range(random.randint(1, 4)):
            disk.fault = drawn_fault(random)
            Life(root, flush_type, clock, disk, story).run(random, random.randint(5, 60), killed=random.random() < 0.7)
        disk.fault = None
    moments = sorted(random.sample(range(len(disk.moments)), min(CRASHES_PER_SEED, len(disk.moments))))
    for number in moments:
        after = folder / f"after-{number}"
        after.mkdir()
        mood = disk.moments[number].materialise(after, random)
        try:
            with boot(2), FaultyDisk(after, watch=False):
                _check_after_crash(after, flush_type, clock, story, number, random)
        except Exception as error:
            error.add_note(
                f"{flush_type}, seed {seed}, power lost before {number} ({disk.moments[number].label}), {mood}"
            )
            raise
        shutil.rmtree(after)
    masters.close()
    return len(moments)


def _check_after_crash(
    root: Path, flush_type: FlushDiskType, clock: FakeClock, story: Story, moment: int, random: Random
) -> None:
    copy = follower(root, tiny(flush_type), clock)
    end = copy.max_physical_offset
    assert end >= story.promised_at(moment), f"the log ends at {end}, promised were {story.promised_at(moment)}"
    is_cut = story.may_be_first_until is not None and moment >= story.may_be_first_until
    check_prefix(copy, story, allow_both=not is_cut)
    if end > story.masters.parting and not is_cut:
        copy.truncate_log(story.masters.parting)
    ship(story.masters.second, copy, story.masters.second.max_physical_offset, random)
    flush(copy)
    check_prefix(copy, story, allow_both=False)
    assert copy.max_physical_offset == story.masters.second.max_physical_offset
    copy.close()
    found = verify(root)
    assert found.is_sound, found.problems
    copy = follower(root, tiny(flush_type), clock)
    check_prefix(copy, story, allow_both=False)
    kill(copy)


def check_prefix(copy: MessageStore, story: Story, *, allow_both: bool) -> None:
    """The copy is the beginning of the second master's log, or of the first one's: bytes, queues and keys."""
    end, held = copy.max_physical_offset, log_of(copy)
    masters = (story.masters.second, story.masters.first) if allow_both else (story.masters.second,)
    fitting = [master for master in masters if log_of(master)[:end].ljust(end, b"\0") == held]
    assert fitting, f"of the log, which ends at {end}, a part is nobody's"
    master = fitting[0]
    dispatched = copy._dispatcher.end
    assert queues_of(copy) == {
        queue: kept
        for queue, entries in queues_of(master).items()
        if (kept := [entry for entry in entries if entry[0] + entry[1] <= dispatched])
    }
    for topic in TOPICS:
        for key in ("k1", "k2", *(f"u{number}" for number in range(0, story.masters.number, 3))):
            wanted = [place for place in found_by_key(master, topic, key) if place < dispatched]
            assert found_by_key(copy, topic, key) == wanted, key
