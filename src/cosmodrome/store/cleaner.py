"""Deleting what is no longer kept, off the event loop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from cosmodrome.clock import Clock, sleep_unless
from cosmodrome.config import StoreConfig
from cosmodrome.mapped_file import MappedFile, delete_for_good
from cosmodrome.store.commit_log import CommitLog
from cosmodrome.store.consume_queues import ConsumeQueues
from cosmodrome.store.index_file import Index
from cosmodrome.store.paths import StorePaths, disk_folder
from cosmodrome.store.retention import LogFile, Retention

log = logging.getLogger(__name__)

FIRST_DELETION_MS = 60_000  # after a start, so that whoever started a broker by mistake can still stop it
# After a gap so long the date may be wrong, as it is on machines without a battery: files may turn out to be younger.
DOUBTFUL_GAP_MS = 24 * 3_600_000
DOUBT_MS = 3_600_000
QUEUES_PER_TURN = 50

DiskUsed = Callable[[Path], float]
Need = Callable[[], int | None]  # the place in the log of the oldest record that is still needed, if any is


def disk_used(path: Path) -> float:
    """The share of a disk that is used, as `df` counts it."""
    disk = os.statvfs(path)
    used = disk.f_blocks - disk.f_bfree
    return used / (used + disk.f_bavail) if used + disk.f_bavail else 0.0


class Cleaner:
    """Carries out what `Retention` decides: whole files of the log, never the last; then what led into them.

    `needs` say, by what it is, from where on the log is still needed by those who promised to deliver it later: no file
    from there on goes, whatever its age and however full the disk is.

    Lists change on the loop and at once, so a reader sees a file or does not; files go in a thread, one by one, each
    for good before the next. So whenever the process dies, the log on disk is in one piece.
    """

    def __init__(
        self,
        paths: StorePaths,
        config: StoreConfig,
        clock: Clock,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        *,
        settled: Callable[[], int],
        on_disk_full: Callable[[str | None], None],
        used: DiskUsed = disk_used,
        redated: Callable[[int], int] = lambda date_ms: date_ms,
        gap_ms: int = 0,
    ) -> None:
        """`redated` says what date a file would have by the clock as it is set now. `gap_ms` lie, by their dates,
        between the last message and this start on another boot."""
        self._redated = redated
        self._gap_ms = gap_ms
        self._doubt_until_ms = clock.steady_ms() + DOUBT_MS if gap_ms > DOUBTFUL_GAP_MS else 0
        self._folders = {"CL": paths.commit_log, "CQ": paths.consume_queue, "INDEX": paths.index}
        self.shares: dict[str, float] = {}  # by folder, how much of its disk was used at the last look
        self._config = config
        self._clock = clock
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._settled = settled
        self._on_disk_full = on_disk_full
        self._used = used
        self.retention = Retention(config)
        self.needs: dict[str, Need] = {}
        self._kept = ""  # why the last round kept a file that would have gone
        self._cleaned_to = commit_log.start
        self._forgotten: deque[MappedFile] = deque()  # in no list any more, but still on disk
        self._retry_ms = 0
        self._asked = asyncio.Event()
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """Watch the disk from the first moment on; delete only after a while, unless asked to."""
        if self._doubt_until_ms:
            log.warning(
                "the last message is %d hours older than this start: files that have expired are kept for another "
                "hour; see that the machine's clock is right",
                self._gap_ms // 3_600_000,
            )
        deletes_from_ms = self._clock.steady_ms() + FIRST_DELETION_MS
        while True:
            self._asked.clear()
            if self.retention.is_asked or self._clock.steady_ms() >= deletes_from_ms:
                await self.clean()
            else:
                await self.measure()
            await sleep_unless(self._asked, self._clock, self._config.clean_resource_interval)

    def delete_soon(self) -> None:
        """Delete expired files now, whatever the hour."""
        self.retention.delete_soon()
        self._asked.set()

    async def measure(self) -> float:
        """How full the disk is; the store is told whether it may write."""
        try:
            shares = self.shares = await asyncio.to_thread(self._measure)
        except OSError as error:
            log.warning("cannot tell how full the disk is: %s", error)
            return 0.0
        used = max(shares.values())
        self._on_disk_full(_refusal(shares, self._kept) if self.retention.is_full(used) else None)
        return used

    def _measure(self) -> dict[str, float]:
        """How full the disk of each folder is; one that is not made yet will be on the disk above it."""
        return {name: self._used(disk_folder(folder)) for name, folder in self._folders.items()}

    async def clean(self) -> None:
        """One round: old files of the log, then files of queues and index that lead nowhere any more."""
        async with self._turn:
            await self._clean_log()
            if self._cleaned_to < self._log.start:
                await self._clean_derived()

    async def clean_queues(self) -> None:
        """Look at every queue and index file now."""
        async with self._turn:
            await self._clean_derived()

    async def _clean_log(self) -> None:
        if self._clock.steady_ms() < self._retry_ms or not await self._delete_forgotten(0):
            return
        for _ in range(self._config.delete_file_batch_max):
            used = await self.measure()
            verdict = self.retention.decide(await self._candidates(), used, self._clock.now_ms())
            free = self._not_needed(verdict.delete)
            for file in free:
                taken = self._log.take_first()
                if taken is None:
                    return
                log.info("deleting file %d of the log: %s", file.start, verdict.reason)
                self._forgotten.append(taken)
                self._queues.log_moved()
                if not await self._delete_forgotten(self._config.delete_commit_log_files_interval):
                    return
            if not verdict.again or not free:
                return

    def _not_needed(self, files: Sequence[LogFile]) -> list[LogFile]:
        """The first of these files, up to one that holds what is yet to be delivered. Asked at the last moment: what is
        needed later lies behind what is needed now."""
        places = {what: place for what, need in self.needs.items() if (place := need()) is not None}
        first = min(places.values(), default=self._log.end)
        free = [file for file in files if file.start + self._config.mapped_file_size_commit_log <= first]
        kept = ""
        if len(free) < len(files):
            kept = f"{min(places, key=lambda what: places[what])} from offset {first} on"
            if kept != self._kept:
                log.warning('log file kept: file=%d reason="it holds %s"', files[len(free)].start, kept)
        self._kept = kept
        return free

    async def _candidates(self) -> list[LogFile]:
        """The oldest files that nobody needs: synced, and in their queues."""
        settled = self._settled()
        whole = (file for file in self._log.files[:-1] if file.start + file.size <= settled)
        files = await asyncio.to_thread(_aged, list(islice(whole, self._config.delete_file_batch_max)))
        return [file._replace(modified_ms=self._young_date(file.modified_ms)) for file in files]

    def _young_date(self, modified_ms: int) -> int:
        """When a file was last written to; of what date and elapsed time say, the later: setting the clock deletes
        nothing."""
        now_ms = self._clock.now_ms()
        if self._clock.steady_ms() < self._doubt_until_ms and not self.retention.is_asked:
            return now_ms
        redated_ms = self._redated(modified_ms)
        return max(modified_ms, redated_ms) if modified_ms <= now_ms else redated_ms

    async def _delete_forgotten(self, pause_ms: int) -> bool:
        """In the order they were forgotten. One that does not go is tried again later, and those behind it wait."""
        while self._forgotten:
            file = self._forgotten[0]
            try:
                await asyncio.to_thread(delete_for_good, file)
            except OSError as error:
                log.error("cannot delete %s: %s; trying again later", file.path, error)
                self._retry_ms = self._clock.steady_ms() + self._config.redelete_hanged_file_interval
                return False
            self._forgotten.popleft()
            await self._clock.sleep(pause_ms)
        return True

    async def _clean_derived(self) -> None:
        start = self._log.start
        for number, (topic, queue_id) in enumerate(self._all_queues(), 1):
            expired = self._queues.take_expired(topic, queue_id, start)
            if expired:
                log.info("deleting %d files of queue %d of %s: their messages are gone", len(expired), queue_id, topic)
                self._forgotten += expired
                if not await self._delete_forgotten(self._config.delete_consume_queue_files_interval):
                    return
            if number % QUEUES_PER_TURN == 0:
                await asyncio.sleep(0)
        if self._index is not None:
            for index_file in self._index.take_expired(start):
                log.info("deleting index file %s: its messages are gone", index_file.path.name)
                await asyncio.to_thread(index_file.delete)
        self._cleaned_to = start

    def _all_queues(self) -> Iterator[tuple[str, int]]:
        for topic in self._queues.topics():
            for queue_id in self._queues.ids(topic):
                yield topic, queue_id


def _aged(files: list[MappedFile]) -> list[LogFile]:
    return [LogFile(file.start, os.stat(file.path).st_mtime_ns // 1_000_000) for file in files]


def _refusal(shares: dict[str, float], kept: str) -> str:
    ratios = " ".join(f"{name}: {share:5.2f}" for name, share in shares.items())
    remedy = f"the log keeps {kept}" if kept else "let it keep messages for less time (fileReservedTime)"
    return f"the broker's disk is full [{ratios}]; make room{':' if kept else ' or'} {remedy}"
