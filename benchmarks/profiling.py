"""Where a broker's time goes on one workload, told per message."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from benchmarks.measure import Effort, Round, Trial
from benchmarks.targets import start_ours
from benchmarks.workloads import Workload

TOP_FUNCTIONS = 25
TOP_LINES = 15


@dataclass(frozen=True, slots=True)
class Profile:
    """Samples of one round of load: shares of them are shares of the round's CPU time."""

    workload: Workload
    round: Round
    kernel_share: float
    samples: int
    own: Mapping[str, int]
    total: Mapping[str, int]
    lines: Mapping[str, int]

    def us(self, samples: int) -> float:
        return samples / max(self.samples, 1) * self.round.cpu_us

    def tables(self) -> list[Table]:
        return [self._functions(), self._lines()]

    def _functions(self) -> Table:
        unit, cpu_us = self.workload.unit, self.round.cpu_us
        kernel_us = cpu_us * self.kernel_share
        title = (
            f"{self.workload.title}: {cpu_us:.1f} µs per {unit}, {kernel_us:.1f} of them in the kernel"
            f" ({self.samples} samples)"
        )
        table = Table("function", title=title, title_justify="left")
        for heading in ("itself µs", "with callees µs", "itself %"):
            table.add_column(heading, justify="right")
        for name, count in _top(self.own, TOP_FUNCTIONS):
            share = count / max(self.samples, 1)
            table.add_row(
                Text(name), f"{self.us(count):.2f}", f"{self.us(self.total.get(name, 0)):.2f}", f"{share:.1%}"
            )
        return table

    def _lines(self) -> Table:
        table = Table("line", title="the lines that cost most", title_justify="left")
        table.add_column("µs", justify="right")
        for name, count in _top(self.lines, TOP_LINES):
            table.add_row(Text(name), f"{self.us(count):.2f}")
        return table


def _top(counts: Mapping[str, int], limit: int) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])[:limit]


def profile(workload: Workload, home: Path, effort: Effort) -> Profile:
    """Run our broker with the sampler inside, load it for one round, stop it and read the samples."""
    samples = home / "samples.json"
    with ExitStack() as stack:
        target = start_ours(home, stack, (sys.executable, "-m", "benchmarks.sampler", str(samples)))
        trial = Trial(target, workload, effort)
        trial.prepare()
        trial.warm_up(target.warm_up_s * effort.warm_up)
        os.kill(target.pid, signal.SIGUSR1)
        user, kernel = _cpu_ticks(target.pid)
        done = trial.round()
        user_after, kernel_after = _cpu_ticks(target.pid)
        os.kill(target.pid, signal.SIGUSR1)
        trial.finish()
    spent = (user_after - user) + (kernel_after - kernel)
    return Profile(workload, done, (kernel_after - kernel) / max(spent, 1), **json.loads(samples.read_text()))


def _cpu_ticks(pid: int) -> tuple[int, int]:
    """Clock ticks in user and in kernel mode: too coarse for a message, good enough to split a round."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return int(fields[11]), int(fields[12])
