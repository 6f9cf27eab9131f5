"""The sends of a producer: counted, those in the background bounded, and all of them ended before it stops."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, copy_context
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from cosmodrome.client.lifecycle import cancelled
from cosmodrome.errors import Closed, TooManySends

log = logging.getLogger(__name__)

T = TypeVar("T")

# What follows a send, as a callback does, may go on for this long when the producer stops.
FINISH_SECONDS = 3.0
# A send fails at its deadline; this much later it has done so.
_GRACE_SECONDS = 1.0

# Called with how a send ended, its result or what it raised: def or async def.
Callback = Callable[[T | BaseException], Awaitable[None] | None]


class _Begin(NamedTuple):
    begun: asyncio.Future[Any]
    context: Context
    begin: Callable[[], asyncio.Future[Any]]


class AsyncSends:
    """The sends under way, and what follows them: callbacks, for example.

    `start` takes a send while there are fewer than `max_count` of them with fewer than `max_bytes`, so the last one
    taken may pass the bytes. It never waits: whoever has more to send waits for `room`, or `in_turn`. Those that are
    awaited by their callers are only counted: `with sends.awaited(deadline)`.
    """

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._bytes = 0
        self._sends: set[asyncio.Task[Any]] = set()
        self._followers: set[asyncio.Task[Any]] = set()
        self._waiters: set[asyncio.Future[None]] = set()
        self._last_deadline = 0.0
        self._awaited = 0  # by their callers, and those in line
        self._one_ended: asyncio.Future[None] | None = None  # what `drain` waits for
        self._is_closed = False
        self._in_line: deque[_Begin] = deque()  # those that came while there was no room

    @property
    def count(self) -> int:
        return len(self._sends)

    @property
    def is_full(self) -> bool:
        return len(self._sends) >= self._max_count or self._bytes >= self._max_bytes

    def start(
        self,
        send: Callable[[], Coroutine[Any, Any, T]],
        size_bytes: int,
        deadline: float,
        callback: Callback[T] | None = None,
    ) -> asyncio.Task[T]:
        """A task that sends; TooManySends when there is no room. A callback takes what it raises."""
        if self.is_full:
            raise TooManySends(
                f"{self.count} sends of {self._bytes} bytes are under way; `await producer.room()` before the next"
            )
        task = asyncio.get_running_loop().create_task(send())
        self._sends.add(task)
        self._bytes += size_bytes
        self._last_deadline = max(self._last_deadline, deadline + _GRACE_SECONDS)

        def ended(done: asyncio.Task[T]) -> None:
            self._sends.discard(done)
            self._bytes -= size_bytes
            self._wake()
            self._note_end()
            if callback is not None and not done.cancelled():
                self._call_back(callback, done.exception() or done.result())

        task.add_done_callback(ended)
        return task

    async def in_turn(self, begin: Callable[[], asyncio.Future[T]]) -> T:
        """Call `begin` as soon as there is room, after those that came before. A place in the line outlasts a stop."""
        self._awaited += 1
        try:
            if self._in_line or self.is_full:
                begun = await self._begun_later(begin)
            else:
                begun = self._begun(begin)
        finally:
            self._awaited -= 1
            self._note_end()
        return await begun

    def _begun(self, begin: Callable[[], asyncio.Future[T]]) -> asyncio.Future[T]:
        if self._is_closed:
            raise Closed("the producer was stopped, and those before this send did not end in time")
        return begin()

    async def _begun_later(self, begin: Callable[[], asyncio.Future[T]]) -> asyncio.Future[T]:
        """Whoever makes room calls `begin` at once, in our context, so that none that comes later gets ahead."""
        begun: asyncio.Future[asyncio.Future[T]] = asyncio.get_running_loop().create_future()
        self._in_line.append(_Begin(begun, copy_context(), lambda: self._begun(begin)))
        try:
            return await begun
        except asyncio.CancelledError:
            if begun.done() and not begun.cancelled() and begun.exception() is None:
                begun.result().cancel()
            raise

    def awaited(self, deadline: float) -> AsyncSends:
        """To be entered around a send that its caller awaits. Every send pays for it, so it does no more than count."""
        self._awaited += 1
        ended_by = deadline + _GRACE_SECONDS
        if ended_by > self._last_deadline:
            self._last_deadline = ended_by
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._awaited -= 1
        if self._one_ended is not None:
            self._note_end()

    def finish(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do a piece of work that should not end with whoever began it."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        self._followers.add(task)
        self._last_deadline = max(self._last_deadline, loop.time() + FINISH_SECONDS)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._followers.discard(task)
        self._note_end()

    def _call_back(self, callback: Callback[T], outcome: T | BaseException) -> None:
        try:
            called = callback(outcome)
        except Exception:
            log.exception("the callback %r of a send failed", callback)
            return
        if inspect.isawaitable(called):
            self.finish(_watched(callback, called))

    def _wake(self) -> None:
        while self._in_line and not self.is_full:
            begun, context, begin = self._in_line.popleft()
            if begun.done():  # cancelled
                continue
            try:
                begun.set_result(context.run(begin))
            except Exception as error:
                begun.set_exception(error)
        if self._waiters and not self.is_full:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def room(self) -> None:
        """Return once there is room for one more."""
        while self.is_full:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    async def drain(self) -> None:
        """Wait until all have ended, the sends by their deadlines; what takes longer is cancelled, if it is a task."""
        loop = asyncio.get_running_loop()
        while self._sends or self._followers or self._awaited:
            seconds = self._last_deadline - loop.time()
            if seconds <= 0:
                break
            self._one_ended = loop.create_future()
            await asyncio.wait([self._one_ended], timeout=seconds)
        self._is_closed = True
        await cancelled(self._sends | self._followers)

    def _note_end(self) -> None:
        if self._one_ended is not None and not self._one_ended.done():
            self._one_ended.set_result(None)


async def _watched(callback: Callback[Any], called: Awaitable[None]) -> None:
    try:
        await called
    except Exception:
        log.exception("the callback %r of a send failed", callback)
