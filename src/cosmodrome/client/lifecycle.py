"""Starting once, stopping once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from enum import Enum
from types import TracebackType
from typing import Self
from weakref import WeakSet

from cosmodrome.errors import AlreadyStarted, Closed, LifecycleError, NotStarted

log = logging.getLogger(__name__)

MADE_BEFORE_FORK = "was made before a fork, and only the parent process can use it; create it after the fork"


# On whose behalf a task works, if not its own: a thread, which makes a new task for each call.
behalf_of: ContextVar[object | None] = ContextVar("behalf_of", default=None)


class State(Enum):
    NEW = "is not started yet; use `with` or `async with`, or start()"
    RUNNING = "is running"
    STOPPED = "is stopped; make a new one"
    INHERITED = MADE_BEFORE_FORK

    @property
    def error(self) -> type[LifecycleError]:
        """The class of what is raised when a client in this state is asked for something that it cannot do."""
        return _ERRORS[self]


_ERRORS = {
    State.NEW: NotStarted,
    State.RUNNING: AlreadyStarted,
    State.STOPPED: Closed,
    State.INHERITED: LifecycleError,
}


class Startable(ABC):
    """What `async with` starts and stops. It runs once: after `stop`, make a new one. Stopping twice is harmless.

    Starting and stopping are tasks of their own, so that whoever waits for them may be cancelled. A cancelled `start`
    stops what had begun; a cancelled `stop` goes on by itself, and calling it again waits for its end.
    """

    def __init__(self) -> None:
        self._state = State.NEW
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        _startables.add(self)

    async def start(self) -> None:
        """Begin to work; `async with` does it, too."""
        if self._state is not State.NEW:
            raise self._state.error(f"cannot start: this {type(self).__name__} {self._state.value}")
        self._loop = asyncio.get_running_loop()
        self._state = State.RUNNING
        self._starting = asyncio.create_task(self._start(), name=f"start {self._name}")
        try:
            await self._starting
        except BaseException as error:
            was_stopped = self._state is not State.RUNNING
            await self.stop()
            if was_stopped and isinstance(error, asyncio.CancelledError) and not _is_cancelled():
                raise Closed(f"this {type(self).__name__} was stopped while it started") from None
            raise

    async def stop(self) -> None:
        """Finish what is under way and close every connection; twice is harmless. A forked process leaves it alone."""
        if self._state is State.INHERITED:
            return  # it is the parent's, who goes on with it
        if self._state is State.RUNNING:
            if self._loop is None or self._loop.is_closed():  # everything ended with its loop
                self._state = State.STOPPED
                return
            self._require_own_loop()
            self._stopping = asyncio.create_task(self._wind_down(), name=f"stop {self._name}")
        self._state = State.STOPPED
        if self._stopping is not None and not self._stopping.done():
            self._require_own_loop()
            await asyncio.shield(self._stopping)

    async def _wind_down(self) -> None:
        if self._starting is not None:
            await cancelled([self._starting])
        await self._stop()

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped since."""
        return self._state is State.RUNNING

    @property
    def _name(self) -> str:
        return f"{type(self).__name__} {getattr(self, 'client_id', '')}".rstrip()

    def _require_running(self) -> None:
        if self._state is not State.RUNNING:
            raise self._state.error(f"this {type(self).__name__} {self._state.value}")
        self._require_own_loop()

    def _require_own_loop(self) -> None:
        if self._loop is not asyncio.get_running_loop():
            raise LifecycleError(
                f"this {type(self).__name__} runs on another event loop; use it there, "
                "or from any thread the one of cosmodrome.blocking"
            )

    def _require_own_process(self) -> None:
        """For what can be done before the start and after the stop as well."""
        if self._state is State.INHERITED:
            raise LifecycleError(f"this {type(self).__name__} {MADE_BEFORE_FORK}")

    @abstractmethod
    async def _start(self) -> None: ...

    @abstractmethod
    async def _stop(self) -> None: ...

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    def _abandon(self) -> None:
        """It ends without `stop`: say so, once."""
        self._state = State.STOPPED
        warnings.warn(f"{self._name} was never stopped; use `with`, or stop()", ResourceWarning, 2, source=self)

    def __del__(self) -> None:
        if getattr(self, "_state", None) is State.RUNNING:  # it has no state if its constructor failed
            self._abandon()


_startables: WeakSet[Startable] = WeakSet()


def abandon_all(loop: asyncio.AbstractEventLoop) -> None:
    """Warn of all that still run on a loop that is about to end."""
    for one in list(_startables):
        if one.running and one._loop is loop:
            one._abandon()


def _disown() -> None:
    """In a forked process: its copies share sockets with the parent, and a client id."""
    for one in _startables:
        one._state = State.INHERITED


os.register_at_fork(after_in_child=_disown)


def whose() -> object | None:
    """Who is at work here: the same task, or the same thread, is the same one."""
    return behalf_of.get() or asyncio.current_task()


async def cancelled(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel the tasks and wait until they have ended."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


@contextlib.contextmanager
def going_on(what: str) -> Iterator[None]:
    """One of many rounds: if it fails unexpectedly, as when a hook raises, it is not the last."""
    try:
        yield
    except Exception:
        log.exception("%s failed; the next round tries again", what)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
