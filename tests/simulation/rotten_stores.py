"""Rot: one file of a store is spoiled while nobody uses it; then a broker starts on it, and everything is read back.

A store with files of every kind is made once, and kept as a clean stop and as a kill left it. Each trial copies it,
spoils one place of one file, starts the real broker on it in virtual time, and asks with the real client for every
message, key, offset, timer and delay. Everything is drawn from a seed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import logging
import os
import shutil
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import NamedTuple

from cosmodrome import (
    CosmodromeError,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PullStatus,
    TransactionProducer,
    TransactionState,
)
from cosmodrome.broker.broker import Broker
from cosmodrome.config import KIB, BrokerConfig, StoreConfig
from cosmodrome.errors import ConfigError, StoreError
from cosmodrome.model import ReceivedMessage, TopicConfig
from cosmodrome.store.survey import data_ranges
from cosmodrome.store.verification import verify
from cosmodrome.testing import LoopClock, VirtualLoop
from cosmodrome.testing.daemons import running, running_name_server
from cosmodrome.testing.kill import copy, cut_off_broker

START_MS = 1_700_000_000_000
TOPICS = {"orders": 3, "bills": 1}
LATER = "later"  # where timed and delayed messages go
GROUP = "billing"
MESSAGES = 90
TIMERS = 90
DELAYS = 8
LEVELS = (2, 6, 9)  # 5 seconds, 2 and 5 minutes
LAST_TIMER_SECONDS = 500
FRESH = "fresh "
PAGE = 4096
REMEDIES = ("put ", "move ", "repair", "mount", "remove")
# Small files, so that there are several of every kind.
STORE = StoreConfig(
    mapped_file_size_commit_log=64 * KIB,
    mapped_file_size_consume_queue=20 * 20,
    max_hash_slot_num=40,
    max_index_num=60,
    mapped_file_size_timer_log=4 * KIB,
    enabled_append_prop_crc=True,  # else no checksum speaks of properties
    timer_roll_window_slot=200,
    timer_flush_interval_ms=30_000,
    flush_interval_commit_log=600_000,
    flush_commit_log_thorough_interval=600_000,
    flush_consume_queue_thorough_interval=20_000,
    flush_delay_offset_interval=60_000,
    clean_resource_interval=600_000,
)
BROKER = BrokerConfig(
    broker_name="broker-a", flush_consumer_offset_interval=60_000, register_name_server_period=60_000, listen_port=0
)
Place = tuple[str, int, int]  # topic, queue id, queue offset


class Exit(StrEnum):
    """How the broker left the store before it rotted."""

    CLEAN = "clean"
    KILLED = "killed"


class Known(NamedTuple):
    """A message as it was sent, and where its record lies in the log."""

    body: bytes
    key: str
    begin: int
    end: int


@dataclasses.dataclass
class World:
    """What a sound store answers."""

    messages: dict[Place, Known] = dataclasses.field(default_factory=dict)
    committed: dict[MessageQueue, int] = dataclasses.field(default_factory=dict)
    pending: dict[bytes, tuple[int, int]] = dataclasses.field(default_factory=dict)  # timed or delayed: its record
    delivered: set[bytes] = dataclasses.field(default_factory=set)  # of those sent to LATER, before the exit


class Rot(NamedTuple):
    """What was done to which file."""

    file: str
    what: str
    begin: int
    end: int  # of the bytes that are not what they were

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"

    @property
    def is_in_log(self) -> bool:
        return self.file.startswith("commitlog/")

    @property
    def kind(self) -> str:
        """What sort of file it is."""
        folder, _, name = self.file.partition("/")
        return f"config/{name.removesuffix('.bak')}" if folder == "config" else folder

    @property
    def is_progress(self) -> bool:
        """It says how far something is delivered: with its backup, or none, the last may come again."""
        return self.file.startswith(("config/delayOffset", "config/timercheck", "config/consumerOffset"))


class Outcome(StrEnum):
    AS_BEFORE = "as before"
    MENDED = "mended, with a log line"
    REFUSED = "refused with a sentence"
    DAMAGED_LOST = "only damaged records lost"
    WRONG = "wrong"


@dataclasses.dataclass
class Trial:
    """One rotten file and what came of it."""

    exit: Exit
    rot: Rot
    outcome: Outcome = Outcome.AS_BEFORE
    faults: list[str] = dataclasses.field(default_factory=list)
    log: str = ""

    def __str__(self) -> str:
        return f"{self.exit}: {self.rot}: {self.outcome}: {'; '.join(self.faults[:4])}"


class RottenStores:
    """A sound store, kept as each kind of exit left it, and trials on copies of it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self.seed = seed
        self.world = World()
        for exit_ in Exit:
            (folder / exit_).mkdir(parents=True)
        _run(self._build())

    # --- making it

    async def _build(self) -> None:
        home = self._folder / "home"
        clock = LoopClock(START_MS)
        async with running_name_server(clock) as name_server:
            broker = _broker(home, name_server.address, clock)
            await broker.start()
            async with running(broker.run):
                await _fill(broker, name_server.address, clock, self.world)
                await broker.offsets.saved()
                copy(home, self._folder / Exit.KILLED)
        copy(home, self._folder / Exit.CLEAN)
        shutil.rmtree(home)
        self.end_ms = clock.now_ms()

    def files(self, exit_: Exit) -> list[str]:
        root = self._folder / exit_
        paths = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
        return [str(path.relative_to(root)) for path in paths]

    # --- trials

    def trial(self, random: Random, *, log_too: bool = True, only: str = "") -> Trial:
        """Spoil something and look; `log_too` says whether files of the log may be chosen."""
        exit_ = random.choice(list(Exit))
        files = [file for file in self.files(exit_) if (log_too or not file.startswith("commitlog/")) and only in file]
        return self.spoil(exit_, random.choice(files), random)

    def spoil(self, exit_: Exit, file: str, random: Random) -> Trial:
        root = self._folder / "trial"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        copy(self._folder / exit_, root)
        trial = Trial(exit_, spoil(root, file, random))
        with _heard() as heard:
            _run(_Look(self.world, trial, root, self.end_ms).run())
        trial.log = heard.getvalue()
        _judge(trial)
        return trial


def _broker(root: Path, namesrv: str, clock: LoopClock) -> Broker:
    config = dataclasses.replace(BROKER, namesrv_addr=namesrv)
    return Broker(
        config, dataclasses.replace(STORE, store_path_root_dir=str(root)), clock=clock, used=lambda _path: 0.1
    )


async def _fill(broker: Broker, namesrv: str, clock: LoopClock, world: World) -> None:
    for topic, queues in (*TOPICS.items(), (LATER, 1)):
        broker.topics.put(TopicConfig(topic, queues, queues))
    await broker.topics.saved()
    await broker.registration.announce()
    async with (
        Producer("shop", namesrv, clock=clock) as producer,
        TransactionProducer("bank", namesrv, clock=clock, check=lambda _message: TransactionState.UNKNOWN) as bank,
        PullConsumer(GROUP, namesrv, clock=clock) as consumer,
    ):
        for number in range(MESSAGES):
            topic = "bills" if number % 4 == 0 else "orders"
            body = b"%d:" % number + b"." * (number * 97 % 3_500)
            sent = await producer.send(Message(topic, body, tags=f"t{number % 3}", keys=f"key-{number}"))
            begin = int(sent.offset_msg_id[-16:], 16)
            size = len(broker.store.record_at(begin) or b"")
            place = topic, sent.queue.queue_id, sent.queue_offset
            world.messages[place] = Known(body, f"key-{number}", begin, begin + size)
            if number % 9 == 0:
                await bank.send_in_transaction(Message("bills", b"never decided"), lambda _: TransactionState.UNKNOWN)
            if number < TIMERS:
                seconds = 5 + number * LAST_TIMER_SECONDS // TIMERS
                body = b"timed %d" % number
                sent = await producer.send(Message(LATER, body, delay=timedelta(seconds=seconds)))
                world.pending[body] = _place(broker, sent.offset_msg_id)
            if number % 9 == 1 and number // 9 < DELAYS:
                body = b"delayed %d" % number
                sent = await producer.send(Message(LATER, body, delay_level=LEVELS[number // 9 % len(LEVELS)]))
                world.pending[body] = _place(broker, sent.offset_msg_id)
            await clock.sleep(1_000)
        for queue in [queue for topic in TOPICS for queue in await consumer.fetch_subscribe_queues(topic)]:
            consumer.update_consume_offset(queue, 11)
            await consumer.persist_consume_offset(queue)
            await broker.offsets.saved()  # so that there is a .bak, and it says less
            world.committed[queue] = 11
        read = await _read_queue(consumer, MessageQueue(LATER, "broker-a", 0), [])
        world.delivered = {message.body for message in read}
    await clock.sleep(31_000)
    assert world.delivered
    assert len(world.pending) > len(world.delivered)


def _place(broker: Broker, message_id: str) -> tuple[int, int]:
    begin = int(message_id[-16:], 16)
    return begin, begin + len(broker.store.record_at(begin) or b"")


# --- spoiling


def spoil(root: Path, file: str, random: Random) -> Rot:
    """Flip a bit, cut the file short, or zero a page; where there is something, as holes have nothing to lose."""
    path = root / file
    size = path.stat().st_size
    times = path.stat()
    what, begin, end = random.choices((_flip, _truncate, _zero), (6, 1, 2))[0](path, size, random)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # rot leaves no date
    start = int(path.name) if file.startswith("commitlog/") else 0
    return Rot(file, what, start + begin, start + end)


def _spot(path: Path, size: int, random: Random) -> int:
    """A byte; mostly one that is in use."""
    data = path.read_bytes() if size < 4_000_000 else b""
    if not data:
        begin, end = random.choice(data_ranges(path, 0) or [(0, size)])
        with path.open("rb") as reader:
            reader.seek(begin)
            data = reader.read(end - begin)
    else:
        begin = 0
    used = [at for at, byte in enumerate(data) if byte]
    if used and random.random() < 0.9:
        return begin + random.choice(used)
    return begin + random.randrange(len(data))


def _flip(path: Path, size: int, random: Random) -> tuple[str, int, int]:
    at, bit = _spot(path, size, random), random.randrange(8)
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))
    return f"bit {bit} of byte {at} flipped", at, at + 1


def _truncate(path: Path, size: int, random: Random) -> tuple[str, int, int]:
    to = random.choice((0, random.randrange(size), _spot(path, size, random)))
    os.truncate(path, to)
    return f"cut from {size} to {to} bytes", to, size


def _zero(path: Path, size: int, random: Random) -> tuple[str, int, int]:
    at = _spot(path, size, random) // PAGE * PAGE
    end = min(at + PAGE, size)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(end - at))
    return f"bytes {at} to {end} zeroed", at, end


# --- looking


class _Look:
    """A broker's start on a spoiled store, and everything that can be asked of it."""

    def __init__(self, world: World, trial: Trial, root: Path, now_ms: int) -> None:
        self._world = world
        self._trial = trial
        self._root = root
        self._clock = LoopClock(now_ms)

    async def run(self) -> None:
        clock = self._clock
        async with running_name_server(clock) as name_server:
            try:
                broker = _broker(self._root, name_server.address, clock)
            except (StoreError, ConfigError) as error:
                self._refused(str(error))
                return
            except Exception as error:
                self._fault(f"the start failed with {error!r}")
                return
            try:
                await broker.start()
                async with running(broker.run):
                    await asyncio.wait_for(self._ask(broker, name_server.address), 100_000)
            except Exception as error:
                self._fault(f"the broker or its client failed with {error!r}")
                cut_off_broker(broker)
                return
        if not self._trial.rot.is_in_log:
            problems = [one for one in verify(self._root).problems if not one.where.endswith(".bak")]
            if problems:
                self._fault(f"verify afterwards: {problems[0]}")

    def _fault(self, text: str) -> None:
        self._trial.outcome = Outcome.WRONG
        self._trial.faults.append(text)

    def _refused(self, text: str) -> None:
        self._trial.outcome = Outcome.REFUSED
        name = self._trial.rot.file
        names = (name, os.path.dirname(name), os.path.basename(name).removesuffix(".bak"))
        if not any(part and part in text for part in names):
            self._fault(f"the refusal does not name the file: {text}")
        if not any(word in text for word in REMEDIES):
            self._fault(f"the refusal names no remedy: {text}")

    async def _ask(self, broker: Broker, namesrv: str) -> None:
        clock = self._clock
        async with PullConsumer(GROUP, namesrv, clock=clock) as consumer:
            await self._check_messages(consumer)
            await self._check_keys(consumer)
            await self._check_offsets(consumer)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            await loop.advance(LAST_TIMER_SECONDS + 200)
            await self._check_later(consumer)
            async with Producer("shop", namesrv, clock=clock) as producer:
                await self._check_fresh(consumer, producer)

    def _may_miss(self, begin: int, end: int) -> bool:
        rot = self._trial.rot
        return rot.is_in_log and begin < rot.end and rot.begin < end

    async def _check_messages(self, consumer: PullConsumer) -> None:
        seen: set[Place] = set()
        for topic, queues in TOPICS.items():
            for queue_id in range(queues):
                for message in await self._read(consumer, topic, queue_id):
                    place = topic, queue_id, message.queue_offset
                    known = self._world.messages.get(place)
                    if known is None:
                        self._fault(f"a message at {place} that nobody sent: {message.body[:30]!r}")
                    elif message.body != known.body or message.keys != known.key:
                        self._fault(f"wrong bytes at {place}: {message.body[:30]!r} {message.keys}")
                    elif place in seen:
                        self._fault(f"{place} twice")
                    seen.add(place)
        for place, known in self._world.messages.items():
            if place not in seen:
                self._missing(f"message at {place}, record {known.begin} to {known.end}", known.begin, known.end)

    def _missing(self, what: str, begin: int, end: int) -> None:
        if not self._may_miss(begin, end):
            self._fault(f"lost: {what}")
        elif self._trial.outcome is Outcome.AS_BEFORE:
            self._trial.outcome = Outcome.DAMAGED_LOST

    async def _read(self, consumer: PullConsumer, topic: str, queue_id: int) -> list[ReceivedMessage]:
        queue, problems = MessageQueue(topic, "broker-a", queue_id), list[str]()
        messages = await _read_queue(consumer, queue, problems)
        if problems and not self._trial.rot.is_in_log:
            self._fault(f"reading {topic}/{queue_id}: {problems[0]}")
        return messages

    async def _check_keys(self, consumer: PullConsumer) -> None:
        for (topic, _, _), known in list(self._world.messages.items())[::3]:
            try:
                found = await consumer.query_message(topic, known.key)
                bodies = [message.body for message in found]
            except CosmodromeError as error:
                bodies = []
                if not self._trial.rot.is_in_log:
                    self._fault(f"finding {known.key}: {error}")
            if bodies != [known.body]:
                if bodies:
                    self._fault(f"key {known.key} finds {len(bodies)} messages, {bodies[0][:20]!r}")
                else:
                    self._missing(f"key {known.key}", known.begin, known.end)

    async def _check_offsets(self, consumer: PullConsumer) -> None:
        for queue, offset in self._world.committed.items():
            found = await consumer.fetch_consume_offset(queue, from_store=True)
            if found != offset and not (
                self._trial.rot.file.startswith("config/consumerOffset") and (found is None or found < offset)
            ):
                self._fault(f"offset of {queue.topic}/{queue.queue_id} is {found} instead of {offset}")

    async def _check_later(self, consumer: PullConsumer) -> None:
        counts = Counter(message.body for message in await self._read(consumer, LATER, 0))
        for body in counts.keys() - self._world.pending.keys():
            self._fault(f"a delayed message nobody sent: {body[:30]!r}")
        for body, (begin, end) in self._world.pending.items():
            if not counts[body]:
                if not self._trial.rot.is_in_log:  # the copy that was delivered may be the one that is lost
                    self._missing(f"{body!r}", begin, end)
            elif counts[body] > 1 and self._trial.exit is Exit.CLEAN and not self._trial.rot.is_progress:
                self._fault(f"{body!r} came {counts[body]} times")

    async def _check_fresh(self, consumer: PullConsumer, producer: Producer) -> None:
        """What comes now gets a place of its own, and is read there."""
        for topic, queues in TOPICS.items():
            for queue_id in range(queues):
                queue = MessageQueue(topic, "broker-a", queue_id)
                message = Message(topic, FRESH.encode() + topic.encode(), keys=FRESH.strip())
                sent = await producer.send(message, queue=queue)
                place = topic, queue_id, sent.queue_offset
                if place in self._world.messages:
                    known = self._world.messages[place]
                    if not self._may_miss(known.begin, known.end):
                        self._fault(f"{place} is given to a second message")
                result = await consumer.pull(queue, offset=sent.queue_offset)
                bodies = {one.queue_offset: one.body for one in result.messages}
                if not bodies.get(sent.queue_offset, b"").startswith(FRESH.encode()):
                    self._fault(f"the new message at {place} cannot be read")


async def _read_queue(consumer: PullConsumer, queue: MessageQueue, problems: list[str]) -> list[ReceivedMessage]:
    """Everything of a queue, from its beginning on."""
    found: list[ReceivedMessage] = []
    offset = 0
    for _ in range(2_000):
        try:
            result = await consumer.pull(queue, offset=offset)
        except CosmodromeError as error:
            problems.append(str(error))
            offset += 1
            if len(problems) > 400:
                break
            continue
        found += result.messages
        if result.status is PullStatus.FOUND or result.next_begin_offset > offset:
            offset = max(result.next_begin_offset, offset + 1)
        elif result.max_offset > offset:
            problems.append(f"stuck at {offset} of {result.max_offset}")
            offset += 1
        else:
            break
    return [message for message in found if not message.body.startswith(FRESH.encode())]


def _judge(trial: Trial) -> None:
    """Something that was mended must have been said; what was said names the file or its folder."""
    if trial.outcome is Outcome.AS_BEFORE and trial.log:
        trial.outcome = Outcome.MENDED


@contextmanager
def _heard() -> Iterator[io.StringIO]:
    """Warnings and errors of the package, in place of where they usually go."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: record.name != "cosmodrome.broker.transactions")  # they wait for a producer
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("cosmodrome")
    propagate, level = logger.propagate, logger.level
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield text
    finally:
        logger.removeHandler(handler)
        logger.propagate, logger.level = propagate, level


def _run(main: Coroutine[None, None, None]) -> None:
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(Random(1))) as runner:
        runner.run(main)


def summary(trials: list[Trial]) -> str:
    counts = Counter(trial.outcome for trial in trials)
    return f"{len(trials)} rotten stores: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
