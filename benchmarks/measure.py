"""Rounds of load on each broker in turn, and their figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from benchmarks.load import Load, LoadError, LoadResult
from benchmarks.targets import Target, machine_busy_s, resident_bytes
from benchmarks.workloads import BATCH, FILL, FILLED_PER_QUEUE, QUEUES, Workload
from interop.ours import CosmodromeUp

UP_STARTS = 3
START_BUDGET_S = 1.0
RESIDENT_BUDGET_MB = 80


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done. `connections` and `rate` cap those of every workload."""

    seconds: float
    rounds: int
    warm_up: float  # times what each broker asks for
    connections: int
    rate: int = 1_000_000  # requests per second


FULL = Effort(seconds=3, rounds=5, warm_up=1, connections=1_024)
SMOKE = Effort(seconds=0.1, rounds=1, warm_up=0, connections=4, rate=200)


@dataclass(frozen=True, slots=True)
class Round:
    """One stretch of load on one broker. Rates and CPU times are per message, or per pull.

    The cores are those kept busy by the broker, by the generator, and by everything else on the machine.
    """

    per_second: float
    cpu_us: float
    broker_cores: float
    generator_cores: float
    other_cores: float
    p50_us: float | None
    p99_us: float | None
    p999_us: float | None


@dataclass(frozen=True, slots=True)
class Figure:
    """One broker on one workload: the medians of its rounds, and how far the rounds lie apart."""

    workload: Workload
    target: str
    rounds: tuple[Round, ...]

    @property
    def per_second(self) -> float:
        return statistics.median(r.per_second for r in self.rounds)

    @property
    def cpu_us(self) -> float:
        return statistics.median(r.cpu_us for r in self.rounds)

    @property
    def spread(self) -> float:
        """The distance between the slowest and the fastest round, as a share of the median."""
        rates = [r.per_second for r in self.rounds]
        return (max(rates) - min(rates)) / self.per_second

    @property
    def p50_us(self) -> float | None:
        return _median(r.p50_us for r in self.rounds)

    @property
    def p99_us(self) -> float | None:
        return _median(r.p99_us for r in self.rounds)

    @property
    def p999_us(self) -> float | None:
        return _median(r.p999_us for r in self.rounds)

    @property
    def generator_cores(self) -> float:
        """The cores that the load generator kept busy: near 1, it is the limit and not the broker."""
        return statistics.median(r.generator_cores for r in self.rounds)

    @property
    def other_cores(self) -> float:
        """How busy the machine was with other things even in the quietest round."""
        return min(r.other_cores for r in self.rounds)

    def to_json(self) -> dict[str, Any]:
        workload = self.workload
        return {
            "workload": workload.slug,
            "title": workload.title,
            "broker": self.target,
            "per": workload.unit,
            "per_second": self.per_second,
            "cpu_us": self.cpu_us,
            "budget_us": workload.budget_us,
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "p999_us": self.p999_us,
            "spread": self.spread,
            "generator_cores": self.generator_cores,
            "other_cores": self.other_cores,
            "rounds": [asdict(r) for r in self.rounds],
        }


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


class Trial:
    """One workload against one broker. The store's count must equal what was acknowledged before a figure is shown."""

    def __init__(self, target: Target, workload: Workload, effort: Effort) -> None:
        self.target = target
        self.workload = workload
        self.rounds: list[Round] = []
        self._effort = effort
        self._sent = 0
        self._tapes = workload.tapes(min(workload.connections, effort.connections))

    def prepare(self) -> None:
        """Make the topic; for a workload that reads, fill it."""
        topic, queues = self.workload.topic, QUEUES
        self.target.create_topic(topic, queues)
        if not self.workload.messages:
            for tape in FILL.tapes(queues, topic):  # one queue after the other, so that each gets its full share
                with Load(self.target.address, [tape], 1, FILL.verify) as load:
                    self._sent += load.run(requests=FILLED_PER_QUEUE // BATCH).requests * BATCH
            self.target.wait_stored(topic, queues, self._sent)

    def warm_up(self, seconds: float) -> None:
        if seconds:
            self._load(seconds)

    def round(self) -> Round:
        machine_s, generator_s, broker_ns = machine_busy_s(), process_time(), self.target.cpu_ns()
        result = self._load(self._effort.seconds)
        broker_ns = self.target.cpu_ns() - broker_ns
        generator_s = process_time() - generator_s
        machine_s = machine_busy_s() - machine_s
        units = result.requests * self.workload.units
        done = Round(
            per_second=units / result.elapsed_s,
            cpu_us=broker_ns / 1000 / units,
            broker_cores=broker_ns / 1e9 / result.elapsed_s,
            generator_cores=generator_s / result.elapsed_s,
            other_cores=max(0.0, machine_s - generator_s - broker_ns / 1e9) / result.elapsed_s,
            p50_us=result.p50_us,
            p99_us=result.p99_us,
            p999_us=result.p999_us,
        )
        self.rounds.append(done)
        return done

    def finish(self) -> Figure:
        self.target.wait_stored(self.workload.topic, QUEUES, self._sent)
        return Figure(self.workload, self.target.name, tuple(self.rounds))

    def _load(self, seconds: float) -> LoadResult:
        workload = self.workload
        reply_bytes = workload.min_reply_bytes
        try:
            with Load(self.target.address, self._tapes, workload.in_flight, workload.verify, reply_bytes) as load:
                if workload.rate:
                    result = load.run_at_rate(min(workload.rate, self._effort.rate), seconds)
                else:
                    result = load.run(seconds=seconds)
        except (LoadError, OSError) as error:
            raise self.target.process.error(str(error)) from error  # with the end of its log, which says why
        self._sent += result.requests * workload.messages
        return result


def measure(targets: Sequence[Target], workload: Workload, effort: Effort, *, cold: bool) -> list[Figure]:
    """Return a figure for each broker; their rounds alternate, so that a slow minute of the machine hits all alike."""
    trials = [Trial(target, workload, effort) for target in targets]
    for trial in trials:
        trial.prepare()
        share = 1.0 if cold else 0.15  # what the first workload warmed up is mostly warm for the others
        trial.warm_up(trial.target.warm_up_s * share * effort.warm_up)
    for _ in range(effort.rounds):
        for trial in trials:
            trial.round()
    return [trial.finish() for trial in trials]


@dataclass(frozen=True, slots=True)
class StartUp:
    """`cosmodrome up` on an empty store: the time until it says ready, and the memory it then holds."""

    seconds: float
    resident_mb: float


def measure_start(home: Path, starts: int) -> StartUp:
    seconds, resident = [], []
    for number in range(starts):
        began = perf_counter()
        with CosmodromeUp(home / f"up-{number}") as up:
            seconds.append(perf_counter() - began)
            resident.append(resident_bytes(up.pid) / 1e6)
    return StartUp(statistics.median(seconds), statistics.median(resident))
