"""Starting once, stopping once."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum
from types import TracebackType
from typing import Self

from cosmodrome.errors import ClientError


class State(Enum):
    NEW = "not started yet; use `async with`, or start()"
    RUNNING = "running"
    STOPPED = "stopped; make a new one"


class Startable(ABC):
    """What `async with` starts and stops. It runs once: after `stop`, make a new one. Stopping twice is harmless."""

    def __init__(self) -> None:
        self._state = State.NEW

    async def start(self) -> None:
        if self._state is not State.NEW:
            raise ClientError(f"cannot start: this {type(self).__name__} is {self._state.value}")
        self._state = State.RUNNING
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        was_running = self._state is State.RUNNING
        self._state = State.STOPPED
        if was_running:
            await self._stop()

    @property
    def running(self) -> bool:
        return self._state is State.RUNNING

    def _require_running(self) -> None:
        if self._state is not State.RUNNING:
            raise ClientError(f"this {type(self).__name__} is {self._state.value}")

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


async def cancelled(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel the tasks and wait until they have ended."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
