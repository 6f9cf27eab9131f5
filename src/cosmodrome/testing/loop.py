"""Event loops for tests: one whose threads a seed schedules, and one whose hours pass in no time."""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context
from random import Random
from typing import Any, TypeVar, TypeVarTuple

from cosmodrome.errors import InvalidArgument
from cosmodrome.net.books import Books
from cosmodrome.net.connection import Connection

MAX_TURNS = 4  # of the loop, before work for a thread is done, and again before its result is known
# How long, in real seconds, a virtual loop waits for somebody outside the process before it calls that a deadlock, and
# for work in threads before it lets time pass all the same.
PATIENCE_SECONDS = 10
# How long, in real seconds, it looks before somebody's patience ends: the answer may be in the hands of the kernel.
GRACE_SECONDS = 0.004
# Without it, whoever waits for the last 10⁻¹⁶ seconds of something would wait for ever: they vanish in the sum.
SHORTEST_WAIT_SECONDS = 1e-6
# A long way is walked in long steps: what sleeps for less than this share of it, on a LoopClock, may sleep that long.
STRIDE_SHARE = 0.01
MAX_STRIDE_SECONDS = 10.0
_START_MS = 1_700_000_000_000

# What timers do that end nobody's patience: they wake a sleeper, or look whether a connection is still used.
_HARMLESS = frozenset(
    {asyncio.futures._set_result_unless_cancelled, Connection._watch_idle, Books._drop_late}  # type: ignore[attr-defined]
)

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
        """Do no work any more."""
        self._dead = True

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Args], T], *args: *Args) -> asyncio.Future[T]:
        """On this loop, some turns later."""
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
    """Waits for nothing before `horizon`: when no socket has anything to say, the time it was to wait is over.

    If it `flows`, the time of the world passes too, whatever is done meanwhile.
    """

    def __init__(self, flows: bool, deadline_is_next: Callable[[], bool]) -> None:
        super().__init__()
        self.deadline_is_next = deadline_is_next
        self.horizon = 0.0 if flows else math.inf
        self.idlers: list[asyncio.Future[None]] = []
        self._flows = flows
        self._began = time.monotonic()
        self._passed = 0.0  # without having been waited for; if nothing flows, all the time there is
        self._until: dict[object, float] = {}  # in real time: how long each piece of work in a thread is waited for

    @property
    def elapsed(self) -> float:
        return self._passed + time.monotonic() - self._began if self._flows else self._passed

    def work_began(self, work: object) -> None:
        self._until[work] = time.monotonic() + PATIENCE_SECONDS

    def work_ended(self, work: object) -> None:
        del self._until[work]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        if self._until and (patience := max(self._until.values()) - time.monotonic()) > 0:
            return self._wait(patience if timeout is None else min(timeout, patience))
        if self.idlers:
            return self._release_idlers()
        if self.elapsed >= self.horizon:
            return self._wait(timeout)
        if timeout is None and self.horizon == math.inf:
            return self._wait_for_others()
        if self.deadline_is_next() and (events := super().select(GRACE_SECONDS)):
            return events
        left = max(0.0, self.horizon - self.elapsed)
        self._passed += left if timeout is None else min(left, timeout)
        return []

    def _wait(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        began = time.monotonic()
        events = super().select(timeout)
        if not self._flows:
            waited = time.monotonic() - began
            self._passed += waited if timeout is None or events else timeout
        return events

    def _wait_for_others(self) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(PATIENCE_SECONDS)
        if not events:
            raise RuntimeError("every task waits for another one: nothing will ever happen")
        return events

    def _release_idlers(self) -> list[tuple[selectors.SelectorKey, int]]:
        idlers, self.idlers = self.idlers, []
        for idler in idlers:
            _set_result(idler, None)
        return []


class VirtualLoop(SeededLoop):
    """A loop with a time of its own, which passes only while everybody waits: an hour of mostly waiting is over soon.

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(main())                            # with LoopClock() for those who want a clock

    Time stands still while anything can be done, and then goes on to the next timer at once. Timeouts and sleeps keep
    their order. Sockets are real, as long as both ends are in this process. So are threads, which are waited for; with
    a `random` they are as in `SeededLoop`.

    A loop that `flows` keeps the pace of the world, and runs ahead of it only in `advance`.
    """

    def __init__(self, random: Random | None = None, *, flows: bool = False) -> None:
        self._hasty = _Hasty(flows, self._deadline_is_next)
        self._has_threads = random is None
        self._stride = 0.0
        super().__init__(random or Random(), self._hasty)

    def time(self) -> float:
        return self._hasty.elapsed

    def call_at(
        self, when: float, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return super().call_at(max(when, self.time() + SHORTEST_WAIT_SECONDS), callback, *args, context=context)

    def _deadline_is_next(self) -> bool:
        """Whether the next timer ends somebody's patience."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if not timers:
            return False
        callback = getattr(timers[0], "_callback", None)
        return getattr(callback, "__func__", callback) not in _HARMLESS

    async def advance(self, seconds: float) -> None:
        """Let so much time pass; all that falls due meanwhile has been done when this returns.

        It is done in its order, except that those who sleep on a `LoopClock` may be late by a hundredth of the whole
        distance, or ten seconds: nobody waits for two hours half a second at a time.
        """
        if seconds < 0:
            raise InvalidArgument(f"time does not run backwards: advance({seconds})")
        await self.idle()  # what has just begun gets to its first wait before time moves
        end = _full_ms(self._hasty.elapsed + seconds)
        self._hasty.horizon = max(self._hasty.horizon, end)
        self._stride, self._stride_end = min(MAX_STRIDE_SECONDS, seconds * STRIDE_SHARE), end
        try:
            await asyncio.sleep(end - self._hasty.elapsed)
        finally:
            self._stride = 0.0
        await self.idle()

    def stretched(self, seconds: float) -> float:
        """How long somebody sleeps who wants to sleep so long: never past the end of `advance` because of it.

        Whoever is stretched wakes together with the others.
        """
        if seconds >= self._stride:
            return seconds
        now = self._hasty.elapsed
        step = math.ceil((now + seconds) / self._stride) * self._stride
        return max(seconds, min(step, self._stride_end) - now)

    async def idle(self) -> None:
        """Return when nobody has anything to do until time passes."""
        idler: asyncio.Future[None] = self.create_future()
        self._hasty.idlers.append(idler)
        await idler

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Args], T], *args: *Args) -> asyncio.Future[T]:
        if not self._has_threads:
            return super().run_in_executor(executor, func, *args)
        future = asyncio.SelectorEventLoop.run_in_executor(self, executor, func, *args)
        self._hasty.work_began(future)
        future.add_done_callback(self._hasty.work_ended)
        return future


def _full_ms(seconds: float) -> float:
    """Clocks count milliseconds and round: what is due half of one later is meant to be due now."""
    return math.ceil(seconds * 1_000 - 1e-6) / 1_000


class LoopClock:
    """A `Clock` that goes with the time of a loop: the running one, or the one it is given.

    With a loop, it may also be read and slept on from other threads and loops.
    """

    def __init__(self, start_ms: int = _START_MS, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._start_ms = start_ms
        self._stepped_ms = 0
        self._loop = loop

    def now_ms(self) -> int:
        """To the nearest: whoever slept for some milliseconds finds that they have passed."""
        return self.steady_ms() + self._stepped_ms

    def steady_ms(self) -> int:
        """How far the loop's time has passed, whatever `step` did."""
        return self._start_ms + round((self._loop or asyncio.get_running_loop()).time() * 1000)

    @property
    def boot_id(self) -> str:
        """The same for all clocks of tests."""
        return "virtual"

    def step(self, ms: int) -> None:
        """Set the date forward, or back, as somebody does who sets a machine's clock. No time passes: nobody wakes."""
        self._stepped_ms += ms

    async def sleep(self, ms: int) -> None:
        """Until the loop's time has moved on by `ms` milliseconds."""
        if self._loop is None or self._loop is asyncio.get_running_loop():
            await _sleep(ms)
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_sleep(ms), self._loop))


async def _sleep(ms: int) -> None:
    """Until a clock that rounds shows so much more: part of a millisecond later, an `advance` to then would be over."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    seconds = (round(now * 1_000) + ms) / 1_000 - now if ms > 0 else 0.0
    if seconds > 0 and isinstance(loop, VirtualLoop):
        seconds = loop.stretched(seconds)
    await asyncio.sleep(seconds)


def _set_result(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
