"""From ranges of queues to tasks. Pure.

A task costs some 50 ms whatever it reads, so small ranges share one, and only large ones are split.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cosmodrome.model import MessageQueue
from cosmodrome.spark.options import Slicing

# A task should read about this many before it is worth another one.
ROWS_PER_TASK = 130_000


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of one queue, `end` not included."""

    queue: MessageQueue
    begin: int
    end: int

    def __len__(self) -> int:
        return max(self.end - self.begin, 0)


def ranges(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> list[Range]:
    """What lies between two offsets; a queue whose end is not behind its start has nothing."""
    found = (Range(queue, start.get(queue, offset), offset) for queue, offset in sorted(end.items()))
    return [each for each in found if each]


def tasks(wanted: Iterable[Range], slicing: Slicing) -> list[tuple[Range, ...]]:
    """The ranges of each task. Inside a range, and so inside a task, the order of a queue is kept."""
    pieces = list(wanted)
    total = sum(map(len, pieces))
    if not total:
        return []
    count = max(-(-total // ROWS_PER_TASK), 1)
    if slicing.max_records_per_partition is not None:
        count = max(count, -(-total // slicing.max_records_per_partition))
    else:
        count = min(count, slicing.max_tasks)
    count = max(count, slicing.min_partitions or 1)
    size = -(-total // count)
    if slicing.max_records_per_partition is not None:
        size = min(size, slicing.max_records_per_partition)
    made = _packed([piece for each in pieces for piece in _split(each, size)], size)
    least = min(slicing.min_partitions or 1, total)
    return made if len(made) >= least else list(_dealt(pieces, least))


def _split(whole: Range, size: int) -> Iterator[Range]:
    """Pieces of about the same length, none longer than `size`."""
    count = -(-len(whole) // size)
    for index in range(count):
        begin = whole.begin + len(whole) * index // count
        yield Range(whole.queue, begin, whole.begin + len(whole) * (index + 1) // count)


def _dealt(pieces: Iterable[Range], count: int) -> Iterator[tuple[Range, ...]]:
    """As many tasks as are asked for, though some get a message more than others."""
    left = deque(pieces)
    total = sum(map(len, left))
    for index in range(count):
        room = total * (index + 1) // count - total * index // count
        together: list[Range] = []
        while room:
            first = left.popleft()
            middle = min(first.begin + room, first.end)
            together.append(Range(first.queue, first.begin, middle))
            room -= middle - first.begin
            if middle < first.end:
                left.appendleft(Range(first.queue, middle, first.end))
        yield tuple(together)


def _packed(pieces: list[Range], size: int) -> list[tuple[Range, ...]]:
    """Largest first, each into the emptiest task that has room for it."""
    filled: list[tuple[int, int, list[Range]]] = []
    for number, piece in enumerate(sorted(pieces, key=lambda piece: (-len(piece), piece.queue, piece.begin))):
        if filled and filled[0][0] + len(piece) <= size:
            length, key, together = heapq.heappop(filled)
            together.append(piece)
            heapq.heappush(filled, (length + len(piece), key, together))
        else:
            heapq.heappush(filled, (len(piece), number, [piece]))
    return [tuple(together) for _, _, together in sorted(filled, key=lambda task: task[1])]
