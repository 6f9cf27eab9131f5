"""Serving the messages of a queue."""

from __future__ import annotations

import logging
import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate, repeat
from time import monotonic

from cosmodrome.config import MIB, StoreConfig
from cosmodrome.errors import ProtocolError
from cosmodrome.numbers import MAX_LONG
from cosmodrome.store.commit_log import CommitLog
from cosmodrome.store.consume_queue import ENTRY_SIZE, FILLER_SIZE, ConsumeQueue, Entry
from cosmodrome.store.consume_queues import ConsumeQueues
from cosmodrome.store.dispatcher import LOWEST_TAG_HASH
from cosmodrome.store.message import GetStatus, ReadResult
from cosmodrome.store.rot import PLACE, QueueMender
from cosmodrome.wire.record import MAGIC_V1, check_at, properties_of

log = logging.getLogger(__name__)

MAX_PULL_BYTES = 128 * MIB
_MIN_PULL_BYTES = 100
# What one bulk read may bring: others wait for it some hundred microseconds, longer only where the disk must be read.
BULK_MAX_COUNT = 4_096
BULK_MAX_BYTES = MIB
# How long one read may ask `matches`: the event loop stands still meanwhile.
MATCHING_SECONDS = 0.01
_FOUND = GetStatus.FOUND


class QueueReader:
    """What `MessageStore.read` does: from entries of a queue to slices of the log.

    Every entry is followed to the head of its record, but for those that this process wrote into the log's last file:
    they are still in memory. In the other files, which have been on disk for long, checksums are looked at, too, except
    by bulk reads: those who ask for so much check it themselves. What is damaged is passed over, named in the log and
    counted.
    """

    def __init__(self, log: CommitLog, queues: ConsumeQueues, config: StoreConfig, mender: QueueMender) -> None:
        self._mender = mender
        self._log = log
        self._queues = queues
        self._config = config
        self._memory_bytes = _physical_memory() * config.access_message_in_memory_max_ratio // 100
        self.written_from = MAX_LONG  # this process wrote the log from here on

    def is_in_memory(self, physical_offset: int) -> bool:
        """Not so far back in the log that reading it would keep the disk busy."""
        return self._log.end - physical_offset <= self._memory_bytes

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int = MAX_PULL_BYTES,
        codes: frozenset[int] | None = None,
        matches: Callable[[str], bool] | None = None,
        *,
        bulk: bool = False,
        verify: bool = False,
    ) -> ReadResult:
        """Messages of one queue from `offset` on, only those whose tag hash is among `codes` if there are any.

        At least one is returned if there is one, however large. Bodies are not copied; with `verify`, checksums are
        looked at in the log's last file, too. `matches` is
        asked about the properties of each message, for so many and so long that others need not wait for it; then it
        is NO_MATCHED_MESSAGE, and the next offset says where to go on. A `bulk` read brings as much as a bulk read may,
        whatever the limits for consumers are.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return ReadResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            return ReadResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return ReadResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset >= high:
            if offset == high:
                return ReadResult(GetStatus.OFFSET_OVERFLOW_ONE, high, low, high)
            return ReadResult(GetStatus.OFFSET_OVERFLOW_BADLY, _where_unread(queue, low, high), low, high)
        if (
            not codes
            and matches is None
            and (found := self._read_all(queue, offset, max_count, max_bytes, bulk, verify))
        ):
            return found
        entries_limit = self._config.max_filter_message_size // ENTRY_SIZE
        entries = queue.entries(offset, entries_limit if matches is not None else max(entries_limit, max_count))
        if entries is None:
            return ReadResult(GetStatus.OFFSET_FOUND_NULL, queue.next_file_offset(offset), low, high)
        return self._read_entries(queue, entries, offset, low, high, max_count, max_bytes, codes, matches, bulk, verify)

    def _read_all(
        self, queue: ConsumeQueue, offset: int, max_count: int, max_bytes: int, bulk: bool, verify: bool
    ) -> ReadResult | None:
        """The quick way when the next messages are all sound, in memory and in one file of the log; else None."""
        count, byte_limit = self._limits(0, max_count, max_bytes, bulk)
        count = min(count, queue.max_offset - offset)
        places = queue.places(offset, count) if count > 0 else None
        if places is None:
            return None
        offsets, sizes = places
        if bulk and (fitting := _fitting(sizes, byte_limit)) < count:
            count, offsets, sizes = fitting, offsets[:fitting], sizes[:fitting]
        begin, end, size = offsets[0], offsets[-1] + sizes[-1], sum(sizes)
        file = self._log.file_at(begin)
        if file is None or end > file.end or size > byte_limit or self._log.end - begin > self._memory_bytes:
            return None
        view, start = file.view, file.start
        is_last = file is self._log.files[-1]
        if verify or begin < self.written_from or not is_last:
            places_in_file = [at - start for at in offsets]
            if not _all_there(view, places_in_file, offsets, sizes, queue.queue_id, offset):
                return None
            if (verify or not (is_last or bulk)) and not _all_sound(view, places_in_file, sizes, queue.topic_bytes):
                return None
        if begin + size == end:  # side by side, for offsets only rise and records do not overlap
            views: tuple[memoryview, ...] = (view[begin - start : end - start],)
        else:
            views = tuple([view[at - start : at - start + length] for at, length in zip(offsets, sizes, strict=True)])
        return ReadResult(_FOUND, offset + count, queue.min_offset, queue.max_offset, count, size, views)

    def _read_entries(
        self,
        queue: ConsumeQueue,
        entries: Iterator[Entry],
        offset: int,
        low: int,
        high: int,
        max_count: int,
        max_bytes: int,
        codes: frozenset[int] | None,
        matches: Callable[[str], bool] | None,
        bulk: bool,
        verify: bool,
    ) -> ReadResult:
        commit_log, mender = self._log, self._mender
        log_start, log_end, last_start = commit_log.start, commit_log.end, commit_log.files[-1].start
        views: list[memoryview] = []
        count = size = skip_below = physical_offset = count_limit = byte_limit = 0
        run_begin = run_end = -1  # records that lie side by side and go out as one slice
        begin, deadline = offset, monotonic() + MATCHING_SECONDS
        for physical_offset, entry_size, code in entries:
            if count and (count >= count_limit or size + entry_size > byte_limit):
                break
            if matches is not None and monotonic() > deadline and offset > begin:
                break
            offset += 1
            if 0 <= physical_offset < skip_below or (codes and code not in codes and code >= LOWEST_TAG_HASH):
                continue
            if entry_size == FILLER_SIZE:  # it says nothing about the entries behind it
                continue
            entry = physical_offset, entry_size, code
            if physical_offset < log_start and mender.is_gone(queue, offset - 1, entry):
                skip_below = commit_log.next_file_start(physical_offset)
                continue
            follow = mender.sound if verify or (physical_offset < last_start and not bulk) else mender.mended
            if (found := follow(queue, offset - 1, entry)) is None:
                continue
            if found is not entry:
                physical_offset, entry_size, code = found
                if codes and code not in codes and code >= LOWEST_TAG_HASH:
                    continue
            if matches is not None and not _is_match(commit_log, physical_offset, entry_size, matches):
                continue
            if physical_offset != run_end:
                if count:
                    views.append(commit_log.slice(run_begin, run_end))
                else:
                    count_limit, byte_limit = self._limits(log_end - physical_offset, max_count, max_bytes, bulk)
                run_begin = run_end = physical_offset
            run_end += entry_size
            size += entry_size
            count += 1
        if count:
            views.append(commit_log.slice(run_begin, run_end))
        slow = log_end - physical_offset > self._memory_bytes
        status = _FOUND if count else GetStatus.MESSAGE_WAS_REMOVING if skip_below else GetStatus.NO_MATCHED_MESSAGE
        return ReadResult(status, offset, low, high, count, size, tuple(views), slow)

    def _limits(self, distance: int, max_count: int, max_bytes: int, bulk: bool) -> tuple[int, int]:
        """How many messages and bytes one read may bring that begins so far from the end of the log."""
        config = self._config
        max_bytes = max(max_bytes, _MIN_PULL_BYTES)
        if bulk:
            return min(max_count, BULK_MAX_COUNT), min(max_bytes, BULK_MAX_BYTES)
        if distance > self._memory_bytes:
            return (
                min(max_count, config.max_transfer_count_on_message_in_disk),
                min(max_bytes, config.max_transfer_bytes_on_message_in_disk),
            )
        return (
            min(max_count, config.max_transfer_count_on_message_in_memory),
            min(max_bytes, config.max_transfer_bytes_on_message_in_memory),
        )


def _all_there(
    view: memoryview,
    places: list[int],
    offsets: tuple[int, ...],
    sizes: tuple[int, ...],
    queue_id: int,
    queue_offset: int,
) -> bool:
    """Whether the heads of these records lie there, and are of this queue and of consecutive offsets."""
    queue_offsets = range(queue_offset, queue_offset + len(places))
    try:
        heads = [*map(PLACE.unpack_from, repeat(view), places)]
    except struct.error:
        return False
    return heads == [*zip(sizes, repeat(MAGIC_V1), repeat(queue_id), queue_offsets, offsets)]


def _all_sound(view: memoryview, places: list[int], sizes: tuple[int, ...], topic: bytes) -> bool:
    """Whether these records match their checksums."""
    try:
        for place, size in zip(places, sizes, strict=True):
            check_at(view, place, place + size, topic=topic)
    except ProtocolError:
        return False
    return True


def _where_unread(queue: ConsumeQueue, low: int, high: int) -> int:
    """The first message that a reader may not know whose offset is behind the end of the queue.

    Either the queue is a new one, and the reader knows none of it; or a crash took its end, and the reader knows at
    most what was there when the store was opened. Apache's brokers go to the end, past what came since.
    """
    return low if low == 0 else min(max(queue.recovered_end, low), high)


def _is_match(commit_log: CommitLog, offset: int, size: int, matches: Callable[[str], bool]) -> bool:
    """A damaged record is not hidden from those who filter, nor one that the filter fails on: neither ends the read."""
    try:
        properties = properties_of(commit_log.slice(offset, offset + size))
    except ProtocolError:
        return True
    try:
        return matches(properties)
    except Exception:
        log.exception("a filter fails on the message at %d; it is taken to match", offset)
        return True


def _fitting(sizes: tuple[int, ...], max_bytes: int) -> int:
    """How many of the first records fit; at least one goes."""
    return max(bisect_right(list(accumulate(sizes)), max_bytes), 1)


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
