"""Hostile peers in a process of their own: every abuse there is, all at once, for some seconds.

    python -m tests.system.hostile 127.0.0.1:10911 SEED SECONDS

Each abuse goes on until the time is up, whatever the broker makes of it; what it answered is counted and printed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from cosmodrome.codes import RequestCode
from cosmodrome.config import KIB, MIB, NetConfig
from cosmodrome.errors import ClientError
from cosmodrome.model import MessageQueue, Subscription
from cosmodrome.net.caller import Caller
from cosmodrome.net.loop import raise_open_files_limit
from cosmodrome.wire.batch import encode_batch
from cosmodrome.wire.bodies import ConsumerData, HeartbeatData, LockBatch
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import (
    ConsumeStatsRequest,
    CreateTopic,
    PullFlag,
    PullMessage,
    ResetOffset,
    SendMessage,
    TopicHeader,
)

TIMEOUT_MS = 20_000
WIDE, CROWDED = "wide", "crowded"
WIDE_QUEUES = 65_535


class Attack:
    """One hostile peer's side: where the broker is, what chance says, and what came of it."""

    def __init__(self, address: str, chance: random.Random, results: Counter[str]) -> None:
        self.address = address
        host, _, port = address.rpartition(":")
        self.place = host, int(port)
        self.chance = chance
        self.results = results

    async def ask(self, caller: Caller, command: Command, what: str) -> None:
        try:
            reply = await caller.call(self.address, command, TIMEOUT_MS)
            self.results[f"{what}: {'served' if reply.code == 0 else 'refused'}"] += 1
        except ClientError:
            self.results[f"{what}: no answer"] += 1

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.place)

    def caller(self) -> Caller:
        return Caller(config=NetConfig(shutdown_grace_ms=100))


def heartbeat(client: str, producers: int, consumers: int, topics: int = 1, expression: str = "") -> Command:
    kind = "SQL92" if expression else "TAG"
    wanted = tuple(
        Subscription(f"t{number}", f"{expression}{' ' * number}" or "*", expression_type=kind)
        for number in range(topics)
    )
    data = HeartbeatData(
        client,
        tuple(f"p{number}" for number in range(producers)),
        tuple(ConsumerData(f"{client}-{number}", subscriptions=wanted) for number in range(consumers)),
    )
    return Command.request(RequestCode.HEART_BEAT, body=data.encode())


def pull(topic: str, queue_id: int, hold_ms: int, expression: str = "*", kind: str = "TAG") -> Command:
    flags = PullFlag.SUBSCRIPTION | PullFlag.SUSPEND
    header = PullMessage("g", topic, queue_id, 0, 32, flags, 0, hold_ms, subscription=expression, expression_type=kind)
    return Command.request(RequestCode.PULL_MESSAGE, header)


def send(topic: str, body: bytes, *, batch: bool = False, queue_id: int = 0, properties: str = "") -> Command:
    header = SendMessage("p", topic, "TBW102", 4, queue_id, 0, 0, 0, properties, batch=batch)
    return Command.request(RequestCode.SEND_MESSAGE, header, body)


# --- the abuses; each is one round, repeated until the time is up


async def groups_that_come_and_go(attack: Attack) -> None:
    caller = attack.caller()
    client = f"c{attack.chance.randrange(4)}"
    await attack.ask(caller, heartbeat(client, 2_000, 1_500), "4,000 groups")
    await attack.ask(caller, heartbeat(client, 350_000, 0), "350,000 producer groups")
    await attack.ask(caller, heartbeat(client, 0, 60_000), "60,000 consumer groups")
    await attack.ask(caller, heartbeat(client, 0, 1, 3_000, "a > 5 AND b = 'x'"), "3,000 filters")
    await caller.close()


async def crowds_of_pulls(attack: Attack) -> None:
    caller = attack.caller()
    asked = pull(CROWDED, 0, 3_000)
    waiting = [asyncio.create_task(attack.ask(caller, asked_again(asked), "held pulls")) for _ in range(4_000)]
    await asyncio.sleep(attack.chance.random() * 2)
    sender = attack.caller()
    await attack.ask(sender, send(CROWDED, b"x"), "messages for the crowd")
    await asyncio.gather(*waiting)
    await sender.close()
    await caller.close()


def asked_again(command: Command) -> Command:
    return Command(command.code, dict(command.fields), command.body)


async def figures_of_a_wide_topic(attack: Attack) -> None:
    caller = attack.caller()
    await attack.ask(caller, Command.request(RequestCode.GET_CONSUME_STATS, ConsumeStatsRequest("g", WIDE)), "stats")
    await attack.ask(caller, Command.request(RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(WIDE)), "stats")
    await attack.ask(caller, Command.request(RequestCode.GET_ALL_TOPIC_CONFIG), "tables")
    await attack.ask(caller, Command.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG), "tables")
    reset = ResetOffset(WIDE, "g", -1, True)
    await attack.ask(caller, Command.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset), "resets")
    queues = tuple(MessageQueue(WIDE, "broker-a", number) for number in range(WIDE_QUEUES))
    locks = Command.request(RequestCode.LOCK_BATCH_MQ, body=LockBatch("g", "c", queues).encode())
    await attack.ask(caller, locks, "locks")
    await caller.close()


async def topics_and_groups_without_end(attack: Attack) -> None:
    caller = attack.caller()
    names = [f"n{attack.chance.randrange(10**9)}" for _ in range(200)]
    await asyncio.gather(*(attack.ask(caller, send(name, b"x"), "new topics") for name in names))
    await asyncio.gather(*(attack.ask(caller, pull_of(name), "new groups") for name in names))
    await caller.close()


def pull_of(group: str) -> Command:
    header = PullMessage(group, CROWDED, 1, 0, 32, PullFlag.SUBSCRIPTION, 0, 0, subscription="*")
    return Command.request(RequestCode.PULL_MESSAGE, header)


async def half_frames(attack: Attack) -> None:
    writers = []
    for _ in range(60):
        with suppress(OSError):
            _, writer = await attack.connect()
            writers.append(writer)
            writer.write(struct.pack(">II", 16 * MIB - 4, 100) + bytes(14 * MIB))
    await asyncio.gather(*(drain(writer) for writer in writers))
    attack.results["half frames"] += len(writers)
    for writer in writers:
        writer.close()


async def drain(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(5):
            await writer.drain()


async def never_reading(attack: Attack) -> None:
    with suppress(OSError):
        _, writer = await attack.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(pull(CROWDED, 0, 0).encode() * 3_000)
        await drain(writer)
        attack.results["never reading"] += 1
        writer.close()


async def costly_messages(attack: Attack) -> None:
    caller = attack.caller()
    await attack.ask(caller, send(CROWDED, encode_batch([(0, b"", "")] * 4_000), batch=True), "4,000 in a batch")
    await attack.ask(caller, send(CROWDED, encode_batch([(0, b"", "")] * 190_000), batch=True), "190,000 in a batch")
    keys = f"KEYS\x01{' '.join(['k'] * 16_000)}\x02"
    await attack.ask(caller, send(CROWDED, b"x", properties=keys), "16,000 keys")
    await caller.close()


async def costly_expressions(attack: Attack) -> None:
    caller = attack.caller()
    number = attack.chance.randrange(10**6)
    for end in range(20):
        expression = " OR ".join(f"a{index} = '{number}{end}'" for index in range(1_200))
        await attack.ask(caller, pull(CROWDED, 0, 100, expression, "SQL92"), "long expressions")
    await caller.close()


async def mutated_frames(attack: Attack) -> None:
    chance = attack.chance
    with suppress(OSError):
        reader, writer = await attack.connect()
        for _ in range(50):
            data = bytearray(chance.choice([pull(CROWDED, 0, 10), send(CROWDED, b"x")]).encode())
            for _ in range(chance.randrange(1, 6)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            writer.write(bytes(data))
        await drain(writer)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await reader.read(64 * KIB)
        attack.results["mutated frames"] += 50
        writer.close()


ABUSES: tuple[Callable[[Attack], Awaitable[None]], ...] = (
    groups_that_come_and_go,
    crowds_of_pulls,
    figures_of_a_wide_topic,
    topics_and_groups_without_end,
    half_frames,
    never_reading,
    costly_messages,
    costly_expressions,
    mutated_frames,
)


async def prepare(attack: Attack) -> None:
    """Make the topics that the abuses are about."""
    caller = attack.caller()
    for name, queues in ((WIDE, WIDE_QUEUES), (CROWDED, 8)):
        header = CreateTopic(name, queues, queues, 6)
        await attack.ask(caller, Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header), "topics")
    await caller.close()


async def all_at_once(address: str, seed: int, seconds: float, only: str = "") -> Counter[str]:
    results: Counter[str] = Counter()
    await prepare(Attack(address, random.Random(seed), results))
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds

    async def again_and_again(number: int, abuse: Callable[[Attack], Awaitable[None]]) -> None:
        attack = Attack(address, random.Random(f"{seed} {number}"), results)
        while loop.time() < end:
            await abuse(attack)

    chosen = [abuse for abuse in ABUSES if not only or abuse.__name__ == only]
    tasks = [asyncio.create_task(again_and_again(number, abuse)) for number, abuse in enumerate(chosen)]
    _, late = await asyncio.wait(tasks, timeout=seconds + TIMEOUT_MS / 1000)
    for task in late:
        task.cancel()
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error
    return results


if __name__ == "__main__":
    raise_open_files_limit()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it tells of every write to a connection that was dropped
    outcome = asyncio.run(all_at_once(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:5]))
    print(", ".join(f"{what} {count}" for what, count in sorted(outcome.items())))
