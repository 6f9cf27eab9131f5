"""A store whose process is killed again and again: `python -m tests.system.mortal FOLDER FLUSH SEED KILLS`.

Every life is a fork of this process, so it costs milliseconds: it opens the store, looks whether everything is there
that ever was acknowledged or seen, and appends until SIGKILL comes, at a moment that the seed chose. What it tells
through a pipe counts as acknowledged. A life that finds anything wrong says so and ends the run with exit code 1.
"""

from __future__ import annotations

import asyncio
import io
import os
import select
import shutil
import signal
import struct
import sys
import time
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from cosmodrome.clock import SystemClock
from cosmodrome.config import KIB, FlushDiskType, StoreConfig
from cosmodrome.store import Durability, MessageStore, StoreMessage
from cosmodrome.store.verification import verify
from cosmodrome.wire import properties
from cosmodrome.wire.batch import BatchItem
from cosmodrome.wire.record import Record, decode_records, pack_host

MAX_NUMBERS = 1_000_000  # of messages that one life tries to append
LIVES_PER_STORE = 40  # then a new one is begun: what is looked at after each kill stays small
STARTING_SHARE = 0.3  # of the lives that are killed while they start, if they are not quicker
MAX_STARTING_SECONDS = 0.02
MAX_WORKING_SECONDS = 0.03
PATIENCE_SECONDS = 60
PROGRESS_KILLS = 250
KEYS_LOOKED_UP = 5

QUEUES = [(topic, queue_id) for topic in ("orders", "bills") for queue_id in range(3)]
HOST = pack_host("127.0.0.1", 10911)
# Files so small that every kind of them is rolled within one life.
CONFIG = StoreConfig(
    mapped_file_size_commit_log=96 * KIB,
    mapped_file_size_consume_queue=40 * 20,
    max_hash_slot_num=50,
    max_index_num=60,
    flush_interval_commit_log=5,
)

_OPEN, _TOLD, _WRONG = b"o", b"+", b"!"  # what a line of a life begins with
_ACK = struct.Struct(">BIQ")  # queue | queue offset | number of the message
_BODY = struct.Struct(">QI")  # number | crc of what follows


@dataclass
class Known:
    """What must be there: by queue, the number of the message at each offset. Others may be there too, once."""

    messages: list[dict[int, int]] = field(default_factory=lambda: [{} for _ in QUEUES])
    next_number: int = 0

    @property
    def count(self) -> int:
        return sum(map(len, self.messages))


def body_of(number: int) -> bytes:
    random = Random(number)
    filling = random.randbytes(random.choice((0, 10, 300, 300, 3_000, 15_000)))
    return _BODY.pack(number, zlib.crc32(filling)) + filling


def properties_of(number: int) -> str:
    return properties.encode({"UNIQ_KEY": f"u{number}", "KEYS": f"k{number} all", "TAGS": f"t{number % 3}"})


# One life


def live(root: Path, flush: FlushDiskType, random: Random, known: Known, pipe: int) -> None:
    """Until it is killed, or until it has found something wrong."""
    try:
        asyncio.run(_live(root, flush, random, known, pipe))
    except BaseException:
        os.write(pipe, _WRONG + traceback.format_exc().encode())
    os._exit(1)


async def _live(root: Path, flush: FlushDiskType, random: Random, known: Known, pipe: int) -> None:
    store = open_store(root, flush)
    for queue, entries in enumerate(check(store, known)):
        for offset, number in entries.items():
            if offset not in known.messages[queue]:
                _tell(pipe, queue, offset, number)
    os.write(pipe, _OPEN)
    background = [asyncio.ensure_future(part.run()) for part in (store.flusher, store.preallocator)]
    number = known.next_number
    acting: set[asyncio.Task[None]] = set()
    while not any(part.done() for part in background):
        count = random.choice((1, 1, 1, 2, 5))
        queue = random.randrange(len(QUEUES))
        acting.add(asyncio.ensure_future(_append(store, queue, range(number, number + count), pipe)))
        number += count
        await asyncio.sleep(0)
        for task in [task for task in acting if task.done()]:
            acting.remove(task)
            task.result()
    await asyncio.gather(*background)


async def _append(store: MessageStore, queue: int, numbers: range, pipe: int) -> None:
    topic, queue_id = QUEUES[queue]
    first = numbers[0]
    message = StoreMessage(topic, queue_id, body_of(first), properties_of(first), 0, 0, 0, HOST, HOST)
    if len(numbers) == 1:
        appended = store.append(message)
        end, offset = appended.end, appended.queue_offset
    else:
        items = [BatchItem(0, body_of(number), properties_of(number)) for number in numbers]
        batch = store.append_batch(message, items)
        end, offset = batch.end, batch.queue_offset
    if await store.durable(end) is Durability.OK:
        for place, number in enumerate(numbers, offset):
            _tell(pipe, queue, place, number)


def _tell(pipe: int, queue: int, offset: int, number: int) -> None:
    os.write(pipe, _TOLD + _ACK.pack(queue, offset, number))


def open_store(root: Path, flush: FlushDiskType) -> MessageStore:
    config = StoreConfig(
        **{name: getattr(CONFIG, name) for name in CONFIG.__dataclass_fields__ if name != "flush_disk_type"},
        flush_disk_type=flush,
    )
    return MessageStore.open(root, config, SystemClock())


def check(store: MessageStore, known: Known) -> list[dict[int, int]]:
    """What is in each queue. AssertionError unless all that is known is there, and everything is whole and once."""
    found = [_served(store, *queue) for queue in QUEUES]
    numbers = [number for entries in found for number in entries.values()]
    assert len(numbers) == len(set(numbers)), "a message is there twice"
    for queue, entries, expected in zip(QUEUES, found, known.messages, strict=True):
        lost = {offset: number for offset, number in expected.items() if entries.get(offset) != number}
        assert not lost, f"{queue}: lost or elsewhere (offset: number) {lost}; there are {len(entries)} messages"
        for offset in list(expected)[-KEYS_LOOKED_UP:]:
            _look_up(store, queue[0], expected[offset])
    return found


def _served(store: MessageStore, topic: str, queue_id: int) -> dict[int, int]:
    found: dict[int, int] = {}
    offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    assert offset == 0
    while offset < end:
        result = store.read(topic, queue_id, offset, 64)
        for record in decode_records(b"".join(result.views)):
            assert record.queue_offset == len(found), f"{topic}/{queue_id}: {record.queue_offset} after {len(found)}"
            view = store.record_at(record.physical_offset)
            assert view is not None
            assert decode_records(bytes(view)) == [record]
            found[record.queue_offset] = _number_of(record)
        assert result.next_offset > offset
        offset = result.next_offset
    assert len(found) == end
    return found


def _number_of(record: Record) -> int:
    number, crc = _BODY.unpack_from(record.body)
    assert zlib.crc32(record.body[_BODY.size :]) == crc, f"message {number} has other bytes"
    assert record.properties == properties_of(number)
    return int(number)


def _look_up(store: MessageStore, topic: str, number: int) -> None:
    for key in (f"u{number}", f"k{number}"):
        found = decode_records(b"".join(store.find_by_key(topic, key, 10, 0, 2**62)))
        assert [_number_of(record) for record in found] == [number], f"by key {key}: {len(found)} messages"


# Many lives


@dataclass
class Tally:
    kills: int = 0
    starting: int = 0  # kills before the life had opened the store and looked at it
    acknowledged: int = 0

    def __str__(self) -> str:
        return f"{self.kills} kills ({self.starting} of them while starting), {self.acknowledged} messages acknowledged"


def run(folder: Path, flush: FlushDiskType, seed: int, kills: int, progress: Callable[[Tally], None]) -> Tally:
    """Kill `kills` lives. AssertionError when one finds something wrong; its store is left where it is."""
    tally = Tally()
    random = Random(f"{flush} {seed}")
    for store_number in range(-(-kills // LIVES_PER_STORE)):
        root, known = folder / f"store-{store_number}", Known()
        for _ in range(min(LIVES_PER_STORE, kills - tally.kills)):
            _one_life(root, flush, random, known, tally)
            if tally.kills % PROGRESS_KILLS == 0:
                progress(tally)
        store = open_store(root, flush)
        check(store, known)
        store.close()
        verification = verify(root)
        assert verification.is_sound, verification.problems
        shutil.rmtree(root)
    return tally


def _one_life(root: Path, flush: FlushDiskType, random: Random, known: Known, tally: Tally) -> None:
    life_seed = random.random()
    starting = random.random() < STARTING_SHARE
    delay = random.uniform(0, MAX_STARTING_SECONDS if starting else MAX_WORKING_SECONDS)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        live(root, flush, Random(life_seed), known, writer)
    os.close(writer)
    told = _kill(reader, pid, delay, starting=starting)
    tally.kills += 1
    before = known.count
    tally.starting += not _learn(told, known)
    tally.acknowledged += known.count - before
    known.next_number += MAX_NUMBERS


def _kill(reader: int, pid: int, delay: float, *, starting: bool) -> bytes:
    """Everything the life told until it was killed: `delay` after its birth, or after it had opened the store."""
    told, patience = bytearray(), time.monotonic() + PATIENCE_SECONDS
    with open(reader, "rb", buffering=0) as pipe:
        while not starting and _OPEN not in told and _WRONG not in told:
            assert _read(pipe, told, patience), "a life neither opened its store nor said why"
        deadline = time.monotonic() + delay
        while _read(pipe, told, deadline):
            pass
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        told += pipe.readall()
    return bytes(told)


def _read(pipe: io.FileIO, told: bytearray, deadline: float) -> bool:
    """Take what comes; False when the time is over or nobody will write any more."""
    ready, _, _ = select.select([pipe], [], [], max(deadline - time.monotonic(), 0))
    data = pipe.read(1 << 16) if ready else None
    told += data or b""
    return bool(data)


def _learn(told: bytes, known: Known) -> bool:
    """Remember what a life told, except what its death cut off; returns whether it had opened the store."""
    at, opened = 0, False
    while at < len(told):
        mark = told[at : at + 1]
        at += 1
        assert mark != _WRONG, told[at:].decode()
        if mark == _OPEN:
            opened = True
        elif at + _ACK.size <= len(told):
            queue, offset, number = _ACK.unpack_from(told, at)
            assert known.messages[queue].setdefault(offset, number) == number, "an offset was given twice"
            at += _ACK.size
        else:
            break
    return opened


def main(folder: str, flush: str, seed: str, kills: str) -> None:
    mode = FlushDiskType(flush)

    def progress(tally: Tally) -> None:
        print(f"{mode} seed {seed}: {tally}", flush=True)

    try:
        tally = run(Path(folder), mode, int(seed), int(kills), progress)
    except AssertionError as error:
        print(f"{mode} seed {seed}: {error}\nthe store is in {folder}", flush=True)
        sys.exit(1)
    print(f"{mode} seed {seed}: {tally}; nothing lost, nothing twice, nothing torn", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
