"""An event loop in a thread of its own, and the way there and back for the other threads.

A call that crosses costs two switches of threads, whatever is done. What can be saved is saved: callers leave their
calls in a queue and wake the loop once for all that wait there, and each waits for a bare lock.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextvars import Context, copy_context
from typing import Any, ClassVar, Generic, NoReturn, ParamSpec, TypeVar, TypeVarTuple, cast
from weakref import WeakSet

from cosmodrome.client.lifecycle import MADE_BEFORE_FORK, abandon_all, behalf_of
from cosmodrome.errors import ClientError, LifecycleError
from cosmodrome.net.loop import loop_factory

# At the end of the interpreter: how long what still runs on the loop may take to be cancelled.
EXIT_TIMEOUT_SECONDS = 1.0
# How long a caller who was interrupted waits for what he had asked for to be cancelled.
CANCEL_TIMEOUT_SECONDS = 1.0
# A signal interrupts the wait of the main thread, unless the system hands it to another thread: then Python learns of
# it, and calls the handler when the main thread runs again.
SIGNAL_CHECK_SECONDS = 0.5

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
Args = TypeVarTuple("Args")
Work = Callable[P, Coroutine[Any, Any, T]]


class _Call(Generic[T]):
    """Work for the loop, and a lock that is free once the work has ended."""

    __slots__ = ("args", "context", "ended", "error", "kwargs", "result", "task", "work")

    def __init__(self, work: Work[..., T], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.work = work
        self.args = args
        self.kwargs = kwargs
        self.context: Context = copy_context()
        self.task: asyncio.Task[None] | None = None
        self.result: T | None = None
        self.error: BaseException | None = None
        self.ended = threading.Lock()
        self.ended.acquire()

    async def run(self) -> None:
        try:
            self.result = await self.work(*self.args, **self.kwargs)
        except BaseException as error:
            self.error = error
        # The waiting thread must not be the one to free the task: asyncio notes that in a callback, and an interrupt
        # that comes there is lost.
        self.task = None
        self._end()

    def _end(self) -> None:
        self.ended.release()

    def outcome(self) -> T:
        error, self.error = self.error, None  # its traceback leads here: no cycle is left behind
        if error is None:
            return cast(T, self.result)
        try:
            if isinstance(error, asyncio.CancelledError):
                raise ClientError("what was asked for was cancelled on the client's event loop") from error
            raise error
        finally:
            del error


class _SubmittedCall(_Call[T]):
    """Work that nobody waits for. Cancelling its future cancels it."""

    __slots__ = ("future",)

    def __init__(self, work: Work[..., T], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        super().__init__(work, args, kwargs)
        self.future: Future[T] = Future()

    def fail(self, error: Exception) -> None:
        self.error = error
        self._end()

    def _end(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.outcome())
        except BaseException as error:
            self.future.set_exception(error)


async def _on_behalf(thread: int, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
    behalf_of.set(thread)  # in the context of this one task
    return await work(*args, **kwargs)


class Room:
    """For calls of one client that are made without waiting for them, and have not ended; who makes one more waits."""

    def __init__(self, max_calls: int) -> None:
        self._max_calls = max_calls
        self._free = threading.BoundedSemaphore(max_calls)
        self.leave = self._free.release

    def enter(self, *, may_wait: bool) -> None:
        if not self._free.acquire(blocking=may_wait):
            raise ClientError(f"{self._max_calls} calls are under way; on the client's own loop one more cannot wait")


class LoopThread:
    """An event loop in a daemon thread; one per process, started with the first client. Tests bring their own loop."""

    _shared: ClassVar[LoopThread | None] = None
    _making: ClassVar[threading.Lock] = threading.Lock()
    _all: ClassVar[WeakSet[LoopThread]] = WeakSet()

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, used_by: str = "this client") -> None:
        self._used_by = used_by
        self._calls: deque[_Call[Any]] = deque()
        self._is_woken = False
        self._submitted: set[_SubmittedCall[Any]] = set()  # not ended yet
        self._dead: str | None = None  # why, if it is
        self._is_exiting = False
        self._loop = loop or loop_factory()()
        self._thread = threading.Thread(target=self._main, name="cosmodrome-client", daemon=True)
        self._all.add(self)
        self._thread.start()

    @classmethod
    def shared(cls) -> LoopThread:
        with cls._making:
            if cls._shared is None:
                cls._shared = cls()
            return cls._shared

    @property
    def is_dead(self) -> bool:
        return self._dead is not None

    @property
    def is_own(self) -> bool:
        """Return whether the caller runs on this loop."""
        return threading.get_ident() == self._thread.ident

    def run(self, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """The outcome of `work`, done on the loop. An interrupted wait, as by Ctrl-C, cancels it.

        It may have ended by then: what it returned is lost.
        """
        if self._dead is not None:
            self._refuse()
        if self.is_own:
            raise ClientError("a blocking call on the client's own loop would wait for itself; use a def handler")
        call = _Call(work, args, kwargs)
        try:
            self._hand_over(call)
            while not call.ended.acquire(timeout=SIGNAL_CHECK_SECONDS):
                if not self._thread.is_alive() and not call.ended.acquire(blocking=False):
                    self._refuse()  # the loop was closed with the call in the queue, or not begun
        except BaseException:
            gone = threading.Event()
            if self._wake(self._cancel, call, gone.set):
                gone.wait(CANCEL_TIMEOUT_SECONDS)  # so that the next call does not meet it
            raise
        if self._is_exiting and call.error is not None:
            self._refuse()
        return call.outcome()

    def run_for_thread(self, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """`run`, where it matters that it is the same thread that calls each time."""
        return cast(T, self.run(cast(Any, _on_behalf), threading.get_ident(), work, *args, **kwargs))

    def post(self, function: Callable[[], object]) -> None:
        """Have it called on the loop, some time, if there still is one."""
        if self._dead is None:
            self._wake(function)

    def submit(
        self, room: Room, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Have `work` done on the loop; waits only until there is room. Callbacks run on the loop."""
        if self._dead is not None:
            self._refuse()
        room.enter(may_wait=not self.is_own)
        call = _SubmittedCall(work, args, kwargs)
        call.future.add_done_callback(lambda future: self._submitted_ended(call, room, future))
        self._submitted.add(call)
        try:
            self._hand_over(call)
        except BaseException:
            self._wake(self._take)  # the interrupt may have come before the loop was woken
            raise
        if self._loop.is_closed():
            self._end_submitted()
        return call.future

    def _submitted_ended(self, call: _SubmittedCall[T], room: Room, future: Future[T]) -> None:
        self._submitted.discard(call)
        room.leave()
        if future.cancelled():
            self._wake(self._cancel, call, _nothing)

    def _hand_over(self, call: _Call[Any]) -> None:
        self._calls.append(call)
        if not self._is_woken:  # else the loop will look into the queue, and has not begun to
            self._is_woken = True
            self._wake(self._take)

    def _wake(self, function: Callable[[*Args], object], *args: *Args) -> bool:
        """Have it called on the loop; False if that is closed."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return False
        return True

    def _refuse(self) -> NoReturn:
        """A daemon thread at the end of the interpreter is held: it ends in a moment, and an error would be noise."""
        if self._is_exiting and threading.current_thread().daemon:
            threading.Event().wait()
        raise LifecycleError(self._dead)

    # --- on the loop

    def _take(self) -> None:
        self._is_woken = False  # first: what is appended from now on may be missed here
        while self._calls:
            call = self._calls.popleft()
            call.task = self._loop.create_task(call.run(), context=call.context)

    def _cancel(self, call: _Call[Any], then: Callable[[], object]) -> None:
        self._take()  # the interrupt may have come between leaving the call and waking the loop
        if call.task is None:
            then()
        else:
            call.task.add_done_callback(lambda _: then())
            call.task.cancel()

    def _main(self) -> None:
        try:
            self._run_loop()
        except BaseException as error:
            self._failed(error)
        try:
            self._wind_down()
        finally:
            self._loop.close()
            self._end_submitted()

    def _run_loop(self) -> None:
        """Until `close` stops it. What a task or callback of the application raises to exit comes out of the loop; here
        it ends nothing else, as in any thread but the main one: the loop belongs to all clients."""
        while True:
            try:
                return self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                log.exception("something on the event loop of the clients exited; the loop goes on")
                if self._dead is not None:
                    self._loop.stop()  # what `close` told it may have been forgotten

    def _failed(self, error: BaseException) -> None:
        """Say so, and have the next client start another."""
        log.critical("the event loop of the clients failed, and they have ended", exc_info=error)
        self._dead = self._dead or f"the client's event loop has failed; make a new client: {error!r}"
        with self._making:
            if LoopThread._shared is self:
                LoopThread._shared = None

    def _wind_down(self) -> None:
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks, timeout=EXIT_TIMEOUT_SECONDS / 2))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        if not self._is_exiting:  # else its threads have ended, and no other may be started to wait for them
            self._loop.run_until_complete(self._loop.shutdown_default_executor())

    def _end_submitted(self) -> None:
        """No loop will: it is closed."""
        while self._submitted:
            with contextlib.suppress(KeyError):  # whoever takes it ends it
                self._submitted.pop().fail(LifecycleError(self._dead))

    # --- the end of the process, and the beginning of another

    @classmethod
    def end(cls) -> None:
        """The interpreter exits. What was not stopped is cancelled, so that it ends without a word in the log."""
        thread, cls._shared = cls._shared, None
        if thread is None:
            return
        thread._is_exiting = True
        thread.close("the interpreter is exiting, and its clients have ended")

    def close(self, why: str) -> None:
        """Cancel what still runs on the loop, and end the thread."""
        self._dead = why
        try:
            abandon_all(self._loop)  # warns, and warnings may be errors
        finally:
            self._wake(self._loop.stop)
            self._thread.join(EXIT_TIMEOUT_SECONDS)

    @classmethod
    def disown(cls) -> None:
        """This process was forked: the loops' threads are not here, and their sockets are the parent's."""
        cls._making = threading.Lock()  # the old one may be held by a thread that is not here
        cls._shared = None
        for thread in cls._all:
            thread._dead = thread._dead or f"{thread._used_by} {MADE_BEFORE_FORK}"


def _nothing() -> None:
    """Nobody waits for the end of what is cancelled."""


os.register_at_fork(after_in_child=LoopThread.disown)
atexit.register(LoopThread.end)
