"""The store against a model: whatever is done to it, and however it ends, it says what was put in."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cosmodrome.config import FlushDiskType
from cosmodrome.store import GetStatus, MessageStore
from cosmodrome.testing.clock import FakeClock
from cosmodrome.wire.batch import BatchItem
from cosmodrome.wire.java import java_hash
from cosmodrome.wire.properties import encode
from tests.unit.store.kit import SMALL, bodies, crash, derived_bytes, kill, message, records

topics = st.sampled_from(["orders", "bills", "%RETRY%group"])
queue_ids = st.integers(0, 2)
tags = st.sampled_from(["", "paid", "open"])
sizes = st.one_of(st.integers(0, 300), st.integers(0, 9_000))
deaths = st.sampled_from([kill, crash])


class StoreMachine(RuleBasedStateMachine):
    """The model is a list of (body, tag) for each queue, and the places of all records."""

    @initialize(sync=st.booleans())
    def begin(self, sync: bool) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="store-"))
        flush = FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH
        self.config = dataclasses.replace(SMALL, flush_disk_type=flush)
        self.clock = FakeClock()
        self.queues: dict[tuple[str, int], list[tuple[bytes, str]]] = {}
        self.places: list[tuple[int, int]] = []
        self.keys: dict[tuple[str, str], bytes] = {}
        self.number = 0
        self.open()

    def open(self) -> None:
        self.store = MessageStore.open(self.root, self.config, self.clock)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            kill(self.store)
            shutil.rmtree(self.root)

    def flush(self) -> None:
        """What the flusher's thread and the loop do, without either."""
        for file in self.store._log.files_between(self.store.flusher.flushed, self.store._log.end):
            file.sync()
        self.store.flusher.flushed = self.store._log.end
        self.store._flushed(self.store._log.end, self.store._log.last_timestamp)

    def next_body(self, size: int) -> tuple[bytes, str]:
        self.number += 1
        return b"%d:" % self.number + b"x" * size, f"key{self.number}"

    @rule(topic=topics, queue_id=queue_ids, tag=tags, size=sizes)
    def append(self, topic: str, queue_id: int, tag: str, size: int) -> None:
        body, key = self.next_body(size)
        queue = self.queues.setdefault((topic, queue_id), [])
        appended = self.store.append(message(topic, queue_id, body, TAGS=tag, UNIQ_KEY=key))
        assert appended.queue_offset == len(queue)
        queue.append((body, tag))
        self.places.append((appended.physical_offset, appended.size))
        self.keys[topic, key] = body
        self.flush()

    @rule(topic=topics, queue_id=queue_ids, sizes=st.lists(sizes, min_size=1, max_size=6))
    def append_batch(self, topic: str, queue_id: int, sizes: list[int]) -> None:
        made = [self.next_body(size) for size in sizes]
        items = [BatchItem(0, body, encode({"UNIQ_KEY": key, "TAGS": "batch"})) for body, key in made]
        queue = self.queues.setdefault((topic, queue_id), [])
        appended = self.store.append_batch(message(topic, queue_id), items)
        assert appended.queue_offset == len(queue)
        ends = [*appended.physical_offsets[1:], appended.end]
        self.places += [(begin, end - begin) for begin, end in zip(appended.physical_offsets, ends, strict=True)]
        for body, key in made:
            queue.append((body, "batch"))
            self.keys[topic, key] = body
        self.flush()

    @rule(topic=topics, queue_id=queue_ids, offset=st.integers(-1, 60), count=st.integers(1, 40), tag=tags)
    def read(self, topic: str, queue_id: int, offset: int, count: int, tag: str) -> None:
        queue = self.queues.get((topic, queue_id), [])
        codes = frozenset({java_hash(tag)}) if tag else None
        result = self.store.read(topic, queue_id, offset, count, codes=codes)
        if not 0 <= offset < len(queue):
            assert result.status not in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE)
            return
        assert offset < result.next_offset <= len(queue)
        wanted = [body for body, has in queue[offset : result.next_offset] if not tag or has == tag]
        assert [record.body for record in records(result.views)] == wanted
        assert result.count == len(wanted) <= count

    @rule(ms=st.integers(0, 100_000))
    def wait(self, ms: int) -> None:
        self.clock._now_ms += ms

    @rule()
    def checkpoint(self) -> None:
        self.store._take_checkpoint()()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.open()

    @rule(die=deaths)
    def die(self, die: object) -> None:
        """A process dies after an append: nothing may be lost, and what is rebuilt is what was there."""
        before = derived_bytes(self.root)
        die(self.store)  # type: ignore[operator]
        self.open()
        assert derived_bytes(self.root) == before

    @rule(die=deaths, garbage=st.binary(min_size=1, max_size=200))
    def die_while_writing(self, die: object, garbage: bytes) -> None:
        """A record was half written when the process died: it is gone, the others are there."""
        file = self.store._log.files[-1] if self.store._log.files else None
        if file is not None and file.position < file.size:
            end = min(file.position + len(garbage), file.size)
            file.view[file.position : end] = garbage[: end - file.position]
        die(self.store)  # type: ignore[operator]
        self.open()

    @invariant()
    def everything_is_there(self) -> None:
        if not hasattr(self, "store"):
            return
        for (topic, queue_id), queue in self.queues.items():
            assert self.store.max_offset(topic, queue_id) == len(queue)
            assert bodies(self.store, topic, queue_id) == [body for body, _ in queue]
        end = max((offset + size for offset, size in self.places), default=0)
        assert end <= self.store.max_physical_offset
        for (topic, key), body in list(self.keys.items())[-5:]:
            found = self.store.find_by_key(topic, key, 10, 0, 2**62)
            assert [record.body for record in records(found)] == [body]


StoreMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
test_the_store_keeps_what_it_was_given = StoreMachine.TestCase
