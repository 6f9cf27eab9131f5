"""Everything that waits, on a machine whose clock is set again and again, in virtual time.

Broker, name server and clients are the real ones on one loop; the clock of all of them is set forward and back by
seconds to hours, also while the broker is down. What waits must come when the time it asked for has truly passed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import cosmodrome.testing
from cosmodrome import CosmodromeError, Message, ReceivedMessage, TransactionProducer, TransactionState
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import BrokerConfig
from cosmodrome.model import Property
from cosmodrome.net.caller import Caller
from cosmodrome.testing import VirtualLoop
from cosmodrome.testing.cluster import AsyncCluster
from cosmodrome.wire.command import Command
from cosmodrome.wire.pop import Handle
from cosmodrome.wire.record import decode_records
from cosmodrome.wire.requests import AckMessage, PopMessage
from tests.simulation.chance import seeded

SECOND, MINUTE = 1_000, 60_000
HOUR = 60 * MINUTE
LATE_MS = 10 * SECOND  # nothing that waits for a time comes later than this
EARLY_MS = SECOND  # a delivery time is a date, which is told in seconds
LEVELS_MS = {1: 1 * SECOND, 2: 5 * SECOND, 3: 10 * SECOND, 4: 30 * SECOND, 5: 1 * MINUTE, 6: 2 * MINUTE}
STEPS_MS = (2 * SECOND, 40 * SECOND, 7 * MINUTE, 3 * HOUR, 30 * HOUR, 100 * HOUR)
INVISIBLE_MS = 20 * SECOND
REVIVED_MS = 5 * SECOND  # from the end of the invisible time until a message can be popped again
CHECK_AFTER_MS, CHECK_EVERY_MS = 6 * SECOND, 30 * SECOND
ROUTE_MS = 31 * SECOND  # until a client has found the way to a broker that was down
DELAYED, TIMED, RETRIED, POPPED, PAID = "delayed", "timed", "retried", "popped", "paid"
TOPICS = (DELAYED, TIMED, RETRIED, POPPED, PAID)


@dataclass
class Wait:
    """One message, and when it was to come, in steady time."""

    what: str
    due_ms: int
    latest_ms: int
    came_ms: list[int] = field(default_factory=list)


@dataclass
class Report:
    seed: int
    waits: int = 0
    steps: int = 0
    restarts: int = 0

    def __str__(self) -> str:
        return f"clock seed {self.seed}: {self.waits} waits in time, {self.steps} steps, {self.restarts} restarts"


class ClockSteps:
    """One run: what was sent, and when it came."""

    def __init__(self, cluster: AsyncCluster, random: Random, minutes: int, *, restarts: bool) -> None:
        self._cluster = cluster
        self._random = random
        self._minutes = minutes
        self._restarts = restarts
        self._waits: dict[str, Wait] = {}
        self._numbers = iter(range(10**9))
        self._asked: set[str] = set()
        self._down_ms = 0  # until when the last stop of the broker may hold things up
        self.report = Report(0)

    @property
    def _now_ms(self) -> int:
        return self._cluster.clock.steady_ms()

    async def run(self) -> None:
        cluster = self._cluster
        for topic in TOPICS:
            await cluster.create_topic(topic, 2)
        consumer = cluster.push_consumer("waiting")
        for topic in (DELAYED, TIMED, PAID):
            consumer.subscribe(topic, "*", self._arrived)
        consumer.subscribe(RETRIED, "*", self._failed_once)
        caller = Caller()
        async with (
            cluster.producer("sender") as self._producer,
            cluster.client(TransactionProducer, "payer", check=self._check) as self._payer,
            consumer,
        ):
            popping = asyncio.create_task(self._pops(caller))
            end_ms = self._now_ms + self._minutes * MINUTE
            while self._now_ms < end_ms:
                await asyncio.sleep(self._random.uniform(0.2, 6))
                await self._random.choice(self._actions)()
            await self._settle()
            popping.cancel()
            with suppress(asyncio.CancelledError):
                await popping
        await caller.close()
        self._audit()

    @property
    def _actions(self) -> list[Callable[[], Awaitable[None]]]:
        sends = [self._delay, self._delay, self._time, self._time, self._retry, self._pop, self._pay]
        return [*sends, self._step, *([self._restart] if self._restarts and self._random.random() < 0.3 else [])]

    # --- what waits

    async def _send(self, topic: str, wait_ms: int, late_ms: int = LATE_MS, **more: object) -> None:
        name = f"{topic}-{next(self._numbers)}"
        began_ms = self._now_ms
        self._waits[name] = Wait(topic, began_ms + wait_ms, 0)
        await self._producer.send(Message(topic, name.encode(), **more))  # type: ignore[arg-type]
        self._waits[name].latest_ms = self._now_ms + wait_ms + late_ms

    async def _delay(self) -> None:
        level = self._random.choice(list(LEVELS_MS))
        await self._send(DELAYED, LEVELS_MS[level], delay_level=level)

    async def _time(self) -> None:
        ms = self._random.randint(1, 150) * SECOND
        date = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=self._cluster.clock.now_ms() + ms)
        await self._send(TIMED, ms - EARLY_MS, LATE_MS + EARLY_MS, deliver_at=date)

    async def _retry(self) -> None:
        """The handler fails once: it comes again with the first level of retries, the third."""
        await self._send(RETRIED, LEVELS_MS[3])

    async def _pop(self) -> None:
        """Popped twice: the first time it is not acked."""
        await self._send(POPPED, INVISIBLE_MS, REVIVED_MS + LATE_MS)

    async def _pay(self) -> None:
        """A transaction that only a check commits."""
        name = f"{PAID}-{next(self._numbers)}"
        self._waits[name] = Wait(PAID, self._now_ms + CHECK_AFTER_MS, 0)
        await self._payer.send_in_transaction(
            Message(PAID, name.encode(), keys=name), lambda *_: TransactionState.UNKNOWN
        )
        self._waits[name].latest_ms = self._now_ms + CHECK_AFTER_MS + CHECK_EVERY_MS + LATE_MS

    # --- what comes

    def _came(self, name: str) -> None:
        self._waits[name].came_ms.append(self._now_ms)

    async def _arrived(self, message: ReceivedMessage) -> None:
        self._came(message.body.decode())

    async def _failed_once(self, message: ReceivedMessage) -> None:
        if message.reconsume_times == 0:
            raise RuntimeError("not now")
        self._came(message.body.decode())

    def _check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT

    async def _pops(self, caller: Caller) -> None:
        while True:
            try:
                await self._pop_once(caller)
            except CosmodromeError:  # the broker is down
                await asyncio.sleep(1)

    async def _pop_once(self, caller: Caller) -> None:
        node = self._cluster.brokers[0]
        header = PopMessage("poppers", POPPED, -1, 32, INVISIBLE_MS, 5_000, self._cluster.clock.now_ms())
        began_ms = self._now_ms
        reply = await caller.call(node.address, Command.request(RequestCode.POP_MESSAGE, header), 30_000)
        if reply.code == ResponseCode.POLLING_TIMEOUT and node.running:
            assert self._now_ms - began_ms >= 4_000 or self._was_down, "a long poll ended early"
        if reply.code != ResponseCode.SUCCESS:
            return
        for record in decode_records(reply.body):
            found = record.properties.partition(f"{Property.POP_CK}\x01")[2].partition("\x02")[0]
            if not found:
                continue  # the first time
            handle = Handle.decode(found)
            self._came(record.body.decode())
            topic = f"%RETRY%poppers_{POPPED}"
            ack = AckMessage("poppers", topic, handle.queue_id, handle.encode(), handle.offset)
            answer = await caller.call(node.address, Command.request(RequestCode.ACK_MESSAGE, ack), 30_000)
            assert answer.code == ResponseCode.SUCCESS, answer.remark

    @property
    def _was_down(self) -> bool:
        return self._now_ms < self._down_ms

    # --- trouble

    async def _step(self) -> None:
        self.report.steps += 1
        self._cluster.clock.step(
            self._random.choice((-1, 1)) * self._random.choice(STEPS_MS) + self._random.randint(0, 999)
        )

    async def _restart(self) -> None:
        """In order or by a kill, the clock perhaps set meanwhile. What was due then comes soon after."""
        self.report.restarts += 1
        began_ms = self._now_ms
        if self._random.random() < 0.5:
            await self._cluster.stop_broker()
        else:
            await self._cluster.kill_broker()
        await asyncio.sleep(self._random.uniform(0, 20))
        if self._random.random() < 0.5:
            await self._step()
        await self._cluster.start_broker()
        self._down_ms = self._now_ms + ROUTE_MS
        for wait in self._waits.values():
            if not wait.came_ms and (not wait.latest_ms or wait.latest_ms >= began_ms):
                wait.latest_ms = max(wait.latest_ms, wait.due_ms + LATE_MS) + self._down_ms - began_ms
        await asyncio.sleep(ROUTE_MS / 1_000)

    async def _settle(self) -> None:
        """Calm, until everything must have come."""
        latest_ms = max(wait.latest_ms for wait in self._waits.values())
        await asyncio.sleep(max(latest_ms - self._now_ms, 0) / 1_000 + 5)

    def _audit(self) -> None:
        problems = []
        for name, wait in self._waits.items():
            if not wait.came_ms:
                problems.append(f"{name} never came; due {self._told(wait.due_ms)}")
            elif min(wait.came_ms) < wait.due_ms:
                problems.append(f"{name} came {wait.due_ms - min(wait.came_ms)} ms early")
            elif min(wait.came_ms) > wait.latest_ms:
                problems.append(f"{name} came {min(wait.came_ms) - wait.latest_ms} ms late")
            elif not self.report.restarts and len(wait.came_ms) > 1:
                problems.append(f"{name} came {len(wait.came_ms)} times")
        assert not problems, "\n".join(problems[:30])
        self.report.waits = len(self._waits)

    def _told(self, ms: int) -> str:
        return f"{(ms - self._now_ms) / 1_000:+.1f} s from the end"


def live_with_steps(folder: Path, seed: int, minutes: int = 10, *, restarts: bool = True) -> Report:
    """Raise AssertionError that names what came early, late or not at all."""
    config = BrokerConfig(
        broker_name="broker-a",
        transaction_time_out=CHECK_AFTER_MS,
        transaction_check_interval=CHECK_EVERY_MS,
        pop_from_retry_probability=50,
    )
    random = Random(f"clock {seed}")

    async def live() -> Report:
        async with cosmodrome.testing.cluster(config=config, data_dir=folder) as cluster:
            steps = ClockSteps(cluster, random, minutes, restarts=restarts)
            steps.report.seed = seed
            await steps.run()
            return steps.report

    with seeded(seed), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(live())


if __name__ == "__main__":
    import sys
    import tempfile

    for each in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
        with tempfile.TemporaryDirectory() as there:
            print(live_with_steps(Path(there), each, restarts=bool(os.environ.get("RESTARTS"))), flush=True)
