"""What all connections of a daemon cost it together: connections, frames that are not whole, requests, replies.

Each connection has bounds of its own, but a peer may open many. The books bound the sums. Where there is too much, the
connection that has kept its bytes here longest goes first: frames of a healthy peer are whole after moments, and it
reads its replies.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from cosmodrome.config import NetConfig
from cosmodrome.net.turn import Turn
from cosmodrome.net.watchdog import Watchdog

log = logging.getLogger(__name__)

LOG_EVERY_SECONDS = 10.0  # one line for the connections turned away meanwhile


class Holder(Protocol):
    """A connection, as the books know it."""

    peer: str

    @property
    def is_reading(self) -> bool: ...

    def drop(self, reason: str) -> None: ...


class _Entry:
    __slots__ = ("began", "size")

    def __init__(self, size: int, began: float) -> None:
        self.size = size
        self.began = began


class Holdings:
    """The bytes of one kind that connections keep here, the oldest first."""

    def __init__(self, kind: str, key: str, limit_bytes: int) -> None:
        self._kind = kind
        self._key = key
        self._limit_bytes = limit_bytes
        self._entries: dict[Holder, _Entry] = {}
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, holder: Holder, size: int, now: float, *, is_new: bool = False) -> None:
        """Note how much a connection keeps; `is_new`: what it kept before is gone. Drop the oldest if need be."""
        entry = self._entries.pop(holder, None) if is_new else self._entries.get(holder)
        if entry is None or is_new:
            self._entries[holder] = _Entry(size, now)
            self.total_bytes += size - (entry.size if entry is not None else 0)
        else:
            self.total_bytes += size - entry.size
            entry.size = size
        while self.total_bytes > self._limit_bytes:
            oldest = next(iter(self._entries))
            size = self._entries[oldest].size
            self.forget(oldest)
            oldest.drop(f"{size} bytes of {self._kind}, and with all others more than {self._key}={self._limit_bytes}")

    def forget(self, holder: Holder) -> None:
        entry = self._entries.pop(holder, None)
        if entry is not None:
            self.total_bytes -= entry.size

    def size_of(self, holder: Holder) -> int:
        return self._entries[holder].size

    def oldest(self) -> Iterator[tuple[Holder, float]]:
        """Return connections and since when they have kept something, the oldest first."""
        return ((holder, entry.began) for holder, entry in list(self._entries.items()))


class Books:
    """The sums over all connections of a daemon, on whichever of its ports they came."""

    def __init__(self, config: NetConfig) -> None:
        self._config = config
        self._count = 0
        self._of_host: Counter[str] = Counter()
        self._turned_away = 0
        self._turned_away_in_all = 0
        self._logged = -LOG_EVERY_SECONDS
        self.watchdog = Watchdog(config.loop_busy_warning_ms)
        self.turn: Turn | None = None  # from the first server's start on
        self._timer: asyncio.TimerHandle | None = None
        self.unfinished = Holdings("an unfinished frame", "maxUnfinishedBytes", config.max_unfinished_bytes)
        self.unsent = Holdings("replies that it does not read", "maxUnsentBytes", config.max_unsent_bytes)
        self.waiting_bytes = 0  # of requests that wait: for a disk, for their turn

    def __len__(self) -> int:
        """Return how many connections there are."""
        return self._count

    @property
    def has_much_waiting(self) -> bool:
        return self.waiting_bytes > self._config.max_waiting_bytes

    # --- connections

    def admit(self, host: str) -> bool:
        """Count a connection from `host`; False if there are too many, and it is not counted."""
        config = self._config
        if self._count >= config.max_connections:
            self._note(f"{self._count} connections; maxConnections allows no more")
            return False
        if self._of_host[host] >= config.max_connections_per_host:
            self._note(f"{self._of_host[host]} connections from {host}; maxConnectionsPerHost allows no more")
            return False
        self._count += 1
        self._of_host[host] += 1
        return True

    def figures(self) -> dict[str, object]:
        """Return figures by their names in the runtime info."""
        return {
            "connections": self._count,
            "connectionsTurnedAway": self._turned_away_in_all,
            "unfinishedFrameBytes": self.unfinished.total_bytes,
            "unsentReplyBytes": self.unsent.total_bytes,
            "waitingRequestBytes": self.waiting_bytes,
        }

    def dismiss(self, host: str) -> None:
        """Count a connection no longer that was admitted."""
        self._count -= 1
        self._of_host[host] -= 1
        if not self._of_host[host]:
            del self._of_host[host]

    def _note(self, reason: str) -> None:
        self._turned_away += 1
        self._turned_away_in_all += 1
        now = asyncio.get_running_loop().time()
        if now - self._logged >= LOG_EVERY_SECONDS:
            log.warning("connections turned away: count=%d reason=%r", self._turned_away, reason)
            self._turned_away, self._logged = 0, now

    # --- frames

    def frame_begun(self, holder: Holder, size: int, *, is_new: bool) -> None:
        """So many bytes of a frame are here, and the rest is not; it must be before the frame's time is up."""
        loop = asyncio.get_running_loop()
        self.unfinished.keep(holder, size, loop.time(), is_new=is_new)
        if self._timer is None:
            self._timer = loop.call_later(self._config.frame_timeout_ms / 1000, self._drop_late)

    def _drop_late(self) -> None:
        """Drop those whose frame has taken too long, while they were read from."""
        self._timer = None
        loop = asyncio.get_running_loop()
        timeout = self._config.frame_timeout_ms / 1000
        now = loop.time()
        for holder, began in self.unfinished.oldest():
            remaining = began + timeout - now
            if remaining > 0:
                self._timer = loop.call_later(remaining, self._drop_late)
                break
            if holder.is_reading:
                self.unfinished.forget(holder)
                holder.drop(f"its frame is not whole after {now - began:.0f} s; frameTimeoutMs allows {timeout:.0f} s")
            else:  # we keep it waiting, not it us
                self.unfinished.keep(holder, self.unfinished.size_of(holder), now, is_new=True)
        if self._timer is None and len(self.unfinished):
            self._timer = loop.call_later(timeout, self._drop_late)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
