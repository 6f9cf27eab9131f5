"""Cosmodrome with a sampling profiler inside: `python -m benchmarks.sampler SAMPLES.json broker …`

The kernel interrupts the process every few milliseconds of its CPU time, and the Python function found running is
noted. That costs next to nothing, so the proportions are those of an unprofiled broker. Time spent in C shows at
the line that called it. SIGUSR1 switches sampling on and off; the samples are written when the process ends.
"""

from __future__ import annotations

import json
import linecache
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

INTERVAL_S = 0.001  # of CPU time; the kernel's tick may make it four times that
MAX_DEPTH = 100
OUTSIDE = "(event loop and kernel, outside Python)"

_LOOP_FILE = "asyncio/runners.py"
_ENTRY_INSTRUCTION = 4  # a frame that has not got further than this has only just been entered


class Sampler:
    """Counts where samples fell: in a function itself, in it or what it called, and on which line."""

    def __init__(self) -> None:
        self.samples = 0
        self.own: Counter[str] = Counter()
        self.total: Counter[str] = Counter()
        self.lines: Counter[str] = Counter()  # by place and source text
        self._on = False

    def install(self) -> None:
        signal.signal(signal.SIGPROF, self.sample)
        signal.signal(signal.SIGUSR1, self.switch)

    def switch(self, _number: int, _frame: FrameType | None) -> None:
        self._on = not self._on
        interval = INTERVAL_S if self._on else 0
        signal.setitimer(signal.ITIMER_PROF, interval, interval)

    def sample(self, _number: int, frame: FrameType | None) -> None:
        self.samples += 1
        if frame is None or _just_entered_from_loop(frame):
            self.own[OUTSIDE] += 1
            self.total[OUTSIDE] += 1
            return
        self.own[_name(frame)] += 1
        self.lines[_line(frame)] += 1
        self.total.update(_stack(frame))

    def write(self, path: Path) -> None:
        figures = {"samples": self.samples, "own": self.own, "total": self.total, "lines": self.lines}
        path.write_text(json.dumps(figures))


def _just_entered_from_loop(frame: FrameType) -> bool:
    """Whether the loop, or the kernel under it, was running when the signal came: Python hears of it one step later."""
    caller = frame.f_back
    return frame.f_lasti <= _ENTRY_INSTRUCTION and caller is not None and caller.f_code.co_filename.endswith(_LOOP_FILE)


def _stack(frame: FrameType) -> set[str]:
    """Every function under way, each once however often it calls itself."""
    names: set[str] = set()
    at: FrameType | None = frame
    for _ in range(MAX_DEPTH):
        if at is None:
            break
        names.add(_name(at))
        at = at.f_back
    return names


def _name(frame: FrameType) -> str:
    return f"{_file(frame)} {frame.f_code.co_qualname}"


def _line(frame: FrameType) -> str:
    number: int | None = frame.f_lineno  # None between lines, whatever the type says
    number = number or frame.f_code.co_firstlineno
    return f"{_file(frame)}:{number} {linecache.getline(frame.f_code.co_filename, number).strip()}"


def _file(frame: FrameType) -> str:
    """Short, and the same on every machine."""
    return "/".join(Path(frame.f_code.co_filename).parts[-2:])


def main() -> None:
    samples = Path(sys.argv.pop(1))
    sampler = Sampler()
    sampler.install()
    try:
        from cosmodrome.cli.main import main as cosmodrome

        cosmodrome()
    finally:
        sampler.write(samples)


if __name__ == "__main__":
    main()
