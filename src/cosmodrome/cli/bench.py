"""`cosmodrome bench`: how fast this cluster is from here. Every run has a bound."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence

import click

from cosmodrome.cli.access import Access, access_options, hints_at_start
from cosmodrome.cli.formats import Column, Row, Schema, format_options, write
from cosmodrome.client.producer import Producer
from cosmodrome.client.queue_reader import TopicReader
from cosmodrome.errors import CosmodromeError
from cosmodrome.model import Message
from cosmodrome.net.loop import run

GROUP = "cosmodrome-bench"
MAX_MESSAGES = 10_000_000
MAX_BODY = 4 * 1024 * 1024
MAX_SECONDS = 3_600

SCHEMA = Schema(
    "measurement",
    (
        Column("kind", "produce, consume or latency."),
        Column("topic", "The topic."),
        Column("messages", "Messages that were sent, received, or sent and received.", right=True),
        Column("failed", "Sends that failed.", right=True),
        Column("seconds", "How long it took.", right=True),
        Column("perSecond", "Messages in a second.", "MSG/S", right=True),
        Column("mibPerSecond", "MiB of bodies in a second.", "MIB/S", right=True),
        Column("p50Ms", "Half of them took this long at most.", "P50-MS", right=True),
        Column("p99Ms", "99 of 100 took this long at most.", "P99-MS", right=True),
        Column("maxMs", "The longest.", "MAX-MS", right=True),
    ),
)


@click.group()
def bench() -> None:
    """Measure sending, consuming and latency, with a bound. Messages are kept: use a topic of its own."""


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        (
            click.argument("topic"),
            click.option(
                "--messages", type=click.IntRange(1, MAX_MESSAGES), default=10_000, show_default=True, help="At most."
            ),
            click.option(
                "--seconds", type=click.FloatRange(0.1, MAX_SECONDS), default=30.0, show_default=True, help="At most."
            ),
        )
    ):
        command = option(command)
    return command


_size = click.option(
    "--size", type=click.IntRange(1, MAX_BODY), default=1024, show_default=True, help="Bytes of a body."
)


@bench.command()
@_options
@_size
@click.option(
    "--parallel", type=click.IntRange(1, 1_024), default=32, show_default=True, help="Sends under way at once."
)
@access_options
@format_options(SCHEMA)
def produce(topic: str, messages: int, seconds: float, size: int, parallel: int, access: Access, output: str) -> None:
    """Send to TOPIC, and measure how long each send takes."""
    with hints_at_start():
        row = run(_produce(access, topic, messages, seconds, size, parallel))
    write(SCHEMA, [row], output)
    if row["failed"]:
        raise click.exceptions.Exit(1)


async def _produce(access: Access, topic: str, messages: int, seconds: float, size: int, parallel: int) -> Row:
    took: list[float] = []
    failed = begun = 0
    body = b"x" * size
    began = time.perf_counter()

    async def send_on() -> None:
        nonlocal failed, begun
        while begun < messages and time.perf_counter() - began < seconds:
            begun += 1
            start = time.perf_counter()
            try:
                await producer.send(Message(topic, body))
                took.append(time.perf_counter() - start)
            except CosmodromeError:
                failed += 1
                await asyncio.sleep(0.01)

    async with Producer(GROUP, rpc_hooks=access.rpc_hooks, config=access.config) as producer:
        await producer.send(Message(topic, body))  # routes and connections are not measured
        began = time.perf_counter()
        await asyncio.gather(*(send_on() for _ in range(parallel)))
    return _row("produce", topic, took, failed, time.perf_counter() - began, size * len(took))


@bench.command()
@_options
@access_options
@format_options(SCHEMA)
def consume(topic: str, messages: int, seconds: float, access: Access, output: str) -> None:
    """Read TOPIC from its oldest message on, in no group, so nothing is taken from anybody."""
    with hints_at_start():
        row = run(_consume(access, topic, messages, seconds))
    write(SCHEMA, [row], output)


async def _consume(access: Access, topic: str, messages: int, seconds: float) -> Row:
    count = size = 0
    reader = TopicReader(topic, from_earliest=True, rpc_hooks=access.rpc_hooks, config=access.config)
    began = last = time.perf_counter()
    try:
        async with reader, asyncio.timeout(seconds):
            async for message in reader:
                count += 1
                size += len(message.body)
                last = time.perf_counter()
                if count == messages:
                    break
    except TimeoutError:
        pass  # the bound
    return _row("consume", topic, [], 0, last - began, size, count)


@bench.command()
@_options
@_size
@click.option("--rate", type=click.FloatRange(0.1, 10_000), default=100.0, show_default=True, help="Sends in a second.")
@access_options
@format_options(SCHEMA)
def latency(topic: str, messages: int, seconds: float, size: int, rate: float, access: Access, output: str) -> None:
    """Send to TOPIC and read it, and measure the time from before the send to the receipt."""
    with hints_at_start():
        row = run(_latency(access, topic, min(messages, int(seconds * rate) or 1), seconds, size, rate))
    write(SCHEMA, [row], output)
    if row["failed"]:
        raise click.exceptions.Exit(1)


async def _latency(access: Access, topic: str, messages: int, seconds: float, size: int, rate: float) -> Row:
    took: list[float] = []
    failed = 0
    sent: dict[str, float] = {}
    run_id = uuid.uuid4().hex
    all_sent = asyncio.Event()

    async def read() -> None:
        async for message in reader:
            start = sent.pop(message.properties.get("bench", ""), None)
            if start is not None:
                took.append(time.perf_counter() - start)
            if all_sent.is_set() and not sent:
                return

    config = access.config
    async with Producer(GROUP, rpc_hooks=access.rpc_hooks, config=config) as producer:
        await producer.send(Message(topic, b"x" * size))
        async with TopicReader(topic, rpc_hooks=access.rpc_hooks, config=config) as reader:
            reading = asyncio.create_task(read())
            began = time.perf_counter()
            for number in range(messages):
                await asyncio.sleep(max(began + number / rate - time.perf_counter(), 0))
                if time.perf_counter() - began >= seconds:
                    break
                name = f"{run_id}-{number}"
                sent[name] = time.perf_counter()
                if number == messages - 1:
                    all_sent.set()
                try:
                    await producer.send(Message(topic, b"x" * size, properties={"bench": name}))
                except CosmodromeError:
                    failed += 1
                    sent.pop(name, None)
            all_sent.set()
            if sent:
                await asyncio.wait((reading,), timeout=max(seconds - (time.perf_counter() - began), 1.0))
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
    return _row("latency", topic, took, failed + len(sent), time.perf_counter() - began, size * len(took))


def _row(
    kind: str, topic: str, took: Sequence[float], failed: int, seconds: float, size: int, count: int | None = None
) -> Row:
    ordered = sorted(took)
    messages = len(took) if count is None else count

    def quantile(share: float) -> float | None:
        return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1_000, 2) if ordered else None

    return {
        "kind": kind,
        "topic": topic,
        "messages": messages,
        "failed": failed,
        "seconds": round(seconds, 2),
        "perSecond": round(messages / seconds, 1) if seconds > 0 else 0.0,
        "mibPerSecond": round(size / seconds / 2**20, 2) if seconds > 0 else 0.0,
        "p50Ms": quantile(0.5),
        "p99Ms": quantile(0.99),
        "maxMs": quantile(1.0),
    }
