"""The store against a model: whatever is done to it, and however it ends, it says what was put in."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import tempfile
from bisect import bisect_left
from operator import itemgetter
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cosmodrome.config import FlushDiskType
from cosmodrome.store import GetStatus, MessageStore
from cosmodrome.store.verification import verify
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
    """The model is a list of (body, tag, place) for each queue; what lies before the log's start is expired."""

    @initialize(sync=st.booleans())
    def begin(self, sync: bool) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="store-"))
        flush = FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH
        self.config = dataclasses.replace(SMALL, flush_disk_type=flush, delete_commit_log_files_interval=0)
        self.clock = FakeClock()
        self.queues: dict[tuple[str, int], list[tuple[bytes, str, int]]] = {}
        self.end = 0
        self.keys: dict[tuple[str, str], tuple[bytes, int]] = {}
        self.has_expired = False
        self.number = 0
        self.open()

    def open(self) -> None:
        self.store = MessageStore.open(self.root, self.config, self.clock)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            found = verify(self.root)
            shutil.rmtree(self.root)
            assert found.is_sound, found.problems

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
        queue.append((body, tag, appended.physical_offset))
        self.end = appended.end
        self.keys[topic, key] = body, appended.physical_offset
        self.flush()

    @rule(topic=topics, queue_id=queue_ids, sizes=st.lists(sizes, min_size=1, max_size=6))
    def append_batch(self, topic: str, queue_id: int, sizes: list[int]) -> None:
        made = [self.next_body(size) for size in sizes]
        items = [BatchItem(0, body, encode({"UNIQ_KEY": key, "TAGS": "batch"})) for body, key in made]
        queue = self.queues.setdefault((topic, queue_id), [])
        appended = self.store.append_batch(message(topic, queue_id), items)
        assert appended.queue_offset == len(queue)
        self.end = appended.end
        for (body, key), place in zip(made, appended.physical_offsets, strict=True):
            queue.append((body, "batch", place))
            self.keys[topic, key] = body, place
        self.flush()

    @rule(topic=topics, queue_id=queue_ids, offset=st.integers(-1, 60), count=st.integers(1, 40), tag=tags)
    def read(self, topic: str, queue_id: int, offset: int, count: int, tag: str) -> None:
        queue = self.queues.get((topic, queue_id), [])
        codes = frozenset({java_hash(tag)}) if tag else None
        result = self.store.read(topic, queue_id, offset, count, codes=codes)
        if not self.first(queue) <= offset < len(queue):
            assert result.status not in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE)
            return
        assert offset < result.next_offset <= len(queue)
        wanted = [body for body, has, _ in queue[offset : result.next_offset] if not tag or has == tag]
        assert [record.body for record in records(result.views)] == wanted
        assert result.count == len(wanted) <= count

    @rule(topic=topics)
    def delete_topic(self, topic: str) -> None:
        """Its messages are gone for good; a topic of that name made later begins at 0."""
        self.store.delete_topic(topic)
        self.queues = {queue: had for queue, had in self.queues.items() if queue[0] != topic}
        self.keys = {key: body for key, body in self.keys.items() if key[0] != topic}

    def first(self, queue: list[tuple[bytes, str, int]]) -> int:
        """The offset of the first message that is still there."""
        return bisect_left(queue, self.store.min_physical_offset, key=itemgetter(2))

    @rule(count=st.integers(1, 3))
    def expire(self, count: int) -> None:
        """The oldest files of the log, but not the last, are too old; they go, and what leads into them."""
        log_start = self.store.min_physical_offset
        files = self.store._log.files[:-1][:count]
        for file in files:
            os.utime(file.path, (0, 0))
        self.store.cleaner.delete_soon()
        asyncio.run(self.store.cleaner.clean())
        assert self.store.min_physical_offset == log_start + len(files) * self.config.mapped_file_size_commit_log
        self.has_expired = self.has_expired or bool(files)

    @rule(ms=st.integers(0, 100_000))
    def wait(self, ms: int) -> None:
        self.clock._steady_ms += ms

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
        if not self.has_expired:  # else what is built anew lacks what had not been cleaned yet
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
        assert {(topic, queue_id) for topic in self.store.topics() for queue_id in self.store.queues(topic)} <= set(
            self.queues
        )
        for (topic, queue_id), queue in self.queues.items():
            assert self.store.max_offset(topic, queue_id) == len(queue)
            assert bodies(self.store, topic, queue_id) == [body for body, _, _ in queue[self.first(queue) :]]
        assert self.end <= self.store.max_physical_offset
        for (topic, key), (body, place) in list(self.keys.items())[-5:]:
            found = self.store.find_by_key(topic, key, 10, 0, 2**62)
            assert [record.body for record in records(found)] == [body] * (place >= self.store.min_physical_offset)


StoreMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
test_the_store_keeps_what_it_was_given = StoreMachine.TestCase
