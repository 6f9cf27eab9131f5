"""Long work in small steps, at most one step in each turn of the event loop.

Some requests cost as much as a peer asks for: a heartbeat with thousands of groups, the figures of a topic with 65,536
queues, the end of a connection that was in many groups. Such work is written as an iterator that yields after every
step of a few milliseconds. All of it shares one lane, so that a hundred peers who ask for it together still take one
step of a turn from everyone else; among themselves they take turns. What cannot be cut into steps, such as the parsing
of a long body, goes to the lane's one thread: there it competes with the loop for the interpreter, but only once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


def steps_of(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Return `items` in pieces of at most `size`."""
    return (items[first : first + size] for first in range(0, len(items), size))


class Lane:
    """The order in which long works take their steps."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_due = False
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lane")

    def __len__(self) -> int:
        """Return how many works wait for their next step."""
        return len(self._waiting)

    async def turn(self) -> None:
        """Return when the next step may be taken."""
        loop = asyncio.get_running_loop()
        step = loop.create_future()
        self._waiting.append(step)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._next)
        await step

    async def run(self, steps: Iterable[object]) -> None:
        """Go through `steps`, of which the first is taken at once."""
        for _ in steps:
            await self.turn()

    def start(self, steps: Iterable[object]) -> None:
        """Take the first step now; if there are more, go on in the background."""
        rest = iter(steps)
        for _ in rest:
            if self._is_closed:
                return
            task = asyncio.get_running_loop().create_task(self._finish(rest))
            self._tasks.add(task)
            task.add_done_callback(self._finished)
            return

    async def aside(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, which is done in the lane's thread, after all that waits for it already."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Give up what goes on in the background."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _finish(self, steps: Iterable[object]) -> None:
        await self.turn()
        await self.run(steps)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work in the background failed", exc_info=error)

    def _next(self) -> None:
        while self._waiting:
            step = self._waiting.popleft()
            if not step.done():  # cancelled
                step.set_result(None)
                break
        self._is_due = bool(self._waiting)
        if self._is_due:
            asyncio.get_running_loop().call_soon(self._next)
