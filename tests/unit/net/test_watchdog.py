"""The log names what keeps the loop busy; and a connection with much to do lets others have their turn."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from cosmodrome.codes import RequestCode
from cosmodrome.config import NetConfig
from cosmodrome.net import connection as connections
from cosmodrome.net import watchdog as watchdogs
from cosmodrome.net.books import Books
from cosmodrome.net.caller import Caller
from cosmodrome.net.connection import Connection, Handler
from cosmodrome.net.server import Server
from cosmodrome.net.watchdog import Watchdog
from cosmodrome.wire.command import Command

TIMEOUT_MS = 60_000
NET = NetConfig(shutdown_grace_ms=200, loop_busy_warning_ms=200)


class Clock:
    """Seconds that pass when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Stage:
    """A server whose clock is in the test's hands."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.clock = Clock()
        self.books = Books(NET)
        self.books.watchdog = Watchdog(NET.loop_busy_warning_ms, self.clock)

    async def serve(self, handler: Handler) -> tuple[str, Caller]:
        server = Server(handler, "127.0.0.1", 0, config=NET, books=self.books)
        await server.start()
        self._stack.push_async_callback(server.close)
        caller = Caller(config=NET)
        self._stack.push_async_callback(caller.close)
        return server.address, caller


@pytest_asyncio.fixture
async def stage() -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        yield Stage(stack)


@pytest.mark.parametrize("waits", [False, True])
async def test_a_request_that_takes_long_is_named_with_its_peer(
    stage: Stage, caplog: pytest.LogCaptureFixture, waits: bool
) -> None:
    peers = []

    async def slow(connection: Connection, command: Command) -> Command:
        peers.append(connection.peer)
        if waits:
            await asyncio.sleep(0)
        stage.clock.now += 0.3125 if command.code == RequestCode.HEART_BEAT else 0.1
        return command.reply()

    address, caller = await stage.serve(slow)
    await caller.call(address, Command.request(RequestCode.GET_MAX_OFFSET), TIMEOUT_MS)
    assert "busy" not in caplog.text
    await caller.call(address, Command.request(RequestCode.HEART_BEAT), TIMEOUT_MS)
    assert f"the event loop was busy: request=HEART_BEAT peer={peers[-1]} took=312 ms" in caplog.text
    assert stage.books.watchdog.count == 1


async def test_a_request_that_only_waits_is_not_slow(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async def wait(_connection: Connection, command: Command) -> Command:
        for _ in range(10):
            await asyncio.sleep(0)
            stage.clock.now += 0.1
        return command.reply()

    address, caller = await stage.serve(wait)
    await caller.call(address, Command.request(RequestCode.PULL_MESSAGE), TIMEOUT_MS)
    assert "busy" not in caplog.text


def test_the_log_has_one_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    dog = Watchdog(200, clock)
    for _ in range(5):
        dog.note(4711, "10.0.0.1:5", 0.25)
        clock.now += 0.3
    assert [record.getMessage() for record in caplog.records] == [
        "the event loop was busy: request=4711 peer=10.0.0.1:5 took=250 ms",
        "the event loop was busy: request=4711 peer=10.0.0.1:5 took=250 ms, and 3 times more before",
    ]


def test_what_is_no_request_is_told_too_but_nothing_twice(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    dog = Watchdog(200, clock)
    dog.look(0.1)
    dog.note(34, "a:1", 0.4)
    dog.look(0.4)
    assert len(caplog.records) == 1
    clock.now += 10
    dog.look(0.5)
    assert "cause='no single request; the machine or work in the background' took=500 ms" in caplog.text
    clock.now += 10
    dog._collecting("start", {})
    clock.now += 0.3
    dog._collecting("stop", {})
    dog.look(0.4)
    assert "cause='garbage collection for 300 ms' took=400 ms" in caplog.text


async def test_a_loop_that_stands_still_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    dog = Watchdog(20)
    async with dog.watching():
        await asyncio.sleep(0)
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            while "no single request" not in caplog.text:
                end = asyncio.get_running_loop().time() + 0.1
                while asyncio.get_running_loop().time() < end:
                    pass
                await asyncio.sleep(0.001)


async def test_a_connection_with_costly_requests_lets_others_have_their_turn(stage: Stage) -> None:
    """Each costs more than a turn's worth, and all of them come in one read."""
    served: list[int] = []

    async def costly(_connection: Connection, command: Command) -> Command:
        served.append(command.code)
        if command.code == 1:
            stage.clock.now += 1.1 * connections.REST_AFTER_SECONDS
        return command.reply()

    address, caller = await stage.serve(costly)
    other = Caller(config=NET)
    await other.call(address, Command.request(2), TIMEOUT_MS)
    flood = [asyncio.create_task(caller.call(address, Command.request(1), TIMEOUT_MS)) for _ in range(50)]
    while 1 not in served:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await other.call(address, Command.request(2), TIMEOUT_MS)
    between = served.count(1)
    await asyncio.gather(*flood)
    assert served.count(1) == 50
    assert between < 50
    await other.close()


@pytest.fixture
def thawed() -> Iterator[None]:
    """Let the collector forget afterwards what the test has frozen."""
    yield
    gc.unfreeze()


class Node:
    """An object that a garbage collection has to look at."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.usefixtures("thawed")
async def test_no_collection_looks_twice_at_what_lives() -> None:
    looked_at = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            looked_at.append(len(gc.get_objects(generation=2)) + len(gc.get_objects(generation=0)))

    async with Watchdog(20).watching():
        await asyncio.sleep(0)
        living = [Node() for _ in range(20_000)]
        gc.collect()
        gc.callbacks.append(note)
        try:
            gc.collect()
        finally:
            gc.callbacks.remove(note)
    assert len(living) == 20_000
    assert looked_at[0] < 20_000


@pytest.mark.usefixtures("thawed")
async def test_what_became_garbage_goes_when_there_is_twice_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdogs, "THAW_LEAST", 0)
    monkeypatch.setattr(watchdogs, "THAW_LOOK_SECONDS", 0)
    async with Watchdog(1).watching():
        await asyncio.sleep(0)
        node = Node()
        gone = weakref.ref(node)
        gc.collect()  # it lives, and is frozen
        del node
        gc.collect()
        assert gone() is not None
        growth = [[] for _ in range(2 * gc.get_freeze_count())]  # type: ignore[var-annotated]
        gc.collect()
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            while gone() is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        del growth
