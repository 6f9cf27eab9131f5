"""Brokers whose files rot while they are stopped: bits flip, files are cut short, then the broker starts again.

Checked after each start, at our client: whatever a consumer gets was sent, byte for byte, and is where it was. Where a
start is refused, one sentence says which file is in the way. What is lost is told: it lies where bytes were changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from cosmodrome import Message, MessageQueue, Producer, PullConsumer
from cosmodrome.config import KIB, BrokerConfig, StoreConfig
from cosmodrome.errors import CosmodromeError
from cosmodrome.model import ReceivedMessage, TopicConfig
from cosmodrome.store.survey import survey
from tests.system.cluster import running_broker, running_name_server

MESSAGES = 120
QUEUES = 3
TOPIC = "orders"
PATIENCE_SECONDS = 120
TABLES = 0.02  # of the flips hit a table of the broker's configuration
NOT_FLIPPED = ("lock", "abort")

STORE = StoreConfig(
    mapped_file_size_commit_log=64 * KIB,
    mapped_file_size_consume_queue=20 * 50,
    max_hash_slot_num=50,
    max_index_num=100,
    mapped_file_size_timer_log=8 * KIB,
)

Place = tuple[int, int]  # queue id, offset


@dataclass
class Figures:
    """What became of the flips of some lives."""

    flips: int = 0
    refused: int = 0
    lost: int = 0
    served: int = 0
    sentences: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Damage:
    """What was changed in a life: how many places, which bytes of the log, and which other files."""

    places: int
    log_bytes: frozenset[int]
    others: frozenset[str]


def body(number: int, seed: int) -> bytes:
    return f"message {number} of {seed}; ".encode() * (1 + number % 20)


async def rot(folder: Path, seed: int, *, flips: int, sealed: bool) -> Figures:
    """One life: fill a store, stop, change some bytes, start, and look at everything as a consumer does."""
    random = Random(f"rot {seed}")
    store = dataclasses.replace(STORE, enabled_append_prop_crc=sealed)
    config = BrokerConfig(broker_name="broker-a", vip_listener_enable=False)
    figures = Figures(flips)
    async with running_name_server() as name_server, asyncio.timeout(PATIENCE_SECONDS):
        async with running_broker(folder, name_server.address, config, store) as broker:
            broker.topics.put(TopicConfig(TOPIC, QUEUES, QUEUES))
            sent = await _fill(name_server.address, seed)
        places = _records(folder)
        damage = _damage(folder, random, flips)
        try:
            async with running_broker(folder, name_server.address, config, store) as broker:
                assert broker.topics.find_topic(TOPIC) is not None, f"seed {seed}: the topic is gone"
                found = await _read(name_server.address)
        except CosmodromeError as error:
            if str(folder) not in str(error):
                raise AssertionError(f"seed {seed}: no file is named: {error!r}") from error
            figures.refused, figures.sentences = 1, [str(error)]
            return figures
    for (queue_id, offset), message in found.items():
        figures.served += 1
        number = sent.get((queue_id, offset))
        assert number is not None, f"seed {seed}: nothing was sent to {queue_id}/{offset}"
        assert message.body == body(number, seed), f"seed {seed}: {queue_id}/{offset} has another body"
        if sealed:
            is_same = (message.tags, message.keys) == (f"tag{number % 3}", f"k{number}")
            assert is_same, f"seed {seed}: {queue_id}/{offset} has other properties"
    lost = sent.keys() - found.keys()
    figures.lost += len(lost)
    others = sorted(place for place in lost if not damage.log_bytes.intersection(range(*places[place])))
    assert not others, f"seed {seed}: {others} are lost, but were not hit; flipped were {damage}"
    return figures


async def _fill(namesrv: str, seed: int) -> dict[Place, int]:
    sent: dict[Place, int] = {}
    async with Producer("p", namesrv) as producer:
        for number in range(MESSAGES):
            message = Message(TOPIC, body(number, seed), tags=f"tag{number % 3}", keys=f"k{number}")
            queue = MessageQueue(TOPIC, "broker-a", number % QUEUES)
            result = await producer.send(message, queue)
            sent[queue.queue_id, result.queue_offset] = number
    return sent


async def _read(namesrv: str) -> dict[Place, ReceivedMessage]:
    """Every message that a consumer gets; no pull may stay where it is."""
    found: dict[Place, ReceivedMessage] = {}
    async with PullConsumer("g", namesrv) as consumer:
        for queue in await consumer.fetch_subscribe_queues(TOPIC):
            offset = await consumer.min_offset(queue)
            end = await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, "*", offset)
                assert result.next_begin_offset > offset, f"{queue} is stuck at {offset}"
                for message in result.messages:
                    found[queue.queue_id, message.queue_offset] = message
                offset = result.next_begin_offset
    return found


def _records(folder: Path) -> dict[Place, tuple[int, int]]:
    """Where the record of each message lies in the log."""
    seen = survey(folder)
    return {
        (queue.queue_id, offset): (entry[0], entry[0] + entry[1])
        for queue in seen.queues.values()
        if queue.topic == TOPIC
        for offset, entry in queue.entries()
    }


def _damage(folder: Path, random: Random, flips: int) -> Damage:
    """Flip bits in any files: each kind of file is as likely, and in it, places that hold something."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in NOT_FLIPPED and path.stat().st_size:
            kinds.setdefault(path.relative_to(folder).parts[0], []).append(path)
    tables = kinds.pop("config", [])  # most of them have no backup in so short a life: the start is refused
    log_bytes: set[int] = set()
    others: set[str] = set()
    for _ in range(flips):
        is_table = tables and random.random() < TABLES
        path = random.choice(tables if is_table else kinds[random.choice(sorted(kinds))])
        data = bytearray(path.read_bytes())
        used = len(data.rstrip(b"\0")) or len(data)
        place = random.randrange(min(used + 64, len(data)))
        data[place] ^= 1 << random.randrange(8)
        with path.open("r+b") as file:
            file.write(data)
        if path.parent.name == "commitlog":
            log_bytes.add(int(path.name) + place)
        else:
            others.add(f"{path.relative_to(folder)}:{place}")
    return Damage(flips, frozenset(log_bytes), frozenset(others))


def live(folder: Path, seed: int, *, flips: int, sealed: bool) -> Figures:
    """Run one life; its store is removed unless it failed."""
    figures = asyncio.run(rot(folder, seed, flips=flips, sealed=sealed))
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
    return figures
