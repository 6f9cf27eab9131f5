"""`cosmodrome`, whose event loop is metered: how much CPU time the process took between two looks at the loop.

    python -m tests.system.metered FILE up …

A look is due every few milliseconds, and comes late when a turn of the loop takes long; so no turn took more CPU time
than was spent between two looks, by the loop or by threads that kept the interpreter from it. Unlike the time of a
clock on the wall that does not grow when other processes have the machine. FILE has a line for each step that counts.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Coroutine
from pathlib import Path
from time import process_time
from typing import Any, TypeVar

from cosmodrome.cli import main, serve

T = TypeVar("T")

LOOK_SECONDS = 0.002
COUNTS_MS = 10.0


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
        before = process_time()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = process_time()
            took_ms, collected_ms = (now - before) * 1000, self._collected * 1000
            if took_ms >= COUNTS_MS:
                self._file.write(f"{took_ms:.1f} {collected_ms:.1f}\n")
            before, self._collected = now, 0.0


def busy_ms(path: Path) -> list[float]:
    """Return the CPU time of each step so far that counts, and forget them."""
    steps = [float(line.split()[0]) for line in path.read_text().splitlines()]
    path.write_text("")
    return steps


if __name__ == "__main__":
    meter = Meter(Path(sys.argv.pop(1)))
    run = serve.run

    def metered_run(coroutine: Coroutine[Any, Any, T]) -> T:
        async def metered() -> T:
            looking = asyncio.create_task(meter.look())
            try:
                return await coroutine
            finally:
                looking.cancel()

        return run(metered())

    serve.run = metered_run
    main.main()
