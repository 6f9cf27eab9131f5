"""How many slots and entries an index file has: its header does not say, but what it holds gives it away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from cosmodrome.config import StoreConfig
from cosmodrome.store.index_file import ENTRY, ENTRY_SIZE, HEADER_SIZE, SLOT_SIZE, file_size
from cosmodrome.store.survey import IndexView, data_ranges

_OFFSET_AT = 4  # of the log offset in an entry
_SAMPLES = 64  # entries looked at
_MAX_CANDIDATES = 100_000  # places tried


class IndexShape(NamedTuple):
    slots: int
    entries: int

    @property
    def file_size(self) -> int:
        return file_size(self.slots, self.entries)

    @property
    def entries_at(self) -> int:
        return HEADER_SIZE + self.slots * SLOT_SIZE


_DEFAULTS = StoreConfig()
DEFAULT_SHAPE = IndexShape(_DEFAULTS.max_hash_slot_num, _DEFAULTS.max_index_num)


def find_shape(file: IndexView, view: memoryview) -> IndexShape | None:
    """The shape under which slots and entries fit together; None when there is none, or nothing to tell it by."""
    if file.size == DEFAULT_SHAPE.file_size and (not file.entries or _fits(file, view, DEFAULT_SHAPE)):
        return DEFAULT_SHAPE
    if not file.entries:
        return None
    for entry_at in islice(_last_entries(file, view), _MAX_CANDIDATES):
        slots, rest = divmod(entry_at - file.entries * ENTRY_SIZE - HEADER_SIZE, SLOT_SIZE)
        entries, left = divmod(file.size - HEADER_SIZE - slots * SLOT_SIZE, ENTRY_SIZE)
        shape = IndexShape(slots, entries)
        if slots > 0 and not rest and not left and entries > file.entries and _fits(file, view, shape):
            return shape
    return None


def _last_entries(file: IndexView, view: memoryview) -> Iterator[int]:
    """Where the last entry may lie: it names the offset that the header gives as the last."""
    # Offset 0 is what an empty place says too: then anything that is not zero may be the entry's hash.
    pattern = re.escape(file.end_offset.to_bytes(8, signed=True)) if file.end_offset else rb"[^\0]"
    before = _OFFSET_AT if file.end_offset else 0
    for low, high in data_ranges(file.path, HEADER_SIZE):
        for found in re.finditer(pattern, view[: min(high + ENTRY_SIZE, len(view))][low:]):
            entry_at = low + found.start() - before
            yield entry_at - (entry_at - HEADER_SIZE) % SLOT_SIZE


def _fits(file: IndexView, view: memoryview, shape: IndexShape) -> bool:
    """Most of the first entries are in the chain of the slot that their hash leads to. Most: one may be damaged."""
    last = file.entries
    if shape.entries_at + (last + 1) * ENTRY_SIZE > len(view):
        return False
    newest: dict[int, int] = {}
    numbers = range(1, min(last, _SAMPLES) + 1)
    chained = 0
    for number in numbers:
        key_hash, before = _hash_and_before(view, shape, number)
        slot = key_hash % shape.slots
        chained += newest.get(slot, 0) == before and _leads_back(view, shape, slot, range(number, last + 1))
        newest[slot] = number
    return chained * 2 > len(numbers)


def _leads_back(view: memoryview, shape: IndexShape, slot: int, numbers: range) -> bool:
    """Whether the slot names one of these entries, and the hash of that leads to the slot."""
    slot_at = HEADER_SIZE + slot * SLOT_SIZE
    newest = int.from_bytes(view[slot_at : slot_at + SLOT_SIZE], signed=True)
    return newest in numbers and _hash_and_before(view, shape, newest)[0] % shape.slots == slot


def _hash_and_before(view: memoryview, shape: IndexShape, number: int) -> tuple[int, int]:
    key_hash, _, _, before = ENTRY.unpack_from(view, shape.entries_at + number * ENTRY_SIZE)
    return key_hash, before
