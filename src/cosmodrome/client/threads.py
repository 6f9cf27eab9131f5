"""Threads for the application's functions."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# What a coroutine must not raise just because a function did: with the first, which a future cannot carry, who waits
# would wait for ever; the second says that the coroutine is closed; the others end the loop, and all that run there.
_NOT_FOR_LOOPS = (StopIteration, GeneratorExit, SystemExit, KeyboardInterrupt)


class _Job(NamedTuple):
    future: Future[Any]
    function: Callable[[], Any]


class DaemonThreads(Executor):
    """Up to `max_threads` threads, started when needed.

    The standard pool makes the end of the interpreter wait for every function that runs, and refuses further ones while
    the rest of the program still goes on. These just end with the process: a function that hangs does not keep it.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._names = (f"{name}-{number}" for number in itertools.count())
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._changing = threading.Lock()
        self._count = 0
        self._unfinished = 0  # jobs that run or wait: as long as there may be, there are as many threads
        self._is_shut = False

    def start(self, count: int) -> None:
        """Have this many threads ready."""
        with self._changing:
            while self._count < min(count, self._max_threads):
                self._start_one()

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._changing:
            if self._is_shut:
                raise RuntimeError("these threads are shut down")
            if self._unfinished >= self._count and self._count < self._max_threads:
                self._start_one()
            self._unfinished += 1
            self._jobs.put(_Job(future, lambda: function(*args, **kwargs)))
        return future

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """As `asyncio.to_thread`, in one of these."""
        in_context = functools.partial(copy_context().run, function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self, in_context)

    def _start_one(self) -> None:
        threading.Thread(target=self._work, name=next(self._names), daemon=True).start()
        self._count += 1

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function = job
            if not future.set_running_or_notify_cancel():
                self._finished()
            else:
                try:
                    result = self._run(function)
                except _NOT_FOR_LOOPS as error:
                    future.set_exception(_caused_by(error))
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del job, future, function  # a thread that waits holds on to nothing

    def _run(self, function: Callable[[], T]) -> T:
        try:
            return function()
        finally:
            self._finished()  # before anybody knows: whoever then submits another job needs no other thread

    def _finished(self) -> None:
        with self._changing:
            self._unfinished -= 1

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Take no more; what runs is never waited for, whatever `wait` says."""
        with self._changing:
            self._is_shut = True
            if cancel_futures:
                self._cancel_waiting()
            for _ in range(self._count):
                self._jobs.put(None)

    def _cancel_waiting(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return
            if job is not None:
                job.future.cancel()


def _caused_by(error: BaseException) -> RuntimeError:
    """As a coroutine turns a StopIteration into one."""
    raised = RuntimeError(f"a function raised {error!r}")
    raised.__cause__ = error
    return raised
