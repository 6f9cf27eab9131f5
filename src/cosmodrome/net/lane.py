"""Long work in small steps, at most one step in each turn of the event loop.

Some requests cost as much as a peer asks for: a heartbeat with thousands of groups, the figures of a topic with 65,536
queues, the end of a connection that was in many groups. Such work is written as an iterator that yields after every
step of a few milliseconds. All of it shares one lane, so that a hundred peers who ask for it together still take one
step of a turn from everyone else; among themselves they take turns. What cannot be cut into steps, such as the parsing
of a long body, goes to the lane's one thread: there it competes with the loop for the interpreter, but only once.

Turns go from connection to connection: one that asks for a thousand things at once waits for them longer than others
wait for one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


# The connection that the loop works for at the moment: while it handles its requests, and in all tasks made for them.
OWNER: ContextVar[Hashable] = ContextVar("owner", default=None)


def steps_of(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Return `items` in pieces of at most `size`."""
    return (items[first : first + size] for first in range(0, len(items), size))


class _Line:
    """A queue of waiters that gives turns to the first of each owner, then to the second of each, and so on."""

    def __init__(self) -> None:
        self._of: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def join(self) -> asyncio.Future[None]:
        """Return what is done when the turn has come."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._of.setdefault(OWNER.get(), deque()).append(turn)
        return turn

    def let_go_on(self) -> bool:
        """Give the next one its turn; False if none waits."""
        while self._of:
            owner, turns = self._of.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._of[owner] = turns
            if not turn.done():  # cancelled
                turn.set_result(None)
                return True
        return False

    def cancel(self) -> None:
        for turns in self._of.values():
            for turn in turns:
                turn.cancel()
        self._of.clear()


class Lane:
    """The order in which long works take their steps."""

    def __init__(self) -> None:
        self._line = _Line()
        self._is_due = False
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lane")
        self._thread_line = _Line()
        self._is_thread_taken = False

    def __len__(self) -> int:
        """Return how many works wait for their next step."""
        return len(self._line)

    async def turn(self) -> None:
        """Return when the next step may be taken."""
        turn = self._line.join()
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._next)
        await turn

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
        """Return what `work` returns, which is done in the lane's thread when its turn has come."""
        if self._is_thread_taken:
            turn = self._thread_line.join()
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it had come
                    self._leave_thread()
                raise
        self._is_thread_taken = True
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._leave_thread()

    def _leave_thread(self) -> None:
        self._is_thread_taken = self._thread_line.let_go_on()

    def close(self) -> None:
        """Give up what goes on in the background."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        self._thread_line.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _finish(self, steps: Iterable[object]) -> None:
        OWNER.set(object())  # whatever gave cause for it, such work is for others
        await self.turn()
        await self.run(steps)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work in the background failed", exc_info=error)

    def _next(self) -> None:
        self._line.let_go_on()
        self._is_due = bool(self._line)
        if self._is_due:
            asyncio.get_running_loop().call_soon(self._next)
