"""The turns of the event loop: how long the bytes in hand have waited, and who goes on in the next one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

# When a turn has taken so long, whoever still has much to do waits for one of the next. The last that began before may
# take as long again, so nobody waits for more than some fifty milliseconds.
LONG_SECONDS = 0.02


class Turn:
    """One turn of the event loop: it finds some sockets ready, and reads and serves one after the other.

    What is read last was ready when the first was, so it has waited since then at least. Shared by the connections of
    a server, whose turn it is. `last_seconds` is how long the turn before took: one long turn is a pause of the
    machine, which is over; one after the other are more than it can do.

    Connections that rest go on one after the other, in the order they came, as far as a turn reaches; at least one in
    each, so none rests for ever.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._began: float | None = None
        self._long_at = float("inf")  # by the clock
        self._resting: deque[tuple[Callable[[float], None], float]] = deque()  # who, and since when
        self._is_due = False  # somebody goes on in the next turn
        self._has_read = False  # a socket, in this turn
        self.last_seconds = 0.0

    def began(self) -> float:
        """When the first socket of this turn was read, by the loop's clock. To be called while reading."""
        self._has_read = True
        return self._begin()

    def _begin(self) -> float:
        if self._began is None:
            self._began = self._loop.time()
            self._long_at = self._clock() + LONG_SECONDS
            self._loop.call_soon(self._end)  # runs when all that was ready is read
        return self._began

    def is_long(self, now: float) -> bool:
        """This turn has taken enough, at `now` of the clock."""
        return now > self._long_at

    def rest(self, go_on: Callable[[float], None]) -> None:
        """Call `go_on` in one of the next turns, with the seconds until then."""
        self._resting.append((go_on, self._loop.time()))
        self._be_due()

    def _be_due(self) -> None:
        if self._resting and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._let_go_on)

    def _let_go_on(self) -> None:
        self._is_due = False
        now = self._begin()
        for _ in range(len(self._resting)):
            go_on, since = self._resting.popleft()
            go_on(now - since)
            if self.is_long(self._clock()):
                break
        self._be_due()

    def _end(self) -> None:
        if self._began is not None:
            took = self._loop.time() - self._began
            # When only those went on who had rested, it was more of the turn before.
            self.last_seconds = took if self._has_read else self.last_seconds + took
        self._has_read = False
        self._began = None
        self._long_at = float("inf")
