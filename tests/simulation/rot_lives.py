"""Bits of a log that flip while no broker runs, after whatever end its last one had."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

from cosmodrome.config import FlushDiskType
from cosmodrome.store import MessageStore
from cosmodrome.store.checkpoint import Checkpoint
from cosmodrome.store.lock import AbortMark
from cosmodrome.store.verification import verify
from cosmodrome.testing import FakeClock, FaultyDisk
from tests.simulation.store_lives import Crash, History, Life, Queue, Sent, boot, drawn_fault, tiny
from tests.unit.store.kit import kill, message, records

MAX_FLIPS = 6
POWER_CUTS = 3
HEAD_BYTES = 88


def live_and_rot(folder: Path, flush: FlushDiskType, seed: int) -> int:
    """Several lives on one disk; then bits of the log flip: after an orderly end, a kill, or at moments of power cuts.

    Returns how many rotten logs were looked at.
    """
    random, config, clock, history = Random(f"rot {flush} {seed}"), tiny(flush), FakeClock(), History()
    root = folder / "store"
    root.mkdir()
    with boot(0), FaultyDisk(root) as disk:
        for _ in range(random.randint(1, 3)):
            disk.fault = drawn_fault(random) if random.random() < 0.3 else None
            Life(root, config, clock, disk, history).run(random, random.randint(10, 40), killed=random.random() < 0.5)
        disk.fault = None
        Life(root, config, clock, disk, history).run(random, 10, killed=random.random() < 0.5)
    looked = 0
    for boot_id, after in ((0, "same run"), (2, "other run"), *((2, n) for n in _moments(disk, random))):
        crash = Crash(folder / "after", config, clock, history, history.end, 0)
        if isinstance(after, int):
            crash.root.mkdir()
            disk.moments[after].materialise(crash.root, random)
            promised = history.log_end_at(after)
            if not AbortMark(crash.root / "abort").is_ours:  # the disk had no room for it: whose log is it?
                safe = Checkpoint(crash.root / "checkpoint").safe
                promised = min(promised, safe.log if safe else 0)
            crash = Crash(crash.root, config, clock, history, promised, 0)
        else:
            shutil.copytree(root, crash.root)
        hits: set[int] = set()
        try:
            hits.update(flip_some(crash, random))
            with boot(boot_id), FaultyDisk(crash.root, watch=False):
                check_rotten(crash, hits)
        except Exception as error:
            error.add_note(f"{flush}, seed {seed}, {after}, hit: {sorted(hits)}, log promised up to {crash.log_end}")
            raise
        shutil.rmtree(crash.root)
        looked += 1
    return looked


def _moments(disk: FaultyDisk, random: Random) -> list[int]:
    return random.sample(range(len(disk.moments)), min(POWER_CUTS, len(disk.moments)))


def flip_some(crash: Crash, random: Random) -> Iterator[int]:
    """Flip bits in promised records and between them; yields the places of the records that were hit."""
    sent = [one for queue in crash.history.queues.values() for one in queue if one.end <= crash.log_end]
    files = {int(path.name): path for path in (crash.root / "commitlog").iterdir()} if sent else {}
    for _ in range(random.randint(1, MAX_FLIPS) if sent else 0):
        one = random.choice(sent)
        place = random.randrange(one.physical_offset, random.choice((one.end, one.physical_offset + HEAD_BYTES)))
        size = crash.config.mapped_file_size_commit_log
        if random.random() < 0.1:  # perhaps what closes a file
            place = place - place % size + size - random.randrange(1, 2_000)
        if place < crash.log_end:
            _flip(files[place - place % size], place % size, 1 << random.randrange(8))
            yield from (other.physical_offset for other in sent if other.physical_offset <= place < other.end)


def _flip(path: Path, position: int, mask: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ mask]))


def check_rotten(crash: Crash, hits: set[int]) -> None:
    """Whatever was promised and not hit is served at its offset, now, after more messages and after another start."""
    left = {
        queue: [one for one in sent if one.end <= crash.log_end and one.physical_offset not in hits]
        for queue, sent in crash.history.queues.items()
    }
    store = MessageStore.open(crash.root, crash.config, crash.clock)
    check_left(store, left)
    for queue, sent in left.items():
        appended = store.append(message(*queue, b"behind"))
        assert appended.queue_offset > max((one.queue_offset for one in sent), default=-1), queue
        left[queue] = [*sent, Sent(appended.queue_offset, appended.physical_offset, appended.end, b"behind", "")]
    for file in store._log.files:
        file.sync()
    store._flushed(store.max_physical_offset, store._log.last_timestamp)
    check_left(store, left)
    store.close()
    verify(crash.root)
    store = MessageStore.open(crash.root, crash.config, crash.clock)
    check_left(store, left)
    kill(store)


def check_left(store: MessageStore, left: dict[Queue, list[Sent]]) -> None:
    for queue, sent in left.items():
        for one in sent:
            result = store.read(*queue, one.queue_offset, 1)
            assert result.count == 1, (
                f"{queue} has nothing at {one.queue_offset}, of the record at {one.physical_offset}"
            )
            (record,) = records(result.views)
            found = record.queue_offset, record.physical_offset, record.body
            assert found == (one.queue_offset, one.physical_offset, one.body), queue
