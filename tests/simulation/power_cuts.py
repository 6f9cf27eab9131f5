"""Cutting the power at some moments of a life, and looking what that cost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

from cosmodrome.testing import FaultyDisk, Moment

MOMENTS = 6

Promises = list[tuple[int, set[bytes]]]  # from which moment on which messages must come
Live = Callable[[Path, FaultyDisk, Random], Awaitable[Promises]]
LeftAfter = Callable[[Moment, Path, Random], Awaitable[set[bytes]]]


async def lost(folder: Path, seed: int, live: Live, left_after: LeftAfter) -> set[bytes]:
    """Which messages were promised, and would not come after a power cut at one of the moments looked at."""
    random = Random(seed)
    home = folder / "store"
    home.mkdir(parents=True)
    with FaultyDisk(home) as disk:
        promises = await live(home, disk, random)
    missing: set[bytes] = set()
    for number in random.sample(range(len(disk.moments)), MOMENTS):
        found = folder / f"moment-{number}"
        found.mkdir()
        promised = next((sent for since, sent in reversed(promises) if since <= number), set())
        missing |= promised - await left_after(disk.moments[number], found, random)
    return missing
