"""The power fails at any moment of any life: what the store promised is there, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from cosmodrome import mapped_file
from cosmodrome.config import FlushDiskType
from cosmodrome.errors import DamagedRecord, StoreError
from cosmodrome.mapped_file import MappedFile
from cosmodrome.store import commit_log, consume_queues, index_file
from cosmodrome.store.consume_queues import ConsumeQueues
from cosmodrome.store.index_file import Index
from cosmodrome.store.lock import AbortMark
from tests.simulation.store_lives import ASYNC, SYNC, live_and_lose_power

SEEDS = 30
MAX_SEEDS = 100  # in which a mistake must show
TRIES = 12  # with the seed that is known to show a mistake
MODES = (SYNC, ASYNC)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("flush", MODES)
def test_what_was_promised_survives_and_nothing_else_is_served(tmp_path: Path, flush: FlushDiskType, seed: int) -> None:
    live_and_lose_power(tmp_path, flush, seed)


# The net must catch something: each of these is a mistake that loses messages or serves garbage.


def _sync_no_bytes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MappedFile, "sync", lambda self: None)


def _sync_no_names(patch: pytest.MonkeyPatch) -> None:
    for module in (commit_log, consume_queues, index_file, mapped_file):
        patch.setattr(module, "sync_directory", lambda directory: None)


def _trust_what_a_killed_process_wrote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumeQueues, "distrust", lambda self, physical_offset: None)


def _trust_every_index_file(patch: pytest.MonkeyPatch) -> None:
    def trust(index: Index, _offset: int, _timestamp: int) -> None:
        for file in index._files:
            file.is_synced = True

    patch.setattr(Index, "trust", trust)


def _forget_that_the_disk_failed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AbortMark, "note_failure", lambda self: None)


def _take_torn_records_for_whole(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commit_log, "is_complete", lambda view, head: True)
    patch.setattr(commit_log, "find_ends", lambda files: None)  # which notices most of them, too


@pytest.mark.parametrize(
    ("mistake", "first"),
    [
        (_sync_no_bytes, None),
        (_sync_no_names, None),
        (_trust_what_a_killed_process_wrote, 71),
        (_trust_every_index_file, None),
        (_forget_that_the_disk_failed, None),
        (_take_torn_records_for_whole, None),
    ],
)
def test_a_planted_mistake_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], None], first: int | None
) -> None:
    """Where few seeds show it, `first` does so in one of some tries: no two runs of a seed are quite the same."""
    mistake(monkeypatch)
    seeds = [*([] if first is None else [first] * TRIES), *range(MAX_SEEDS)]
    folders = (tmp_path / f"{number}" for number in count())
    assert any(not _passes(next(folders), flush, seed) for seed in seeds for flush in MODES)


def _passes(folder: Path, flush: FlushDiskType, seed: int) -> bool:
    folder.mkdir()
    try:
        live_and_lose_power(folder, flush, seed)
    except (AssertionError, DamagedRecord, StoreError):
        return False
    return True
