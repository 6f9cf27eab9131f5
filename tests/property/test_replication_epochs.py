"""Where two logs part is found from their epochs alone, whatever happened to them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.replication.epochs import CannotFollow, LogEpoch, MasterLog, common_end, place_to_follow


@dataclass
class Log:
    """A log as the list of who wrote each of its bytes."""

    bytes: list[str] = field(default_factory=list)
    epochs: list[LogEpoch] = field(default_factory=list)

    def begin_epoch(self, new_id: str) -> None:
        end = len(self.bytes)
        self.epochs = [epoch for epoch in self.epochs if epoch.begin < end] + [LogEpoch(1, new_id, end)]

    def append(self, count: int) -> None:
        self.bytes += [f"{self.epochs[-1].id}-{len(self.bytes)}"] * count

    def lose(self, count: int) -> None:
        del self.bytes[max(len(self.bytes) - count, 0) :]
        self.epochs = [epoch for epoch in self.epochs if epoch.begin <= len(self.bytes)]

    def forget_first_epochs(self, count: int) -> None:
        """As retention does."""
        self.epochs = self.epochs[min(count, len(self.epochs) - 1) :]


def same_bytes(one: Log, other: Log) -> int:
    return next(
        (place for place, (a, b) in enumerate(zip(one.bytes, other.bytes, strict=False)) if a != b),
        min(len(one.bytes), len(other.bytes)),
    )


histories = st.lists(st.tuples(st.sampled_from(["mastership", "loss", "loss and mastership"]), st.integers(0, 12)))


def live(log: Log, history: list[tuple[str, int]], name: str) -> None:
    for number, (what, count) in enumerate(history):
        if "loss" in what:
            log.lose(count)
        if "mastership" in what:  # each begins with an epoch of its own, and whoever does not begin one cannot write
            log.begin_epoch(f"{name}-{number}")
            log.append(count)


@given(histories, histories, histories, st.integers(0, 3), st.integers(0, 3))
def test_the_common_end_is_where_the_bytes_part(
    before: list[tuple[str, int]],
    mine: list[tuple[str, int]],
    theirs: list[tuple[str, int]],
    my_forgotten: int,
    their_forgotten: int,
) -> None:
    one = Log()
    one.begin_epoch("root")
    one.append(5)
    live(one, before, "both")
    other = Log(list(one.bytes), list(one.epochs))
    live(one, mine, "one")
    live(other, theirs, "other")
    if not one.epochs or not other.epochs:
        return
    one.forget_first_epochs(my_forgotten)
    other.forget_first_epochs(their_forgotten)
    found = common_end(one.epochs, len(one.bytes), other.epochs, len(other.bytes))
    assert found == common_end(other.epochs, len(other.bytes), one.epochs, len(one.bytes))
    if found is not None:
        assert found <= same_bytes(one, other)
        if not my_forgotten and not their_forgotten:
            assert found == same_bytes(one, other)


ROOT = LogEpoch(1, "root", 0)
SECOND = LogEpoch(2, "second", 100)
OTHER = LogEpoch(2, "other", 80)
MASTER = MasterLog([ROOT, SECOND], 0, 500)


@pytest.mark.parametrize(
    ("own", "end", "place"),
    [
        ([ROOT], 60, 60),
        ([ROOT], 150, 100),  # it has what was lost before the second epoch
        ([ROOT, SECOND], 300, 300),
        ([ROOT, SECOND], 600, 500),
        ([ROOT, SECOND], 60, 60),  # adopted, and not got so far
        ([ROOT, OTHER], 90, 80),
        ([LogEpoch(1, "fresh", 0)], 0, 0),
        ([SECOND], 300, 300),  # its first files are gone
    ],
)
def test_the_place_to_follow(own: list[LogEpoch], end: int, place: int) -> None:
    assert place_to_follow(own, 2, 0, end, MASTER) == place


@pytest.mark.parametrize(
    ("own", "term", "begin", "end", "master", "reason"),
    [
        ([ROOT], 3, 0, 60, MASTER, "stale"),  # it followed a later one, whose bytes it has lost
        ([LogEpoch(1, "elsewhere", 0)], 1, 0, 60, MASTER, "another log"),
        ([LogEpoch(1, "elsewhere", 0)], 1, 0, 60, replace(MASTER, end=0), "another log"),
        ([ROOT], 1, 120, 150, MASTER, "nothing of this log"),
        ([ROOT], 1, 0, 60, replace(MASTER, begin=100), "no longer has"),
        ([ROOT], 1, 0, 150, replace(MASTER, begin=110), "no longer has"),
    ],
)
def test_a_master_that_cannot_be_followed(
    own: list[LogEpoch], term: int, begin: int, end: int, master: MasterLog, reason: str
) -> None:
    with pytest.raises(CannotFollow, match=reason):
        place_to_follow(own, term, begin, end, master)


def test_a_master_without_epochs_is_followed_from_the_end() -> None:
    assert place_to_follow([ROOT], 5, 0, 60, MasterLog([], 0, 10)) == 60
