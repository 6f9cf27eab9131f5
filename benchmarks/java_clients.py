"""Apache's own Java clients on each broker: what their users will see."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.measure import Effort
from benchmarks.targets import Target
from benchmarks.workloads import BATCH, QUEUES
from interop.java import JavaHosts, JavaProgram
from interop.setup import CLIENT_VERSIONS

VERSION = CLIENT_VERSIONS[0]
JVM_OPTIONS = ("-server", "-Xms1g", "-Xmx1g", "-Xshare:auto")
THREADS = 64
TIMEOUT_S = 180
TOPIC = "bench-java"


@dataclass(frozen=True, slots=True)
class JavaFigure:
    """One broker under one Java client: the median of the rounds, in messages per second."""

    path: str
    target: str
    per_second: float
    rounds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Path:
    """One way to use a Java client; `messages` per second of a round's length."""

    title: str
    arguments: Mapping[str, object]
    messages: int


PATHS = (
    Path(f"Java producer, {THREADS} threads", {"mode": "send", "threads": THREADS}, 20_000),
    Path(f"Java producer, batches of {BATCH}, 4 threads", {"mode": "batch", "threads": 4, "batchSize": BATCH}, 50_000),
    Path("Java push consumer, catching up", {"mode": "consume"}, 50_000),
)


def measure_java_clients(targets: Sequence[Target], effort: Effort, stack: ExitStack) -> list[JavaFigure]:
    """Return the figures path by path; the brokers' rounds alternate, and a first one, not counted, warms all up."""
    hosts = JavaHosts(JVM_OPTIONS)
    stack.callback(hosts.close)
    figures = []
    for number, path in enumerate(PATHS):
        rates: dict[str, list[float]] = {target.name: [] for target in targets}
        count = max(BATCH, int(path.messages * effort.seconds) // BATCH * BATCH)
        for round_number in range(effort.rounds + 1):
            for target in targets:
                topic = f"{TOPIC}-{number if path.arguments['mode'] != 'consume' else 'read'}"
                if round_number == 0:
                    target.create_topic(topic, QUEUES)
                    if path.arguments["mode"] == "consume":
                        fill = {"mode": "batch", "threads": 4, "batchSize": BATCH}
                        _run(hosts, target, {**fill, "group": "fill", "topic": topic, "count": count})
                group = f"bench-{number}-{round_number}"
                ms = _run(hosts, target, {**path.arguments, "group": group, "topic": topic, "count": count})
                if round_number:
                    rates[target.name].append(count / ms * 1000)
        figures += [
            JavaFigure(path.title, name, statistics.median(found), tuple(found)) for name, found in rates.items()
        ]
    return figures


def _run(hosts: JavaHosts, target: Target, arguments: Mapping[str, object]) -> float:
    """Return the milliseconds that the program measured."""
    with JavaProgram(VERSION, "Measure", {"namesrv": target.namesrv, **arguments}, among=hosts) as program:
        program.wait_line('"done"', TIMEOUT_S)
        program.finish()
        return float(program.state["ms"])
