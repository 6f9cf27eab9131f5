"""Waiting that ends: for calls that may block for ever, and for processes that may never end."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO, Any, AnyStr, ParamSpec, TypeVar

PATIENCE_SECONDS = 60
# For what is left in the pipes of processes that have been killed.
LAST_WORDS_SECONDS = 10

P = ParamSpec("P")
T = TypeVar("T")


class _Call(threading.Thread):
    """One call on a thread that nobody has to wait for: not the event loop when it closes, nor Python when it ends."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(name="bounded", daemon=True)
        self._call = call
        self.outcome: Future[Any] = Future()
        self.outcome.set_running_or_notify_cancel()
        self.start()

    def run(self) -> None:
        try:
            self.outcome.set_result(self._call())
        except BaseException as error:
            self.outcome.set_exception(error)

    def stuck(self, seconds: float) -> AssertionError:
        frame = sys._current_frames().get(self.ident or 0)
        place = "".join(traceback.format_stack(frame)) if frame is not None else "at its very end"
        return AssertionError(f"a call has not ended within {seconds} s; it is here:\n{place}")


def in_time(call: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
    """What the call returns or raises; if it does not end in time, an error that shows where it waits."""
    made = _Call(call)
    made.join(seconds)
    if made.is_alive():
        raise made.stuck(seconds)
    result: T = made.outcome.result()
    return result


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `asyncio.to_thread`, but a call that does not end in time is an error, and is not waited for any longer."""
    made = _Call(lambda: call(*args, **kwargs))
    waiting: asyncio.Future[T] = asyncio.wrap_future(made.outcome)
    await asyncio.wait([waiting], timeout=PATIENCE_SECONDS)
    if not waiting.done():
        waiting.cancel()
        raise made.stuck(PATIENCE_SECONDS)
    return waiting.result()


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """An error in the midst of the block if it takes too long, whether it waits on an event loop or without one.

    A signal and not a timeout of a loop, for fixtures and tests are different tasks. It comes again: what cleans up
    after the first one may wait in vain as well.
    """

    def give_up(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"still waiting after {seconds} s\n{_tasks()}")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _tasks() -> str:
    """Where the tasks of the running loop are, if one runs: an error out of the loop itself shows none of them."""
    told = io.StringIO()
    try:
        for task in asyncio.all_tasks():
            task.print_stack(file=told)
    except RuntimeError:
        pass
    return told.getvalue()


@contextmanager
def child(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process for the block: what has not ended by its end is killed."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(pipe: IO[AnyStr] | None, seconds: float = PATIENCE_SECONDS) -> AnyStr:
    """The next line that a process writes."""
    assert pipe is not None
    return in_time(pipe.readline, seconds)


def run_to_end(
    command: Sequence[str], seconds: float = PATIENCE_SECONDS, **options: Any
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run`, for what may fork: whoever holds its pipes at the deadline is killed with it."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **options
    ) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            kill_group(process)
            output, errors = process.communicate(timeout=LAST_WORDS_SECONDS)
            raise AssertionError(f"has not ended within {seconds} s, and said\n{output}\n{errors}") from None
        finally:
            kill_group(process)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def kill_group(process: subprocess.Popen[Any]) -> None:
    """With all that it has started; it must lead a session of its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
