"""Votes, terms, and who may lead: sections 5.2 and 5.4.1 of the Raft paper, and chapter 6 and 9 of the thesis."""

from __future__ import annotations

import pytest

from cosmodrome.errors import ProtocolError
from cosmodrome.raft.errors import NotLeader
from cosmodrome.raft.messages import Heartbeat, StaleTerm, VoteRequest, VoteResponse
from cosmodrome.raft.state import Role
from tests.unit.raft.groups import Group


def ask(source: str, target: str, term: int, last_index: int = -1, last_term: int = 0) -> VoteRequest:
    return VoteRequest(source, target, term, last_index, last_term, False, False)


def votes(group: Group, source: str) -> list[tuple[str, int, bool]]:
    answers = [m for m in group.of_kind(VoteResponse, source) if isinstance(m, VoteResponse)]
    return [(m.target, m.term, m.is_granted) for m in answers if not m.is_pre]


def test_a_member_alone_leads_and_commits() -> None:
    group = Group(1)
    group.pass_time(2_500)
    assert group["a"].role is Role.LEADER
    index = group.propose("a")
    assert group["a"].commit == index == 1


def test_a_group_elects_one_leader() -> None:
    group = Group(5)
    group.pass_time(4_000)
    leaders = [raft.id for raft in group.members.values() if raft.role is Role.LEADER]
    assert len(leaders) == 1
    assert {raft.leader for raft in group.members.values()} == set(leaders)


def test_a_vote_leaves_only_when_it_is_on_disk() -> None:
    group = Group(3)
    group.slow_votes.add("b")
    group.step(ask("a", "b", 1))
    assert votes(group, "b") == []
    group.save("b")
    group.pump("b")
    assert votes(group, "b") == [("a", 1, True)]


def test_a_vote_that_left_is_remembered_after_a_restart() -> None:
    group = Group(3)
    group.step(ask("a", "b", 1))
    group.start("b")
    group.step(ask("c", "b", 1))
    assert votes(group, "b") == [("a", 1, True), ("c", 1, False)]


def test_a_sync_of_an_earlier_term_lets_no_later_vote_go() -> None:
    group = Group(3)
    group.slow_votes.add("b")
    group.step(ask("a", "b", 1))
    group.step(ask("c", "b", 2))
    earlier, later = group.saves["b"]
    group["b"].hard_state_synced(earlier)
    group.pump("b")
    assert votes(group, "b") == []
    group["b"].hard_state_synced(later)
    group.pump("b")
    assert ("c", 2, True) in votes(group, "b")


def test_a_candidate_counts_its_own_vote_when_it_is_on_disk() -> None:
    group = Group(1)
    group.slow_votes.add("a")
    group.do("a", lambda raft: raft.campaign())
    assert group["a"].leading is None
    group.save("a")
    assert group["a"].leading is not None


def test_a_member_votes_once_in_a_term() -> None:
    group = Group(3)
    for candidate in "aca":
        group.step(ask(candidate, "b", 1))
    assert votes(group, "b") == [("a", 1, True), ("c", 1, False), ("a", 1, True)]


def test_a_vote_of_another_term_counts_for_nothing() -> None:
    group = Group(3)
    group.isolate("a")
    for _ in range(2):  # a pre-vote is needed for each
        group["a"]._stand(is_pre=False)
    group.pump("a")
    assert group["a"].term == 2
    answers = [VoteResponse("b", "a", 1, True, False), VoteResponse("b", "a", 2, True, True)]
    for answer in (*answers, VoteResponse("b", "a", 2, True, False)):
        assert group["a"].leading is None
        group.step(answer)
    assert group["a"].leading is not None


@pytest.mark.parametrize(
    ("own", "last_index", "last_term", "is_granted"),
    [
        ([1, 1], 1, 1, True),
        ([1, 1], 2, 1, True),
        ([1, 1], 0, 1, False),  # shorter
        ([1, 2], 5, 1, False),  # longer, but of an earlier term
        ([1, 1, 1], 0, 2, True),  # shorter, but of a later term
    ],
)
def test_a_vote_needs_a_log_that_is_up_to_date(
    own: list[int], last_index: int, last_term: int, is_granted: bool
) -> None:
    group = Group(3, logs={"b": own})
    for is_pre in (True, False):
        group.step(VoteRequest("a", "b", 5, last_index, last_term, is_pre, False))
    granted = [m.is_granted for m in group.of_kind(VoteResponse, "b") if isinstance(m, VoteResponse)]
    assert granted == [is_granted, is_granted]


def test_an_isolated_member_raises_no_term_and_disturbs_no_leader() -> None:
    group = Group(3)
    group.elect("a")
    term = group["a"].term
    group.isolate("c")
    group.pass_time(10_000)
    assert group["c"].role is Role.PRE_CANDIDATE
    group.heal()
    group.pass_time(3_000)
    assert {raft.term for raft in group.members.values()} == {term}
    assert group["a"].role is Role.LEADER
    assert group["c"].leader == "a"


def test_a_member_that_hears_its_leader_takes_part_in_no_other_election() -> None:
    group = Group(3)
    group.elect("a")
    group.pass_time(300)
    term = group["a"].term
    for target in "ab":
        group.step(ask("c", target, term + 5, 100, term + 4))
        group.step(VoteRequest("c", target, term + 5, 100, term + 4, True, False))
    group.deliver()
    assert {group["a"].term, group["b"].term} == {term}
    assert group["a"].role is Role.LEADER


def test_a_leader_without_a_quorum_steps_down_and_answers_no_more() -> None:
    group = Group(5)
    group.elect("a")
    group.isolate("a", "b")
    index = group.propose("a")
    group.do("a", lambda raft: raft.read("read"))
    group.pass_time(2_000)
    assert group["a"].role is not Role.LEADER
    assert group["a"].commit < index
    assert (group.reads, group.lost_reads) == ([], ["read"])
    with pytest.raises(NotLeader, match="no leader is known"):
        group["a"].propose([b"more"])


def test_a_leader_that_was_stopped_for_long_steps_down_before_it_does_anything() -> None:
    group = Group(3)
    group.elect("a")
    group["a"].tick(group.now_ms + 60_000)
    assert group["a"].role is Role.FOLLOWER


def test_a_leader_with_a_quorum_goes_on() -> None:
    group = Group(5)
    group.elect("a")
    group.isolate("d", "e")
    group.pass_time(5_000)
    assert group["a"].role is Role.LEADER


def test_who_hears_of_a_later_term_follows() -> None:
    group = Group(3)
    group.elect("a")
    group.step(StaleTerm("b", "a", 9))
    assert (group["a"].role, group["a"].term) == (Role.FOLLOWER, 9)


def test_who_leads_in_a_term_that_is_over_is_told() -> None:
    group = Group(3, term=7)
    group.step(Heartbeat("a", "b", 3, -1, 1))
    assert group.sent == [StaleTerm("b", "a", 7)]
    assert group["b"].leader is None


def test_a_member_that_is_ahead_in_term_gets_back_into_the_group() -> None:
    group = Group(3)
    group.elect("a")
    group.hard_states["c"] = group.hard_states["c"]._replace(term=40, vote=None)
    group.start("c")
    group.pass_time(6_000)
    (leader,) = {raft.leader for raft in group.members.values()}
    assert leader is not None
    assert {raft.term for raft in group.members.values()} == {group[leader].term}
    assert group[leader].term >= 40


def test_entries_may_have_reached_the_disk_before_their_term() -> None:
    group = Group(3, logs={"a": [1, 4]}, term=1)
    assert group["a"].term == 4
    group.step(ask("b", "a", 4, 5, 4))
    assert votes(group, "a") == [("b", 4, True)]  # nothing of term 4 has left before


def test_time_outs_are_spread() -> None:
    group = Group(5)
    deadlines = set()
    for _ in range(10):
        for raft in group.members.values():
            raft._election.wait()
            deadlines.add(raft.deadline_ms)
    assert len(deadlines) > 20
    assert min(deadlines) >= group.options.election_min_ms
    assert max(deadlines) <= group.options.election_max_ms


def test_two_leaders_of_a_term_are_not_believed() -> None:
    group = Group(3)
    group.step(Heartbeat("a", "b", 1, -1, 1))
    with pytest.raises(ProtocolError, match="both lead in term 1"):
        group["b"].step(Heartbeat("c", "b", 1, -1, 1))


def test_a_message_for_another_is_refused() -> None:
    group = Group(3)
    with pytest.raises(ProtocolError, match="got a message"):
        group["b"].step(Heartbeat("a", "c", 1, -1, 1))


def test_a_candidate_that_cannot_win_does_not_hold_up_others() -> None:
    group = Group(3, logs={"a": [1], "b": [1]})
    deadline_ms = group["a"].deadline_ms
    for term in (2, 3, 4):
        group.step(ask("c", "a", term))
    assert (group["a"].term, group["a"].deadline_ms) == (4, deadline_ms)
    group.step(ask("b", "a", 5, 0, 1))
    assert group["a"].deadline_ms != deadline_ms
