"""Rows at no more than a given rate."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import pyarrow as pa

STEPS_PER_SECOND = 10


class Pace:
    """Says how long to wait. Time in which nothing came is not made up for: the rate is never above what was asked."""

    def __init__(self, rows_per_second: float, now: float) -> None:
        self._rows_per_second = rows_per_second
        self._free_at = now

    @property
    def step(self) -> int:
        """How many rows go at once."""
        return max(int(self._rows_per_second / STEPS_PER_SECOND), 1)

    def pause_seconds(self, rows: int, now: float) -> float:
        """Before these rows may go."""
        begin = max(self._free_at, now)
        self._free_at = begin + rows / self._rows_per_second
        return begin - now


def paced(batches: Iterable[pa.RecordBatch], rows_per_second: float) -> Iterator[pa.RecordBatch]:
    """The same rows, slower. This has to be the last thing before they are sent: what waits in a buffer behind it would
    go out in a burst."""
    pace = Pace(rows_per_second, time.monotonic())
    for batch in batches:
        for begin in range(0, batch.num_rows, pace.step):
            piece = batch.slice(begin, pace.step)
            time.sleep(pace.pause_seconds(piece.num_rows, time.monotonic()))
            yield piece
