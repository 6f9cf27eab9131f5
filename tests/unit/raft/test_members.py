"""One change of the members at a time: chapter 4 of the thesis, and the correction of 2015."""

from __future__ import annotations

from typing import Any

import pytest

from cosmodrome.errors import ConfigError, ProtocolError
from cosmodrome.raft.errors import ChangeRefused
from cosmodrome.raft.messages import AppendRequest, AppendResponse, Entry, EntryKind
from cosmodrome.raft.options import RaftOptions
from cosmodrome.raft.quorum import Membership
from cosmodrome.raft.state import Role
from tests.unit.raft.groups import Group


def change(group: Group, leader: str, voters: str, learners: str = "") -> int:
    index = group[leader].change_members(Membership.of(voters, learners))
    group.pump(leader)
    return index


def test_a_learner_is_added_catches_up_and_becomes_a_voter() -> None:
    group = Group(3, strangers="d")
    group.elect("a")
    group.propose("a")
    group.deliver()
    change(group, "a", "abc", "d")
    group.deliver()
    group.pass_time(500)
    assert group.terms("d") == group.terms("a")
    change(group, "a", "abcd")
    group.deliver()
    assert {raft.members for raft in group.members.values()} == {Membership.of("abcd")}
    group.elect("d")


def test_a_learner_never_stands_and_never_counts() -> None:
    group = Group(1, learners="x")
    group.isolate("a")
    group.pass_time(5_000)
    assert group["x"].role is Role.FOLLOWER
    with pytest.raises(ChangeRefused, match="not a voter"):
        group["x"].campaign()


def test_a_change_waits_for_the_one_before_it() -> None:
    group = Group(3, learners="x")
    group.elect("a")
    group.deliver()
    group.isolate("a", "x")
    change(group, "a", "ab", "x")
    with pytest.raises(ChangeRefused, match="not committed yet"):
        change(group, "a", "a", "x")


def test_a_change_waits_for_an_entry_of_the_own_term() -> None:
    """Without it two leaders can each commit with a majority of its own (raft-dev, 2015)."""
    group = Group(4)
    group.do("a", lambda raft: raft.campaign())
    group.deliver(lambda message: not isinstance(message, AppendRequest))
    assert group["a"].role is Role.LEADER
    with pytest.raises(ChangeRefused, match="nothing is committed in this term"):
        change(group, "a", "abc")
    group.pass_time(600)
    change(group, "a", "abc")


@pytest.mark.parametrize(
    ("voters", "learners", "reason"),
    [
        ("abcd", "", "not caught up"),
        ("a", "", "one member at a time"),
        ("abcde", "", "one member at a time"),
        ("abc", "", "one member at a time"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(voters: str, learners: str, reason: str) -> None:
    group = Group(3)
    group.elect("a")
    with pytest.raises(ChangeRefused, match=reason):
        change(group, "a", voters, learners)
    assert group["a"].members == Membership.of("abc")


def test_the_last_voter_stays() -> None:
    group = Group(1)
    group.elect("a")
    with pytest.raises(ChangeRefused, match="needs a voter"):
        change(group, "a", "")


def test_a_change_that_is_cut_off_is_undone() -> None:
    group = Group(3)
    group.elect("a")
    group.isolate("a")
    change(group, "a", "abc", "x")
    assert group["a"].members == Membership.of("abc", "x")
    group.elect("b")
    group.heal()
    group.pass_time(500)
    assert group["a"].members == Membership.of("abc")
    assert group.terms("a") == group.terms("b")


def test_a_removed_leader_leads_until_its_removal_is_committed() -> None:
    group = Group(3)
    group.elect("a")
    group.isolate("a", "b")
    index = change(group, "a", "bc")
    group.deliver()
    assert (group["a"].role, group["a"].commit) == (Role.LEADER, index - 1)  # its own copy does not count
    group.heal()
    group.pass_time(500)
    assert group["a"].role is Role.FOLLOWER
    assert group["a"].commit == index
    group.pass_time(5_000)
    assert group["a"].role is Role.FOLLOWER
    assert {group["b"].role, group["c"].role} == {Role.LEADER, Role.FOLLOWER}


def test_who_alone_has_the_change_that_removes_it_leads_until_it_is_kept() -> None:
    group = Group(2)
    group.elect("a")
    change(group, "a", "b")
    group.wire.clear()  # a alone has it: b needs a's vote, and a's log is longer
    group.start("a")
    group.start("b")
    group.pass_time(8_000)
    assert group["b"].role is Role.LEADER
    assert group["b"].members == Membership.of("b")


def test_a_membership_survives_a_restart_and_the_loss_of_its_entry() -> None:
    group = Group(3, strangers="x")
    group.elect("a")
    index = change(group, "a", "abc", "x")
    group.deliver()
    group.propose("a")
    group.deliver()
    group.logs["a"].compact(index)
    assert group.start("a").members == Membership.of("abc", "x")


def test_a_membership_that_cannot_be_read_changes_nothing() -> None:
    group = Group(3)
    bad = Entry(0, 1, EntryKind.MEMBERS, b'{"voters": 7}')
    with pytest.raises(ProtocolError, match="membership"):
        group["b"].step(AppendRequest("a", "b", 1, -1, 0, (bad,), -1))
    assert group.logs["b"].last_index == -1
    assert not group.of_kind(AppendResponse, "b")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b'{"voters": ["a"], "learners": [1]}', b"[" * 100_000])
def test_anything_else_is_no_membership(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="membership"):
        Membership.decode(data)


def test_a_membership_is_read_as_it_was_written() -> None:
    members = Membership.of("abc", ["n7-host:40911"])
    assert Membership.decode(members.encode()) == members


def test_a_member_is_a_voter_or_a_learner() -> None:
    for voters, learners in (("ab", "b"), (["a", ""], "")):
        with pytest.raises(ProtocolError, match="either a voter or a learner"):
            Membership.of(voters, learners)
    assert Membership.of("ab").with_learner("c") == Membership.of("ab", "c")
    assert Membership.of("ab", "c").with_voter("c") == Membership.of("abc")
    assert Membership.of("ab", "c").without("c").without("b") == Membership.of("a")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"retry_ms": 0}, "retry_ms is 0; it must be above 0"),
        ({"heartbeat_ms": 1_000}, "a heartbeat must come more often"),
        ({"election_max_ms": 900}, "the shortest must not be above the longest"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        RaftOptions(**options)
