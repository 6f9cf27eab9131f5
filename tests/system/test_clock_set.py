"""A real broker whose date is set while it runs and while it is down. Time itself passes as it does."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cosmodrome import Message, Producer, PushConsumer, ReceivedMessage
from tests.system.daemons import Daemon, up

HOUR_MS = 3_600_000
PATIENCE_SECONDS = 90  # far less than any step
CLOSE_SECONDS = 1.0  # a delivery time is a date, and dates are told in seconds
LEVEL, LEVEL_SECONDS = 2, 5.0


@pytest.mark.parametrize(("hours", "kill"), [(-3, False), (3, True)])
async def test_what_waits_comes_in_true_time(tmp_path: Path, hours: int, kill: bool) -> None:
    control = tmp_path / "shift"
    control.write_text("0")
    data = tmp_path / "data"
    came: dict[str, float] = {}
    due: dict[str, float] = {}
    arrived = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        came.setdefault(message.body.decode(), time.monotonic())
        arrived.set()

    async def send(daemon: Daemon, name: str) -> None:
        async with Producer("p", daemon.address("name server")) as producer:
            due[f"{name} delayed"] = time.monotonic() + LEVEL_SECONDS
            await producer.send(Message("orders", f"{name} delayed".encode(), delay_level=LEVEL))
            if name == "first":  # later on, the broker's date is not ours
                due["timed"] = time.monotonic() + LEVEL_SECONDS - CLOSE_SECONDS
                date = datetime.now(UTC) + timedelta(seconds=LEVEL_SECONDS)
                await producer.send(Message("orders", b"timed", deliver_at=date))

    async def receive(daemon: Daemon) -> None:
        consumer = PushConsumer("g", daemon.address("name server"))
        consumer.subscribe("orders", "*", handler)
        async with asyncio.timeout(PATIENCE_SECONDS), consumer:
            while set(came) < set(due):
                await arrived.wait()
                arrived.clear()

    def start() -> Daemon:
        return up(data, program=("-m", "tests.system.set_clock", str(control)))

    with start() as daemon:
        await send(daemon, "first")
        if kill:
            await asyncio.sleep(1.5)  # by now it is noted what the date was
            daemon.kill()
        control.write_text(str(hours * HOUR_MS))
        if not kill:
            await send(daemon, "second")
            await receive(daemon)
    if kill:
        with start() as daemon:
            await send(daemon, "second")
            await receive(daemon)
    early = {name: due[name] - at for name, at in came.items() if at < due[name]}
    assert not early, f"seconds too early: {early}"
