"""A whole broker that is killed under load, started again and asked for everything it ever acknowledged."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from cosmodrome import Message, Producer
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import FlushDiskType
from cosmodrome.errors import CosmodromeError
from cosmodrome.model import SendStatus
from cosmodrome.net.caller import Caller
from cosmodrome.store.verification import verify
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import Record, decode_records, parse_offset_msg_id
from cosmodrome.wire.requests import PullFlag, PullMessage, QueryMessage, ViewMessage
from tests.system.daemons import BROKER_CONF, Daemon

SENDERS = 12
TOPICS = ("orders", "bills", "letters")
MAX_WORKING_SECONDS = 0.5
MAX_STARTING_SECONDS = 0.5
STARTING_SHARE = 0.25  # of the kills that come before the broker is ready
LEAST_KNOWN = 20  # messages that were acknowledged: without them a kill shows nothing
LOOKED_UP = 20  # messages asked for by key and by id after each start, the newest and some others
CALL_TIMEOUT_MS = 10_000

Place = tuple[str, int, int]  # topic, queue id, queue offset


@dataclass(frozen=True)
class Acknowledged:
    body: bytes
    key: str
    offset_msg_id: str


@dataclass
class BrokerLives:
    """One store, many brokers. AssertionError as soon as one of them does not have what another acknowledged."""

    folder: Path
    flush: FlushDiskType
    random: Random
    known: dict[Place, Acknowledged] = field(default_factory=dict)
    kills: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def run(self, kills: int) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "broker.conf").write_text(f"{BROKER_CONF}flushDiskType={self.flush}\ndefaultTopicQueueNums=4\n")
        while self.kills < kills:
            if self.random.random() < STARTING_SHARE:
                self._kill_while_starting()
            else:
                self._kill_while_working()
            self.kills += 1
        with self._daemon() as daemon:
            asyncio.run(self._check(daemon))
            assert daemon.interrupt() == 0
        found = verify(self.store)
        assert found.is_sound, found.problems

    @property
    def store(self) -> Path:
        (abort_or_lock,) = self.folder.rglob("lock")
        return abort_or_lock.parent

    def _arguments(self) -> tuple[str, ...]:
        ports = ("--namesrv-port", "0", "--broker-port", "0", "--console-port", "0")
        return ("up", "--data", str(self.folder), "-c", str(self.folder / "broker.conf"), *ports)

    def _within(self) -> tuple[str, ...]:
        """What a broker is started by."""
        return ()

    def _daemon(self) -> Daemon:
        return Daemon(*self._arguments(), within=self._within())

    def _kill_while_starting(self) -> None:
        process = subprocess.Popen(
            [*self._within(), sys.executable, "-m", "cosmodrome", *self._arguments()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(self.random.uniform(0, MAX_STARTING_SECONDS))
        process.kill()
        process.wait()

    def _kill_while_working(self) -> None:
        with self._daemon() as daemon:
            asyncio.run(self._work(daemon))

    async def _work(self, daemon: Daemon) -> None:
        await self._check(daemon)
        async with Producer(group="crash", namesrv=daemon.address("name server"), max_tries=1) as producer:
            senders = [
                asyncio.ensure_future(self._send(producer, Random(self.random.random()))) for _ in range(SENDERS)
            ]
            await asyncio.sleep(self.random.uniform(0, MAX_WORKING_SECONDS))
            while len(self.known) < LEAST_KNOWN and not all(one.done() for one in senders):  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # the first lives, on a machine too busy to answer at once
            daemon.kill()
            await asyncio.gather(*senders)

    async def _send(self, producer: Producer, random: Random) -> None:
        """Messages and batches, one after the other, until the broker is gone."""
        while True:
            topic, count = random.choice(TOPICS), random.choice((1, 1, 1, 8))
            messages = [self._message(topic, random) for _ in range(count)]
            try:
                result = await (producer.send(messages[0]) if count == 1 else producer.send_batch(messages))
            except (CosmodromeError, OSError):
                return
            if result.status is not SendStatus.SEND_OK:
                continue
            for offset, (message, offset_msg_id) in enumerate(
                zip(messages, result.offset_msg_id.split(","), strict=True), result.queue_offset
            ):
                place = (topic, result.queue.queue_id, offset)
                assert place not in self.known, f"{place} was given twice"
                self.known[place] = Acknowledged(message.body, str(message.keys), offset_msg_id)

    def _message(self, topic: str, random: Random) -> Message:
        number = next(self._numbers)
        body = b"%d:" % number + random.randbytes(random.choice((0, 100, 100, 2_000)))
        return Message(topic, body, tags=f"t{number % 3}", keys=f"k{number}")

    # After each start

    async def _check(self, daemon: Daemon) -> None:
        caller, address = Caller(), daemon.address("broker")
        try:
            await self._check_queues(caller, address)
            for place in self._some_places():
                await self._look_up(caller, address, place)
        finally:
            await caller.close()

    async def _check_queues(self, caller: Caller, address: str) -> None:
        served: dict[Place, bytes] = {}
        for topic, queue_id in sorted({place[:2] for place in self.known}):
            records = await pull_all(caller, address, topic, queue_id)
            assert [record.queue_offset for record in records] == list(range(len(records))), (topic, queue_id)
            served |= {(topic, queue_id, record.queue_offset): record.body for record in records}
        bodies = list(served.values())
        assert len(bodies) == len(set(bodies)), "a message is there twice"
        lost = {place: known.key for place, known in self.known.items() if served.get(place) != known.body}
        assert not lost, f"lost or elsewhere: {lost}"

    def _some_places(self) -> list[Place]:
        places = list(self.known)
        return places[-LOOKED_UP:] + self.random.sample(places, min(LOOKED_UP, len(places)))

    async def _look_up(self, caller: Caller, address: str, place: Place) -> None:
        known = self.known[place]
        by_key = Command.request(RequestCode.QUERY_MESSAGE, QueryMessage(place[0], known.key, 10, 0, 2**62))
        offset = parse_offset_msg_id(known.offset_msg_id)[-1]
        by_id = Command.request(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(offset))
        for request in (by_key, by_id):
            reply = await caller.call(address, request, CALL_TIMEOUT_MS)
            assert reply.code == ResponseCode.SUCCESS, (place, reply.remark)
            (record,) = decode_records(reply.body)
            assert (record.topic, record.queue_id, record.queue_offset) == place
            assert record.body == known.body


async def pull_all(caller: Caller, address: str, topic: str, queue_id: int) -> list[Record]:
    found: list[Record] = []
    while True:
        header = PullMessage("crash", topic, queue_id, len(found), 32, PullFlag.SUBSCRIPTION, 0, 0, "*")
        reply = await caller.call(address, Command.request(RequestCode.PULL_MESSAGE, header), CALL_TIMEOUT_MS)
        if reply.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
            return found
        assert reply.code == ResponseCode.SUCCESS, reply
        found += decode_records(reply.body)
