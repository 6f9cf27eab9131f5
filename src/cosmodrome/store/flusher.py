"""Getting the log onto the disk, off the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from cosmodrome.clock import Clock, sleep_unless
from cosmodrome.config import FlushDiskType, StoreConfig
from cosmodrome.errors import ServiceNotAvailable
from cosmodrome.mapped_file import MappedFile
from cosmodrome.release import ReleaseGroup, TurnGroups, WaitingLine
from cosmodrome.store.commit_log import CommitLog
from cosmodrome.store.message import Durability

PAGE_BYTES = 4096  # what `flushCommitLogLeastPages` counts in, whatever the machine's pages are

Work = Callable[[], None]


class Flusher:
    """Group commit: every append that waits shares the next fdatasync.

    With SYNC_FLUSH a flush follows each append as soon as the one before is done. With ASYNC_FLUSH one is due every
    `flushIntervalCommitLog`; a few pages wait for more to come, but not for long. `flushed` is the offset up to which
    the log is on disk. After a failed sync nobody knows what is on disk: nothing is flushed, and nothing called
    durable, ever again.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        config: StoreConfig,
        clock: Clock,
        *,
        on_flushed: Callable[[int, int], Iterable[None]],
        on_safe: Callable[[], None],
        on_failed: Callable[[str], None],
        checkpoint: Callable[[], Work],
    ) -> None:
        self._log = commit_log
        self._clock = clock
        self._interval_ms = config.flush_interval_commit_log
        self._least_bytes = config.flush_commit_log_least_pages * PAGE_BYTES
        self._thorough_ms = config.flush_commit_log_thorough_interval
        self._checkpoint_interval_ms = config.flush_consume_queue_thorough_interval
        self._timeout_ms = config.sync_flush_timeout
        self._on_flushed = on_flushed
        self._on_safe = on_safe
        self._on_failed = on_failed
        self._checkpoint = checkpoint
        self.group_commit = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.flushed = commit_log.end
        self.failure: str | None = None
        self._flushed_ms = self._checkpoint_ms = clock.steady_ms()
        self._wanted = 0
        self._checkpointing: asyncio.Future[None] | None = None
        self._groups = TurnGroups[Durability](self._ask, config.mapped_file_size_commit_log)
        self._waiting = WaitingLine[ReleaseGroup[Durability]]()
        self._timer: asyncio.TimerHandle | None = None  # for the first deadline; none while nothing waits
        self._wake = asyncio.Event()
        self._stopping = False
        self._cuts = 0
        self._syncing = threading.Lock()

    def wake(self) -> None:
        """There is something to flush, now."""
        self._wake.set()

    def want(self, end: int) -> None:
        """Something waits for the log to be on disk up to `end`: even a few pages are worth a flush."""
        self._wanted = end
        self._wake.set()

    async def durable(self, end: int, *, wait: bool = True) -> Durability:
        """Return once the log is on disk up to `end`, as far as this store promises that at all."""
        if self.failure is not None:
            raise ServiceNotAvailable(self.failure)
        if not self.group_commit or end <= self.flushed:
            return Durability.OK
        self._wake.set()
        if not wait:
            return Durability.OK
        outcome = await self._groups.join(end)
        if self.failure is not None:
            raise ServiceNotAvailable(self.failure)
        return outcome

    @property
    def waiters(self) -> int:
        """How many wait for a flush now."""
        return self._groups.waiting

    def _ask(self, group: ReleaseGroup[Durability], end: int) -> Durability | None:
        if end <= self.flushed or self.failure is not None:  # `durable` raises the failure
            return Durability.OK
        loop = asyncio.get_running_loop()
        deadline_ms = int(loop.time() * 1000) + self._timeout_ms
        self._waiting.add(group, end, deadline_ms)
        if self._timer is None:
            self._timer = loop.call_later(self._timeout_ms / 1000, self._expire, deadline_ms)
        return None

    def _expire(self, now_ms: int) -> None:
        """Release those whose deadline has come, and wait for the next one."""
        loop = asyncio.get_running_loop()
        now_ms = max(now_ms, int(loop.time() * 1000))
        self._release(self._waiting.take_late(now_ms), Durability.FLUSH_DISK_TIMEOUT)
        next_ms = self._waiting.deadline_ms
        self._timer = None
        if next_ms is not None:
            self._timer = loop.call_later((next_ms - now_ms) / 1000, self._expire, next_ms)

    def _release_flushed(self) -> None:
        done = self._waiting.take_safe(self.flushed) if self.failure is None else self._waiting.take_all()
        self._release(done, Durability.OK)  # or a failure, which `durable` raises

    def _release(self, groups: list[ReleaseGroup[Durability]], outcome: Durability) -> None:
        for group in groups:
            self._groups.release(group, outcome)

    async def run(self) -> None:
        with ThreadPoolExecutor(max_workers=2, thread_name_prefix="store-flush") as threads:
            while not self._stopping:
                await self._due()
                self._wake.clear()
                await self._flush(threads)
            await self._flush(threads)  # what came while the last flush was under way
            if self._checkpointing is not None:
                await self._checkpointing
        if self._timer is not None and not self._waiting:
            self._timer.cancel()
            self._timer = None

    async def _due(self) -> None:
        """Wait until a flush is wanted."""
        if self.group_commit:
            await self._wake.wait()
            return
        await sleep_unless(self._wake, self._clock, self._interval_ms)

    async def _flush(self, threads: ThreadPoolExecutor) -> None:
        """Sync what was appended so far, and release those that wait for it."""
        self._groups.close()  # those of this turn that come later wait for the next sync
        if self.failure is None:
            try:
                await self._sync(threads)
            except OSError as error:
                self._on_failed(f"the disk failed: {error}")
        if self._waiting:  # outside of this task: handlers go on at once, and wait for replicas next
            asyncio.get_running_loop().call_soon(self._release_flushed)

    async def _sync(self, threads: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        end, timestamp = self._log.end, self._log.last_timestamp
        checkpoint = self._checkpoint_if_due()
        if end > self.flushed and (checkpoint is not None or self._is_worth_it(end)):
            cuts = self._cuts
            await loop.run_in_executor(threads, self._sync_files, self._log.files_between(self.flushed, end), cuts)
            if await self._take_in(end, timestamp, cuts):
                self.flushed = end
                self._flushed_ms = self._clock.steady_ms()
                self._on_safe()
            else:
                self._wake.set()
        if checkpoint is not None:  # beside the flushes to come: it may have to sync thousands of files
            self._checkpointing = asyncio.ensure_future(self._write(checkpoint, threads))

    async def _take_in(self, end: int, timestamp: int, cuts: int) -> bool:
        """Let readers see what is on disk, in steps; False if the log was cut since the sync or meanwhile."""
        if cuts == self._cuts:
            for _ in self._on_flushed(end, timestamp):
                await asyncio.sleep(0)
                if cuts != self._cuts:
                    break
        return cuts == self._cuts

    def _sync_files(self, files: list[MappedFile], cuts: int) -> None:
        with self._syncing:
            if cuts == self._cuts:
                sync_files(files)

    @contextmanager
    def cutting(self, end: int) -> Iterator[None]:
        """Let no sync be under way while the log is cut at `end`; one that began before says nothing any more."""
        with self._syncing:
            self._cuts += 1
            yield
        self.flushed = min(self.flushed, end)

    async def _write(self, checkpoint: Work, threads: ThreadPoolExecutor) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(threads, checkpoint)
        except OSError as error:
            self._on_failed(f"the disk failed: {error}")

    def _is_worth_it(self, end: int) -> bool:
        if self.group_commit or self._stopping or self.flushed < self._wanted:
            return True
        if end - self.flushed >= self._least_bytes:
            return True
        return self._clock.steady_ms() - self._flushed_ms >= self._thorough_ms

    def _checkpoint_if_due(self) -> Work | None:
        """What to do for a checkpoint. Taken before the log is synced, so that it speaks of nothing behind that."""
        now_ms = self._clock.steady_ms()
        if now_ms - self._checkpoint_ms < self._checkpoint_interval_ms:
            return None
        if self._checkpointing is not None and not self._checkpointing.done():
            return None
        self._checkpoint_ms = now_ms
        return self._checkpoint()

    def fail(self, reason: str) -> None:
        """Promise nothing any more; whoever waits is told why."""
        self.failure = reason
        self._wake.set()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()


def sync_files(files: list[MappedFile]) -> None:
    for file in files:
        file.sync()
