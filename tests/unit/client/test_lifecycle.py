"""Starting and stopping, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import gc

import pytest

from cosmodrome.client.lifecycle import Startable
from cosmodrome.errors import ClientError
from tests.bounded import in_thread


class Slow(Startable):
    """Starts and stops when told that it may."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.may_start = asyncio.Event()
        self.may_stop = asyncio.Event()
        self.events: list[str] = []
        self._fails = fails

    async def _start(self) -> None:
        self.events.append("starting")
        try:
            await self.may_start.wait()
        except asyncio.CancelledError:
            self.events.append("start cancelled")
            raise
        if self._fails:
            raise ConnectionError("no")
        self.events.append("started")

    async def _stop(self) -> None:
        self.events.append("stopping")
        await self.may_stop.wait()
        self.events.append("stopped")

    def use(self) -> None:
        self._require_running()


def quick(*, fails: bool = False) -> Slow:
    one = Slow(fails=fails)
    one.may_start.set()
    one.may_stop.set()
    return one


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_cancelled_start_stops_what_had_begun() -> None:
    one = Slow()
    one.may_stop.set()
    starting = asyncio.create_task(one.start())
    await turns()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert one.events == ["starting", "start cancelled", "stopping", "stopped"]
    assert not one.running


async def test_a_failed_start_stops_what_had_begun_and_says_why() -> None:
    one = quick(fails=True)
    with pytest.raises(ConnectionError, match="no"):
        await one.start()
    assert one.events == ["starting", "stopping", "stopped"]


async def test_a_cancelled_stop_goes_on_and_a_second_one_waits_for_its_end() -> None:
    one = Slow()
    one.may_start.set()
    await one.start()
    first = asyncio.create_task(one.stop())
    await turns()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(one.stop())
    await turns()
    assert not second.done()
    one.may_stop.set()
    await second
    assert one.events == ["starting", "started", "stopping", "stopped"]


async def test_two_stops_at_once_both_wait_and_stop_once() -> None:
    one = Slow()
    one.may_start.set()
    await one.start()
    both = asyncio.gather(one.stop(), one.stop())
    await turns()
    assert not both.done()
    one.may_stop.set()
    await both
    assert one.events.count("stopping") == 1


async def test_a_stop_ends_a_start_that_is_under_way() -> None:
    one = Slow()
    one.may_stop.set()
    starting = asyncio.create_task(one.start())
    await turns()
    await one.stop()
    with pytest.raises(ClientError, match="stopped while it started"):
        await starting
    assert one.events == ["starting", "start cancelled", "stopping", "stopped"]


async def test_what_a_body_raises_comes_out_after_the_stop() -> None:
    one = quick()
    with pytest.raises(KeyError, match="body"):
        async with one:
            raise KeyError("body")
    assert one.events[-1] == "stopped"


async def test_a_stop_that_was_never_started_leaves_nothing_to_start() -> None:
    one = quick()
    await one.stop()
    with pytest.raises(ClientError, match="cannot start: this Slow is stopped; make a new one"):
        await one.start()
    assert one.events == []


async def test_another_event_loop_is_refused() -> None:
    refusals: list[str] = []

    async def elsewhere() -> None:
        for use in (one.use, one._require_own_loop):
            with pytest.raises(ClientError) as refused:
                use()
            refusals.append(str(refused.value))
        with pytest.raises(ClientError, match="another event loop"):
            await one.stop()

    async with quick() as one:
        await in_thread(asyncio.run, elsewhere())
        assert one.running
    assert len(refusals) == 2
    assert all("runs on another event loop; use it there" in refusal for refusal in refusals)


def test_what_runs_when_its_loop_is_gone_can_be_stopped() -> None:
    one = quick()
    asyncio.run(one.start())
    asyncio.run(one.stop())
    assert not one.running


def test_what_is_never_stopped_warns_when_it_is_collected() -> None:
    def forget() -> None:
        asyncio.run(quick().start())
        gc.collect()

    with pytest.warns(ResourceWarning, match="Slow was never stopped; use `with`, or stop"):
        forget()
