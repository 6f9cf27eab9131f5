"""Unique message ids: Java's layout, and never the same twice."""

from __future__ import annotations

import os
import re
import signal
import threading

import pytest

from cosmodrome.wire.ids import UniqueIds, month_of
from tests.bounded import PATIENCE_SECONDS, in_time

NOON_MS = 1_700_000_000_000
LOOPBACK = b"\x7f\x00\x00\x01"


class StillClock:
    def __init__(self, now_ms: int) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def steady_ms(self) -> int:
        return self.ms

    @property
    def boot_id(self) -> str:
        return ""

    async def sleep(self, ms: int) -> None:
        self.ms += ms


def test_an_id_is_ip_pid_seed_time_of_month_and_counter() -> None:
    ids = UniqueIds(LOOPBACK, pid=0x1_2345, seed=0x18B4AAC2, clock=StillClock(NOON_MS))
    elapsed = NOON_MS - month_of(NOON_MS)[0]
    assert ids.next() == f"7F000001234518B4AAC2{elapsed:08X}0000"
    assert ids.next() == f"7F000001234518B4AAC2{elapsed:08X}0001"


def test_an_ipv6_host_makes_a_longer_id() -> None:
    assert re.fullmatch(r"[0-9A-F]{56}", UniqueIds(bytes(16)).next())
    with pytest.raises(ValueError, match="4 or 16"):
        UniqueIds(b"\x7f")


def test_a_clock_that_stands_still_or_goes_back_repeats_nothing() -> None:
    clock = StillClock(NOON_MS)
    ids = UniqueIds(LOOPBACK, 1, 1, clock)
    drawn = [ids.next() for _ in range(150_000)]
    clock.ms -= 3_600_000
    drawn += [ids.next() for _ in range(1000)]
    assert len(set(drawn)) == len(drawn)
    assert drawn == sorted(drawn)


def test_a_whole_milliseconds_ids_fit_before_time_is_borrowed() -> None:
    ids = UniqueIds(LOOPBACK, 1, 1, StillClock(NOON_MS))
    drawn = [ids.next() for _ in range(65_537)]
    times = [one[20:28] for one in drawn]
    assert len(set(times[:65_536])) == 1
    assert int(times[-1], 16) == int(times[0], 16) + 1


def test_the_same_moment_of_another_month_gives_other_ids() -> None:
    clock = StillClock(NOON_MS)
    ids = UniqueIds(LOOPBACK, 1, 1, clock)
    first = ids.next()
    clock.ms = month_of(NOON_MS)[1] + (NOON_MS - month_of(NOON_MS)[0])
    second = ids.next()
    assert first[20:] == second[20:]
    assert first[:20] != second[:20]


def test_threads_never_draw_the_same_id() -> None:
    ids = UniqueIds(LOOPBACK)
    drawn: list[list[str]] = [[] for _ in range(4)]

    def draw(into: list[str]) -> None:
        into += [ids.next() for _ in range(5000)]

    threads = [threading.Thread(target=draw, args=(into,), daemon=True) for into in drawn]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert len({one for into in drawn for one in into}) == 20_000


def test_a_forked_child_draws_its_own_ids() -> None:
    ids = UniqueIds(LOOPBACK, clock=StillClock(NOON_MS))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, ids.next().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        try:
            theirs = in_time(pipe.read)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    ours = ids.next()
    assert theirs[20:] == ours[20:]
    assert int(theirs[8:12], 16) == child & 0xFFFF
    assert theirs[12:20] != ours[12:20]
