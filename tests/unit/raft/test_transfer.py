"""Leadership that moves on request: section 3.10 of the thesis."""

from __future__ import annotations

import pytest

from cosmodrome.raft.errors import Busy, ChangeRefused
from cosmodrome.raft.log import LogFull
from cosmodrome.raft.messages import AppendRequest, TakeLeadership
from cosmodrome.raft.options import RaftOptions
from cosmodrome.raft.state import Role
from tests.unit.raft.groups import Group


def test_leadership_moves_without_waiting_for_a_time_out() -> None:
    group = Group(3)
    group.elect("a")
    group.do("a", lambda raft: raft.transfer("c"))
    group.deliver()
    assert (group["a"].role, group["c"].role) == (Role.FOLLOWER, Role.LEADER)
    assert {raft.leader for raft in group.members.values()} == {"c"}


def test_a_member_takes_over_when_it_has_the_whole_log() -> None:
    group = Group(3)
    group.elect("a")
    group.deliver()
    group.propose("a")
    group.do("a", lambda raft: raft.transfer("c"))
    group.deliver(lambda message: not isinstance(message, AppendRequest))
    assert not group.of_kind(TakeLeadership)
    group.pass_time(800)
    assert group["c"].role is Role.LEADER


def test_no_entries_are_taken_while_leadership_moves() -> None:
    group = Group(3)
    group.elect("a")
    group.isolate("a")
    group.do("a", lambda raft: raft.transfer("c"))
    with pytest.raises(Busy, match="hands its leadership to c"):
        group["a"].propose([b"x"])


def test_a_transfer_that_takes_too_long_is_given_up() -> None:
    group = Group(3)
    group.elect("a")
    group.isolate("c")
    group.do("a", lambda raft: raft.transfer("c"))
    group.deliver()
    group.pass_time(1_100)
    assert group["a"].role is Role.LEADER
    assert group.propose("a") == 1


@pytest.mark.parametrize(("member", "reason"), [("a", "not another voter"), ("x", "not another voter"), ("q", "voter")])
def test_leadership_goes_to_another_voter_only(member: str, reason: str) -> None:
    group = Group(3, learners="x")
    group.elect("a")
    with pytest.raises(ChangeRefused, match=reason):
        group["a"].transfer(member)


def test_a_member_that_is_away_gets_no_leadership() -> None:
    group = Group(3)
    group.elect("a")
    group.isolate("c")
    group.pass_time(1_500)
    with pytest.raises(ChangeRefused, match="not there"):
        group["a"].transfer("c")


def test_a_member_that_takes_no_entries_gets_no_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a preferred leader whose disk is full would stop the group every second."""
    group = Group(3, options=RaftOptions(preferred_leader="c", heartbeat_ms=100))
    group.elect("a")

    def refuse(entries: object) -> None:
        raise LogFull("the disk is full")

    monkeypatch.setattr(group.logs["c"], "append", refuse)
    group.propose("a")
    group.deliver()
    group.pass_time(3_000)
    assert group["a"].role is Role.LEADER
    assert group.leading("a").transferee is None
    with pytest.raises(ChangeRefused, match="too far behind"):
        group["a"].transfer("c")


def test_a_second_transfer_waits() -> None:
    group = Group(3)
    group.elect("a")
    group.isolate("a")
    group["a"].transfer("c")
    group["a"].transfer("c")
    with pytest.raises(ChangeRefused, match="already"):
        group["a"].transfer("b")


def test_the_preferred_leader_gets_the_leadership_when_it_has_caught_up() -> None:
    group = Group(3, options=RaftOptions(preferred_leader="c", heartbeat_ms=100))
    group.isolate("c")
    group.elect("a")
    for _ in range(5):
        group.propose("a")
        group.deliver()
    group.pass_time(3_000)
    assert group["a"].role is Role.LEADER
    group.heal()
    group.pass_time(3_000)
    assert group["c"].role is Role.LEADER
    group.pass_time(5_000)
    assert group["c"].role is Role.LEADER
