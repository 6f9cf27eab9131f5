"""The first message since a time: what a broker says of it is taken for a hint, and looked at.

Apache 4 names any of the messages that were stored in that very millisecond, and where there are none the nearest
one, be it older or younger. To begin there may leave out messages that were asked for.
"""

from __future__ import annotations

from collections.abc import Generator

# Yields the offsets to look at, is told when the message there was stored (None: it is gone), returns the answer.
TimeSearch = Generator[int, int | None, int]


def first_since(since_ms: int, hint: int, newest: int) -> TimeSearch:
    """The first offset stored at that time or later; `newest`, the queue's end, if there is none.

    Two looks where the hint is right. Else steps that double until they are far enough, then halves.
    """
    low = high = min(max(hint, 0), newest)
    step = 1
    while low > 0 and not (yield from _is_older(low - 1, since_ms)):
        low, high, step = max(low - 1 - step, 0), low - 1, step * 2
    if low == high:  # nothing in front of the hint is wanted; what it names may be too old as well
        while high < newest and (yield from _is_older(high, since_ms)):
            low, high, step = high + 1, min(high + 1 + step, newest), step * 2
    while low < high:
        middle = (low + high) // 2
        if (yield from _is_older(middle, since_ms)):
            low = middle + 1
        else:
            high = middle
    return low


def _is_older(offset: int, since_ms: int) -> Generator[int, int | None, bool]:
    stored_ms = yield offset
    return stored_ms is None or stored_ms < since_ms
