"""The loop whose hours pass in no time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import TypeVar

import pytest

from cosmodrome.testing import LoopClock, VirtualLoop, loop

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
