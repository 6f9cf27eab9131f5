"""How much work is done in one turn of an event loop: what a test counts instead of measuring time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

R = TypeVar("R")


class Turns:
    """A counter of calls by turn of the running loop, from the begin of its block to the end."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._turn = 0
        self._handle: asyncio.Handle | None = None
        self._calls: Counter[int] = Counter()

    def __enter__(self) -> Self:
        self._next()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._handle is not None
        self._handle.cancel()

    def _next(self) -> None:
        self._turn += 1
        self._handle = self._loop.call_soon(self._next)

    @property
    def most(self) -> int:
        """Return how many calls there were in the busiest turn."""
        return max(self._calls.values(), default=0)

    @property
    def total(self) -> int:
        return self._calls.total()

    def counting(self, function: Callable[..., R], first: object = None) -> Callable[..., R]:
        """Return `function`, whose calls are counted: all of them, or those whose first argument is `first`."""

        def counted(*arguments: Any, **named: Any) -> R:
            if first is None or arguments[0] == first:
                self._calls[self._turn] += 1
            return function(*arguments, **named)

        return counted
