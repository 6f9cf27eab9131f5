"""Our own clients at work on our broker: messages a second, and what each costs the client's process."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from cosmodrome import ConsumeFrom, LitePullConsumer, Message, Producer, PushConsumer, ReceivedMessage, blocking
from cosmodrome.net.loop import loop_factory

BODY = b"x" * 128
IN_FLIGHT = 64
BATCH = 128
# How far `async for` may be behind the callback form.
ITERATION_BUDGET = 1.15

_groups = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ClientRound:
    messages: int
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class ClientFigure:
    """The best of the rounds."""

    title: str
    rounds: tuple[ClientRound, ...]

    @property
    def per_second(self) -> float:
        return max(each.messages / each.seconds for each in self.rounds)

    @property
    def cpu_us(self) -> float:
        """CPU time of the client's process for one message; the broker runs in another one."""
        return min(each.cpu_seconds / each.messages for each in self.rounds) * 1e6


@dataclass(frozen=True, slots=True)
class ClientTrial:
    """One way to use a client; `messages` is how many one round takes, as a share of all."""

    title: str
    run: Callable[[str, str, int], None]  # (name server, topic, messages)
    share: float = 1.0


def measure_clients(namesrv: str, topic: str, messages: int, rounds: int) -> list[ClientFigure]:
    """Each way in turn, round by round, so that a slow minute of the machine hits them alike."""
    _fill(namesrv, topic, messages)
    found: dict[str, list[ClientRound]] = {trial.title: [] for trial in TRIALS}
    for _, trial in itertools.product(range(rounds), TRIALS):
        count = max(int(messages * trial.share), IN_FLIGHT)
        began, cpu = time.perf_counter(), time.process_time()
        trial.run(namesrv, topic, count)
        round_ = ClientRound(count, time.perf_counter() - began, time.process_time() - cpu)
        found[trial.title].append(round_)
    return [ClientFigure(title, tuple(done)) for title, done in found.items()]


def _fill(namesrv: str, topic: str, messages: int) -> None:
    """What the consumers will read."""
    with blocking.Producer("bench-fill", namesrv) as producer:
        for begin in range(0, messages, BATCH):
            producer.send_batch([Message(topic, BODY) for _ in range(min(BATCH, messages - begin))])


def _run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(work)


# --- sending


def _send_async(namesrv: str, topic: str, messages: int) -> None:
    async def sender(producer: Producer, left: Iterator[int]) -> None:
        for _ in left:
            await producer.send(Message(topic, BODY))

    async def main() -> None:
        async with Producer("bench-async", namesrv) as producer:
            left = iter(range(messages))  # shared: each takes the next
            await asyncio.gather(*(sender(producer, left) for _ in range(IN_FLIGHT)))

    _run(main())


def _send_blocking(threads: int) -> Callable[[str, str, int], None]:
    def send(namesrv: str, topic: str, messages: int) -> None:
        def work() -> None:
            for _ in range(messages // threads):
                producer.send(Message(topic, BODY))

        with blocking.Producer("bench-blocking", namesrv) as producer:
            workers = [threading.Thread(target=work) for _ in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()

    return send


# --- receiving


def _group() -> str:
    return f"bench-group-{next(_groups)}"


def _push(namesrv: str, topic: str, messages: int) -> None:
    async def main() -> None:
        done, seen = asyncio.Event(), 0

        async def handler(message: ReceivedMessage) -> None:
            nonlocal seen
            seen += 1
            if seen == messages:
                done.set()

        consumer = PushConsumer(_group(), namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe(topic, "*", handler)
        async with consumer:
            await done.wait()

    _run(main())


def _async_for(namesrv: str, topic: str, messages: int) -> None:
    async def main() -> None:
        consumer = LitePullConsumer(_group(), namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe(topic, "*")
        seen = 0
        async with consumer:
            async for _ in consumer:
                seen += 1
                if seen == messages:
                    break

    _run(main())


PUSH = "push consumer, async handler"
ASYNC_FOR = "async for message in consumer"

TRIALS = (
    ClientTrial(f"async producer, {IN_FLIGHT} in flight", _send_async, 0.25),
    ClientTrial("blocking producer, 1 thread", _send_blocking(1), 0.05),
    ClientTrial("blocking producer, 8 threads", _send_blocking(8), 0.1),
    ClientTrial("blocking producer, 32 threads", _send_blocking(32), 0.1),
    ClientTrial(PUSH, _push),
    ClientTrial(ASYNC_FOR, _async_for),
)
