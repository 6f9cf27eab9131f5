"""Waiting together: one event releases many requests, and none of them needs a task or a future of its own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")
W = TypeVar("W")


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


class _Waiting(NamedTuple, Generic[W]):
    waiter: W
    end: int
    deadline_ms: int


class WaitingLine(Generic[W]):
    """Waiters for a log to be safe up to their ends, each with a deadline. Pure.

    What must hold: each waiter is given out exactly once. They stand in the order of their ends and of their
    deadlines, so whatever wakes some wakes the first of them.
    """

    def __init__(self) -> None:
        self._line: deque[_Waiting[W]] = deque()

    def __len__(self) -> int:
        return len(self._line)

    @property
    def deadline_ms(self) -> int | None:
        """When the first of those that wait has waited too long."""
        return self._line[0].deadline_ms if self._line else None

    def add(self, waiter: W, end: int, deadline_ms: int) -> None:
        """Add a waiter.

        One that asks for less than one before it waits for as much as that one: it was in the log when both asked.
        """
        if self._line:
            last = self._line[-1]
            end, deadline_ms = max(end, last.end), max(deadline_ms, last.deadline_ms)
        self._line.append(_Waiting(waiter, end, deadline_ms))

    def take_safe(self, end: int) -> list[W]:
        """Take out those that waited for no more than `end`."""
        line, taken = self._line, []
        while line and line[0].end <= end:
            taken.append(line.popleft().waiter)
        return taken

    def take_late(self, now_ms: int) -> list[W]:
        """Take out those whose deadline has come."""
        line, taken = self._line, []
        while line and line[0].deadline_ms <= now_ms:
            taken.append(line.popleft().waiter)
        return taken

    def take_all(self) -> list[W]:
        """Take out all."""
        taken = [waiting.waiter for waiting in self._line]
        self._line.clear()
        return taken


class TurnGroups(Generic[T]):
    """The requests that wait for a log to be safe up to their ends: those of one turn of the loop wait together.

    They wait for the last of them. At the end of the turn `ask` gets their group and its end, and returns the outcome
    if it is known by then; else `release` is called with it later. A group covers `most_bytes` of the log: one who
    asks for more begins the next.
    """

    def __init__(self, ask: Callable[[ReleaseGroup[T], int], T | None], most_bytes: int) -> None:
        self._ask = ask
        self._most_bytes = most_bytes
        self._group: ReleaseGroup[T] | None = None  # of those that joined in this turn
        self._end = 0  # up to where they wait
        self._full = 0  # one who waits for this much goes into the next group
        self._count = 0
        self._is_due = False
        self._members: dict[ReleaseGroup[T], int] = {}  # how many wait with each group
        self.waiting = 0  # how many have joined groups that are not released

    def join(self, end: int) -> ReleaseGroup[T]:
        """Return the group to wait with, of this turn."""
        group = self._group
        if group is not None and end >= self._full:
            self.close()
            group = None
        if group is None:
            group = self._group = ReleaseGroup()
            self._end, self._full, self._count = end, end + self._most_bytes, 0
            if not self._is_due:
                self._is_due = True
                asyncio.get_running_loop().call_soon(self._end_turn)
        elif end > self._end:
            self._end = end
        self._count += 1
        self.waiting += 1
        return group

    def _end_turn(self) -> None:
        self._is_due = False
        self.close()

    def close(self) -> None:
        """Let those that joined so far wait for no more than they asked for."""
        group, self._group = self._group, None
        if group is None:
            return
        self._members[group] = self._count
        if (outcome := self._ask(group, self._end)) is not None:
            self.release(group, outcome)

    def release(self, group: ReleaseGroup[T], outcome: T) -> None:
        """Let a group go on."""
        self.waiting -= self._members.pop(group)
        group.release(outcome)
