"""`cosmodrome`, whose event loop is metered: how much CPU time it took between two looks at it.

    python -m tests.system.metered FILE up …

A look is due every few milliseconds, and comes late when a turn of the loop takes long; so no turn took more CPU time
than was spent between two looks. Unlike the time of a clock on the wall, it does not grow when other processes have
the machine. FILE has a line for each step that counts: what the loop's thread took, what all threads took, and garbage
collections of these, in milliseconds.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Coroutine
from pathlib import Path
from time import process_time, thread_time
from typing import Any, NamedTuple, TypeVar

from cosmodrome.cli import serve
from cosmodrome.cli.main import main
from cosmodrome.net.loop import run

T = TypeVar("T")

LOOK_SECONDS = 0.002
COUNTS_MS = 10.0


class Step(NamedTuple):
    """The CPU time between two looks, in milliseconds."""

    loop_ms: float
    process_ms: float
    collected_ms: float


class Meter:
    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._collecting = self._collected = 0.0
        gc.callbacks.append(self._note_collection)

    def _note_collection(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = process_time()
        else:
            self._collected += process_time() - self._collecting

    async def look(self) -> None:
        loop_before, before = thread_time(), process_time()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            loop_now, now = thread_time(), process_time()
            if now - before >= COUNTS_MS / 1000:
                step = Step(loop_now - loop_before, now - before, self._collected)
                self._file.write(" ".join(f"{seconds * 1000:.1f}" for seconds in step) + "\n")
            loop_before, before, self._collected = loop_now, now, 0.0


def take_steps(path: Path) -> list[Step]:
    """Return the steps so far that count, and forget them."""
    lines = path.read_text().replace("\0", "").splitlines() if path.exists() else []
    path.write_text("")
    return [Step(*map(float, line.split())) for line in lines]


def metered_run(coroutine: Coroutine[Any, Any, T]) -> T:
    async def metered() -> T:
        looking = asyncio.create_task(METER.look())
        try:
            return await coroutine
        finally:
            looking.cancel()

    return run(metered())


if __name__ == "__main__":
    METER = Meter(Path(sys.argv.pop(1)))
    vars(serve)["run"] = metered_run
    main()
