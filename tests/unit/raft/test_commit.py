"""What is committed, and when: section 5.4 of the Raft paper, and what a disk has to do with it."""

from __future__ import annotations

import pytest

from cosmodrome.raft.messages import AppendRequest, AppendResponse, Base
from cosmodrome.raft.quorum import Membership
from cosmodrome.raft.state import Role
from tests.unit.raft.groups import Group, entries


def test_an_entry_of_an_earlier_term_is_not_committed_by_counting() -> None:
    """Figure 8: in (c) the entry of term 2 is on a majority, and (d) overwrites it all the same."""
    # a led in term 2 and gave index 1 to b; e led in term 3; a leads again in term 4, which nobody hears of but c.
    group = Group(5, logs={"a": [1, 2], "b": [1, 2], "c": [1], "d": [1], "e": [1, 3]}, term=3)
    group.do("a", lambda raft: raft.campaign())
    group.deliver(lambda message: not isinstance(message, AppendRequest))
    assert group["a"].role is Role.LEADER
    group.isolate("a", "c")  # (c): a gives index 1 to c, but not its own entry of term 4
    group["a"].state.now_ms = group.now_ms
    term = group["a"].term
    group.step(AppendRequest("a", "c", term, 0, 1, tuple(entries(1, 2)[1:]), -1))
    group.step(AppendResponse("b", "a", term, 1))
    group.step(AppendResponse("c", "a", term, 1))
    assert group["a"].commit == -1  # three of five have index 1
    group.step(AppendResponse("b", "a", term, 2))
    group.step(AppendResponse("c", "a", term, 2))
    assert group["a"].commit == 2  # (e): the own entry takes all before it along


def test_a_new_leader_commits_what_an_earlier_one_left() -> None:
    group = Group(3, logs={"a": [1, 1], "b": [1, 1]})
    group.elect("a")
    assert {raft.commit for raft in group.members.values()} == {2}  # the entry that begins a term, and all before it
    assert group.terms("c") == [1, 1, group["a"].term]


def test_a_follower_acknowledges_when_its_log_is_on_disk() -> None:
    group = Group(3)
    group.elect("a")
    group.isolate("c")
    group.slow_logs.add("b")
    index = group.propose("a")
    group.deliver()
    assert group.logs["b"].last_index == index
    assert group["a"].commit < index
    group.sync("b")
    group.pump("b")
    group.deliver()
    assert group["a"].commit == index


def test_a_leader_counts_itself_when_its_log_is_on_disk() -> None:
    group = Group(3)
    group.elect("a")
    group.isolate("c")
    group.slow_logs.add("a")
    index = group.propose("a")
    group.deliver()
    assert group["a"].commit < index
    group.sync("a")
    assert group["a"].commit == index


def test_a_leader_with_a_slow_disk_commits_what_the_others_have() -> None:
    group = Group(3)
    group.elect("a")
    group.slow_logs.add("a")
    index = group.propose("a")
    group.deliver()
    assert group["a"].commit == index


def test_a_sync_that_began_before_a_cut_says_nothing_of_what_came_after_it() -> None:
    group = Group(3, logs={"b": [1]})
    group.slow_logs.add("b")
    group.step(AppendRequest("a", "b", 2, 0, 1, tuple(entries(1, 2, 2)[1:]), -1))
    before = group.syncs["b"].pop()
    assert before.index == 2
    group.step(AppendRequest("c", "b", 3, 0, 1, tuple(entries(1, 3, 3)[1:]), -1))
    group["b"].synced(before)
    group.pump("b")
    assert not [m for m in group.of_kind(AppendResponse, "b") if isinstance(m, AppendResponse) and m.term == 3]
    group.sync("b")
    group.pump("b")
    assert group.sent[-1] == AppendResponse("b", "c", 3, 2)


def test_what_a_killed_process_left_is_not_taken_for_synced() -> None:
    group = Group(3, logs={"b": [1, 1]})
    group.slow_logs.add("b")
    group.start("b")
    group.step(AppendRequest("a", "b", 1, 1, 1, (), -1))
    assert not group.of_kind(AppendResponse, "b")
    group.sync("b")
    group.pump("b")
    assert group.sent[-1] == AppendResponse("b", "a", 1, 1)


def test_learners_and_strangers_do_not_count() -> None:
    group = Group(3, learners="xyz")
    group.elect("a")
    group.isolate("a", "x", "y", "z")
    index = group.propose("a")
    group.deliver()
    group.propose("a")
    group.deliver()
    group.step(AppendResponse("q", "a", group["a"].term, index))
    assert group["a"].commit < index
    assert group.logs["x"].last_index == index + 1


def test_an_acknowledgement_beyond_the_log_is_clamped() -> None:
    group = Group(3)
    group.elect("a")
    group.isolate("a")
    group.step(AppendResponse("b", "a", group["a"].term, 10_000))
    assert group.leading("a").progress()["b"].match == group.logs["a"].last_index
    assert group.propose("a") > group["a"].commit


@pytest.mark.parametrize(("size", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_a_majority_is_more_than_half(size: int, needed: int) -> None:
    members = Membership.of("abcdefg"[:size])
    assert members.quorum == needed
    assert members.is_majority("abcdefg"[:needed])
    assert not members.is_majority("abcdefg"[: needed - 1])
    values = dict(zip("abcdefg"[:size], range(size), strict=True))
    assert members.reached_by_majority(values.__getitem__) == size - needed


def test_nobody_is_a_majority_of_nobody() -> None:
    assert not Membership.of([]).is_majority([])


def test_a_restart_forgets_the_commit_index_and_learns_it_again() -> None:
    group = Group(3)
    group.elect("a")
    index = group.propose("a")
    group.deliver()
    group.start("b")
    assert group["b"].commit == -1
    group.pass_time(300)
    assert group["b"].commit == index


def test_a_log_may_begin_anywhere() -> None:
    group = Group(3)
    group.elect("a")
    for _ in range(5):
        group.propose("a")
    group.deliver()
    group.logs["b"].compact(4)
    group.start("b")
    assert group["b"].commit == 4
    assert group.logs["b"].base == Base(4, 1, Membership.of("abc"))
    group.pass_time(300)
    assert group["b"].commit == group["a"].commit
