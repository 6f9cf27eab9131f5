"""Logs that are compared and cut, whatever they hold: log matching makes a follower's log its leader's."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.raft import storage
from cosmodrome.raft.core import Raft
from cosmodrome.raft.log import MemoryLog, count_known, has_entry, is_up_to_date, last_index_of_term
from cosmodrome.raft.messages import AppendReject, AppendRequest, AppendResponse, Base, Entry, EntryKind, HardState
from cosmodrome.raft.quorum import Membership

MEMBERS = Membership.of("ab")
terms = st.lists(st.integers(1, 6), max_size=12).map(sorted)


@st.composite
def two_logs(draw: Callable[..., list[int]]) -> tuple[MemoryLog, MemoryLog]:
    """Two logs as Raft makes them: the same up to some entry; then they have no term in common."""
    common, left, right = draw(terms), draw(terms), draw(terms)
    last = common[-1] if common else 0
    return _log(common + [last + 2 * term for term in left]), _log(common + [last + 2 * term - 1 for term in right])


def _log(of_terms: list[int]) -> MemoryLog:
    found = [Entry(index, term, EntryKind.NORMAL, b"%d" % term) for index, term in enumerate(of_terms)]
    return MemoryLog(Base(-1, 0, MEMBERS), found)


def _common(one: MemoryLog, two: MemoryLog) -> int:
    """Return the last index at which both logs have the same entry, the slow way."""
    index = -1
    for left, right in zip(one.entries, two.entries, strict=False):
        if left != right:
            break
        index = left.index
    return index


@given(two_logs(), st.integers(1, 100_000))
def test_a_leader_finds_where_the_logs_part_and_makes_them_one(logs: tuple[MemoryLog, MemoryLog], batch: int) -> None:
    """Follow the hints by hand, as `Leader` and `Progress` do: each rejection leads back, and the last append is it."""
    leader, follower = logs
    common, term = _common(leader, follower), 100
    raft = Raft("b", follower, HardState(term), random=Random(0), now_ms=0)
    if (point := raft.ready().sync) is not None:
        raft.synced(point)
    begin, rounds = leader.last_index + 1, 0
    while True:
        prev_index = begin - 1
        entries = leader.read(begin, batch) if begin <= leader.last_index else ()
        raft.step(AppendRequest("a", "b", term, prev_index, leader.term_at(prev_index), entries, -1))
        ready = raft.ready()
        if ready.sync is not None:
            raft.synced(ready.sync)
            ready = raft.ready()
        answers = [m for m in ready.messages if isinstance(m, AppendReject | AppendResponse)]
        answer = answers[-1]
        rounds += 1
        if isinstance(answer, AppendReject):
            assert answer.hint_index >= common
            place = last_index_of_term(leader, answer.hint_index, answer.hint_term)
            assert common <= min(place, prev_index - 1) < prev_index, "it leads back, and not too far"
            begin = min(place, prev_index - 1) + 1
        elif answer.match == leader.last_index:
            break
        else:
            begin = answer.match + 1
    # What the follower has behind a shorter log of its leader's stays until the leader writes something there.
    assert follower.entries[: len(leader.entries)] == leader.entries
    assert rounds <= 2 + 2 * 12 + len(leader.entries)


@given(two_logs())
def test_what_is_known_is_what_is_common(logs: tuple[MemoryLog, MemoryLog]) -> None:
    one, two = logs
    assert count_known(one, two.entries) == _common(one, two) + 1


@given(terms, st.integers(-1, 15), st.integers(0, 8))
def test_halving_finds_what_a_scan_finds(of_terms: list[int], index: int, term: int) -> None:
    log = _log(of_terms)
    found = [place for place in range(min(index, log.last_index) + 1) if log.term_at(place) <= term]
    assert last_index_of_term(log, index, term) == max(found, default=-1)


@given(two_logs())
def test_of_two_logs_one_at_least_is_up_to_date(logs: tuple[MemoryLog, MemoryLog]) -> None:
    one, two = logs
    ends = [(log.last_index, log.term_at(log.last_index)) for log in logs]
    assert is_up_to_date(one, *ends[1]) or is_up_to_date(two, *ends[0])
    assert (is_up_to_date(one, *ends[1]) and is_up_to_date(two, *ends[0])) == (ends[0] == ends[1])


@given(terms, st.integers(0, 11))
def test_a_compacted_log_answers_as_before_for_what_it_has(of_terms: list[int], index: int) -> None:
    whole, cut = _log(of_terms), _log(of_terms)
    if index > whole.last_index:
        return
    cut.compact(index)
    for place in range(index, whole.last_index + 1):
        assert has_entry(cut, place, whole.term_at(place))
    assert not has_entry(cut, index - 1, 1)
    assert cut.entries == whole.entries[index + 1 :]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_copy_of_a_vote_or_none(data: bytes) -> None:
    assert storage.decode(data) is None


@given(
    st.integers(0, 2**63 - 1),
    st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=100),
    st.integers(1, 2**63),
)
def test_a_vote_is_read_as_it_was_written(term: int, vote: str | None, sequence: int) -> None:
    state = HardState(term, vote)
    assert storage.decode(storage.encode(sequence, state) + b"more") == (sequence, state)
