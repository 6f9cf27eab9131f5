"""The unique id a producer gives each message (property UNIQ_KEY), in Java's layout.

| ip 4 or 16 | process id 2 | seed 4 | ms since the month began 4 | counter 2 |        in hex, upper case
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import weakref

from cosmodrome.clock import Clock, SystemClock

UNIQUE_ID_LENGTH = 32  # of an IPv4 host
_COUNTER_BITS = 16
_COUNTER_MASK = (1 << _COUNTER_BITS) - 1
_TIME_MASK = 0xFFFFFFFF


class UniqueIds:
    """Ids no two of which are ever equal, each greater in time than the one before.

    Time and counter are one number that only grows. When a millisecond's 65,536 ids are drawn, or the clock stands
    still or goes back, ids run ahead of the clock instead of repeating. The time part starts anew with each month, so
    the seed steps on with it. A forked child draws from its own pid and seed.
    """

    def __init__(self, ip: bytes, pid: int | None = None, seed: int | None = None, clock: Clock | None = None) -> None:
        if len(ip) not in (4, 16):
            raise ValueError(f"an IP address has 4 or 16 bytes, not {len(ip)}")
        self._ip = ip
        self._clock = clock or SystemClock()
        self._last = 0  # ms since the epoch and the counter, as one number
        self._month_begins_ms = self._month_ends_ms = 0
        self._start_process(os.getpid() if pid is None else pid, secrets.randbits(32) if seed is None else seed)
        _living.add(self)

    def next(self) -> str:
        now = self._clock.now_ms() << _COUNTER_BITS
        with self._lock:
            self._last = last = now if now > self._last else self._last + 1
            now_ms = last >> _COUNTER_BITS
            if not self._month_begins_ms <= now_ms < self._month_ends_ms:
                self._turn_month(now_ms)
            elapsed = (now_ms - self._month_begins_ms) & _TIME_MASK
            return f"{self._prefix}{elapsed:08X}{last & _COUNTER_MASK:04X}"

    def _turn_month(self, now_ms: int) -> None:
        begun_before = self._month_ends_ms > 0
        self._month_begins_ms, self._month_ends_ms = month_of(now_ms)
        if begun_before:
            self._seed += 1
            self._write_prefix()

    def _start_process(self, pid: int, seed: int) -> None:
        self._lock = threading.Lock()  # after a fork, the old one may be held by a thread that is not here
        self._pid, self._seed = pid, seed
        self._write_prefix()

    def _write_prefix(self) -> None:
        process = (self._pid & 0xFFFF).to_bytes(2) + (self._seed & 0xFFFFFFFF).to_bytes(4)
        self._prefix = (self._ip + process).hex().upper()


def month_of(now_ms: int) -> tuple[int, int]:
    """When the local calendar month of a time begins and ends, in ms since the epoch."""
    here = time.localtime(now_ms // 1000)
    begin, end = (
        int(time.mktime((here.tm_year, month, 1, 0, 0, 0, 0, 0, -1))) for month in (here.tm_mon, here.tm_mon + 1)
    )
    return begin * 1000, end * 1000


_living: weakref.WeakSet[UniqueIds] = weakref.WeakSet()


def _after_fork() -> None:
    for ids in list(_living):
        ids._start_process(os.getpid(), secrets.randbits(32))


os.register_at_fork(after_in_child=_after_fork)
