"""The loop whose hours pass in no time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from random import Random
from typing import TypeVar

import pytest

from cosmodrome.config import NetConfig
from cosmodrome.net.caller import refuse
from cosmodrome.net.connection import Connection
from cosmodrome.testing import LoopClock, VirtualLoop, loop
from tests.bounded import PATIENCE_SECONDS

T = TypeVar("T")
HOUR_MS = 3_600_000


def run(main: Coroutine[None, None, T]) -> T:
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(Random(1))) as runner:
        return runner.run(main)


def test_an_hour_of_sleep_is_over_at_once_and_is_exactly_an_hour() -> None:
    async def main() -> int:
        clock = LoopClock(7)
        for _ in range(3_600):
            await clock.sleep(1_000)
        return clock.now_ms()

    assert run(main()) == 7 + HOUR_MS


def test_timers_keep_their_order() -> None:
    woken: list[int] = []

    async def sleep(ms: int) -> None:
        await LoopClock().sleep(ms)
        woken.append(ms)

    async def main() -> None:
        await asyncio.gather(*(sleep(ms) for ms in (500, 2, HOUR_MS, 1)))

    run(main())
    assert woken == [1, 2, 500, HOUR_MS]


def test_no_time_passes_while_sockets_are_busy() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    async def main() -> float:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for number in range(200):
            writer.write(b"%3d" % number)
            assert await asyncio.wait_for(reader.readexactly(3), 60) == b"%3d" % number
        writer.close()
        await writer.wait_closed()
        server.close()
        return asyncio.get_running_loop().time()

    assert run(main()) < 60


def test_timeouts_strike_and_threads_need_no_time() -> None:
    async def main() -> float:
        assert await asyncio.to_thread(lambda: 5) == 5
        assert asyncio.get_running_loop().time() == 0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 90)
        return asyncio.get_running_loop().time()

    assert run(main()) == 90


def test_a_deadlock_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(loop, "PATIENCE_SECONDS", 0.01)
    virtual = VirtualLoop(Random(1))
    with pytest.raises(RuntimeError, match="nothing will ever happen"):
        virtual.run_until_complete(task := virtual.create_task(main()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        virtual.run_until_complete(task)
    virtual.close()


def test_only_what_ends_somebodys_patience_is_worth_a_look_at_the_kernel() -> None:
    async def main() -> None:
        virtual = asyncio.get_running_loop()
        assert isinstance(virtual, VirtualLoop)
        assert not virtual._deadline_is_next()
        connection = Connection(refuse, NetConfig())
        expiry = virtual.call_later(3, connection._expire, virtual.create_future(), 3_000)
        assert virtual._deadline_is_next()
        idling = virtual.call_later(2, connection._watch_idle)
        assert not virtual._deadline_is_next()
        expiry.cancel()
        idling.cancel()

    run(main())


class TestAdvancing:
    def test_a_loop_that_flows_runs_ahead_only_when_told(self) -> None:
        virtual = VirtualLoop(flows=True)

        async def main() -> tuple[float, float]:
            await asyncio.sleep(0.01)
            begin = virtual.time()
            assert 0.01 <= begin < HOUR_MS / 1000
            await virtual.advance(3_600)
            return begin, virtual.time()

        begin, end = virtual.run_until_complete(main())
        virtual.close()
        assert 3_600 <= end - begin < 3_660

    def test_a_loop_that_flows_keeps_the_pace_of_the_world_while_it_works(self) -> None:
        virtual = VirtualLoop(flows=True)
        busy_seconds, turns = 0.02, 5

        async def main() -> float:
            begin = virtual.time()
            for _ in range(turns):
                time.sleep(busy_seconds)  # noqa: ASYNC251  # as a callback that takes long
                await asyncio.sleep(0)
            return virtual.time() - begin

        assert virtual.run_until_complete(main()) >= busy_seconds * turns
        virtual.close()

    def test_all_that_falls_due_is_done_even_in_threads(self) -> None:
        done: list[float] = []

        async def work() -> None:
            for _ in range(5):
                await LoopClock().sleep(60_000)
                await asyncio.to_thread(time.sleep, 0.001)
                done.append(asyncio.get_running_loop().time())

        async def main() -> None:
            task = asyncio.create_task(work())
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            await loop.advance(59)
            assert done == []
            await loop.advance(1)
            assert len(done) == 1
            await loop.advance(3_600)
            assert len(done) == 5
            await task

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(main())

    def test_a_thread_that_hangs_is_not_waited_for_however_much_else_goes_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(loop, "PATIENCE_SECONDS", 0.05)
        is_over = threading.Event()

        async def tick() -> None:
            for _ in range(2_000):
                await asyncio.sleep(0.04)

        async def main() -> None:
            virtual = asyncio.get_running_loop()
            assert isinstance(virtual, VirtualLoop)
            hanging, ticking = asyncio.create_task(asyncio.to_thread(is_over.wait, 30)), asyncio.create_task(tick())
            await virtual.advance(60)
            assert not hanging.done()
            monkeypatch.undo()
            is_over.set()
            await hanging
            ticking.cancel()

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(main())

    def test_on_a_long_way_short_sleeps_are_stretched_but_not_past_its_end(self) -> None:
        async def main() -> tuple[int, float]:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            wakings = 0

            async def tick() -> None:
                nonlocal wakings
                while True:
                    await LoopClock().sleep(500)
                    wakings += 1

            ticking = asyncio.create_task(tick())
            await loop.advance(7_205)
            woken, late = wakings, loop.time()
            ticking.cancel()
            return woken, late

        wakings, end = run(main())
        assert 720 <= wakings <= 730
        assert end == 7_205

    @pytest.mark.parametrize("part_ms", [0.0, 0.2, 0.4, 0.6, 0.8])
    def test_who_waits_for_a_time_is_woken_then_however_late_in_a_millisecond_he_began(self, part_ms: float) -> None:
        async def main() -> int:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            clock = LoopClock(0)
            await asyncio.sleep(0.0006)  # rounded up: the clock shows 1
            due_ms = clock.now_ms() + 60_000
            await asyncio.sleep(part_ms / 1_000)
            waiting = asyncio.create_task(clock.sleep(due_ms - clock.now_ms()))
            await loop.advance((due_ms - 1_000 * loop.time()) / 1_000)
            assert waiting.done()
            return clock.now_ms() - due_ms

        assert run(main()) == 0

    def test_what_is_left_of_a_wait_by_rounding_does_not_stop_time(self) -> None:
        async def main() -> float:
            loop = asyncio.get_running_loop()
            begin, turns = loop.time(), 0
            while (left := 0.1 - (loop.time() - begin)) > 0 and turns < 10:
                turns += 1
                await asyncio.sleep(left * (1 - 2**-53))
            return turns

        assert run(main()) < 10

    def test_backwards_is_refused(self) -> None:
        virtual = VirtualLoop(Random(1))
        with pytest.raises(ValueError, match="backwards"):
            virtual.run_until_complete(virtual.advance(-1))
        virtual.close()

    def test_a_clock_may_be_slept_on_from_another_loop(self) -> None:
        virtual = VirtualLoop(flows=True)
        thread = threading.Thread(target=virtual.run_forever, daemon=True)
        thread.start()
        clock = LoopClock(7, virtual)

        async def elsewhere() -> int:
            sleeping = asyncio.create_task(clock.sleep(HOUR_MS))
            await asyncio.sleep(0.02)
            advancing = asyncio.run_coroutine_threadsafe(virtual.advance(3_601), virtual)
            await asyncio.wait_for(sleeping, 20)
            await asyncio.wrap_future(advancing)
            return clock.now_ms()

        try:
            assert asyncio.run(elsewhere()) >= 7 + HOUR_MS
        finally:
            virtual.call_soon_threadsafe(virtual.stop)
            thread.join(PATIENCE_SECONDS)
            virtual.close()
