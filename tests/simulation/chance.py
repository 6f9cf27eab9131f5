"""Chance that is the same each time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Python's own generator, from which clients and brokers draw; afterwards it is as it was. Processes that are left
    with one seed draw the same names and ports."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
