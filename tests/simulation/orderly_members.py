"""An orderly group in virtual time whose members join, leave, crash and are cut off, with an eye on every handler."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from cosmodrome import (
    ConsumeFrom,
    CosmodromeError,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    SuspendQueue,
)
from cosmodrome.broker.broker import Broker
from cosmodrome.client.lifecycle import State, cancelled
from cosmodrome.config import BrokerConfig
from cosmodrome.errors import ConnectionFailed
from cosmodrome.model import TopicConfig
from cosmodrome.testing import LoopClock, VirtualLoop
from cosmodrome.testing.daemons import running_broker, running_name_server
from tests.simulation.chance import seeded

SECOND, MINUTE = 1_000, 60_000
TOPIC, GROUP = "steps", "steppers"
KEYS = tuple(f"key-{number}" for number in range(20))
MAX_MEMBERS = 4
# A lock lives for a minute in the broker and half of it in a client: shorter handlers cannot meet a successor.
LONGEST_HANDLER_MS = 25 * SECOND
LONGEST_DRAIN_MS = 20 * MINUTE
SHOWN_PROBLEMS = 5


@dataclass
class Report:
    seed: int
    messages: int = 0
    calls: int = 0
    failures: int = 0
    repeated: int = 0  # delivered again although they had been handled
    meetings: int = 0  # of two members in one queue
    changes: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        changes = ", ".join(f"{count} {what}" for what, count in sorted(self.changes.items()))
        return (
            f"seed {self.seed}: {self.messages} messages in {self.calls} calls, {self.failures} failed; {changes}; "
            f"{self.repeated} messages again after faults, {self.meetings} meetings"
        )


class Watch:
    """What handlers do, checked as they begin: one at a time per queue, without a gap, and back only after a fault.

    If locks do not last, since brokers forget them when they end, two members may be in one queue for a while. Then
    what holds is that each goes on without a gap, and that nobody sees a step of a key before all earlier ones.
    """

    def __init__(self, report: Report, locks_last: bool) -> None:
        self.report = report
        self._locks_last = locks_last
        self.next: dict[MessageQueue, int] = defaultdict(int)  # behind what was handled
        self._inside: dict[MessageQueue, str] = {}
        self._disturbed: dict[MessageQueue, str] = {}  # by what happened to this member
        self._steps: dict[str, int] = defaultdict(int)  # by key: the next that nobody has seen
        self.problems: list[str] = []  # what is raised in a handler would be taken for its failure

    def enter(self, member: str, messages: Sequence[ReceivedMessage]) -> None:
        queue, offsets = messages[0].queue, [message.queue_offset for message in messages]
        first, expected = offsets[0], self.next[queue]
        where = f"{member} at {offsets} of {queue}, expected {expected}"
        self._check(offsets == list(range(first, first + len(offsets))), where)
        if self._locks_last:
            self._check(queue not in self._inside, f"{where}: {self._inside.get(queue)} is inside")
            self._check(first == expected or (first < expected and queue in self._disturbed), where)
        else:
            self._check(first <= expected, where)
            self.report.meetings += queue in self._inside
        if self._disturbed.get(queue, member) != member:
            del self._disturbed[queue]
        for message in messages:
            key, step = message.keys, int(message.body)
            self._check(step <= self._steps[key], f"{where}: {key} jumps to {step}")
            self._steps[key] = max(self._steps[key], step + 1)
        self.report.calls += 1
        self.report.repeated += sum(offset < expected for offset in offsets)
        self._inside[queue] = member

    def _check(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)

    def leave(self, member: str, messages: Sequence[ReceivedMessage], done: int) -> None:
        queue, behind = messages[0].queue, messages[0].queue_offset + done
        self.report.failures += done < len(messages)
        is_inside = self._inside.get(queue) == member  # else it is dead, or had to share
        if is_inside:
            del self._inside[queue]
        if not self._locks_last:
            self.next[queue] = max(self.next[queue], behind)
        elif is_inside:
            self.next[queue] = behind

    def disturb(self, member: str, queues: Sequence[MessageQueue]) -> None:
        self._disturbed.update(dict.fromkeys(queues, member))

    def bury(self, member: str) -> None:
        for queue in [queue for queue, inside in self._inside.items() if inside == member]:
            del self._inside[queue]
            self._disturbed[queue] = member


class Member:
    """One consumer, its handlers in lists or one by one, on the loop or beside it."""

    def __init__(self, name: str, namesrv: str, clock: LoopClock, watch: Watch, random: Random) -> None:
        self.name = name
        self._watch = watch
        self._random = random
        self._clock = clock
        self.is_cut = False
        self.consumer = PushConsumer(
            GROUP,
            namesrv,
            orderly=True,
            consume_from=ConsumeFrom.FIRST_OFFSET,
            max_in_flight=random.choice((1, 2, 20)),
            clock=clock,
        )
        handler: Any = self._work if random.random() < 0.8 else self._work_at_once
        self.consumer.subscribe(TOPIC, "*", handler, batch=random.choice((1, 1, 4, 32)))

    async def _work(self, messages: list[ReceivedMessage]) -> None:
        self._watch.enter(self.name, messages)
        done = 0
        try:
            times_ms = (0, 10, 50, 200, 1_000, 4_000, LONGEST_HANDLER_MS)
            await self._clock.sleep(self._random.choices(times_ms, (40, 20, 20, 10, 5, 3, 1))[0])
            done = self._outcome(messages)
        finally:
            self._watch.leave(self.name, messages, done)
        self._maybe_fail(messages, done)

    def _work_at_once(self, messages: list[ReceivedMessage]) -> None:
        self._watch.enter(self.name, messages)
        done = self._outcome(messages)
        self._watch.leave(self.name, messages, done)
        self._maybe_fail(messages, done)

    def _outcome(self, messages: Sequence[ReceivedMessage]) -> int:
        """How many of them are done."""
        return self._random.choice((0, self._random.randrange(len(messages)), *[len(messages)] * 10))

    def _maybe_fail(self, messages: Sequence[ReceivedMessage], done: int) -> None:
        if done < len(messages):
            raise SuspendQueue(300, done=done) if done else RuntimeError("told to fail")

    @property
    def _queues(self) -> list[MessageQueue]:
        return list(self.consumer._queues.processes)

    async def crash(self) -> None:
        """As a process that is killed: nothing is said to anybody, and connections break."""
        self._watch.disturb(self.name, self._queues)
        consumer = self.consumer
        self._watch.bury(self.name)
        consumer._state = State.STOPPED
        consumer._queues._closed = True
        await cancelled({*consumer._handlers._working, *consumer._instance._tasks})
        await consumer._instance.caller.close()

    async def cut(self, for_ms: int) -> None:
        """For a while no broker hears of it and it hears of none, while its handlers go on."""
        self._watch.disturb(self.name, self._queues)
        self.is_cut = True
        caller: Any = self.consumer._instance.caller
        call, oneway = caller.call, caller.oneway
        caller.call = caller.oneway = _unreachable
        for link in caller._links.values():
            if link.connection is not None:
                link.connection.close()
        await self._clock.sleep(for_ms)
        caller.call, caller.oneway = call, oneway
        self.is_cut = False


async def _unreachable(address: str, *_: object) -> None:
    raise ConnectionFailed(address, "cut off")


def run_group(folder: Path, seed: int, duration_ms: int, *, restarts: bool = False) -> Report:
    """AssertionError if order is broken, two members meet in a queue, or a message is lost."""
    logging.disable(logging.CRITICAL)
    try:
        with seeded(seed), asyncio.Runner(loop_factory=lambda: VirtualLoop(Random(seed))) as runner:
            return runner.run(_World(folder, seed, duration_ms, restarts).run())
    finally:
        logging.disable(logging.NOTSET)


class _World:
    def __init__(self, folder: Path, seed: int, duration_ms: int, restarts: bool) -> None:
        self._folder = folder
        self._duration_ms = duration_ms
        self._restarts = restarts
        self._random = Random(seed)
        self._report = Report(seed)
        self._watch = Watch(self._report, locks_last=not restarts)
        self._members: list[Member] = []

    async def run(self) -> Report:
        self._clock = clock = LoopClock()
        self._end_ms = clock.now_ms() + self._duration_ms
        async with AsyncExitStack() as stack:
            self._namesrv = (await stack.enter_async_context(running_name_server(clock))).address
            lives = await stack.enter_async_context(AsyncExitStack())
            broker = await self._start_broker(lives)
            queues = self._random.choice((1, 3, 8))
            broker.topics.put(TopicConfig(TOPIC, queues, queues))
            producer = await stack.enter_async_context(Producer("p", self._namesrv, clock=clock))
            stack.push_async_callback(self._stop_members)
            ends, *_ = await asyncio.gather(self._send(producer), self._change(), self._restart(lives))
            await self._drain(ends)
        self._check()
        return self._report

    async def _start_broker(self, lives: AsyncExitStack) -> Broker:
        config = BrokerConfig(broker_name="broker-a")
        return await lives.enter_async_context(running_broker(self._folder, self._namesrv, config, clock=self._clock))

    async def _restart(self, lives: AsyncExitStack) -> None:
        random = Random(self._random.random())
        while self._restarts and self._is_open:
            await self._clock.sleep(round(random.expovariate(1 / 100_000)))
            await lives.aclose()
            await self._clock.sleep(random.choice((0, 1, 10, 45)) * SECOND)
            await self._start_broker(lives)
            self._report.changes["restarts"] += 1

    @property
    def _is_open(self) -> bool:
        return self._clock.now_ms() < self._end_ms and not self._watch.problems

    async def _stop_members(self) -> None:
        await asyncio.gather(*(member.consumer.stop() for member in self._members))

    def _check(self) -> None:
        assert not self._watch.problems, "\n".join(self._watch.problems[:SHOWN_PROBLEMS])

    async def _send(self, producer: Producer) -> dict[MessageQueue, int]:
        """Every key's steps go to one queue; returns where the queues end."""
        random, ends = Random(self._random.random()), dict[MessageQueue, int]()
        steps = Counter[str]()
        while self._is_open:
            for _ in range(random.choice((1, 1, 2, 20))):
                key = random.choice(KEYS)
                message = Message(TOPIC, str(steps[key]).encode(), keys=key)
                steps[key] += 1
                result = await self._acknowledged(producer, message)
                ends[result.queue] = result.queue_offset + 1
                self._report.messages += 1
            await self._clock.sleep(round(random.expovariate(1 / 2_000)))
        return ends

    async def _acknowledged(self, producer: Producer, message: Message) -> SendResult:
        deadline_ms = self._clock.now_ms() + LONGEST_DRAIN_MS
        while True:
            try:
                return await producer.send(message, selector=_queue_of)
            except CosmodromeError:
                if self._clock.now_ms() >= deadline_ms:
                    raise
                await self._clock.sleep(SECOND)

    async def _change(self) -> None:
        random = self._random
        cuts: set[asyncio.Task[None]] = set()
        await self._join()
        while self._is_open:
            await self._clock.sleep(round(random.expovariate(1 / 20_000)))
            what = random.choice(("joined", "joined", "left", "crashed", "cut off"))
            if what == "joined":
                if len(self._members) < MAX_MEMBERS:
                    await self._join()
                continue
            if len(self._members) < 2:
                continue
            member = random.choice(self._members)
            if what == "cut off":
                if member.is_cut:
                    continue
                self._report.changes[what] += 1
                cuts.add(asyncio.create_task(member.cut(random.choice((5, 25, 40, 100)) * SECOND)))
                continue
            self._report.changes[what] += 1
            self._members.remove(member)
            await (member.consumer.stop() if what == "left" else member.crash())
        if cuts:
            await asyncio.wait(cuts)

    async def _join(self) -> None:
        name = f"member-{self._report.changes['joined']}"
        self._report.changes["joined"] += 1
        member = Member(name, self._namesrv, self._clock, self._watch, Random(self._random.random()))
        self._members.append(member)
        await member.consumer.start()

    async def _drain(self, ends: dict[MessageQueue, int]) -> None:
        deadline_ms = self._clock.now_ms() + LONGEST_DRAIN_MS
        while any(self._watch.next[queue] < end for queue, end in ends.items()):
            self._check()
            assert self._clock.now_ms() < deadline_ms, f"stuck at {dict(self._watch.next)} of {ends}"
            await self._clock.sleep(SECOND)
        assert {queue: self._watch.next[queue] for queue in ends} == ends


def _queue_of(queues: Sequence[MessageQueue], message: Message, _: object) -> MessageQueue:
    return queues[KEYS.index(str(message.keys)) % len(queues)]
