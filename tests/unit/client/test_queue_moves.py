"""Queues that come and go while something else is done with them: one task pulls a queue that is ours, and none any
other; and nobody moves an offset that is not his."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from cosmodrome.client.assigned_queue import Pace
from cosmodrome.client.consume_stats import ConsumeStatistics
from cosmodrome.client.feed import Feed
from cosmodrome.client.fetched_queues import FetchedQueues
from cosmodrome.client.held_queues import HeldQueues, QueuesInOrder, Reading
from cosmodrome.client.locks import BrokerLocks
from cosmodrome.client.membership import Membership, Subscribed
from cosmodrome.client.offsets import OffsetKeeper, StartRule
from cosmodrome.client.orderly import OrderlyHandlers
from cosmodrome.client.process_queue import DEFAULT_LIMITS
from cosmodrome.client.watching import Watch
from cosmodrome.model import ConsumeFrom, MessageQueue
from cosmodrome.testing import FakeClock

A, B = (MessageQueue("T", "broker-a", queue_id) for queue_id in range(2))
INTERVAL_MS = 5_000

Q = TypeVar("Q", bound=HeldQueues)


class Gate:
    """Lets pass whoever comes, unless it is shut; says when somebody waits."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._reached = asyncio.Event()

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        self._reached.set()
        await self._open.wait()

    async def reached(self) -> None:
        self._reached.clear()
        await self._reached.wait()


class Offsets:
    """A store that takes its time, if told to."""

    def __init__(self) -> None:
        self.stored: dict[MessageQueue, int] = {A: 5, B: 5}
        self.commits: list[dict[MessageQueue, int]] = []
        self.reading = {A: Gate(), B: Gate()}
        self.committing = Gate()

    async def read(self, queue: MessageQueue) -> int:
        await self.reading[queue].passed()
        return self.stored[queue]

    async def commit(self, offsets: dict[MessageQueue, int]) -> None:
        self.commits.append(dict(offsets))
        self.stored |= offsets
        await self.committing.passed()

    commit_soon = commit


class Locks:
    def __init__(self) -> None:
        self.ours: set[MessageQueue] = set()
        self.on_lost: Any = None

    def holds(self, queue: MessageQueue) -> bool:
        return queue in self.ours

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        self.ours |= set(queues)
        return set(self.ours)

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        self.ours -= set(queues)

    async def unlock_all(self, but: Iterable[MessageQueue]) -> None:
        self.ours &= set(but)


class Handlers:
    """Of an orderly consumer that has nothing to do."""

    unended: frozenset[MessageQueue] = frozenset()

    def close(self, queue: MessageQueue) -> None: ...

    def is_busy(self, queue: MessageQueue) -> bool:
        return False

    async def let_go(self, queue: MessageQueue) -> None: ...


class Desk:
    """Queues of a consumer that is paused: pulls are there, but ask for nothing."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.offsets = Offsets()
        self.locks = Locks()
        self.going = Gate()  # while listeners are told of queues that go
        self.tasks: list[tuple[str, asyncio.Task[None]]] = []
        instance = SimpleNamespace(run=self._run)
        membership = SimpleNamespace(instance=instance, rebalance_soon=lambda: None)
        rule = StartRule(ConsumeFrom.FIRST_OFFSET)
        reading = Reading("g", rule, DEFAULT_LIMITS, Pace(paused=True), lambda *_: None, ConsumeStatistics(0))
        self._parts = (
            reading,
            cast(Membership, membership),
            cast(OffsetKeeper, self.offsets),
            self.clock,
        )

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.tasks.append((name, task))
        return task

    @property
    def pulls(self) -> int:
        """How many tasks pull."""
        return sum(not (task.done() or task.cancelling()) for name, task in self.tasks if name.startswith("pull"))

    def as_they_come(self) -> HeldQueues:
        return HeldQueues(*self._parts)

    def in_order(self) -> QueuesInOrder:
        return QueuesInOrder(*self._parts, cast(OrderlyHandlers, Handlers()), cast(BrokerLocks, self.locks))

    def fetched(self) -> FetchedQueues:
        async def came(_queues: Iterable[MessageQueue]) -> None: ...

        async def go(_queues: Iterable[MessageQueue]) -> None:
            await self.going.passed()

        feed = Feed(self.clock, cast(Any, None), Watch("g"))
        return FetchedQueues(*self._parts, feed, came, go)


async def holding(queues: Q, *wanted: MessageQueue) -> Q:
    assert await queues.acquire(wanted, cast(Subscribed, None)) == set(wanted)
    return queues


# --- pulls


async def test_to_read_anew_does_not_begin_to_read_what_is_let_go() -> None:
    desk = Desk()
    queues = await holding(desk.as_they_come(), A, B)
    assert desk.pulls == 2
    desk.offsets.committing.shut()
    releasing = asyncio.create_task(queues.release([A]))
    await desk.offsets.committing.reached()
    queues.read_anew()  # as a pause does
    desk.offsets.committing.open()
    await releasing
    assert (queues.held, desk.pulls) == ([B], 1)


async def test_to_read_anew_during_a_reset_leaves_one_pull() -> None:
    desk = Desk()
    queues = await holding(desk.as_they_come(), A)
    desk.offsets.committing.shut()
    resetting = asyncio.create_task(queues.reset({A: 0}))
    await desk.offsets.committing.reached()
    queues.read_anew()
    desk.offsets.committing.open()
    await resetting
    assert desk.pulls == 1
    await queues.stop_pulling()
    assert desk.pulls == 0


async def test_a_reset_does_not_begin_to_read_a_queue_that_is_about_to_go_and_its_next_owner_begins_there() -> None:
    desk = Desk()
    queues = await holding(desk.fetched(), A)
    desk.going.shut()
    releasing = asyncio.create_task(queues.release([A]))
    await desk.going.reached()
    await queues.reset({A: 2})
    desk.going.open()
    await releasing
    assert (queues.held, desk.pulls) == ([], 0)
    assert desk.offsets.stored[A] == 2


# --- locks


async def test_a_queue_whose_lock_is_lost_while_another_is_asked_for_is_not_taken() -> None:
    desk = Desk()
    queues = desk.in_order()
    desk.offsets.reading[B].shut()
    acquiring = asyncio.create_task(queues.acquire([A, B], cast(Subscribed, None)))
    await desk.offsets.reading[B].reached()
    desk.locks.ours.discard(A)
    queues.lost({A})
    desk.offsets.reading[B].open()
    assert await acquiring == {B}
    assert (queues.held, desk.pulls) == ([B], 1)


async def test_of_a_queue_whose_lock_has_lapsed_no_offset_is_told() -> None:
    desk = Desk()
    queues = await holding(desk.in_order(), A, B)
    desk.locks.ours.discard(A)  # the renewal has not noticed yet
    regular = asyncio.create_task(queues.commit_regularly(INTERVAL_MS))
    await desk.clock.advance(INTERVAL_MS)
    regular.cancel()
    assert desk.offsets.commits == [{B: 5}]
    await queues.release([A])
    assert (queues.held, desk.offsets.commits[1:]) == ([B], [])


async def test_at_the_end_neither() -> None:
    desk = Desk()
    queues = await holding(desk.in_order(), A, B)
    desk.locks.ours.discard(A)
    await queues.close()
    assert desk.offsets.commits == [{B: 5}]


# --- what the regular commits tell


async def test_the_regular_commit_says_nothing_of_a_queue_that_is_let_go() -> None:
    desk = Desk()
    queues = await holding(desk.as_they_come(), A, B)
    desk.offsets.committing.shut()
    releasing = asyncio.create_task(queues.release([A]))
    await desk.offsets.committing.reached()
    regular = asyncio.create_task(queues.commit_regularly(INTERVAL_MS))
    await desk.clock.advance(INTERVAL_MS)
    assert desk.offsets.commits == [{A: 5}, {B: 5}]
    desk.offsets.committing.open()
    regular.cancel()
    await releasing
