"""Handling the messages of each queue one after the other, and what happens when a handler fails."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cosmodrome.client.concurrent import Delivery
from cosmodrome.client.described import described, described_queue, duration, note_failure, quoted, reason_of
from cosmodrome.client.handlers import Calls, Consume, drained, this_task
from cosmodrome.client.process_queue import ProcessQueue
from cosmodrome.client.results import Ended, OrderlyStatus, status_of
from cosmodrome.clock import Clock
from cosmodrome.errors import RetryLater, SuspendQueue
from cosmodrome.model import MessageQueue, ReceivedMessage

log = logging.getLogger(__name__)

SUSPEND_MS = 1_000
# So long one queue may keep a worker that others wait for.
TURN_MS = 60_000

# Puts a message that failed too often among the dead letters; whether that succeeded.
Bury = Callable[[ReceivedMessage], Awaitable[bool]]


class _Item(NamedTuple):
    consume: Consume
    message: ReceivedMessage


@dataclass(eq=False, slots=True)
class _Lane:
    """One queue; its messages go from `waiting` to `portion` and, until they are committed, to `handled`."""

    queue: MessageQueue
    process: ProcessQueue
    waiting: deque[_Item] = field(default_factory=deque)
    portion: list[_Item] = field(default_factory=list)  # for one call of a handler; kept to be called again
    handled: list[_Item] = field(default_factory=list)
    is_ready: bool = False  # it waits for a worker
    is_running: bool = False  # it has one
    called: Consume | None = None  # whose handler runs
    is_closed: bool = False
    suspension: asyncio.Task[None] | None = None
    rested: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_work(self) -> bool:
        return not (self.is_closed or self.process.released) and bool(self.portion or self.waiting)

    @property
    def may_be_called(self) -> bool:
        """Whether a handler may run; that of a worker who is gone does so if it is in a thread."""
        return self.called is not None and (self.is_running or not self.called.is_async)

    def restart(self, process: ProcessQueue) -> None:
        """The queue is read anew, from another offset."""
        self.process = process
        self.waiting, self.portion, self.handled = deque(), [], []

    def take(self) -> list[_Item]:
        """What the handler gets next: the same as before, if that failed."""
        if not self.portion:
            consume = self.waiting[0].consume
            while self.waiting and len(self.portion) < (consume.batch or 1) and self.waiting[0].consume is consume:
                self.portion.append(self.waiting.popleft())
        return self.portion

    def pass_on(self, count: int) -> None:
        """The first of the portion were handled."""
        self.handled += self.portion[:count]
        self.portion = self.portion[count:]

    def commit(self) -> None:
        self.process.finish(_messages(self.handled))
        self.handled = []

    def roll_back(self) -> None:
        again = self.handled + self.portion
        self.waiting.extendleft(reversed(again))
        self.handled, self.portion = [], []


class OrderlyHandlers:
    """Calls handlers, of each queue one at a time and in the order of its offsets, of all at most `max_in_flight`.

    When a handler fails, its queue rests for a while and the handler gets the same messages again, until a message was
    delivered `max_reconsume_times` times again, or the handler wants it no more, and it is buried. Nothing is handled
    while `holds` denies that the queue is ours. What waits here is bounded by the process queues.
    """

    def __init__(
        self,
        max_in_flight: int,
        calls: Calls,
        bury: Bury,
        clock: Clock,
        holds: Callable[[MessageQueue], bool],
        *,
        auto_commit: bool = True,
        suspend_ms: int = SUSPEND_MS,
        max_reconsume_times: int | None = None,
    ) -> None:
        self._max_in_flight = max_in_flight
        self._calls = calls
        self._bury = bury
        self._clock = clock
        self._holds = holds
        self._auto_commit = auto_commit
        self._suspend_ms = suspend_ms
        self._max_reconsume_times = max_reconsume_times
        self._lanes: dict[MessageQueue, _Lane] = {}
        self._ready: deque[_Lane] = deque()
        self._working: set[asyncio.Task[None]] = set()
        self._stopped = False
        self.unended: set[MessageQueue] = set()  # after `stop`: their handlers may still run

    def submit(self, delivery: Delivery) -> None:
        if self._stopped:
            return
        queue = delivery.messages[0].queue
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes[queue] = _Lane(queue, delivery.process)
        elif lane.process is not delivery.process:
            lane.restart(delivery.process)
            _wake(lane)
        lane.waiting.extend(_Item(delivery.consume, message) for message in delivery.messages)
        self._find_worker(lane)

    def is_busy(self, queue: MessageQueue) -> bool:
        """Whether a handler runs that has messages of this queue."""
        return queue in self._lanes and self._lanes[queue].is_running

    def close(self, queue: MessageQueue) -> None:
        """Hand out no more of what is here of this queue."""
        if (lane := self._lanes.get(queue)) is not None:
            lane.is_closed = True
            _wake(lane)

    async def let_go(self, queue: MessageQueue) -> None:
        """Hand out no more of this queue, and return when its handler has ended."""
        self.close(queue)
        lane = self._lanes.get(queue)
        while lane is not None and lane.is_running:
            await lane.rested.wait()
        self._lanes.pop(queue, None)

    def _find_worker(self, lane: _Lane) -> None:
        if self._stopped or lane.is_ready or lane.is_running or lane.suspension is not None or not lane.has_work:
            return
        lane.is_ready = True
        self._ready.append(lane)
        if len(self._working) < self._max_in_flight:
            self._working.add(asyncio.create_task(self._work()))

    async def _work(self) -> None:
        try:
            while self._ready:
                lane = self._ready.popleft()
                lane.is_ready = False
                await self._consume(lane)
        finally:  # not a turn later: who is counted as working takes what comes
            self._working.discard(this_task())

    async def _consume(self, lane: _Lane) -> None:
        """Go through the lane until it is empty, has to rest, or has had its turn."""
        began_ms = self._clock.steady_ms()
        lane.is_running = True
        lane.rested.clear()
        pause_ms = 0
        try:
            while not pause_ms and self._may_call(lane, lane.process):
                pause_ms = await self._call(lane)
                if self._ready and self._clock.steady_ms() - began_ms >= TURN_MS:
                    break
        finally:
            lane.is_running = False
            lane.rested.set()
        if pause_ms and not (self._stopped or lane.is_closed):
            lane.suspension = asyncio.create_task(self._resume_later(lane, pause_ms))
        elif self._holds(lane.queue):
            self._find_worker(lane)

    def _may_call(self, lane: _Lane, process: ProcessQueue) -> bool:
        return not self._stopped and lane.process is process and lane.has_work and self._holds(lane.queue)

    async def _resume_later(self, lane: _Lane, pause_ms: int) -> None:
        await self._clock.sleep(pause_ms)
        lane.suspension = None
        self._find_worker(lane)

    async def _call(self, lane: _Lane) -> int:
        """One call of a handler; how long to rest after it."""
        process, portion = lane.process, lane.take()
        consume = portion[0].consume
        async with self._calls.room(consume):
            if not self._may_call(lane, process):
                return 0
            lane.called = consume
            ended = await self._calls.call(consume, _messages(portion))
            lane.called = None  # not after a cancellation: a def goes on in its thread
        if process.released or lane.process is not process:
            return 0
        match status_of(ended):
            case OrderlyStatus.SUSPEND:
                return await self._failed(lane, ended)
            case OrderlyStatus.ROLLBACK:
                ids = described(self._calls.group, _messages(lane.handled + portion))
                log.info("messages rolled back: %s next=%s", ids, duration(self._suspend_ms))
                lane.roll_back()
                return self._suspend_ms
            case status:
                lane.pass_on(len(portion))
                self._settle(lane, commit=status is OrderlyStatus.COMMIT)
                return 0

    def _settle(self, lane: _Lane, commit: bool = False) -> None:
        if commit or self._auto_commit:
            lane.commit()
        elif lane.process.is_full and not lane.waiting:
            ids = described_queue(self._calls.group, lane.queue)
            log.warning("queue stands still, all it may hold is handled and nothing committed: %s", ids)

    async def _failed(self, lane: _Lane, ended: Ended) -> int:
        error, pause_ms, process = ended.error, self._suspend_ms, lane.process
        if isinstance(error, RetryLater):
            lane.pass_on(error.done)
            self._settle(lane)
        if isinstance(error, SuspendQueue):
            pause_ms = error.ms
        if not lane.portion:
            return pause_ms
        reason = "the handler returned SUSPEND" if error is None else reason_of(error)
        ids = described(self._calls.group, _messages(lane.portion))
        if error is None or isinstance(error, RetryLater):
            log.info("queue suspended: %s next=%s reason=%s", ids, duration(pause_ms), quoted(reason))
        else:
            again = duration(pause_ms)
            log.warning("handler failed: %s next=%s reason=%s", ids, again, quoted(reason), exc_info=error)
        note_failure(_messages(lane.portion), reason)
        at_once = isinstance(error, RetryLater) and error.delay_level < 0
        buried = [item for item in lane.portion if await self._is_buried(item.message, at_once)]
        if process.released or lane.process is not process:
            return 0
        process.finish(_messages(buried))
        lane.portion = [item for item in lane.portion if item.message.queue_offset in process]
        for item in lane.portion:
            item.message.reconsume_times += 1
        return pause_ms if lane.portion else 0

    async def _is_buried(self, message: ReceivedMessage, at_once: bool) -> bool:
        limit = self._max_reconsume_times
        is_spent = limit is not None and message.reconsume_times >= limit
        return (at_once or is_spent) and await self._bury(message)

    async def run(self) -> None:
        """No handler is given up for taking long: the next message must not overtake it."""

    def is_worker(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether it calls handlers."""
        return task in self._working

    async def stop(self, timeout_ms: int, *, but_for: asyncio.Task[Any] | None = None) -> None:
        """Start no more handlers; wait for those that run, and give up on them after `timeout_ms`."""
        self._stopped = True
        self._ready.clear()
        for lane in self._lanes.values():
            _wake(lane)
        await drained(self._working, timeout_ms, but_for)
        self.unended = {lane.queue for lane in self._lanes.values() if lane.may_be_called}


def _wake(lane: _Lane) -> None:
    if lane.suspension is not None:
        lane.suspension.cancel()
        lane.suspension = None


def _messages(items: Iterable[_Item]) -> list[ReceivedMessage]:
    return [item.message for item in items]
