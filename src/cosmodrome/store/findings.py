"""What a look at a store found wrong: the first of each kind in words, the rest as a number."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import NamedTuple

MAX_LISTED = 50  # problems of one area


def counted(number: int, noun: str) -> str:
    """1 file, 1,200 files."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class Area(StrEnum):
    FILES = "files"
    LOG = "log"
    QUEUES = "queues"
    INDEX = "index"
    TIMERS = "timers"
    CHECKPOINT = "checkpoint"
    CONFIG = "config"


class Problem(NamedTuple):
    area: Area
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.area}: {self.where}: {self.what}"


class Findings:
    """Collects problems. Every one is counted; of each area only the first are kept, so one flood hides no other."""

    def __init__(self) -> None:
        self.counts: Counter[Area] = Counter()
        self.listed: list[Problem] = []
        self.notes: list[str] = []

    def add(self, area: Area, where: object, what: str) -> None:
        self.counts[area] += 1
        if self.counts[area] <= MAX_LISTED:
            self.listed.append(Problem(area, str(where), what))

    def note(self, text: str) -> None:
        """Worth knowing, but nothing is wrong."""
        self.notes.append(text)
