"""Whatever dies and however often, each row of an epoch is seen once."""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from enum import Enum, auto

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cosmodrome.errors import SendFailed
from cosmodrome.model import MessageQueue
from cosmodrome.spark.encoding import RowNames
from cosmodrome.spark.exactly_once import (
    Committer,
    Decision,
    Ended,
    Half,
    Handle,
    MarkerHead,
    TaskHalves,
    Verdict,
    cut,
    pack_tasks,
    scope_before,
    unpack_tasks,
)
from cosmodrome.spark.progress import DataLoss

SCOPE = "query:7"
QUEUES = [MessageQueue("orders", broker, 0) for broker in ("broker-a", "broker-b")]


class Fate(Enum):
    FINE = auto()
    DIES_BEFORE = auto()
    DIES_AFTER = auto()
    UNREACHED = auto()
    UNANSWERED_DONE = auto()
    UNANSWERED_NOT_DONE = auto()
    INTERNAL_ERROR = auto()


DEADLY = (Fate.DIES_BEFORE, Fate.DIES_AFTER)


class DriverDied(Exception):
    pass


class Brokers:
    """What outlives a driver. With `guarded`, a half message that is committed again is not shown again; Apache's
    brokers show it again, and also one that was rolled back."""

    def __init__(self, *, guarded: bool) -> None:
        self.guarded = guarded
        self._offsets = itertools.count()
        self.stored: dict[tuple[str, int], Half] = {}
        self.ended: dict[tuple[str, int], Verdict] = {}
        self.seen: list[Half] = []
        self.markers: list[tuple[str, list[TaskHalves]]] = []

    def send(self, row: int, queue: MessageQueue) -> Handle:
        offset = next(self._offsets)
        handle = Handle(row, queue, offset, offset * 100)
        (half,) = TaskHalves(SCOPE, 0, (handle,)).halves()
        self.stored[half.place] = half
        return handle

    def lose(self, place: tuple[str, int]) -> None:
        """Of what is seen, the half message alone goes; it has done its work."""
        self.stored.pop(place, None)

    def end(self, half: Half, verdict: Verdict) -> bool:
        if half.place not in self.stored:
            return False
        before = self.ended.get(half.place)
        if self.guarded and before is not None:
            return before is verdict
        self.ended[half.place] = verdict
        if verdict is Verdict.COMMIT:
            self.seen.append(half)
        return True


class Ledger:
    """What one driver sees of them."""

    def __init__(self, brokers: Brokers, fates: Iterator[Fate]) -> None:
        self._brokers = brokers
        self._fates = fates

    def _step(self) -> Fate:
        fate = next(self._fates, Fate.FINE)
        if fate is Fate.DIES_BEFORE:
            raise DriverDied
        return fate

    def decision(self, scope: str) -> Decision | None:
        assert scope == SCOPE
        if self._step() is Fate.UNREACHED:
            return None  # it is stored, and not yet found
        return self._first()

    def _first(self) -> Decision | None:
        for run, tasks in self._brokers.markers[:1]:
            return Decision(run, tasks)
        return None

    def decide(self, scope: str, run: str, tasks: Sequence[TaskHalves]) -> Decision:
        fate = self._step()
        self._brokers.markers.append((run, unpack_tasks(pack_tasks(tasks))))
        if fate is not Fate.FINE:
            raise DriverDied
        first = self._first()
        assert first is not None
        return first

    def visible(self, halves: Sequence[Half], *, everywhere: bool = False) -> Collection[str]:
        if self._step() is Fate.DIES_AFTER:
            raise DriverDied
        brokers = {half.row: half.queue.broker_name for half in halves}
        return {
            half.row
            for half in self._brokers.seen
            if half.row in brokers and (everywhere or brokers[half.row] == half.queue.broker_name)
        }

    def end(self, halves: Sequence[Half], verdict: Verdict) -> Ended:
        refused, unclear, untold = [], [], []
        for half in halves:
            match self._step():
                case Fate.UNREACHED:
                    untold.append(half)
                case Fate.UNANSWERED_NOT_DONE:
                    unclear.append(half)
                case Fate.UNANSWERED_DONE:
                    self._brokers.end(half, verdict)
                    unclear.append(half)
                case Fate.INTERNAL_ERROR:
                    refused.append(half)
                case fate:
                    if not self._brokers.end(half, verdict):
                        refused.append(half)
                    if fate is Fate.DIES_AFTER:
                        raise DriverDied
        return Ended(refused, unclear, untold)

    def is_gone(self, half: Half) -> bool:
        rolled_back = self._brokers.guarded and self._brokers.ended.get(half.place) is Verdict.ROLLBACK
        return half.place not in self._brokers.stored or rolled_back

    def pause(self, tries: int) -> None:
        pass


def run_once(brokers: Brokers, run: int, rows: int, fates: Sequence[Fate]) -> bool:
    """An epoch from its tasks to its commit, all rows on queues that depend on the run; whether it was done."""
    handles = tuple(brokers.send(row, QUEUES[(row + run) % len(QUEUES)]) for row in range(rows))
    committer = Committer(Ledger(brokers, iter(fates)), tries=3)
    try:
        committer.commit(SCOPE, f"run-{run}", [TaskHalves(SCOPE, 0, handles)])
    except (DriverDied, SendFailed):
        return False
    return True


fates = st.lists(st.sampled_from([*[Fate.FINE] * 6, *Fate]), max_size=30)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 6), st.lists(fates, max_size=5), st.booleans(), st.sets(st.integers(0, 40)))
@example(3, [[Fate.FINE, Fate.FINE, Fate.FINE, Fate.DIES_AFTER]], False, set())  # between two of its commits
@example(3, [[Fate.FINE, Fate.DIES_AFTER]], False, set())  # between marker and commits
@example(3, [[Fate.FINE, Fate.FINE, Fate.UNANSWERED_DONE, Fate.DIES_BEFORE]], False, {0, 1, 2})
@example(2, [[Fate.FINE, Fate.DIES_AFTER], [Fate.FINE] * 4 + [Fate.DIES_AFTER]], False, {0, 1})  # among stand-ins
def test_each_row_is_seen_once(rows: int, runs: list[list[Fate]], guarded: bool, lost: set[int]) -> None:
    """Half messages of earlier runs may be lost in between: those of the repetition stand in."""
    brokers = Brokers(guarded=guarded)
    for run, fate in enumerate(runs):
        run_once(brokers, run, rows, fate)
        assert all(count == 1 for count in Counter(half.row for half in brokers.seen).values())
        for place in [place for number, place in enumerate(brokers.stored) if number in lost]:
            brokers.lose(place)
    assert run_once(brokers, len(runs), rows, [])
    names = RowNames(SCOPE, 0)
    assert Counter(half.row for half in brokers.seen) == Counter(names.unique_id(row) for row in range(rows))
    assert run_once(brokers, len(runs) + 1, rows, [])  # and once more, after all is done
    assert len(brokers.seen) == rows


@settings(max_examples=200, deadline=None)
@given(st.lists(fates, max_size=5), st.booleans())
def test_one_run_is_seen_and_no_mixture(runs: list[list[Fate]], guarded: bool) -> None:
    brokers = Brokers(guarded=guarded)
    for run, fate in enumerate([*runs, []]):
        run_once(brokers, run, 5, fate)
    decided = {half.place for _, tasks in brokers.markers[:1] for task in tasks for half in task.halves()}
    assert {half.place for half in brokers.seen} == decided


def test_what_an_earlier_run_decided_stands_and_the_repetition_is_rolled_back() -> None:
    brokers = Brokers(guarded=False)
    assert not run_once(brokers, 0, 3, [Fate.FINE, Fate.FINE, Fate.DIES_AFTER])
    assert len(brokers.seen) == 1
    assert run_once(brokers, 1, 3, [])
    verdicts = list(brokers.ended.values())
    assert verdicts == [Verdict.COMMIT] * 3 + [Verdict.ROLLBACK] * 3


def test_rows_that_nothing_carries_any_more_are_missed() -> None:
    for fail in (True, False):
        brokers = Brokers(guarded=True)
        assert not run_once(brokers, 0, 3, [Fate.FINE, Fate.DIES_AFTER])
        for place in list(brokers.stored):
            brokers.lose(place)
        committer = Committer(Ledger(brokers, iter(())), tries=3, fail_on_data_loss=fail)
        handles = tuple(brokers.send(row, QUEUES[0]) for row in range(2))  # the repetition has one row less
        tasks = [TaskHalves(SCOPE, 0, handles)]
        if fail:
            with pytest.raises(DataLoss, match="1 messages of this batch are lost"):
                committer.commit(SCOPE, "again", tasks)
        else:
            committer.commit(SCOPE, "again", tasks)
        assert len(brokers.seen) == 2


handles = st.builds(
    Handle, st.integers(0, 2**32 - 1), st.sampled_from(QUEUES), st.integers(0, 2**40), st.integers(0, 2**50)
)
tasks = st.builds(
    TaskHalves,
    st.text(min_size=1),
    st.integers(0, 10_000),
    st.lists(handles, max_size=9).map(tuple),
    st.text(max_size=9),
)


@given(st.lists(tasks, max_size=4), st.integers(1, 300))
def test_a_marker_is_read_as_it_was_written(written: list[TaskHalves], part_bytes: int) -> None:
    *parts, last = cut(pack_tasks(written), part_bytes)
    head = MarkerHead.decode(MarkerHead("run", list(range(len(parts))), last).encode())
    assert (head.run, list(head.part_offsets)) == ("run", list(range(len(parts))))
    assert unpack_tasks(b"".join([*parts, head.last_part])) == written


def test_half_messages_know_the_group_that_sent_them_unless_their_marker_is_old() -> None:
    written = TaskHalves(SCOPE, 0, (Handle(1, QUEUES[0], 2, 300),), "ORDERS")
    assert [half.group for half in TaskHalves.decode(written.encode()).halves()] == ["ORDERS"]
    columns = orjson.loads(zlib.decompress(written.encode()))
    del columns["group"]
    (half,) = TaskHalves.decode(zlib.compress(orjson.dumps(columns))).halves()
    assert (half.group, half.log_offset) == ("", 300)


@pytest.mark.parametrize(
    ("scope", "before"),
    [
        ("7a1:12", "7a1:11"),
        ("7a1:1", "7a1:0"),
        ("7a1:0", None),
        ("job:orders:12", None),
        ("job:12", None),
        ("job:12:", None),
        ("12", None),
    ],
)
def test_only_batches_of_a_stream_have_one_before_them(scope: str, before: str | None) -> None:
    assert scope_before(scope) == before


def test_rows_are_named_alike_in_every_run() -> None:
    names, again, other = RowNames("q:1", 3), RowNames("q:1", 3), RowNames("q:1", 4)
    rows = [0, 1, 65_535, 65_536, 2**32 - 1]
    ids = [names.unique_id(row) for row in rows]
    assert ids == [again.unique_id(row) for row in rows]
    assert len({*ids, *(other.unique_id(row) for row in rows)}) == 10
    assert {len(each) for each in ids} == {32}
    assert names.properties(range(2))[1].as_py() == f"UNIQ_KEY\x01{ids[1]}\x02WAIT\x01true\x02SPARK_ID\x01q:1:3:1\x02"
