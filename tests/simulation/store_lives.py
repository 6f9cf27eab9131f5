"""A store that is used, killed and started again on a disk that keeps note, and what it may look like after a crash."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import os
import shutil
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from cosmodrome import state_file
from cosmodrome.config import KIB, FlushDiskType, StoreConfig
from cosmodrome.errors import ServiceNotAvailable
from cosmodrome.store import Durability, MessageStore, lock
from cosmodrome.store.verification import verify
from cosmodrome.testing import FakeClock, Fault, FaultyDisk, Killed, Kind, SeededLoop
from cosmodrome.wire import properties
from cosmodrome.wire.batch import BatchItem
from tests.unit.store.kit import kill, message, records

SYNC, ASYNC = FlushDiskType.SYNC_FLUSH, FlushDiskType.ASYNC_FLUSH
# Files so small that every kind of them is rolled within a few dozen messages.
TINY = StoreConfig(
    mapped_file_size_commit_log=64 * KIB,
    mapped_file_size_consume_queue=7 * 20,
    max_hash_slot_num=20,
    max_index_num=25,
)
TOPICS = ("orders", "bills")
QUEUES_PER_TOPIC = 2
TABLE = Path("config") / "table.json"

Queue = tuple[str, int]
Step = Callable[["Life", MessageStore, Random], Coroutine[None, None, None]]


class Sent(NamedTuple):
    """A message that was appended, and where."""

    queue_offset: int
    physical_offset: int
    end: int
    body: bytes
    key: str


class Promise(NamedTuple):
    """From this moment of the disk on, whatever happens, this holds."""

    moment: int
    value: int


@dataclasses.dataclass
class History:
    """What was done, and what was promised about it."""

    queues: dict[Queue, list[Sent]] = dataclasses.field(default_factory=dict)
    log_promises: list[Promise] = dataclasses.field(default_factory=list)
    table_promises: list[Promise] = dataclasses.field(default_factory=list)
    doubtful: list[tuple[Queue, BatchItem]] = dataclasses.field(default_factory=list)  # not known to be in the log
    number: int = 0
    table: int = 0

    def promise_log(self, moment: int, end: int) -> None:
        if not self.log_promises or self.log_promises[-1].value < end:
            self.log_promises.append(Promise(moment, end))

    def log_end_at(self, moment: int) -> int:
        return _promised(self.log_promises, moment)

    def table_at(self, moment: int) -> int:
        return _promised(self.table_promises, moment)

    @property
    def end(self) -> int:
        return max((sent[-1].end for sent in self.queues.values() if sent), default=0)


def _promised(promises: list[Promise], moment: int) -> int:
    return max((promise.value for promise in promises if promise.moment <= moment), default=0)


def tiny(flush: FlushDiskType) -> StoreConfig:
    return dataclasses.replace(TINY, flush_disk_type=flush)


@contextmanager
def boot(number: int) -> Iterator[None]:
    """Another run of the machine: abort marks of other runs tell that memory was lost."""
    before = lock._boot_id
    lock._boot_id = lambda: f"boot {number}"
    try:
        yield
    finally:
        lock._boot_id = before


class Life:
    """One process that uses the store, from its start to its death or its orderly end."""

    def __init__(self, root: Path, config: StoreConfig, clock: FakeClock, disk: FaultyDisk, history: History) -> None:
        self._root = root
        self._config = config
        self._clock = clock
        self._disk = disk
        self._history = history

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

    def _make_room(self, store: MessageStore) -> None:
        """On a full disk, what a start could not enter into queues and index waits for room; here it comes at once."""
        if store.refusal is not None:
            fault, self._disk.fault = self._disk.fault, None
            store._catch_up()
            self._disk.fault = fault
            assert store.refusal is None, "there is room again"

    async def _live(self, random: Random, steps: int, *, killed: bool) -> None:
        try:
            store = MessageStore.open(self._root, self._config, self._clock)
            self._make_room(store)
            self._adopt(store, store.max_physical_offset)
            check_served(store, self._history.queues, random)
            self._note(store)
        except (Killed, OSError):
            assert self._has_struck
            return
        flushing = asyncio.ensure_future(store.flusher.run())
        preparing = asyncio.ensure_future(store.preallocator.run())
        acting = await self._act(store, random, steps, flushing)
        if not killed:
            await _first_of(asyncio.gather(*acting), flushing)
        if killed or self._is_dead:
            kill(store)
            return
        preparing.cancel()
        await asyncio.gather(preparing, return_exceptions=True)
        try:
            store.flusher.stop()
            await flushing
            self._note(store)
            store.close()
            if not (self._root / "abort").exists():
                self._promise(self._history.end)
        except (Killed, OSError):
            assert self._has_struck

    async def _act(
        self, store: MessageStore, random: Random, steps: int, flushing: asyncio.Future[None]
    ) -> list[asyncio.Task[None]]:
        acting: list[asyncio.Task[None]] = []
        for _ in range(steps):
            step = random.choices(list(STEPS), list(STEPS.values()))[0]
            acting.append(asyncio.ensure_future(self._try(step, store, random)))
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)
                if not self._is_dead:
                    self._note(store)
            if flushing.done() or self._is_dead:
                break
        return acting

    async def _try(self, step: Step, store: MessageStore, random: Random) -> None:
        if self._is_dead:
            return
        try:
            await step(self, store, random)
        except (ServiceNotAvailable, Killed, OSError) as error:
            self._check_refusal(error)

    def _check_refusal(self, error: BaseException) -> None:
        assert self._has_struck, error
        assert isinstance(error, Killed) or os.strerror(self._errno) in str(error), error

    @property
    def _has_struck(self) -> bool:
        return self._disk.fault is not None and self._disk.fault.has_struck

    @property
    def _errno(self) -> int:
        assert self._disk.fault is not None
        return self._disk.fault.errno or 0

    @property
    def _is_dead(self) -> bool:
        return self._has_struck and not self._errno

    def _adopt(self, store: MessageStore, below: int) -> None:
        """Appends that did not succeed may be there all the same, in whole or in their first part."""
        for queue in {queue for queue, _ in self._history.doubtful}:
            candidates = [item for other, item in self._history.doubtful if other == queue]
            sent = self._history.queues.setdefault(queue, [])
            for queue_offset, begin, body in served(store, queue)[len(sent) :]:
                if begin >= below:
                    break
                while candidates[0].body != body:
                    candidates.pop(0)
                key = properties.find(candidates.pop(0).properties, "UNIQ_KEY") or ""
                sent.append(Sent(queue_offset, begin, begin + len(store.record_at(begin) or b""), body, key))
        self._history.doubtful.clear()

    def _note(self, store: MessageStore) -> None:
        """What the flusher calls flushed is promised; and with SYNC_FLUSH, what any reader can see."""
        self._promise(store.flusher.flushed)
        if store.group_commit:
            for (topic, queue_id), sent in self._history.queues.items():
                visible = store.max_offset(topic, queue_id)
                if visible:
                    self._promise(sent[visible - 1].end)

    def _promise(self, end: int) -> None:
        self._history.promise_log(len(self._disk.moments), end)

    # Steps

    async def append(self, store: MessageStore, random: Random) -> None:
        await self._append(store, random, 3_000)

    async def append_large(self, store: MessageStore, random: Random) -> None:
        await self._append(store, random, 40_000)

    async def _append(self, store: MessageStore, random: Random, size: int) -> None:
        queue, (item,) = _queue(random), self._items(random, 1, size)
        self._history.doubtful.append((queue, item))
        appended = store.append(dataclasses.replace(message(*queue, item.body), properties=item.properties))
        self._sent(store, queue, appended.queue_offset, [appended.physical_offset, appended.end], [item])
        await self._acknowledged(store, appended.end)

    async def append_batch(self, store: MessageStore, random: Random) -> None:
        queue, items = _queue(random), self._items(random, random.randint(1, 6), 1_500)
        self._history.doubtful += [(queue, item) for item in items]
        appended = store.append_batch(message(*queue), items)
        self._sent(store, queue, appended.queue_offset, [*appended.physical_offsets, appended.end], items)
        await self._acknowledged(store, appended.end)

    async def wait(self, store: MessageStore, random: Random) -> None:
        """Long enough for a flush, sometimes for a checkpoint; rarely the clock is set back."""
        ms = random.choice((1, 300, 600, 3_000, 61_000, 61_000))
        if random.random() < SET_BACK_SHARE:
            self._clock.step(-ms)
        else:
            await self._clock.advance(ms)

    async def save_table(self, _store: MessageStore, _random: Random) -> None:
        self._history.table += 1
        number = self._history.table
        state_file.save(self._root / TABLE, b'{"number":%d}' % number)
        self._history.table_promises.append(Promise(len(self._disk.moments), number))

    def _items(self, random: Random, count: int, size: int) -> list[BatchItem]:
        items = []
        for _ in range(count):
            self._history.number += 1
            number = self._history.number
            body = b"%d:" % number + random.randbytes(random.randrange(size))
            note = "n" * random.randrange(2_000) if random.random() < LONG_PROPERTY_SHARE else ""
            keys = {"KEYS": f"all k{number % 5}", "TAGS": f"t{number % 3}", "note": note}
            items.append(BatchItem(0, body, properties.encode({"UNIQ_KEY": f"u{number}", **keys})))
        return items

    def _sent(
        self, store: MessageStore, queue: Queue, queue_offset: int, bounds: list[int], items: list[BatchItem]
    ) -> None:
        del self._history.doubtful[-len(items) :]
        self._adopt(store, bounds[0])
        sent = self._history.queues.setdefault(queue, [])
        assert queue_offset == len(sent), "the next message gets the next offset"
        for begin, end, item in zip(bounds, bounds[1:], items, strict=False):
            key = properties.find(item.properties, "UNIQ_KEY") or ""
            sent.append(Sent(len(sent), begin, end, item.body, key))
        self._disk.mark("append")

    async def _acknowledged(self, store: MessageStore, end: int) -> None:
        assert await store.durable(end) is Durability.OK
        assert not self._has_struck or self._errno == errno.ENOSPC or store.refusal is None, "success after a failure"
        if store.group_commit:
            self._promise(end)


STEPS: dict[Step, int] = {
    Life.append: 50,
    Life.append_large: 12,
    Life.append_batch: 15,
    Life.wait: 15,
    Life.save_table: 4,
}
SET_BACK_SHARE = 0.1
LONG_PROPERTY_SHARE = 0.2


async def _first_of(one: asyncio.Future[list[None]], other: asyncio.Future[None]) -> None:
    waited: list[asyncio.Future[Any]] = [one, other]
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)


def _queue(random: Random) -> Queue:
    return random.choice(TOPICS), random.randrange(QUEUES_PER_TOPIC)


def _table(data: bytes) -> int:
    return int(json.loads(data)["number"])


def drawn_fault(random: Random) -> Fault | None:
    """What the disk does to one life: nothing, the death of the process at some operation, or an error."""
    kind = random.choices(("none", "kill", "sync", "any", "room"), (4, 3, 1, 1, 1))[0]
    match kind:
        case "none":
            return None
        case "kill":
            return Fault(random.randrange(120), None)
        case "sync":
            return Fault(random.randrange(20), errno.EIO, random.random() < 0.5, frozenset({Kind.SYNC}))
        case "any":
            return Fault(random.randrange(60), errno.EIO)
    return Fault(random.randrange(40), errno.ENOSPC, random.random() < 0.5, NEEDS_ROOM)


NEEDS_ROOM = frozenset({Kind.CREATE, Kind.RESIZE, Kind.ALLOCATE, Kind.WRITE, Kind.FOLDER})
CRASHES_PER_SEED = 8
SECOND_CRASH_SHARE = 0.3


def live_and_lose_power(folder: Path, flush: FlushDiskType, seed: int) -> int:
    """Several lives on one disk; then, for some of its moments, what a machine finds that lost its power there.

    Returns how many crashes were looked at. The exception of a failed check says which seed and moment it was.
    """
    random, config, clock, history = Random(f"{flush} {seed}"), tiny(flush), FakeClock(), History()
    root = folder / "store"
    root.mkdir()
    with boot(0), FaultyDisk(root) as disk:
        for _ in range(random.randint(1, 4)):
            disk.fault = drawn_fault(random)
            Life(root, config, clock, disk, history).run(random, random.randint(5, 40), killed=random.random() < 0.7)
        disk.fault = None
        Life(root, config, clock, disk, history).run(random, 0, killed=True)
    moments = sorted(random.sample(range(len(disk.moments)), min(CRASHES_PER_SEED, len(disk.moments))))
    for number in moments:
        after = folder / f"after-{number}"
        after.mkdir()
        mood = disk.moments[number].materialise(after, random)
        crash = Crash(after, config, clock, history, history.log_end_at(number), history.table_at(number))
        try:
            if random.random() < SECOND_CRASH_SHARE:
                crash = crash_while_recovering(crash, random)
            with boot(2), FaultyDisk(after, watch=False):  # its syncs cost nothing
                check_after_crash(crash, random)
        except Exception as error:
            error.add_note(
                f"{flush}, seed {seed}, power lost before moment {number} ({disk.moments[number].label}), {mood}"
            )
            raise
        shutil.rmtree(after)
    return len(moments)


@dataclasses.dataclass(frozen=True)
class Crash:
    """What a power cut left in `root`, and what must be in it."""

    root: Path
    config: StoreConfig
    clock: FakeClock
    history: History
    log_end: int
    table: int


def crash_while_recovering(crash: Crash, random: Random) -> Crash:
    """Start on what the first crash left; the power fails again somewhere on the way, or just after."""
    opened = []
    with boot(1), FaultyDisk(crash.root) as disk:
        store = MessageStore.open(crash.root, crash.config, crash.clock)
        opened.append((len(disk.moments), store.max_physical_offset))
        kill(store)
    number = random.randrange(len(disk.moments))
    after = crash.root / "again"
    after.mkdir()
    disk.moments[number].materialise(after, random)
    promised = max([crash.log_end, *(end for moment, end in opened if moment <= number)])
    return dataclasses.replace(crash, root=after, log_end=promised)


def check_after_crash(crash: Crash, random: Random) -> None:
    """Open what a crash left, and hold it against everything that was promised before it."""
    history, root = crash.history, crash.root
    table = state_file.load(root / TABLE, _table) or 0
    assert crash.table <= table <= history.table
    store = MessageStore.open(root, crash.config, crash.clock)
    end = store.max_physical_offset
    assert end >= crash.log_end, f"the log ends at {end}, promised were {crash.log_end}"
    survivors = {queue: [sent for sent in all_sent if sent.end <= end] for queue, all_sent in history.queues.items()}
    check_served(store, survivors, random)
    extra = append_behind(store, survivors)
    check_served(store, extra, random)
    store.close()
    found = verify(root)
    assert found.is_sound, found.problems
    store = MessageStore.open(root, crash.config, crash.clock)
    check_served(store, extra, random)
    kill(store)


def check_served(store: MessageStore, expected: dict[Queue, list[Sent]], random: Random) -> None:
    """Readers and seekers get exactly these messages."""
    assert {(topic, queue_id) for topic in store.topics() for queue_id in store.queues(topic)} <= set(expected)
    for queue, sent in expected.items():
        assert served(store, queue) == [(s.queue_offset, s.physical_offset, s.body) for s in sent], queue
        if not sent:
            continue
        for one in (*random.sample(sent, min(len(sent), 3)), sent[-1]):
            found = records(store.find_by_key(queue[0], one.key, 10, 0, 2**62))
            assert [record.body for record in found] == [one.body], one.key
            view = store.record_at(one.physical_offset)
            assert view is not None
            assert records([view])[0].body == one.body


def served(store: MessageStore, queue: Queue) -> list[tuple[int, int, bytes]]:
    found = []
    offset, end = store.min_offset(*queue), store.max_offset(*queue)
    while offset < end:
        result = store.read(*queue, offset, 32)
        assert result.next_offset > offset
        found += [(record.queue_offset, record.physical_offset, record.body) for record in records(result.views)]
        offset = result.next_offset
    return found


def append_behind(store: MessageStore, survivors: dict[Queue, list[Sent]]) -> dict[Queue, list[Sent]]:
    """One more message for every queue; with SYNC_FLUSH, flushed. A queue that lost everything may skip offsets."""
    extra = {}
    for queue, sent in survivors.items():
        key = f"after-{queue[0]}-{queue[1]}"
        appended = store.append(message(*queue, key.encode(), UNIQ_KEY=key))
        assert appended.queue_offset == len(sent) or not sent
        place = Sent(appended.queue_offset, appended.physical_offset, appended.end, key.encode(), key)
        extra[queue] = [*sent, place]
    for file in store._log.files_between(store.flusher.flushed, store.max_physical_offset):
        file.sync()
    store._flushed(store.max_physical_offset, store._log.last_timestamp)
    return extra
