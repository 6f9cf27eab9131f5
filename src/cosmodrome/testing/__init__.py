"""What this package tests itself with, shipped so that you can test your own producers and consumers the same way."""

from __future__ import annotations

from cosmodrome.testing.clock import FakeClock
from cosmodrome.testing.faulty_disk import Fault, FaultyDisk, Killed, Kind, Moment, Mood
from cosmodrome.testing.loop import LoopClock, SeededLoop, VirtualLoop

__all__ = [
    "FakeClock",
    "Fault",
    "FaultyDisk",
    "Killed",
    "Kind",
    "LoopClock",
    "Moment",
    "Mood",
    "SeededLoop",
    "VirtualLoop",
]
