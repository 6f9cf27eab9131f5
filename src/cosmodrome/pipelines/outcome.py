"""What a pipeline that has an end came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Table:
    """A small result, for people: rows in the order of the columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Numbers that sum it up, tables to show, files that were written, and what else there is to say."""

    numbers: Mapping[str, int | float | str] = field(default_factory=dict)
    tables: Sequence[Table] = ()
    files: Sequence[str] = ()
    notes: Sequence[str] = ()
