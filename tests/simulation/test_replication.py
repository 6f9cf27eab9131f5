"""A thousand small worlds of masters and slaves, and that what is watched in them shows every kind of mistake."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from cosmodrome.replication import epochs, follower
from cosmodrome.replication.epochs import LogEpoch, MasterLog
from cosmodrome.replication.follower import FollowerSession
from cosmodrome.replication.leader import Sender
from cosmodrome.replication.packets import Packet, PacketReader
from cosmodrome.replication.progress import Progress
from cosmodrome.store.message import Durability
from tests.simulation.replication_lives import FakeEpochs, FakeLog, Node, live_and_heal

SEEDS = int(os.environ.get("SEEDS", "1000"))
SEEDS_PER_TEST = 100
MAX_SEEDS = 300  # in which a mistake must show


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_slaves_have_what_their_master_has_and_nothing_acknowledged_is_lost(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, min(first + SEEDS_PER_TEST, SEEDS)):
        report = live_and_heal(seed)
        seen += report.events + report.outcomes
    print(dict(seen))
    if SEEDS - first >= SEEDS_PER_TEST:
        assert {"crashes", "crashes while cutting", "connections cut", "partitions", "promotions"} <= {*seen}
        assert {"packets broken off", "records broken off"} <= {*seen}
        assert {*map(str, Durability)} - {"FLUSH_DISK_TIMEOUT"} <= {*seen}


# The net must catch something: each of these is a mistake that loses messages, or lets logs part.


def _report_what_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FakeLog, "safe_end", FakeLog.max_physical_offset)


def _report_before_the_log_is_safe(patch: pytest.MonkeyPatch) -> None:
    report = FollowerSession.take_report

    def take_report(self: FollowerSession, now_ms: int) -> bytes | None:
        if self.state is follower.FollowerState.HOLDING:
            self.state = follower.FollowerState.FOLLOWING
            return self._report(self.begins, now_ms)
        return report(self, now_ms)

    patch.setattr(FollowerSession, "take_report", take_report)


def _keep_what_the_master_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(follower, "place_to_follow", lambda own, term, begin, end, master: min(end, master.end))


def _cut_what_the_master_has(patch: pytest.MonkeyPatch) -> None:
    """It comes again, if the master lives so long."""
    place_to_follow = epochs.place_to_follow

    def place(own: Sequence[LogEpoch], term: int, begin: int, end: int, master: MasterLog) -> int:
        return max(begin, min(own[-1].begin, place_to_follow(own, term, begin, end, master)))

    patch.setattr(follower, "place_to_follow", place)


def _take_epochs_for_equal_that_begin_alike(patch: pytest.MonkeyPatch) -> None:
    def common(own: Sequence[LogEpoch], term: int, begin: int, end: int, master: MasterLog) -> int:
        its = {epoch.begin for epoch in master.epochs}
        return min(end, master.end) if own[-1].begin in its else max(begin, min(own[-1].begin, end))

    patch.setattr(follower, "place_to_follow", common)


def _adopt_epochs_before_cutting(patch: pytest.MonkeyPatch) -> None:
    agree, truncate = FollowerSession._agree, FakeLog.truncate_log

    def _agree(self: FollowerSession, master: MasterLog, end: int) -> None:
        def cut_later(log: FakeLog, place: int, /) -> None:
            log.epochs.adopt(list(master.epochs))
            truncate(log, place)

        patch.setattr(FakeLog, "truncate_log", cut_later)
        agree(self, master, end)

    patch.setattr(FollowerSession, "_agree", _agree)


def _forget_to_adopt_epochs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FakeEpochs, "adopt", lambda self, epochs: None)


def _begin_no_epoch_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    begin = FakeEpochs.begin

    def begin_if_promoted(self: FakeEpochs, end: int, new_id: str, term: int) -> None:
        if term > self.term:
            begin(self, end, new_id, term)

    patch.setattr(FakeEpochs, "begin", begin_if_promoted)


def _forget_the_term_of_lost_bytes(patch: pytest.MonkeyPatch) -> None:
    load = FakeEpochs.load

    def load_all(self: FakeEpochs, end: int) -> None:
        load(self, end)
        self.term = self.list[-1].term

    patch.setattr(FakeEpochs, "load", load_all)


def _promote_without_asking_for_the_term(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Node, "_term", lambda self: self.log.epochs.term + self.was_slave)


def _count_one_copy_less(patch: pytest.MonkeyPatch) -> None:
    begin = Progress.__init__

    def __init__(  # noqa: N807
        self: Progress[object], copies: int, max_gap_bytes: int, timeout_ms: int, end: int = 0
    ) -> None:
        begin(self, copies - 1, max_gap_bytes, timeout_ms, end)

    patch.setattr(Progress, "__init__", __init__)


def _count_a_slave_that_comes_back_twice(patch: pytest.MonkeyPatch) -> None:
    join = Progress.join

    def join_unknown(self: Progress[object], replica: object, offset: int, host: str = "") -> object:
        return join(self, replica, offset, str(id(replica)))

    patch.setattr(Progress, "join", join_unknown)


def _forget_waiters_when_a_slave_leaves(patch: pytest.MonkeyPatch) -> None:
    leave = Progress.leave

    def leave_silently(self: Progress[object], replica: object) -> list[object]:
        leave(self, replica)
        return []

    patch.setattr(Progress, "leave", leave_silently)


def _start_a_little_later(patch: pytest.MonkeyPatch) -> None:
    begin = Sender._begin

    def _begin(self: Sender, report: int) -> None:
        begin(self, report)
        if self.next < self._source.max_physical_offset:
            self.next += 1

    patch.setattr(Sender, "_begin", _begin)


def _hand_on_parts_of_packets(patch: pytest.MonkeyPatch) -> None:
    take = PacketReader.take

    def take_part(self: PacketReader) -> Packet | None:
        packet = take(self)
        return packet and Packet(packet.offset, packet.data[:60])

    patch.setattr(PacketReader, "take", take_part)


@pytest.mark.parametrize(
    "mistake",
    [
        _report_what_is_not_synced,
        _report_before_the_log_is_safe,
        _keep_what_the_master_lost,
        _cut_what_the_master_has,
        _take_epochs_for_equal_that_begin_alike,
        _adopt_epochs_before_cutting,
        _forget_to_adopt_epochs,
        _begin_no_epoch_after_a_crash,
        _forget_the_term_of_lost_bytes,
        _promote_without_asking_for_the_term,
        _count_one_copy_less,
        _count_a_slave_that_comes_back_twice,
        _forget_waiters_when_a_slave_leaves,
        _start_a_little_later,
        _hand_on_parts_of_packets,
    ],
)
def test_a_planted_mistake_is_caught(
    monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mistake(monkeypatch)
    found = next((problem for seed in range(MAX_SEEDS) if (problem := _problem(seed))), None)
    print(found)
    assert found is not None


def _problem(seed: int) -> str | None:
    try:
        live_and_heal(seed)
    except AssertionError as problem:
        return str(problem)
    return None
