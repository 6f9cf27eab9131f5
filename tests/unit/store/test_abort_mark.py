"""The mark of a store in use: what it tells the next start of the last exit, and whose log it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from cosmodrome.store.lock import AbortMark, Exit


@pytest.fixture
def mark(tmp_path: Path) -> AbortMark:
    return AbortMark(tmp_path / "abort")


def test_a_start_that_dies_while_it_repairs_leaves_the_log_ours(mark: AbortMark) -> None:
    """Records behind a damaged place of our own log were never cut off: the next start may not take them for that."""
    mark.set()
    assert (mark.last_exit(), mark.is_ours) == (Exit.KILLED, True)
    mark.distrust_memory()
    assert (mark.last_exit(), mark.is_ours) == (Exit.CRASH, True)


def test_a_failed_disk_stays_one(mark: AbortMark) -> None:
    mark.set()
    mark.note_failure()
    mark.distrust_memory()
    assert (mark.last_exit(), mark.is_ours) == (Exit.DISK_FAILURE, True)


def test_the_last_words_stay(mark: AbortMark) -> None:
    mark.set()
    mark.note_death("its disk has no room")
    mark.distrust_memory()
    assert mark.last_words == "its disk has no room"


@pytest.mark.parametrize("text", [None, "4711"])
def test_a_store_of_which_nobody_knows_whose_it_is_is_not_ours(tmp_path: Path, text: str | None) -> None:
    if text is not None:  # as Apache's brokers write it
        (tmp_path / "abort").write_text(text)
    mark = AbortMark(tmp_path / "abort")
    mark.distrust_memory()
    assert (mark.last_exit(), mark.is_ours) == (Exit.CRASH, False)
