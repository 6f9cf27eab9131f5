"""Sends that go on while their caller does something else: counted, bounded, and ended with their producer."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from cosmodrome.client.lifecycle import cancelled
from cosmodrome.errors import TooManySends

log = logging.getLogger(__name__)

T = TypeVar("T")

# What follows a send, as a callback does, may go on for this long when the producer stops.
FINISH_SECONDS = 3.0
# A send fails at its deadline; this much later it has done so.
_GRACE_SECONDS = 1.0

# Called with how a send ended, its result or what it raised: def or async def.
Callback = Callable[[T | BaseException], Awaitable[None] | None]


class AsyncSends:
    """The sends under way, and what follows them: callbacks, for example.

    `start` takes a send while there are fewer than `max_count` of them with fewer than `max_bytes`, so the last one
    taken may pass the bytes. It never waits: whoever has more to send waits for `room`.
    """

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._bytes = 0
        self._sends: set[asyncio.Task[Any]] = set()
        self._followers: set[asyncio.Task[Any]] = set()
        self._waiters: set[asyncio.Future[None]] = set()
        self._last_deadline = 0.0

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
            if callback is not None and not done.cancelled():
                self._call_back(callback, done.exception() or done.result())

        task.add_done_callback(ended)
        return task

    def finish(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do a piece of work that should not end with whoever began it."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        self._followers.add(task)
        self._last_deadline = max(self._last_deadline, loop.time() + FINISH_SECONDS)
        task.add_done_callback(self._followers.discard)
        return task

    def _call_back(self, callback: Callback[T], outcome: T | BaseException) -> None:
        try:
            called = callback(outcome)
        except Exception:
            log.exception("the callback %r of a send failed", callback)
            return
        if inspect.isawaitable(called):
            self.finish(_watched(callback, called))

    def _wake(self) -> None:
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
        """Wait until all have ended, the sends by their deadlines; what takes longer is cancelled."""
        loop = asyncio.get_running_loop()
        while under_way := self._sends | self._followers:
            seconds = self._last_deadline - loop.time()
            if seconds <= 0:
                break
            await asyncio.wait(under_way, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        await cancelled(self._sends | self._followers)


async def _watched(callback: Callback[Any], called: Awaitable[None]) -> None:
    try:
        await called
    except Exception:
        log.exception("the callback %r of a send failed", callback)
