"""A master that is killed under load, its slave that is promoted, the old master that follows it, and so on.

Senders live through all of it and write down what they tried and what they were answered. After each promotion, and of
all of it at the end, the new master is asked for its queues:

- what was answered SEND_OK is at the place of that answer, with its bytes;
- each sender's messages are in the order in which it sent them;
- a message is there at most as often as it was tried, and only tried ones are there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol

from cosmodrome import Message, Producer
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import ClientConfig
from cosmodrome.errors import CosmodromeError
from cosmodrome.model import MessageQueue, SendStatus
from cosmodrome.store.verification import verify
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import decode_records
from cosmodrome.wire.requests import OffsetReply, PullFlag, PullMessage, PullReply, QueueHeader
from tests.system.daemons import Daemon
from tests.system.ha_wire import HaWire
from tests.system.replicated import MASTER, NAME, SLAVE, TOPIC, Node, Pair, until

QUEUES = 4
SENDERS = 12
BATCH = 5
FILLING = (0, 60, 300, 1_500)
SEND_TIMEOUT_MS = 3_000
PAUSE_SECONDS = 0.03  # after a send that failed, or that no slave has
POLL_ROUTE_MS = 200
BATCH_BYTES = 1_000  # of what a master sends to its slave
ANSWERED_BEFORE_KILL = 30  # messages of each kind of sender, with SEND_OK
MAX_WORKING_SECONDS = 0.2
EARLY_SHARE = 0.15  # of the kills that come while the slave catches up
MAX_CATCHING_UP_SECONDS = 0.4
MID_LOAD_SHARE = 0.8  # of the kills; the others come before the senders know of the new master
TORN_SHARE = 0.3  # of the batches on the wire
DELAYS_SECONDS = (0.0, 0.002, 0.02)
CONFIG = f"defaultTopicQueueNums={QUEUES}\nhaTransferBatchSize={BATCH_BYTES}\nslaveTimeout=2000\n"

BATCHES = "batches"  # the senders of batches are called so

Id = tuple[str, int]  # sender, number


class Answer(NamedTuple):
    """Messages that a broker said are safe, and where they are."""

    life: int
    queue_id: int
    queue_offset: int
    ids: tuple[Id, ...]


@dataclass
class Ledger:
    """What senders tried, and what they were answered."""

    life: int = 0
    tries: Counter[Id] = field(default_factory=Counter)
    answers: list[Answer] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)  # messages with SEND_OK, by kind of sender
    kills_ms: list[int] = field(default_factory=list)
    cut_off: Counter[str] = field(default_factory=Counter)  # sends that were under way at a kill, and failed, by kind
    kills_in_mid_load: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def note(self, kind: str, status: str, ids: tuple[Id, ...], queue_id: int, queue_offset: int) -> None:
        """Note an answer."""
        self.statuses[str(status)] += 1
        if status == SendStatus.SEND_OK:
            self.answers.append(Answer(self.life, queue_id, queue_offset, ids))
            self.answered[kind] += len(ids)

    def note_failure(self, kind: str, began_ms: int) -> None:
        """Note a send that ended without an answer, just now."""
        self.statuses["FAILED"] += 1
        kill = bisect_left(self.kills_ms, began_ms)
        if kill < len(self.kills_ms):
            self.cut_off[kind] += 1
            self.kills_in_mid_load[kind].add(kill)

    def begin_life(self) -> None:
        """Note that the master is killed now."""
        self.life += 1
        self.kills_ms.append(now_ms())


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Senders(Protocol):
    """Programs of some kind that send through all kills."""

    kind: str

    async def start(self, namesrv: str, ledger: Ledger) -> None:
        """Begin; the topic is there."""
        ...

    async def stop(self) -> None:
        """Return when all sends are answered or failed."""
        ...


class PythonSenders:
    """Tasks of this process: single messages and batches; half of them repeat what failed, half go on without."""

    kind = "python"

    async def start(self, namesrv: str, ledger: Ledger) -> None:
        self._ledger = ledger
        self._is_over = False
        config = ClientConfig(namesrv=namesrv, poll_route_interval_ms=POLL_ROUTE_MS)
        self._producer = Producer("lives", namesrv, max_tries=1, config=config)
        await self._producer.__aenter__()
        self._tasks = [asyncio.create_task(self._send(number)) for number in range(SENDERS)]

    async def stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)
        await self._producer.__aexit__(None, None, None)

    async def _send(self, sender: int) -> None:
        size = BATCH if sender % 3 == 2 else 1
        name, queue = f"{BATCHES if size > 1 else 'python'}{sender}", MessageQueue(TOPIC, NAME, sender % QUEUES)
        number = 0
        while not self._is_over:
            ids = tuple((name, number + one) for one in range(size))
            repeats = sender % 2 == 1
            while not await self._try(ids, queue) and repeats and not self._is_over:
                pass
            number += size

    async def _try(self, ids: tuple[Id, ...], queue: MessageQueue) -> bool:
        ledger = self._ledger
        ledger.tries.update(ids)
        messages = [Message(TOPIC, body_of(one)) for one in ids]
        began_ms = now_ms()
        try:
            if len(messages) == 1:
                result = await self._producer.send(messages[0], queue, timeout_ms=SEND_TIMEOUT_MS)
            else:
                result = await self._producer.send_batch(messages, queue, timeout_ms=SEND_TIMEOUT_MS)
        except (CosmodromeError, OSError):
            ledger.note_failure(self.kind, began_ms)
            await asyncio.sleep(PAUSE_SECONDS)
            return False
        ledger.note(self.kind, result.status, ids, result.queue.queue_id, result.queue_offset)
        if result.status is not SendStatus.SEND_OK:
            await asyncio.sleep(PAUSE_SECONDS)
        return True


def body_of(one: Id) -> bytes:
    sender, number = one
    return b"%s:%d:" % (sender.encode(), number) + b"x" * FILLING[number % len(FILLING)]


def id_of(body: bytes) -> Id:
    sender, number, _ = body.split(b":", 2)
    found = sender.decode(), int(number)
    assert body == body_of(found), f"{found} was changed"
    return found


@dataclass(repr=False)
class ReplicaLives:
    """One pair of brokers, many masters. AssertionError as soon as one of them lacks what another acknowledged."""

    name: str
    folder: Path
    random: Random
    kinds: tuple[Senders, ...]
    kills: int = 0
    early_kills: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    _held: list[list[Id]] = field(default_factory=lambda: [[] for _ in range(QUEUES)])  # by the master of now
    # Both brokers have all of the queues up to here, and so these answers need not be looked at until the end.
    _sure_ends: list[int] = field(default_factory=lambda: [0] * QUEUES)
    _sure_answers: int = 0

    async def run(self, kills: int, every: int = 0) -> None:
        """Kill so many masters, then compare the two logs. With `every`, print a line after so many kills."""
        self.folder.mkdir(exist_ok=True)
        self.wire = HaWire(Random(self.random.random()))
        config = f"{CONFIG}haMasterAddress={await self.wire.start()}\n"
        with Daemon("namesrv", "--port", "0", "--kv-config", str(self.folder / "kv.json")) as server:
            namesrv = server.address("name server")
            nodes = (
                Node(self.folder / "first", namesrv, MASTER, config),
                Node(self.folder / "second", namesrv, SLAVE, config),
            )
            self.pair = Pair(namesrv, nodes)
            self._master, self._slave = nodes
            try:
                await self._begin(namesrv)
                for number in range(1, kills + 1):
                    await self._kill_and_promote()
                    if every and (number % every == 0 or number == kills):
                        print(self, flush=True)
                await self._end()
            finally:
                await self.pair.caller.close()
                for node in reversed(nodes):
                    await asyncio.to_thread(node.close)
                await self.wire.close()

    def __str__(self) -> str:
        ledger, wire = self.ledger, self.wire
        told = ", ".join(f"{count} to {kind}" for kind, count in sorted(ledger.answered.items()))
        cut_off = ", ".join(f"{count} of {kind}" for kind, count in sorted(ledger.cut_off.items()))
        cuts = sum(1 for _ in self.folder.glob("*/commitlog.bad/*.bytes"))
        return (
            f"{self.name}: {self.kills} masters killed ({self.early_kills} while their slave caught up), "
            f"{sum(ledger.answered.values())} messages acknowledged ({told}), none lost; kills cut off sends "
            f"({cut_off}), {cuts} logs were cut back, {wire.torn_batches} of {wire.batches} batches ended in a record"
        )

    def check_cruelty(self) -> None:
        """The kills came in the midst of sends of every kind, and batches were cut anywhere."""
        for senders in self.kinds:
            met = len(self.ledger.kills_in_mid_load[senders.kind])
            assert met >= int(MID_LOAD_SHARE * self.kills), f"{met} of {self.kills} kills met a send of {senders.kind}"
        torn, batches = self.wire.torn_batches, self.wire.batches
        assert torn >= TORN_SHARE * batches > 0, f"{torn} of {batches} batches ended within a record"

    async def _begin(self, namesrv: str) -> None:
        await asyncio.to_thread(self._master.start)
        await self._aim()
        async with Producer("first", namesrv) as producer:
            await producer.send(Message(TOPIC, body_of(("first", 0))), MessageQueue(TOPIC, NAME, 0))
        self.ledger.tries["first", 0] += 1
        await asyncio.to_thread(self._slave.start)
        await self.pair.connected(self._master)
        await self.pair.knows_topic(self._slave)
        for senders in self.kinds:
            await senders.start(namesrv, self.ledger)
        await self._work()

    async def _aim(self) -> None:
        """Let the wire lead to the master of now."""
        host, _, _ = self._master.address.rpartition(":")
        self.wire.target = host, int((await self.pair.figures(self._master))["haListenPort"])
        self.wire.delay_seconds = self.random.choice(DELAYS_SECONDS)

    async def _work(self) -> None:
        """Return a moment after enough was acknowledged by the master of now."""
        before = Counter(self.ledger.answered)

        async def is_enough() -> bool:
            told = self.ledger.answered
            return all(told[one.kind] - before[one.kind] >= ANSWERED_BEFORE_KILL for one in self.kinds)

        await until(is_enough)
        await asyncio.sleep(self.random.uniform(0, MAX_WORKING_SECONDS))

    async def _kill_and_promote(self) -> None:
        """Kill the master, make the slave the master, check what it has, and let the old one follow it."""
        old, new = self._master, self._slave
        self.ledger.begin_life()
        os.kill(old.process.pid, signal.SIGKILL)
        self.wire.cut()
        await asyncio.to_thread(old.close)
        await asyncio.to_thread(new.kill if self.random.random() < 0.5 else new.stop)
        self.kills += 1
        new.role, old.role = MASTER, SLAVE
        self._master, self._slave = new, old
        await asyncio.to_thread(new.start)
        await self._aim()
        starting = asyncio.create_task(asyncio.to_thread(old.start))
        try:
            answers = await self._check()
        finally:
            await starting
        if self.random.random() < EARLY_SHARE:
            await asyncio.sleep(self.random.uniform(0, MAX_CATCHING_UP_SECONDS))
            self.early_kills += 1
            return
        await self._caught_up()
        self._sure_ends, self._sure_answers = [len(held) for held in self._held], answers
        await self._work()

    async def _caught_up(self) -> None:
        """The slave has what the log holds now; more comes all the time."""
        wanted = int((await self.pair.figures(self._master))["commitLogMaxOffset"])

        async def holds() -> bool:
            figures = await self.pair.figures(self._master)
            has = int(figures["commitLogMaxOffset"]) - int(figures["slaveBehindBytesMax"])
            return figures["slavesInSync"] == "1" and has >= wanted

        await until(holds)

    async def _check(self) -> int:
        """Compare what the master has with what was answered before it became that; returns how many answers."""
        for queue_id, sure in enumerate(self._sure_ends):
            self._held[queue_id][sure:] = await self._pull(self._master, queue_id, sure)
            self._check_order(self._held[queue_id][sure:])
        answers = self.ledger.answers
        count = next((place for place, answer in enumerate(answers) if answer.life == self.ledger.life), len(answers))
        self._check_answers(answers[self._sure_answers : count])
        return count

    def _check_answers(self, answers: list[Answer]) -> None:
        for answer in answers:
            begin = answer.queue_offset
            found = tuple(self._held[answer.queue_id][begin : begin + len(answer.ids)])
            assert found == answer.ids, f"after kill {self.kills}, lost or elsewhere: {answer}; found: {found}"

    def _check_order(self, held: list[Id]) -> None:
        """Each sender has one queue, and one send under way. The slave may have a part of a batch that is repeated."""
        last: dict[str, int] = {}
        for sender, number in held:
            sent = number // BATCH if sender.startswith(BATCHES) else number
            assert sent >= last.get(sender, 0), f"after kill {self.kills}: {sender} sent {number} earlier"
            last[sender] = sent

    async def _pull(self, node: Node, queue_id: int, offset: int) -> list[Id]:
        """What a queue holds now, from an offset on."""
        ids: list[Id] = []
        reply = await self.pair.ask(node, Command.request(RequestCode.GET_MAX_OFFSET, QueueHeader(TOPIC, queue_id)))
        end = OffsetReply.decode(reply).offset
        while offset < end:
            header = PullMessage("checker", TOPIC, queue_id, offset, 32, int(PullFlag.SUBSCRIPTION), 0, 0, "*")
            reply = await self.pair.ask(node, Command.request(RequestCode.PULL_MESSAGE, header))
            assert reply.code == ResponseCode.SUCCESS, (queue_id, offset, end, reply.code, reply.remark)
            ids += [id_of(record.body) for record in decode_records(bytes(reply.body))]
            offset = PullReply.decode(reply).next_begin_offset
        return ids

    async def _end(self) -> None:
        """Look at everything, at both brokers, and at their files."""
        for senders in self.kinds:
            await senders.stop()
        await self.pair.connected(self._master)
        self.ledger.life += 1
        self._sure_ends, self._sure_answers = [0] * QUEUES, 0
        assert await self._check() == len(self.ledger.answers)
        copies = Counter(one for held in self._held for one in held)
        repeated = {one: count for one, count in copies.items() if count > self.ledger.tries[one]}
        assert not repeated, f"there more often than they were sent: {repeated}"
        for queue_id, held in enumerate(self._held):
            assert await self._pull(self._slave, queue_id, 0) == held
        for node in (self._master, self._slave):
            await asyncio.to_thread(node.stop)
        assert self._slave.log_files == self._master.log_files
        for node in (self._master, self._slave):
            found = await asyncio.to_thread(verify, node.folder)
            assert found.is_sound, found.problems
