"""A store whose log is a Raft group's: what is visible is what is committed, and a start trusts nothing else."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from cosmodrome.clock import Clock
from cosmodrome.config import StoreConfig
from cosmodrome.errors import NotCommitted
from cosmodrome.release import ReleaseGroup
from cosmodrome.store.commit_log import Visit
from cosmodrome.store.flusher import Flusher, Work
from cosmodrome.store.lock import Exit
from cosmodrome.store.message import Durability
from cosmodrome.store.raft_log import RaftCommitLog
from cosmodrome.store.recovery import Recovered, Recovery

_LOST = (
    "in-sync replicas not enough: this broker leads its group no more, and the message may be stored or lost; send it "
    "again to the new master"
)
_LATE = "in-sync replicas not enough: no majority of the group has the message yet, and it may be stored or lost"


class Commits(Flusher):
    """What the group has committed, in the place of what is on disk: the group syncs before it counts a member.

    A promise is one of a leadership: when it ends, nobody knows whether what was not committed will be, and other
    messages may come to the same places. So those places are remembered until they are written again.
    """

    def __init__(
        self,
        group_log: RaftCommitLog,
        config: StoreConfig,
        clock: Clock,
        *,
        on_flushed: Callable[[int, int], Iterable[None]],
        on_safe: Callable[[], None],
        on_failed: Callable[[str], None],
        checkpoint: Callable[[], Work],
    ) -> None:
        super().__init__(
            group_log, config, clock, on_flushed=on_flushed, on_safe=on_safe, on_failed=on_failed, checkpoint=checkpoint
        )
        self.group_commit = True
        self._is_leading = False
        self._promised: deque[int] = deque()  # the ends of what this leadership has written, and is not committed
        self._lost: set[int] = set()  # those of the leadership before
        self.committed = self.flushed  # the position behind what the group has committed, as far as known

    def lead(self) -> None:
        """Begin to make promises."""
        self._is_leading = True

    def stop_leading(self) -> None:
        """Answer all senders whose messages are not committed."""
        self._is_leading = False
        self._lost = set(self._promised)
        self._promised.clear()
        self._groups.close()  # those of this turn wait, too
        self._release(self._waiting.take_all(), Durability.FLUSH_DISK_TIMEOUT)

    def proposed(self, end: int) -> None:
        """Note that this leadership has written an entry that ends here."""
        self._promised.append(end)
        self._lost.discard(end)

    def commit_to(self, end: int) -> None:
        """Show what the group has committed up to here."""
        self.committed = max(self.committed, end)
        while self._promised and self._promised[0] <= end:
            self._promised.popleft()
        self.wake()

    def begin_at(self, start: int) -> None:
        """Follow a log that was begun again."""
        self.flushed = self.committed = start

    async def durable(self, end: int, *, wait: bool = True) -> Durability:
        """Return once the group has committed everything up to `end`; NotCommitted if that is not known in time."""
        if end in self._lost or (end > self.committed and not self._is_leading):
            raise NotCommitted(_LOST)
        if await super().durable(end, wait=wait) is Durability.OK:
            return Durability.OK
        raise NotCommitted(_LATE if self._is_leading else _LOST)

    def _ask(self, group: ReleaseGroup[Durability], end: int) -> Durability | None:
        if end > self.flushed and not self._is_leading:
            return Durability.FLUSH_DISK_TIMEOUT
        return super()._ask(group, end)

    async def _sync(self, threads: ThreadPoolExecutor) -> None:
        end, timestamp = self.committed, self._log.last_timestamp
        checkpoint = self._checkpoint_if_due()
        if end > self.flushed and await self._take_in(end, timestamp, self._cuts):
            self.flushed = end
            self._on_safe()
        if self.committed > end:
            self._wake.set()
        if checkpoint is not None:
            self._checkpointing = asyncio.ensure_future(self._write(checkpoint, threads))


class CommittedRecovery(Recovery):
    """Recovery of what was derived from a group's log, which the group itself has recovered before."""

    def _mend(self, begin: int, last_exit: Exit, visit: Visit | None = None) -> tuple[int, int]:
        """Return where the log ends twice: it is not looked at for damage, its members compare theirs."""
        if visit is not None:
            self._log.scan(begin, self._log.end, visit, verify=False)
        return self._log.end, self._log.end

    def _scan(self, begin: int, end: int, queues_end: int) -> int:
        """Enter what is known to be committed. The last exit may have known of more, and its queues speak of it."""
        return super()._scan(min(begin, end), end, max(queues_end, begin))

    def _after_clean_exit(self) -> Recovered:
        """Trust what the last exit left only if it speaks of the same end; queues may lead behind it else."""
        if self._log.files and self._known_end() is None:
            return self._after_crash(Exit.CLEAN)
        return super()._after_clean_exit()

    def _known_end(self) -> int | None:
        """The end that was written down at exit, if the group knows it to be committed and no more."""
        clean_end = self._checkpoint.clean_end
        if clean_end is None or clean_end[0] != self._log.end:
            return None
        head = self._log.head_at(clean_end[1])
        if head is not None:
            self._remember(head)
            self._records = 0
        return clean_end[0]
