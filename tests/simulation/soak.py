"""An hour of mixed traffic in virtual time on a broker that is stopped and killed again and again; then an audit.

Broker, name server and clients are the real ones, with real sockets and files, in one process and on one loop whose
time passes only while everybody waits. Everything is drawn from a seed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from cosmodrome import (
    ConsumeFrom,
    CosmodromeError,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    SendStatus,
    TransactionProducer,
    TransactionState,
)
from cosmodrome.broker.broker import Broker
from cosmodrome.clock import sleep_unless
from cosmodrome.config import FlushDiskType, NameServerConfig, NetConfig
from cosmodrome.model import (
    CHECK_MAX_TIME_TOPIC,
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    GroupConfig,
    Property,
    TopicConfig,
)
from cosmodrome.nameserver.server import NameServer
from cosmodrome.store.verification import verify
from cosmodrome.testing import FaultyDisk, LoopClock, VirtualLoop
from cosmodrome.testing.daemons import running
from cosmodrome.testing.kill import cut_off
from cosmodrome.wire import properties as props
from cosmodrome.wire.record import Record, decode_records
from tests.simulation.chance import seeded
from tests.simulation.soak_ledger import Audit, Entry, Fate, Group, Ledger, Places, Recall, Sent
from tests.simulation.soak_machine import STORE, AppendFuse, Machine
from tests.simulation.soak_orderly import OrderlyConsumer

SECOND, MINUTE = 1_000, 60_000
HOUR = 60 * MINUTE
ORDERS, REMINDERS, PAYMENTS, STEPS = "orders", "reminders", "payments", "steps"
QUEUES = 4
SHOWN_PROBLEMS = 30
TAGS = ("paid", "open", "late")
STEP_KEYS = ("anna", "bert", "cleo", "dora", "emil")
COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
BILLING = Group("billing", (ORDERS, REMINDERS, PAYMENTS), max_retries=2, gives_up_soon=True, members=2)
AUDITING = Group("auditing", (ORDERS, PAYMENTS), tags="paid")  # retries for longer than the soak lasts
CARELESS = Group("careless", (ORDERS, REMINDERS), discards=True)
STEPPING = Group("stepping", (STEPS,), max_retries=2, members=2)
GROUPS = (BILLING, AUDITING, CARELESS, STEPPING)
# Every how many virtual milliseconds, on average, something is sent.
PACE_MS = {
    Sent.NORMAL: 2_500,
    Sent.BATCH: 30_000,
    Sent.ONEWAY: 40_000,
    Sent.DELAYED: 9_000,
    Sent.TIMED: 5_000,
    Sent.TRANSACTION: 9_000,
    Sent.ORDERLY: 12_000,
}


@dataclass(frozen=True)
class Plan:
    """How long a soak lasts, and what happens in it."""

    duration_ms: int = HOUR
    longest_wait_ms: int = 20 * MINUTE  # that delayed and timed messages ask for
    longest_drain_ms: int = HOUR
    kill_share: float = 0.6  # of all ends of a broker; the others are clean
    full_disk_share: float = 0.25  # of all ends of a broker; for some seconds before


class CannotHandle(Exception):
    """What handlers raise."""


@dataclass
class Report:
    """What a soak has covered."""

    seed: int
    flush: FlushDiskType
    virtual_minutes: float = 0
    drain_minutes: float = 0
    seconds: float = 0
    messages: Counter[Sent] = field(default_factory=Counter)
    fates: Counter[Fate] = field(default_factory=Counter)
    duplicates: int = 0
    stops: int = 0
    kills: int = 0
    crashes: int = 0
    rejoined: int = 0

    def __str__(self) -> str:
        messages = ", ".join(f"{count} {kind}" for kind, count in self.messages.items())
        fates = ", ".join(f"{count} {fate}" for fate, count in self.fates.most_common())
        return (
            f"{self.flush} seed {self.seed}: {self.virtual_minutes:.0f} min and {self.drain_minutes:.0f} to drain in "
            f"{self.seconds:.1f} s; {self.stops} stops, {self.kills} kills ({self.crashes} with the machine), "
            f"{self.rejoined} consumers replaced; {self.messages.total()} messages ({messages}); "
            f"in all groups: {fates}; {self.duplicates} times twice; none lost"
        )


Meddle = Callable[[Broker], None]


def _leave_alone(_broker: Broker) -> None:
    pass


def soak(
    folder: Path,
    seed: int,
    flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH,
    plan: Plan | None = None,
    meddle: Meddle = _leave_alone,
) -> Report:
    """Run it; AssertionError with the history of each message that is lost or wrong.

    `meddle` is called with each broker that starts, to plant mistakes.
    """
    began = time.monotonic()
    with (
        seeded(seed),
        _quiet(),
        FaultyDisk(folder, watch=False) as disk,  # syncs cost nothing
        asyncio.Runner(loop_factory=lambda: VirtualLoop(Random(seed))) as runner,
    ):
        report = runner.run(_soak(folder, disk, Report(seed, flush), plan or Plan(), meddle))
    report.seconds = time.monotonic() - began
    return report


async def _soak(folder: Path, disk: FaultyDisk, report: Report, plan: Plan, meddle: Meddle) -> Report:
    clock = LoopClock()
    name_server = NameServer(NameServerConfig(listen_port=0), NetConfig(), clock)
    await name_server.start()
    async with running(name_server.run):
        machine = Machine(folder, disk, name_server.address, clock, report.flush)
        world = World(machine, name_server.address, clock, report.seed, plan, meddle)
        audit = await world.run()
    problems = audit.problems or [str(problem) for problem in verify(machine.store_path).problems]
    shown = "\n".join(problems[:SHOWN_PROBLEMS])
    assert not problems, f"{report.flush} seed {report.seed}: {len(problems)} problems, the first are\n{shown}"
    report.virtual_minutes, report.drain_minutes = plan.duration_ms / MINUTE, world.drained_ms / MINUTE
    report.messages, report.fates, report.duplicates = world.ledger.sent, audit.fates, world.ledger.duplicates
    report.rejoined = world.rejoined
    report.stops, report.kills, report.crashes = machine.stops, machine.kills, machine.crashes
    return report


@contextmanager
def _quiet() -> Iterator[None]:
    """Failing handlers and lost connections are what this is about; formatting thousands of them takes longer."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


class World:
    """Everybody around the broker."""

    def __init__(self, machine: Machine, namesrv: str, clock: LoopClock, seed: int, plan: Plan, meddle: Meddle) -> None:
        self._machine = machine
        self._namesrv = namesrv
        self._clock = clock
        self._seed = seed
        self._meddle = meddle
        self._start_ms = clock.now_ms()
        self._end_ms = self._start_ms + plan.duration_ms
        self._plan = plan
        self._asked: Counter[int] = Counter()
        self.ledger = Ledger(GROUPS, self._start_ms)
        self.rejoined = 0
        self.drained_ms = 0

    async def run(self) -> Audit:
        await self._start_broker()
        async with self._consumers() as members:
            async with self._producers() as work:
                await asyncio.gather(self._trouble(), self._changes(members), *work)
            audit = await self._drain()
        if not audit.problems:
            self._check_topics()
            audit = self.ledger.audit(self._places())  # what the last handlers did counts, too
        await self._machine.end()
        return audit

    @property
    def _is_open(self) -> bool:
        return self._clock.now_ms() < self._end_ms

    def _random(self, *purpose: object) -> Random:
        """For each purpose its own: the same things are sent and done at the same times, whoever comes first."""
        return Random(f"{self._seed} {purpose}")

    async def _pause(self, random: Random, mean_ms: float) -> None:
        await self._clock.sleep(_pause_ms(random, mean_ms))

    # --- the broker

    async def _start_broker(self) -> None:
        await self._machine.start()
        self.ledger.life = self._machine.life
        broker = self._machine.broker
        for topic in (REMINDERS, PAYMENTS, STEPS):  # orders is made by the first who sends there
            broker.topics.put(TopicConfig(topic, QUEUES, QUEUES))
        broker.groups.put(GroupConfig(CARELESS.name, retry_queues=0))
        self._meddle(broker)

    async def _trouble(self) -> None:
        """Stop and kill the broker, in quiet moments and in busy ones, and leave it down for a while."""
        random, machine = self._random("trouble"), self._machine
        while self._is_open:
            await sleep_unless(machine.killed, self._clock, _pause_ms(random, 100 * SECOND))
            if random.random() < self._plan.full_disk_share:
                machine.fill_disk()
                await sleep_unless(machine.killed, self._clock, _pause_ms(random, 5 * SECOND))
            if not machine.killed.is_set() and random.random() < self._plan.kill_share:
                await self._kill(random)
            else:
                machine.defuse()
            await machine.end(machine_too=random.random() < 0.3)
            await self._clock.sleep(random.choice((0, 0, 0, 200, 1_000, 5_000, 30_000)))
            if random.random() < self._plan.kill_share / 2:
                machine.kill_at_operation(random.randrange(200))  # perhaps while it starts
            await self._start_broker()
        machine.defuse()
        if machine.killed.is_set():
            await machine.end()
            await self._start_broker()

    async def _kill(self, random: Random) -> None:
        """In a quiet moment, or in the middle of something; perhaps only while it is stopped."""
        machine = self._machine
        match random.choices(("quiet", "append", "operation", "stop"), (1, 5, 2, 2))[0]:
            case "quiet":
                machine.kill()
            case "append":
                fuse = AppendFuse(random.randint(1, 12), random.random() < 0.3, random.choice((0, 0, 1, 3, 8)))
                machine.kill_at_append(fuse)
                await machine.killed.wait()
            case "operation":
                machine.kill_at_operation(random.randrange(60))
                await machine.killed.wait()
            case "stop":
                machine.kill_at_operation(random.randrange(40))

    # --- producers

    @asynccontextmanager
    async def _producers(self) -> AsyncIterator[list[Awaitable[None]]]:
        async with (
            Producer("shop", self._namesrv, clock=self._clock) as shop,
            TransactionProducer("bank", self._namesrv, clock=self._clock, check=self._check) as bank,
            TransactionProducer("bank", self._namesrv, clock=self._clock, check=self._check) as other,
        ):
            yield [
                self._often(Sent.NORMAL, lambda random: self._send_normal(shop, random)),
                self._often(Sent.BATCH, lambda random: self._send_batch(shop, random)),
                self._often(Sent.ONEWAY, lambda random: self._send_oneway(shop, random)),
                self._often(Sent.DELAYED, lambda random: self._send_delayed(shop, random)),
                self._often(Sent.TIMED, lambda random: self._send_timed(shop, random)),
                self._often(Sent.TRANSACTION, lambda random: self._send_half(random.choice((bank, other)), random)),
                *(self._send_steps(shop, key) for key in STEP_KEYS),
            ]

    async def _often(self, kind: Sent, send: Callable[[Random], Awaitable[None]]) -> None:
        """In bursts: what is under way when the broker dies is what this is about."""
        random = self._random(kind)
        while self._is_open:
            size = random.choice((1, 1, 2, 5))
            await self._pause(random, PACE_MS[kind] * size)
            await asyncio.gather(*(send(Random(random.random())) for _ in range(size)))

    def _enter(self, sent: Sent, topic: str, random: Random, wait_ms: int = 0) -> tuple[Entry, Message]:
        entry = self.ledger.enter(sent, topic, random.choice(TAGS), self._clock.now_ms(), wait_ms)
        body = b"%d:" % entry.number + b"x" * random.randrange(600)
        return entry, Message(topic, body, tags=entry.tag, keys=str(entry.number))

    async def _acknowledged(self, entry: Entry, sending: Awaitable[SendResult]) -> SendResult | None:
        """The broker's promise for the message, if it makes one."""
        try:
            result = await sending
        except CosmodromeError as error:
            self.ledger.note(entry.number, self._clock.now_ms(), f"not acknowledged: {error}")
            return None
        if result.status is not SendStatus.SEND_OK:
            self.ledger.note(entry.number, self._clock.now_ms(), f"not acknowledged: {result.status}")
            return None
        self.ledger.acknowledge(entry, self._clock.now_ms(), f"{result.queue} at {result.queue_offset}")
        return result

    async def _send_normal(self, producer: Producer, random: Random) -> None:
        entry, message = self._enter(Sent.NORMAL, ORDERS, random)
        await self._acknowledged(entry, producer.send(message))

    async def _send_batch(self, producer: Producer, random: Random) -> None:
        batch = [self._enter(Sent.BATCH, ORDERS, random) for _ in range(random.randint(2, 8))]
        try:
            result = await producer.send_batch([message for _, message in batch])
        except CosmodromeError:
            return
        if result.status is SendStatus.SEND_OK:
            for entry, _ in batch:
                self.ledger.acknowledge(entry, self._clock.now_ms(), result.queue)

    async def _send_oneway(self, producer: Producer, random: Random) -> None:
        entry, message = self._enter(Sent.ONEWAY, ORDERS, random)
        try:
            await producer.send_oneway(message)
        except CosmodromeError as error:
            self.ledger.note(entry.number, self._clock.now_ms(), f"not sent: {error}")

    async def _send_delayed(self, producer: Producer, random: Random) -> None:
        waits = enumerate(STORE.delays_ms, 1)
        level, wait_ms = random.choice([wait for wait in waits if wait[1] <= self._plan.longest_wait_ms])
        entry, message = self._enter(Sent.DELAYED, REMINDERS, random, wait_ms)
        message.delay_level = level
        await self._acknowledged(entry, producer.send(message))

    async def _send_timed(self, producer: Producer, random: Random) -> None:
        longest_ms = random.choice((SECOND, 10 * SECOND, self._plan.longest_wait_ms))
        wait_ms = random.randrange(1, longest_ms)
        entry, message = self._enter(Sent.TIMED, REMINDERS, random, wait_ms)
        is_recalled = random.random() < 0.2
        if is_recalled or random.random() < 0.5:
            message.deliver_at = datetime.fromtimestamp(entry.due_ms / 1000, UTC)
        else:
            message.delay = timedelta(milliseconds=wait_ms)
        result = await self._acknowledged(entry, producer.send(message))
        if is_recalled and result is not None and result.recall_handle:
            await self._recall(producer, entry, result.recall_handle, random)

    async def _recall(self, producer: Producer, entry: Entry, handle: str, random: Random) -> None:
        await self._clock.sleep(random.randrange(max(entry.due_ms - self._clock.now_ms(), 1)))
        if self._clock.now_ms() >= entry.due_ms - 2 * SECOND:
            return
        entry.recall = Recall.UNSURE
        self.ledger.note(entry.number, self._clock.now_ms(), "recalling")
        try:
            await producer.recall(entry.topic, handle)
        except CosmodromeError as error:
            self.ledger.note(entry.number, self._clock.now_ms(), f"recall: {error}")
        else:
            entry.recall = Recall.DONE
            self.ledger.note(entry.number, self._clock.now_ms(), "recalled")

    async def _send_half(self, producer: TransactionProducer, random: Random) -> None:
        entry, message = self._enter(Sent.TRANSACTION, PAYMENTS, random)
        entry.decision = ROLLBACK  # until the application has done its work
        knows_at_once = random.random() < 0.6

        async def execute(_message: Message) -> TransactionState:
            entry.decision = random.choices((COMMIT, ROLLBACK, UNKNOWN), (6, 2, 1))[0]
            self.ledger.acknowledge(entry, self._clock.now_ms(), f"half message; decided {entry.decision.name}")
            return entry.decision if knows_at_once else UNKNOWN

        try:
            await producer.send_in_transaction(message, execute)
        except CosmodromeError as error:
            self.ledger.note(entry.number, self._clock.now_ms(), f"half message not acknowledged: {error}")

    async def _check(self, message: ReceivedMessage) -> TransactionState:
        number = number_of(message.body)
        self._asked[number] += 1
        self.ledger.note(number, self._clock.now_ms(), f"asked about it for the {self._asked[number]}. time")
        return self.ledger.entries[number].decision if self._asked[number] > number % 3 else UNKNOWN

    async def _send_steps(self, producer: Producer, key: str) -> None:
        """The next step of a key is sent only when the broker has the one before it, however long that takes."""
        random = self._random(key)
        for step in itertools.count(1):
            await self._pause(random, PACE_MS[Sent.ORDERLY] * len(STEP_KEYS))
            if not self._is_open:
                return
            entry = self.ledger.enter(Sent.ORDERLY, STEPS, "", self._clock.now_ms())
            message = Message(STEPS, f"{entry.number}:{key}:{step}".encode(), keys=str(entry.number))
            deadline_ms = self._clock.now_ms() + self._plan.longest_drain_ms
            while not entry.acknowledged:
                assert self._clock.now_ms() < deadline_ms, f"the broker does not take step {step} of {key}"
                sending = producer.send(message, selector=_chosen, arg=STEP_KEYS.index(key))
                await self._acknowledged(entry, sending)
                await self._clock.sleep(0 if entry.acknowledged else SECOND)

    # --- consumers

    @asynccontextmanager
    async def _consumers(self) -> AsyncIterator[list[tuple[Group, PushConsumer | OrderlyConsumer]]]:
        members: list[tuple[Group, PushConsumer | OrderlyConsumer]] = []
        try:
            for group in itertools.chain(*([group] * group.members for group in GROUPS)):
                members.append((group, await self._join(group)))  # noqa: PERF401  # those who came must leave
            yield members
        finally:
            async with AsyncExitStack() as stack:
                for _, member in members:
                    stack.push_async_callback(member.stop)

    async def _join(self, group: Group) -> PushConsumer | OrderlyConsumer:
        member: PushConsumer | OrderlyConsumer
        if group is STEPPING:
            member = self._orderly(group)
        else:
            member = PushConsumer(
                group.name,
                self._namesrv,
                consume_from=ConsumeFrom.FIRST_OFFSET,
                max_reconsume_times=group.max_retries,
                clock=self._clock,
            )
            for topic in group.topics:
                member.subscribe(topic, group.tags, self._handler(group))
        await member.start()
        return member

    async def _changes(self, members: list[tuple[Group, PushConsumer | OrderlyConsumer]]) -> None:
        """Now and then a consumer leaves, or dies, and another one comes."""
        random = self._random("changes")
        while self._is_open:
            await self._pause(random, 4 * MINUTE)
            index = random.randrange(len(members))
            group, member = members[index]
            if random.random() < 0.5:
                cut_off(member._instance.caller)
            await member.stop()
            await self._pause(random, 10 * SECOND)
            members[index] = group, await self._join(group)
            self.rejoined += 1

    def _handler(self, group: Group) -> Callable[[ReceivedMessage], Awaitable[None]]:
        async def handle(message: ReceivedMessage) -> None:
            number = number_of(message.body)
            failures = self.ledger.attempt(group.name, number, self._clock.now_ms())
            await self._clock.sleep(self._random(group, number, failures).choice((0, 0, 0, 10, 300, 4_000)))
            if failures < self._failures_before_success(group, number):
                self.ledger.failed(group.name, number, self._clock.now_ms())
                raise CannotHandle
            self.ledger.consumed(group.name, number, self._clock.now_ms())

        return handle

    def _failures_before_success(self, group: Group, number: int) -> int:
        """Most messages never fail, some a few times, few for ever; of a message every try of a group is alike."""
        return self._random(group, number).choices((0, 1, 2, 1_000), (80, 9, 4, 7))[0]

    def _orderly(self, group: Group) -> OrderlyConsumer:
        def handle(record: Record) -> bool:
            number, now_ms = number_of(record.body), self._clock.now_ms()
            if self.ledger.attempt(group.name, number, now_ms) < self._failures_before_success(group, number):
                self.ledger.failed(group.name, number, now_ms)
                return False
            self.ledger.consumed(group.name, number, now_ms)
            self._stepped(record)
            return True

        tries = (group.max_retries or 0) + 1
        return OrderlyConsumer(group.name, STEPS, self._namesrv, self._clock, handle, self._stepped, tries)

    def _stepped(self, record: Record) -> None:
        _, key, step = record.body.decode().split(":")
        self.ledger.step(self.ledger.entries[number_of(record.body)], key, int(step))

    # --- the end

    async def _drain(self) -> Audit:
        """Until everything is accounted for, but not for ever."""
        while True:
            audit = self.ledger.audit(self._places())
            if audit.wrong or not audit.missing or self.drained_ms >= self._plan.longest_drain_ms:
                return audit
            await self._clock.sleep(MINUTE)
            self.drained_ms += MINUTE

    def _check_topics(self) -> None:
        """No transaction is committed twice, whatever happens; and if no broker was killed, nothing is there twice."""
        once = (PAYMENTS,) if self._plan.kill_share > 0 else (ORDERS, REMINDERS, PAYMENTS, STEPS)
        for topic in once:
            for (number, *_), times in Counter(map(self._identity, self._topic_records(topic))).items():
                if times > 1:
                    self.ledger.complain(self.ledger.entries[number], f"{times} times in {topic}")

    def _identity(self, record: Record) -> tuple[int, str, int]:
        """A half message that was sent twice is two transactions: which one a message came from makes it what it is."""
        key = props.find(record.properties, Property.UNIQ_KEY) or ""
        return number_of(record.body), key, self._first_half(record) if record.topic == PAYMENTS else 0

    def _first_half(self, record: Record) -> int:
        view = self._machine.broker.store.record_at(record.prepared_transaction_offset)
        assert view is not None, "half messages are kept as long as any other"
        (half,) = decode_records(view)
        return int(props.find(half.properties, Property.TRAN_PREPARED_QUEUE_OFFSET) or half.queue_offset)

    def _places(self) -> Places:
        dead = {group.name: self._numbers(DLQ_PREFIX + group.name) for group in GROUPS}
        waiting = list(self._waiting_in_schedule())
        retrying = {
            group.name: self._unread(group.name)
            | {number for topic, number in waiting if topic == RETRY_PREFIX + group.name}
            for group in GROUPS
        }
        return Places(dead, retrying, self._numbers(CHECK_MAX_TIME_TOPIC))

    def _waiting_in_schedule(self) -> Iterator[tuple[str, int]]:
        broker = self._machine.broker
        for queue_id in broker.store.queues(SCHEDULE_TOPIC):
            for record in self._records(SCHEDULE_TOPIC, queue_id, broker.delays._offsets.next(queue_id + 1)):
                yield props.find(record.properties, Property.REAL_TOPIC) or "", number_of(record.body)

    def _unread(self, group: str) -> set[int]:
        """In the retry topic, but not consumed yet."""
        broker, topic = self._machine.broker, RETRY_PREFIX + group
        return {
            number_of(record.body)
            for queue_id in broker.store.queues(topic)
            for record in self._records(topic, queue_id, broker.offsets.find_offset(group, topic, queue_id) or 0)
        }

    def _numbers(self, topic: str) -> set[int]:
        return {number_of(record.body) for record in self._topic_records(topic)}

    def _topic_records(self, topic: str) -> Iterator[Record]:
        for queue_id in self._machine.broker.store.queues(topic):
            yield from self._records(topic, queue_id, 0)

    def _records(self, topic: str, queue_id: int, offset: int) -> Iterator[Record]:
        store = self._machine.broker.store
        while offset < store.max_offset(topic, queue_id):
            found = store.read(topic, queue_id, offset, 32)
            yield from decode_records(b"".join(found.views))
            offset = found.next_offset


def _pause_ms(random: Random, mean_ms: float) -> int:
    return min(int(random.expovariate(1 / mean_ms)) + 1, int(4 * mean_ms))


def _chosen(queues: Sequence[MessageQueue], _message: Message, index: int) -> MessageQueue:
    return queues[index % len(queues)]


def number_of(body: bytes) -> int:
    return int(body.partition(b":")[0])


def main(seed: str, flush: str = FlushDiskType.ASYNC_FLUSH) -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(soak(Path(folder), int(seed), FlushDiskType(flush)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
