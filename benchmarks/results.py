"""The results of a run: the ratios to Apache's brokers, the machine they hold for, and the files of a sheet."""

from __future__ import annotations

import json
import os
import platform
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import cosmodrome
from benchmarks.chart import bars
from benchmarks.measure import Effort, Figure
from benchmarks.sheets import Sheet

Rows = Sequence[Sequence[Figure]]  # one row for each workload: ours first, then Apache's if they ran


@dataclass(frozen=True, slots=True)
class SheetResult:
    """One sheet's figures."""

    sheet: Sheet
    rows: Rows

    @property
    def ratios(self) -> dict[str, float]:
        """Our messages per second to those of the better Apache broker, by workload; empty without one."""
        return {ours.workload.slug: ratio for ours, *others in self.rows if (ratio := ratio_to_best(ours, others))}

    def to_json(self) -> dict[str, object]:
        return {
            "title": self.sheet.title,
            "ratios": self.ratios,
            "load": [f.to_json() for row in self.rows for f in row],
        }

    def write(self, folder: Path, effort: Effort) -> list[Path]:
        """Write the sheet's figures and its chart; return the files."""
        folder.mkdir(parents=True, exist_ok=True)
        figures, chart = folder / f"{self.sheet.name}.json", folder / f"{self.sheet.name}.svg"
        figures.write_text(json.dumps({**environment(effort), **self.to_json()}, indent=2) + "\n")
        chart.write_text(bars(self.sheet.title, self.rows, caption=_caption(environment(effort))))
        return [figures, chart]


def ratio_to_best(ours: Figure, others: Sequence[Figure]) -> float | None:
    """Return our rate over the best of the others'; None if there are none, or if the generator set the rate."""
    if ours.workload.rate:
        return None
    best = max((other.per_second for other in others), default=0)
    return round(ours.per_second / best, 3) if best else None


def environment(effort: Effort) -> dict[str, object]:
    """Return what the figures depend on beside the code: machine, interpreter, versions, length of the rounds."""
    return {
        "measured": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cosmodrome": cosmodrome.__version__,
        "python": platform.python_version(),
        "interpreter": interpreter_build(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "seconds": effort.seconds,
        "rounds": effort.rounds,
    }


def interpreter_build() -> str:
    """Return how this Python was built: an optimised build is 10 to 25 % faster."""
    arguments = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    names = {"--enable-optimizations": "PGO", "--with-lto": "LTO", "--with-pydebug": "debug"}
    found = [name for option, name in names.items() if option in arguments]
    return "+".join(found) or "plain"


def _caption(found: dict[str, object]) -> str:
    return (
        f"median of {found['rounds']} rounds of {found['seconds']:g} s, the line is the range · "
        f"{found['cores']} cores, {found['cpu']} · Python {found['python']} ({found['interpreter']}) · "
        f"{found['measured']}"
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
