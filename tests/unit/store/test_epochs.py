"""Which master wrote which part of a log, and up to where two logs are the same."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.store import LogEpoch, MessageStore, common_end
from cosmodrome.store.epochs import LOG_EPOCHS, Epochs
from tests.unit.store.following import follower, ship
from tests.unit.store.kit import crash, kill, message, open_store

X, Y, Z = LogEpoch(1, "x", 0), LogEpoch(1, "y", 100), LogEpoch(2, "z", 100)


# --- common_end


@pytest.mark.parametrize(
    ("ours", "our_end", "theirs", "their_end", "end"),
    [
        ([X], 150, [X], 200, 150),
        ([X], 200, [X], 150, 150),
        ([X], 150, [X, Z], 120, 100),  # we had more of X than the promoted slave
        ([X, Y], 150, [X, Z._replace(begin=120)], 180, 100),  # it had more of X than we have left
        ([X, Y], 150, [X], 300, 100),
        ([X, Y], 150, [X, Y], 130, 130),
        ([Y], 150, [X, Y], 130, 130),  # the beginning has expired here
        ([X, Y], 150, [Y], 130, 130),  # or there
        ([X], 90, [X, Z], 120, 90),
        ([X], 150, [Y], 150, None),
        ([], 150, [X], 150, None),
        ([X], 0, [], 150, None),
    ],
)
def test_up_to_where_two_logs_are_the_same(
    ours: list[LogEpoch], our_end: int, theirs: list[LogEpoch], their_end: int, end: int | None
) -> None:
    assert common_end(ours, our_end, theirs, their_end) == end


Log = list[tuple[str, int]]  # who wrote how many bytes, in order


def _epochs(log: Log, expired: int = 0) -> tuple[list[LogEpoch], int]:
    begins = [0, *accumulate(size for _, size in log)]
    epochs = [LogEpoch(1, name, begin) for (name, _), begin in zip(log, begins, strict=False)]
    return epochs[expired:], begins[-1]


def _bytes(log: Log) -> list[str]:
    return [name for name, size in log for _ in range(size)]


stretches = st.lists(st.integers(1, 9), max_size=4)


@given(stretches, st.integers(0, 9), st.integers(0, 9), stretches, stretches, st.integers(0, 2), st.integers(0, 2))
def test_two_logs_that_parted_somewhere_have_the_same_bytes_up_to_the_end_and_no_further(
    shared: list[int],
    our_rest: int,
    their_rest: int,
    ours: list[int],
    theirs: list[int],
    our_expired: int,
    their_expired: int,
) -> None:
    """Of the epoch in which they part, each has something; then each goes on with epochs of its own."""
    common = [(f"s{number}", size) for number, size in enumerate(shared)]
    one: Log = [*common, ("parting", 1 + our_rest), *((f"a{number}", size) for number, size in enumerate(ours))]
    other: Log = [*common, ("parting", 1 + their_rest), *((f"b{number}", size) for number, size in enumerate(theirs))]
    end = common_end(*_epochs(one, min(our_expired, len(common))), *_epochs(other, min(their_expired, len(common))))
    assert end is not None
    assert _bytes(one)[:end] == _bytes(other)[:end]
    assert end == min(len(_bytes(one)), len(_bytes(other))) or _bytes(one)[end] != _bytes(other)[end]


# --- the file


def epochs_of(root: Path) -> Epochs:
    return Epochs(root / "config" / LOG_EPOCHS)


def test_a_new_store_begins_an_epoch_and_a_clean_restart_goes_on(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    (first,) = store.epochs.list
    assert (first.term, first.begin) == (1, 0)
    store.append(message())
    store.close()
    assert open_store(tmp_path).epochs.list == [first]


@pytest.mark.parametrize("die", [kill, crash])
def test_an_unclean_restart_begins_an_epoch_of_the_same_term(
    tmp_path: Path, die: Callable[[MessageStore], None]
) -> None:
    store = open_store(tmp_path)
    (first,) = store.epochs.list
    end = store.append(message()).end
    die(store)
    store = open_store(tmp_path)
    assert store.epochs.list[0] == first
    assert [(epoch.term, epoch.begin) for epoch in store.epochs.list] == [(1, 0), (1, end)]
    second = store.epochs.last
    die(store)
    store = open_store(tmp_path)
    assert [(epoch.term, epoch.begin) for epoch in store.epochs.list] == [(1, 0), (1, end)]
    assert store.epochs.last != second, "it holds nothing, so it is replaced"


def test_an_epoch_behind_the_log_is_dropped(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    end = store.append(message()).end
    store.close()
    epochs = epochs_of(tmp_path)
    epochs.adopt([*epochs.list, LogEpoch(1, "lost", end + 1)])
    store = open_store(tmp_path)
    assert [epoch.begin for epoch in store.epochs.list] == [0, end]
    assert store.epochs.list[1].id != "lost"


def test_epochs_before_the_log_are_merged(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path / LOG_EPOCHS)
    epochs.adopt([LogEpoch(1, "a", 0), LogEpoch(1, "b", 10), LogEpoch(1, "c", 20), LogEpoch(2, "d", 30)])
    epochs.follow(25, 40)
    assert [epoch.id for epoch in epochs.list] == ["c", "d"]
    assert [*epochs.spans(40)] == [(epochs.list[0], 30), (epochs.list[1], 40)]


@pytest.mark.parametrize("restart", [False, True])
def test_a_promotion_begins_a_new_term(tmp_path: Path, restart: bool) -> None:
    leader, copy = open_store(tmp_path / "leader"), follower(tmp_path / "copy")
    assert copy.epochs.list == []
    end = leader.append(message()).end
    copy.epochs.adopt([LogEpoch(3, "x", 0), LogEpoch(5, "y", end + 100)])
    ship(leader, copy, end, Random(1))
    if restart:
        copy.close()
        copy = open_store(tmp_path / "copy")
    else:
        copy.lead()
    assert [(epoch.term, epoch.begin) for epoch in copy.epochs.list] == [(3, 0), (6, end)], "no term is used twice"
    assert copy.epochs.own_begin == end
    copy.close()
    assert open_store(tmp_path / "copy").epochs.term == 6


@pytest.mark.parametrize(("above", "term"), [(0, 6), (5, 6), (6, 7), (40, 41)])
def test_the_new_term_is_above_every_one_that_was_heard_of(tmp_path: Path, above: int, term: int) -> None:
    copy = follower(tmp_path)
    copy.epochs.adopt([LogEpoch(5, "y", 0)])
    copy.lead(above)
    assert copy.epochs.term == term


def test_a_promotion_that_stored_nothing_leaves_no_trace(tmp_path: Path) -> None:
    leader, copy = open_store(tmp_path / "leader"), follower(tmp_path / "copy")
    copy.epochs.adopt(leader.epochs.list)
    ship(leader, copy, leader.append(message()).end, Random(1))
    copy.close()
    copy = open_store(tmp_path / "copy")
    assert copy.epochs.term == 2
    copy.close()
    copy = follower(tmp_path / "copy")
    assert copy.epochs.list == leader.epochs.list
    assert copy.epochs.term == 1


def test_an_old_store_gets_an_epoch_for_all_it_has(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(message())
    store.close()
    for path in (tmp_path / "config").iterdir():
        path.unlink()
    assert [(epoch.term, epoch.begin) for epoch in open_store(tmp_path).epochs.list] == [(1, 0)]


def test_one_damaged_file_costs_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for _ in range(3):
        store.append(message())
        kill(store)
        store = open_store(tmp_path)
    epochs = store.epochs.list
    store.close()
    path = tmp_path / "config" / LOG_EPOCHS
    path.write_bytes(path.read_bytes().replace(b"begin", b"begiN"))
    assert open_store(tmp_path).epochs.list == epochs


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"epochs":[{"term":1}]}', "\x00" * 100, '{"epochs":5}'])
def test_a_list_that_is_lost_makes_the_log_unknown(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody may take it for a log they know: their bytes may not be the same."""
    store = open_store(tmp_path)
    known = store.epochs.list
    store.append(message())
    store.close()
    for path in (tmp_path / "config").glob(f"{LOG_EPOCHS}*"):
        path.write_text(text)
    caplog.set_level(logging.ERROR)
    store = follower(tmp_path)
    assert common_end(store.epochs.list, store.max_physical_offset, known, 10**6) is None
    if text:
        assert "is set aside" in caplog.text
        assert len(store.epochs.list) == 1


def test_epochs_out_of_order_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / LOG_EPOCHS
    Epochs(path).adopt([LogEpoch(1, "a", 10), LogEpoch(1, "b", 0)])
    assert Epochs(path).list == []
    assert Epochs(path).is_new
