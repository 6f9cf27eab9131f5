"""Waiting together: one event releases many requests, and none of them needs a task or a future of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ReleaseGroup(Generic[T]):
    """What many wait for, each with `await group`, until `release` gives all of them the same outcome.

    A task waits as for a future. A coroutine that is stepped outside of any task gets the group itself yielded to
    whoever steps it: that one calls `join` with what goes on with the outcome. A connection steps its handlers so, and
    a request that waits costs it a fifth of what a task does.
    """

    __slots__ = ("_joined", "outcome")

    def __init__(self, outcome: T | None = None) -> None:
        self.outcome = outcome  # None: not released yet
        self._joined: list[Callable[[T], None]] = []

    def __await__(self) -> Generator[Any, Any, T]:
        if self.outcome is not None:
            return self.outcome
        if asyncio.current_task() is None:
            outcome: T = yield self
            return outcome
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.join(partial(_set_result, waiter))
        return (yield from waiter)

    def join(self, go_on: Callable[[T], None]) -> None:
        """Have `go_on` called with the outcome; it raises nothing."""
        assert self.outcome is None, "released already"
        self._joined.append(go_on)

    def release(self, outcome: T) -> None:
        """Let everyone go on who has joined, in their order."""
        self.outcome = outcome
        joined, self._joined = self._joined, []
        for go_on in joined:
            go_on(outcome)


def _set_result(waiter: asyncio.Future[T], outcome: T) -> None:
    if not waiter.done():  # its request may have been cancelled meanwhile
        waiter.set_result(outcome)
