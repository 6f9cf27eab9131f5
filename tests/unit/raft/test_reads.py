"""Reads that see everything that anybody saw before them: section 6.4 of the thesis."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cosmodrome.raft.errors import Busy, NotLeader
from cosmodrome.raft.messages import AppendRequest, AppendResponse, Heartbeat, HeartbeatResponse
from tests.unit.raft.groups import OPTIONS, Group


def test_a_read_waits_for_a_majority() -> None:
    group = Group(3)
    group.elect("a")
    group.do("a", lambda raft: raft.read("one"))
    assert group.reads == []
    group.deliver()
    assert group.reads == [("one", group["a"].commit)]


def test_a_member_alone_answers_at_once() -> None:
    group = Group(1)
    group.elect("a")
    group.do("a", lambda raft: raft.read("one"))
    assert group.reads == [("one", 0)]


def test_a_leader_that_was_replaced_answers_no_read() -> None:
    group = Group(3)
    group.elect("a")
    group.isolate("a")
    group.elect("b")
    group.propose("b")
    group.deliver()
    assert group["b"].commit > group["a"].commit
    group.do("a", lambda raft: raft.read("stale"))
    group.deliver()
    group.pass_time(1_500)
    assert (group.reads, group.lost_reads) == ([], ["stale"])


def test_an_answer_to_an_earlier_heartbeat_confirms_nothing() -> None:
    group = Group(3)
    group.elect("a")
    group.pass_time(150, deliver=False)  # a heartbeat is under way
    answers = []
    while group.wire:
        message = group.wire.pop(0)
        if isinstance(message, Heartbeat):
            answers.append(HeartbeatResponse(message.target, "a", message.term, message.round))
    group.do("a", lambda raft: raft.read("late"))
    group.wire.clear()
    for answer in answers:
        group.step(answer)
    assert group.reads == []
    newest = group.of_kind(Heartbeat, "a")[-1]
    assert isinstance(newest, Heartbeat)
    group.step(HeartbeatResponse("b", "a", newest.term, newest.round))
    assert [read for read, _ in group.reads] == ["late"]


def test_a_new_leader_answers_no_read_before_it_has_committed_an_entry_of_its_own() -> None:
    group = Group(3, logs={"a": [1, 1], "b": [1, 1], "c": [1, 1]})
    group.do("a", lambda raft: raft.campaign())
    group.deliver(lambda message: not isinstance(message, AppendRequest | AppendResponse))
    group.do("a", lambda raft: raft.read("early"))
    group.deliver(lambda message: not isinstance(message, AppendRequest))
    assert group.reads == []
    group.pass_time(1_000)
    assert group.reads == [("early", 2)]


def test_reads_share_a_round() -> None:
    group = Group(3)
    group.elect("a")
    before = len(group.of_kind(Heartbeat, "a"))
    for number in range(50):
        group["a"].read(number)
    group.pump("a")
    group.deliver()
    assert [read for read, _ in group.reads] == list(range(50))
    assert len(group.of_kind(Heartbeat, "a")) - before == 2


def test_too_many_reads_are_refused() -> None:
    group = Group(3, options=replace(OPTIONS, max_pending_reads=2))
    group.elect("a")
    group.isolate("a")
    for number in range(2):
        group.do("a", lambda raft, number=number: raft.read(number))  # type: ignore[misc]
    with pytest.raises(Busy, match="2 reads wait"):
        group["a"].read(2)
    group.heal()
    group.pass_time(300)
    group["a"].read(3)


def test_a_follower_refuses_and_names_the_leader() -> None:
    group = Group(3)
    group.elect("a")
    with pytest.raises(NotLeader, match="ask a") as refusal:
        group["b"].read("one")
    assert refusal.value.leader == "a"
