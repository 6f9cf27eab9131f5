"""The turns of the loop: who has much to do waits for one of the next, and others have theirs."""

from __future__ import annotations

import asyncio
import time

from cosmodrome.codes import RequestCode
from cosmodrome.net import connection as connections
from cosmodrome.net.caller import Caller
from cosmodrome.net.connection import Connection
from cosmodrome.net.turn import LONG_SECONDS, Turn
from cosmodrome.wire.command import Command
from tests.turns import Turns
from tests.unit.net.test_watchdog import NET, TIMEOUT_MS, Clock, Stage, stage

__all__ = ["stage"]

LONG_BODY = bytes(connections.LONG_BODY_BYTES)
LONG, SHORT = RequestCode.PUT_KV_CONFIG, RequestCode.GET_MAX_OFFSET


async def test_those_who_rest_go_on_in_the_order_they_came_as_far_as_a_turn_reaches() -> None:
    clock, went_on = Clock(), list[str]()
    turn = Turn(clock)

    def going(name: str, cost: float, *, comes_again: bool = False) -> None:
        went_on.append(name)
        clock.now += cost
        if comes_again:
            turn.rest(lambda _: going(name, cost))

    turn.rest(lambda _: going("costly", 1.1 * LONG_SECONDS, comes_again=True))
    for name in ("a", "b"):
        turn.rest(lambda _, name=name: going(name, 0.6 * LONG_SECONDS))  # type: ignore[misc]
    turn.rest(lambda _: going("c", 0))
    turns = []
    while len(went_on) < 5:
        before = len(went_on)
        await asyncio.sleep(0)
        turns.append(went_on[before:])
    assert [names for names in turns if names] == [["costly"], ["a", "b"], ["c", "costly"]]


async def test_a_turn_that_is_long_begins_no_other_long_frame(stage: Stage) -> None:
    """A hundred connections send something costly at once; a short request is served meanwhile."""
    served = []

    def serve(code: int) -> None:
        served.append(code)
        if code == LONG:
            stage.clock.now += 1.1 * LONG_SECONDS

    with Turns() as turns:
        counted = turns.counting(serve, first=LONG)

        async def handler(_connection: Connection, command: Command) -> Command:
            counted(command.code)
            return command.reply()

        address, caller = await stage.serve(handler)
        callers = [Caller(config=NET) for _ in range(100)]
        for one in callers:
            await one.call(address, Command.request(SHORT), TIMEOUT_MS)
        flood = [
            asyncio.create_task(one.call(address, Command.request(LONG, body=LONG_BODY), TIMEOUT_MS)) for one in callers
        ]
        while LONG not in served:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await caller.call(address, Command.request(SHORT), TIMEOUT_MS)
        assert served.count(LONG) < 20
        await asyncio.gather(*flood)
    assert (turns.total, turns.most) == (100, 1)
    assert stage.books.waiting_bytes == 0
    for one in callers:
        await one.close()


async def test_a_frame_that_waits_for_its_turn_is_forgotten_with_its_connection(stage: Stage) -> None:
    gone = asyncio.Event()

    async def handler(connection: Connection, command: Command) -> Command:
        if command.code == LONG:
            stage.clock.now += 1.1 * LONG_SECONDS
            connection.abort()
            gone.set()
        return command.reply()

    address, caller = await stage.serve(handler)
    calls = [
        asyncio.create_task(caller.call(address, Command.request(LONG, body=LONG_BODY), TIMEOUT_MS)) for _ in range(9)
    ]
    await gone.wait()
    await asyncio.gather(*calls, return_exceptions=True)
    while len(stage.books):  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert stage.books.waiting_bytes == 0


async def test_no_more_bytes_wait_for_their_turn_than_max_waiting_bytes(stage: Stage) -> None:
    """Beyond that, long frames are handled as they come, however long the turn becomes."""
    stage.books.waiting_bytes = NET.max_waiting_bytes + 1
    most = 0

    async def handler(_connection: Connection, command: Command) -> Command:
        nonlocal most
        stage.clock.now += 1.1 * LONG_SECONDS
        most = max(most, stage.books.waiting_bytes)
        return command.reply()

    address, caller = await stage.serve(handler)
    await asyncio.gather(*(caller.call(address, Command.request(LONG, body=LONG_BODY), TIMEOUT_MS) for _ in range(9)))
    assert most == stage.books.waiting_bytes == NET.max_waiting_bytes + 1


async def test_one_pause_of_the_machine_is_no_overload_for_what_is_in_hand(stage: Stage) -> None:
    """Requests that came together are interrupted after a long one; the turn before they came was short."""
    pause_seconds, before = 0.5, list[float]()

    async def handler(connection: Connection, command: Command) -> Command:
        if command.code == LONG:
            time.sleep(pause_seconds)  # noqa: ASYNC251  the machine stands still, and so does the loop
            stage.clock.now += pause_seconds
        else:
            before.append(connection.turn_before_ms)
        return command.reply()

    address, caller = await stage.serve(handler)
    codes = (LONG, SHORT, SHORT, SHORT)
    await asyncio.gather(*(caller.call(address, Command.request(code), TIMEOUT_MS) for code in codes))
    assert len(before) == 3
    assert max(before) < pause_seconds * 1000
