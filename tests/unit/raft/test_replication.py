"""Logs that become the leader's: sections 5.3 and 7 of the Raft paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cosmodrome.errors import ProtocolError
from cosmodrome.raft.errors import Busy, NotLeader
from cosmodrome.raft.log import LogFull, MemoryLog
from cosmodrome.raft.messages import (
    AppendReject,
    AppendRequest,
    AppendResponse,
    Base,
    Entry,
    Heartbeat,
    ResetRequest,
)
from cosmodrome.raft.options import RaftOptions
from cosmodrome.raft.quorum import Membership
from cosmodrome.raft.state import Role
from tests.unit.raft.groups import OPTIONS, Group, entries, entry

ABC = Membership.of("abc")


def append(prev_index: int, prev_term: int, new: list[Entry], *, term: int = 5, commit: int = -1) -> AppendRequest:
    return AppendRequest("a", "b", term, prev_index, prev_term, tuple(new), commit)


# Figure 7: a leader of term 8 and the followers it may find.
LEADER = [1, 1, 1, 4, 4, 5, 5, 6, 6, 6]
FIGURE_7 = [
    [1, 1, 1, 4, 4, 5, 5, 6, 6],
    [1, 1, 1, 4],
    [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],
    [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],
    [1, 1, 1, 4, 4, 4, 4],
    [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
]


@pytest.mark.parametrize("terms", FIGURE_7)
def test_a_follower_of_figure_7_gets_the_log_of_its_leader(terms: list[int]) -> None:
    group = Group(3, logs={"a": LEADER, "b": terms, "c": LEADER}, term=7)
    _elect_without_b(group)
    group.pass_time(1_000)
    assert group.logs["b"].entries == group.logs["a"].entries
    assert group["b"].commit == group["a"].commit == len(LEADER)


def test_logs_that_differ_in_many_entries_agree_after_few_messages() -> None:
    group = Group(3, logs={"a": [1] * 10 + [4] * 500, "b": [1] * 10 + [2] * 300 + [3] * 400, "c": [1] * 10 + [4] * 500})
    _elect_without_b(group)
    group.pass_time(1_000)
    assert group.logs["b"].entries == group.logs["a"].entries
    assert 1 <= len(group.of_kind(AppendReject, "b")) <= 4
    assert len({m.prev_index for m in group.sent if isinstance(m, AppendRequest) and m.target == "b"}) < 8


def _elect_without_b(group: Group) -> None:
    """Elect a with the vote of c; b gets its first append when time passes."""
    group.do("a", lambda raft: raft.campaign())
    group.deliver(lambda message: "b" not in (message.source, message.target))


@pytest.mark.parametrize(("prev_index", "prev_term"), [(1, 2), (1, 4), (2, 3), (5, 3)])
def test_a_follower_without_the_entry_before_takes_nothing(prev_index: int, prev_term: int) -> None:
    group = Group(3, logs={"b": [1, 3]})
    before = list(group.logs["b"].entries)
    group.step(append(prev_index, prev_term, [entry(prev_index + 1, 5)]))
    assert group.logs["b"].entries == before
    assert isinstance(group.sent[-1], AppendReject)


def test_an_append_that_was_overtaken_takes_nothing_back() -> None:
    group = Group(3)
    new = entries(5, 5, 5, 5)
    group.step(append(-1, 0, new))
    group.step(append(-1, 0, new[:2]))
    assert group.logs["b"].entries == new
    group.step(append(1, 5, []))
    assert group.logs["b"].entries == new


def test_a_follower_cuts_where_its_log_differs() -> None:
    group = Group(3, logs={"b": [1, 2, 2, 2]})
    group.step(append(0, 1, [entry(1, 2), entry(2, 5)]))
    assert group.terms("b") == [1, 2, 5]


def test_what_is_committed_is_not_cut() -> None:
    group = Group(3, logs={"b": [1, 1, 1]})
    group.step(append(2, 1, [], commit=1))
    assert group["b"].commit == 1
    with pytest.raises(ProtocolError, match="1 is committed"):
        group["b"].state.truncate(0)
    group.step(append(-1, 0, entries(5, 5)))  # no correct leader sends this
    assert group.terms("b") == [1, 1, 1]
    assert group.sent[-1] == AppendResponse("b", "a", 5, 2)  # what was acknowledged before


def test_a_follower_commits_no_more_than_what_was_compared() -> None:
    group = Group(3, logs={"b": [1, 2, 2, 2]})
    group.step(append(0, 1, [], commit=3))
    assert group["b"].commit == 0


def test_a_heartbeat_tells_no_more_than_was_acknowledged() -> None:
    group = Group(3, logs={"a": [1, 1], "b": [1, 1, 1], "c": [1, 1]}, term=1)
    group.cut = {("a", "b"), ("b", "a")}
    group.elect("a")
    group.propose("a")
    group.deliver()
    assert group["a"].commit == 3
    group.heal()
    group.pass_time(200, deliver=False)
    group.deliver(lambda message: isinstance(message, Heartbeat))
    assert group["b"].commit == -1  # its entry 2 is not the leader's
    heartbeats = [m for m in group.sent if isinstance(m, Heartbeat) and m.target == "b"]
    assert {m.commit for m in heartbeats} == {-1}


def test_what_agreed_with_an_earlier_leader_is_not_acknowledged_to_the_next() -> None:
    group = Group(3)
    group.step(append(-1, 0, entries(1, 1, 1), term=1))
    group.step(AppendRequest("c", "b", 2, 0, 1, (), -1))
    assert group.sent[-1] == AppendResponse("b", "c", 2, 0)


def test_an_append_of_a_term_that_is_over_is_refused() -> None:
    group = Group(3, term=6)
    group.step(append(-1, 0, entries(5)))
    assert group.logs["b"].last_index == -1


def test_a_lost_append_is_sent_again_without_new_traffic() -> None:
    group = Group(3)
    group.elect("a")
    group.propose("a")
    group.wire.clear()
    group.pass_time(1_000)
    assert group["a"].commit == 1
    assert group.terms("b") == group.terms("c") == [1, 1]


def test_a_lost_acknowledgement_is_sent_again_without_new_traffic() -> None:
    group = Group(3)
    group.elect("a")
    index = group.propose("a")
    group.deliver(lambda message: not isinstance(message, AppendResponse))
    assert group["a"].commit < index
    group.pass_time(1_000)
    assert group["a"].commit == index


def test_appends_follow_each_other_up_to_the_window() -> None:
    group = Group(2, options=_options(max_in_flight_messages=3, max_batch_bytes=1))
    group.elect("a")
    group.sent.clear()
    for _ in range(10):
        group.propose("a")
    assert len(group.of_kind(AppendRequest)) == 3
    group.deliver()
    assert group["a"].commit == group["b"].commit == 10


def test_entries_share_a_message() -> None:
    group = Group(2)
    group.elect("a")
    group.sent.clear()
    group["a"].propose([b"x"] * 100)
    group.pump("a")
    (request,) = group.of_kind(AppendRequest)
    assert isinstance(request, AppendRequest)
    assert len(request.entries) == 100


def test_a_follower_far_behind_gets_more_at_once() -> None:
    group = Group(3, options=_options(max_batch_bytes=1, max_bulk_bytes=100_000, far_behind_entries=50))
    group.elect("a")
    group.isolate("c")
    for _ in range(500):
        group.propose("a")
        group.deliver()
    group.heal()
    group.sent.clear()
    group.pass_time(1_500)
    assert group["c"].commit == group["a"].commit
    assert len([m for m in group.of_kind(AppendRequest) if m.target == "c"]) < 80


def test_a_follower_that_needs_what_is_gone_begins_a_new_log() -> None:
    group = Group(3)
    group.elect("a")
    group.isolate("c")
    for _ in range(20):
        group.propose("a")
        group.deliver()
    group.logs["a"].compact(15)
    group.heal()
    group.pass_time(1_500)
    assert group.logs["c"].first_index == 16
    assert group.logs["c"].entries == group.logs["a"].entries
    assert group["c"].commit == group["a"].commit == 20


def test_a_new_leader_finds_out_that_a_follower_needs_what_is_gone() -> None:
    group = Group(3, logs={"a": [1] * 20, "b": [1] * 20, "c": [1, 1]})
    group.logs["a"].compact(15)
    group.start("a")
    group.elect("a")
    assert group.logs["c"].first_index == 16
    assert group.logs["c"].entries == group.logs["a"].entries
    assert len(group.of_kind(ResetRequest)) == 1


def test_who_has_the_base_keeps_what_comes_behind_it() -> None:
    group = Group(3, logs={"b": [1, 1, 1, 1]})
    group.step(ResetRequest("a", "b", 5, Base(1, 1, ABC)))
    assert group.terms("b") == [1, 1, 1, 1]
    assert group["b"].commit == 1


def test_who_has_another_entry_there_begins_a_new_log() -> None:
    group = Group(3, logs={"b": [1, 1, 1, 1]})
    group.step(ResetRequest("a", "b", 5, Base(2, 3, ABC)))
    assert (group.logs["b"].first_index, group.terms("b")) == (3, [])
    assert group.sent[-1] == AppendResponse("b", "a", 5, 2)


def test_a_new_log_is_acknowledged_when_it_is_on_disk() -> None:
    group = Group(3)
    group.slow_logs.add("b")
    group.step(ResetRequest("a", "b", 5, Base(2, 3, ABC)))
    assert not group.of_kind(AppendResponse)
    group.sync("b")
    group.pump("b")
    assert group.sent[-1] == AppendResponse("b", "a", 5, 2)


def test_a_late_request_to_begin_a_new_log_takes_nothing_back() -> None:
    group = Group(3)
    request = ResetRequest("a", "b", 5, Base(2, 3, ABC))
    group.step(request)
    group.step(append(2, 3, entries(5, 5, first=3), commit=4))
    group.step(request)
    assert group.terms("b") == [5, 5]
    assert group["b"].commit == 4


def test_a_follower_without_room_acknowledges_nothing_and_catches_up_later(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(3)
    group.elect("a")
    with monkeypatch.context() as patch:
        patch.setattr(group.logs["b"], "append", _refuse)
        index = group.propose("a")
        group.deliver()
        group.pass_time(1_000)
    assert group.leading("a").progress()["b"].match < index
    group.pass_time(1_000)
    assert group.leading("a").progress()["b"].match == index


def test_a_leader_without_room_refuses_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(3)
    group.elect("a")
    with monkeypatch.context() as patch:
        patch.setattr(group.logs["a"], "append", _refuse)
        with pytest.raises(LogFull):
            group["a"].propose([b"x"])
    index = group.propose("a")
    group.deliver()
    assert group["a"].commit == index == 1


def test_who_has_no_room_does_not_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(3)
    with monkeypatch.context() as patch:
        patch.setattr(group.logs["a"], "append", _refuse)
        group.do("a", lambda raft: raft.campaign())
        group.deliver()
        assert group["a"].role is Role.FOLLOWER


def _refuse(entries: object) -> None:
    raise LogFull("the disk is full")


def test_too_much_that_waits_is_refused() -> None:
    group = Group(3, options=_options(max_pending_entries=5, max_pending_bytes=100))
    group.elect("a")
    group.isolate("a")
    group.propose("a", b"x" * 60)
    with pytest.raises(Busy, match="60 bytes wait"):
        group["a"].propose([b"x" * 60])
    with pytest.raises(Busy, match="1 entries wait"):
        group["a"].propose([b"x"] * 5)
    group.heal()
    group.pass_time(500)
    group.propose("a", b"x" * 200)  # alone, any size


def test_a_follower_refuses_entries() -> None:
    group = Group(3)
    group.elect("a")
    with pytest.raises(NotLeader, match="b does not lead its group: ask a"):
        group["b"].propose([b"x"])


@pytest.mark.parametrize(
    "new",
    [
        [entry(1, 5)],  # a hole
        [entry(0, 6)],  # of a later term than the leader's
        [entry(0, 3), entry(1, 2)],  # terms fall
        [entry(0, 5), entry(0, 5)],
    ],
)
def test_entries_that_do_not_follow_each_other_are_refused(new: list[Entry]) -> None:
    group = Group(3)
    with pytest.raises(ProtocolError, match="does not follow"):
        group["b"].step(append(-1, 0, new))
    assert group.logs["b"].last_index == -1


def test_a_base_of_a_later_term_is_refused() -> None:
    group = Group(3)
    with pytest.raises(ProtocolError, match="term 9"):
        group["b"].step(ResetRequest("a", "b", 5, Base(3, 9, ABC)))


def test_a_rejection_of_the_past_changes_nothing() -> None:
    group = Group(2)
    group.elect("a")
    for _ in range(3):
        group.propose("a")
    group.deliver()
    progress = group.leading("a").progress()["b"]
    group.step(AppendReject("b", "a", 1, 1, 0, 1))
    assert (progress.match, progress.next, progress.sending) == (3, 4, "replicate")


def test_answers_of_strangers_change_nothing() -> None:
    group = Group(3)
    group.elect("a")
    for message in (AppendResponse("x", "a", 1, 99), AppendReject("x", "a", 1, 0, 0, 0)):
        group.step(message)
    assert set(group.leading("a").progress()) == {"b", "c"}


def test_an_empty_log_in_memory_stands_on_its_base() -> None:
    log = MemoryLog(Base(6, 2, ABC))
    assert (log.first_index, log.last_index, log.term_at(6)) == (7, 6, 2)


def _options(**changes: Any) -> RaftOptions:
    return replace(OPTIONS, **changes)
