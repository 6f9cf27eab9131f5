"""How long the bytes in hand have waited."""

from __future__ import annotations

import asyncio


class Turn:
    """One turn of the event loop: it finds some sockets ready, and reads and serves one after the other.

    What is read last was ready when the first was, so it has waited since then at least. Shared by the connections of
    a server, whose turn it is. `last_seconds` is how long the turn before took: one long turn is a pause of the
    machine, which is over; one after the other are more than it can do.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began: float | None = None
        self.last_seconds = 0.0

    def began(self) -> float:
        """When the first socket of this turn was read, by the loop's clock. To be called while reading."""
        if self._began is None:
            self._began = self._loop.time()
            self._loop.call_soon(self._end)  # runs when all that was ready is read
        return self._began

    def _end(self) -> None:
        if self._began is not None:
            self.last_seconds = self._loop.time() - self._began
        self._began = None
