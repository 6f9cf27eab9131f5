"""The queues a consumer holds: pulled while they are ours, committed as their messages finish."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from cosmodrome.client.assigned_queue import AssignedQueue, Deliver, Pace
from cosmodrome.client.consume_stats import ConsumeStatistics
from cosmodrome.client.described import described_queue
from cosmodrome.client.lifecycle import cancelled, going_on
from cosmodrome.client.locks import BrokerLocks
from cosmodrome.client.membership import Membership, Subscribed
from cosmodrome.client.offsets import OffsetKeeper, StartRule
from cosmodrome.client.orderly import OrderlyHandlers
from cosmodrome.client.process_queue import CacheLimits, ProcessQueue
from cosmodrome.clock import Clock
from cosmodrome.errors import CosmodromeError
from cosmodrome.model import MessageQueue

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reading:
    """How every queue of a consumer is read."""

    group: str
    start_rule: StartRule
    limits: CacheLimits
    pace: Pace
    deliver: Deliver
    statistics: ConsumeStatistics


@dataclass(eq=False, slots=True)
class Held:
    """One queue that is ours, and the task that pulls it."""

    assigned: AssignedQueue
    pulling: asyncio.Task[None] | None = None

    @property
    def process(self) -> ProcessQueue:
        return self.assigned.process

    async def stop_pulling(self) -> None:
        """From the first moment on there is no task, so nobody puts another in its place who finds one that ends."""
        pulling, self.pulling = self.pulling, None
        if pulling is not None:
            await cancelled([pulling])
            await self.assigned.settled()


class Progress(Mapping[MessageQueue, int]):
    """How far each queue is done, at the moment of looking. One that is let go, or may be somebody else's, is not in
    it: what is told of such a queue could set back its next owner."""

    def __init__(self, held: Mapping[MessageQueue, Held], is_ours: Callable[[MessageQueue], bool]) -> None:
        self._held = held
        self._is_ours = is_ours

    def __getitem__(self, queue: MessageQueue) -> int:
        process = self._held[queue].process
        if process.released or not self._is_ours(queue):
            raise KeyError(queue)
        return process.commit_offset

    def __iter__(self) -> Iterator[MessageQueue]:
        return iter([queue for queue in self._held if queue in self])

    def __len__(self) -> int:
        return sum(queue in self for queue in self._held)


class HeldQueues:
    """Takes and lets go of queues as membership tells; what is in process of a queue that goes is not waited for."""

    kind: ClassVar[type[AssignedQueue]] = AssignedQueue

    def __init__(self, reading: Reading, membership: Membership, offsets: OffsetKeeper, clock: Clock) -> None:
        self._reading = reading
        self._membership = membership
        self._instance = membership.instance
        self._offsets = offsets
        self._clock = clock
        self._held: dict[MessageQueue, Held] = {}
        self._moving = asyncio.Lock()  # held while queues are released or reset
        self._closed = False

    @property
    def held(self) -> Iterable[MessageQueue]:
        return list(self._held)

    def may_pull(self, queue: MessageQueue) -> bool:
        return True

    def locked_ms(self, queue: MessageQueue) -> int | None:
        """When its lock was renewed last, if it has one."""
        return None

    @property
    def processes(self) -> dict[MessageQueue, ProcessQueue]:
        return {queue: self._held[queue].process for queue in sorted(self._held)}

    # --- taking

    async def acquire(self, queues: Iterable[MessageQueue], subscribed: Subscribed) -> set[MessageQueue]:
        wanted = list(queues)
        offsets = await asyncio.gather(*map(self._start_offset, wanted))
        taken = {  # a lock may be lost while its queue's offset, or another's, is asked for
            queue: self._hold(queue, offset, subscribed)
            for queue, offset in zip(wanted, offsets, strict=True)
            if offset is not None and self._is_ours(queue)
        }
        await self._came(taken)
        for held in taken.values():
            if held.pulling is None:  # else it was told to go on elsewhere
                self._pull(held)
        return set(taken)

    async def _start_offset(self, queue: MessageQueue) -> int | None:
        """None if that can't be found out now."""
        try:
            offset = await self._offsets.read(queue)
            if offset is None:
                offset = await self._reading.start_rule.offset(self._instance, queue, self._reading.group, self._clock)
        except CosmodromeError as error:
            ids = described_queue(self._reading.group, queue)
            log.warning("start offset not found, asked again in the next round: %s error=%s", ids, error)
            return None
        return offset

    def _is_ours(self, queue: MessageQueue) -> bool:
        """Whether the group's offset of this queue is ours to move."""
        return True

    async def _came(self, taken: dict[MessageQueue, Held]) -> None:
        """These are ours now, and nothing has been read from them yet."""

    def _hold(self, queue: MessageQueue, offset: int, subscribed: Subscribed) -> Held:
        reading = self._reading
        assigned = self.kind(
            queue,
            ProcessQueue(offset, reading.limits),
            group=reading.group,
            wanted=subscribed,
            offsets=self._offsets,
            instance=self._instance,
            clock=self._clock,
            deliver=reading.deliver,
            pace=reading.pace,
            statistics=reading.statistics,
            is_ours=self.may_pull,
        )
        held = self._held[queue] = Held(assigned)
        return held

    def _pull(self, held: Held) -> None:
        held.pulling = self._instance.run(held.assigned.run(), f"pull {held.assigned.queue}")

    def share(self, topic: str, _all: tuple[MessageQueue, ...], mine: set[MessageQueue]) -> None:
        """What is said of the topic's cache is shared anew."""
        limits = self._reading.limits.shared_by(len(mine))
        for queue, process in self.processes.items():
            if queue.topic == topic:
                process.limits = limits

    def read_anew(self, topics: Container[str] | None = None) -> None:
        """A pull that waits at the broker goes by what was wanted when it was sent: ask again; of all topics if none
        are given."""
        for queue in self.held:
            wanted = topics is None or queue.topic in topics
            if wanted and not self._closed and (pulling := self._held[queue].pulling) is not None:
                pulling.cancel()
                self._pull(self._held[queue])

    # --- letting go

    async def release(self, queues: Iterable[MessageQueue]) -> bool:
        async with self._moving:
            await asyncio.gather(*map(self._release, list(queues)))
        return True

    async def _release(self, queue: MessageQueue) -> None:
        """The queue's new owner has started already."""
        held = self._held[queue]
        await held.stop_pulling()
        held.process.released = True
        await self._offsets.commit({queue: held.process.commit_offset})
        del self._held[queue]  # last, so that a stop in between commits as well
        self._reading.statistics.forget(queue)

    async def stop_pulling(self) -> None:
        """Nothing more is brought to the handlers."""
        self._closed = True
        await asyncio.gather(*(held.stop_pulling() for held in self._held.values()))

    async def close(self) -> None:
        """The handlers have ended: say how far they came."""
        await self.commit()
        self._held.clear()

    # --- offsets

    @property
    def commit_offsets(self) -> dict[MessageQueue, int]:
        return {queue: held.process.commit_offset for queue, held in self._held.items()}

    async def commit(self) -> None:
        ours = {queue: offset for queue, offset in self.commit_offsets.items() if self._is_ours(queue)}
        await self._offsets.commit(ours)

    async def commit_regularly(self, interval_ms: int) -> None:
        progress = Progress(self._held, self._is_ours)
        while True:
            await self._clock.sleep(interval_ms)
            with going_on("commit"):
                await self._offsets.commit_soon(progress)

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at these offsets, and let go of what is in process; queues that are not ours are left alone."""
        async with self._moving:
            ours = {queue: self._held[queue] for queue in self.held if queue in offsets}
            await asyncio.gather(*(self._reset(queue, offsets[queue], held) for queue, held in ours.items()))

    async def _reset(self, queue: MessageQueue, offset: int, held: Held) -> None:
        """Whatever happens on the way, the queue is read on if it is still ours."""
        try:
            await held.stop_pulling()
            held.assigned.restart_at(offset)
            await self._offsets.commit({queue: offset})
        finally:
            if not self._closed and self._held.get(queue) is held:
                self._pull(held)


class QueuesInOrder(HeldQueues):
    """Lets go of a queue only when its handler has ended, so that nobody handles the next message beside it.

    With `locks`, a queue is ours only while its broker says so.
    """

    def __init__(
        self,
        reading: Reading,
        membership: Membership,
        offsets: OffsetKeeper,
        clock: Clock,
        handlers: OrderlyHandlers,
        locks: BrokerLocks | None,
    ) -> None:
        super().__init__(reading, membership, offsets, clock)
        self._handlers = handlers
        self._locks = locks
        if locks is not None:
            locks.on_lost = self.lost
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}  # those whose handlers are waited for

    @property
    def held(self) -> Iterable[MessageQueue]:
        return [queue for queue in self._held if queue not in self._leaving]

    def may_pull(self, queue: MessageQueue) -> bool:
        return self._locks is None or self._locks.holds(queue)

    def _is_ours(self, queue: MessageQueue) -> bool:
        return self.may_pull(queue)

    def locked_ms(self, queue: MessageQueue) -> int | None:
        return None if self._locks is None else self._locks.renewed_ms(queue)

    async def acquire(self, queues: Iterable[MessageQueue], subscribed: Subscribed) -> set[MessageQueue]:
        """The lock comes before the offset: whoever had it may still have been committing."""
        wanted = [queue for queue in queues if queue not in self._leaving]
        if self._locks is None:
            return await super().acquire(wanted, subscribed)
        locked = list(await self._locks.lock(wanted))
        taken = await super().acquire(locked, subscribed)
        await self._locks.unlock(queue for queue in locked if queue not in taken)
        return taken

    async def release(self, queues: Iterable[MessageQueue]) -> bool:
        """Those whose handlers run are let go as soon as these end; whether there are none."""
        async with self._moving:
            held = {*self.held}  # some may be lost by now
            going = [queue for queue in queues if queue in held]
            for queue in going:
                self._begin_to_leave(queue, self._held[queue])
            if soon := [self._leaving[queue] for queue in going if not self._handlers.is_busy(queue)]:
                await asyncio.wait(soon)
            return not any(map(self._handlers.is_busy, going))

    def _begin_to_leave(self, queue: MessageQueue, held: Held) -> None:
        self._handlers.close(queue)
        self._leaving[queue] = self._instance.run(self._leave(queue, held), f"leave {queue}")

    async def _leave(self, queue: MessageQueue, held: Held) -> None:
        """The next owner begins after our last handler has ended, and where it ended."""
        try:
            await held.stop_pulling()
            await self._handlers.let_go(queue)
            if queue in self._handlers.unended:
                return
            if not held.process.released and self._is_ours(queue):
                await self._offsets.commit({queue: held.process.commit_offset})
            held.process.released = True
            self._held.pop(queue, None)
            self._reading.statistics.forget(queue)
            if self._locks is not None:
                await self._locks.unlock([queue])
        finally:
            del self._leaving[queue]

    def lost(self, queues: set[MessageQueue]) -> None:
        """Somebody else may have these now: commit nothing, and ask for them anew if they are still in our share."""
        for queue in queues & self._held.keys():
            held = self._held.pop(queue)
            held.process.released = True
            if not self._closed and queue not in self._leaving:
                self._begin_to_leave(queue, held)
        self._membership.rebalance_soon()

    async def close(self) -> None:
        unended = self._handlers.unended
        ending = [leaving for queue, leaving in self._leaving.items() if queue not in unended]
        await asyncio.gather(*ending, return_exceptions=True)
        await self.commit()
        if self._locks is not None:
            await self._locks.unlock_all(but=unended)
        self._held.clear()
