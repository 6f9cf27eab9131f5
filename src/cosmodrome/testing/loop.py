"""Event loops for simulations: one whose threads a seed schedules, and one whose hours pass in no time besides."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from random import Random
from typing import Any, TypeVar, TypeVarTuple

MAX_TURNS = 4  # of the loop, before work for a thread is done, and again before its result is known
# How long, in real seconds, a virtual loop that waits for no time at all may wait for somebody outside the process.
PATIENCE_SECONDS = 10
_START_MS = 1_700_000_000_000

T = TypeVar("T")
Args = TypeVarTuple("Args")


class SeededLoop(asyncio.SelectorEventLoop):
    """What would run in a thread runs on the loop, a few turns later; its result arrives a few turns after that.

    So other tasks go on before and behind it as they would beside a thread, but the same seed gives the same run.
    After `kill` no work is done any more, as in a process that died.
    """

    def __init__(self, random: Random, selector: selectors.BaseSelector | None = None) -> None:
        super().__init__(selector)
        self._random = random
        self._dead = False

    def kill(self) -> None:
        self._dead = True

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Args], T], *args: *Args) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        self._later(self._work, future, func, args)
        return future

    def _later(self, callback: Callable[..., None], *args: Any) -> None:
        self._after(self._random.randrange(MAX_TURNS), callback, args)

    def _after(self, turns: int, callback: Callable[..., None], args: tuple[Any, ...]) -> None:
        if turns:
            self.call_soon(self._after, turns - 1, callback, args)
        else:
            self.call_soon(callback, *args)

    def _work(self, future: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...]) -> None:
        if self._dead:
            return
        try:
            result = func(*args)
        except BaseException as error:  # a killed process must not go on waiting for it
            self._later(_set_exception, future, error)
        else:
            self._later(_set_result, future, result)


class _Hasty(selectors.DefaultSelector):
    """Waits for nothing: when no socket has anything to say, the time it was to wait is over."""

    elapsed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events and timeout is None:
            events = super().select(PATIENCE_SECONDS)
            if not events:
                raise RuntimeError("every task waits for another one: nothing will ever happen")
        elif not events and timeout is not None:
            self.elapsed += max(timeout, 0)
        return events


class VirtualLoop(SeededLoop):
    """A loop with a time of its own, which passes only while everybody waits: an hour of mostly waiting is over soon.

        with asyncio.Runner(loop_factory=lambda: VirtualLoop(Random(7))) as runner:
            runner.run(main())                            # with LoopClock() for those who want a clock

    Time stands still while anything can be done, and then goes on to the next timer at once. Timeouts and sleeps keep
    their order. Sockets are real, as long as both ends are in this process; threads are as in `SeededLoop`.
    """

    def __init__(self, random: Random) -> None:
        self._hasty = _Hasty()
        super().__init__(random, self._hasty)

    def time(self) -> float:
        return self._hasty.elapsed


class LoopClock:
    """A `Clock` that goes with the time of the running loop."""

    def __init__(self, start_ms: int = _START_MS) -> None:
        self._start_ms = start_ms

    def now_ms(self) -> int:
        """To the nearest: whoever slept for some milliseconds finds that they have passed."""
        return self._start_ms + round(asyncio.get_running_loop().time() * 1000)

    async def sleep(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)


def _set_result(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
