"""Pops that wait: a message wakes one of each group, and none is ever lost."""

from __future__ import annotations

from cosmodrome.broker.pop.polls import ANY_QUEUE, STEP, HeldPop, PollKey, PopPolls

NOW = 1_000_000


def held(
    name: str, queue_id: int = ANY_QUEUE, group: str = "g", codes: frozenset[int] | None = None, wake_ms: int = NOW
) -> HeldPop[str]:
    return HeldPop(PollKey("T", group, queue_id), (f"%RETRY%{group}_T",), codes, wake_ms, name)


def polls(*pops: HeldPop[str], limit: int = 100, limit_each: int = 10) -> PopPolls[str]:
    made: PopPolls[str] = PopPolls(limit, limit_each)
    assert all(made.hold(pop) for pop in pops)
    return made


def names(pops: list[HeldPop[str]]) -> list[str]:
    return [pop.waiter for pop in pops]


def test_one_message_wakes_the_first_pop_of_each_group_and_kind() -> None:
    waiting = polls(held("a"), held("b"), held("c", 3), held("d", 4), held("e", group="h"))
    assert names(waiting.take_arrived("T", 3, 0)) == ["a", "c", "e"]
    assert names(waiting.take_arrived("T", 3, 0)) == ["b"]
    assert names(waiting.take_arrived("T", 3, 0)) == []
    assert names(waiting.take_arrived("T", 4, 0)) == ["d"]
    assert len(waiting) == 0


def test_a_message_of_the_retry_topic_wakes_a_pop_of_its_group_on_any_queue() -> None:
    waiting = polls(held("a", 3), held("b", group="h"))
    assert names(waiting.take_arrived("%RETRY%g_T", 0, 0)) == ["a"]
    assert names(waiting.take_arrived("%RETRY%x_T", 0, 0)) == []


def test_only_a_wanted_tag_wakes() -> None:
    waiting = polls(held("a", codes=frozenset({1})), held("b", codes=frozenset({2})))
    assert names(waiting.take_arrived("T", 0, 2)) == ["b"]
    assert names(waiting.take_arrived("T", 0, 2)) == []
    assert names(waiting.take_arrived("T", 0, 1)) == ["a"]


def test_whoever_leaves_something_wakes_the_next() -> None:
    first = held("a")
    waiting = polls(first, held("b"))
    assert names(waiting.take_next(first.key)) == ["a"]
    assert names(waiting.take_next(first.key)) == ["b"]
    assert waiting.take_next(first.key) == []


def test_a_pop_goes_on_when_its_time_is_up() -> None:
    waiting = polls(held("a", wake_ms=NOW), held("b", wake_ms=NOW + 1))
    assert names(waiting.take_expired(NOW)) == ["a"]
    assert waiting.count(PollKey("T", "g", ANY_QUEUE)) == 1


def test_there_are_bounds() -> None:
    waiting = polls(held("a"), limit=3, limit_each=2)
    assert waiting.hold(held("b"))
    assert not waiting.hold(held("c"))
    assert waiting.hold(held("d", 1))
    assert not waiting.hold(held("e", 2))


def test_after_closing_nobody_waits() -> None:
    waiting = polls(held("a"), held("b", 1))
    assert sorted(names(waiting.close())) == ["a", "b"]
    assert not waiting.hold(held("c"))
    assert waiting.take_arrived("T", 0, 0) == []


def test_a_crowd_of_groups_is_looked_at_in_steps() -> None:
    waiting = polls(*(held(f"p{number}", group=f"g{number}") for number in range(500)), limit=1_000)
    assert waiting.take_arrived("T", 3, 0) == []
    assert waiting.take_arrived("T", 3, 0) == []
    assert waiting.must_look
    steps = list(waiting.looking())
    assert max(map(len, steps)) == STEP
    assert sum(map(len, steps)) == 500
    assert (len(waiting), waiting.must_look, waiting.topics) == (0, False, {})


def test_a_crowd_expires_in_steps() -> None:
    waiting = polls(*(held(f"p{number}", group=f"g{number}") for number in range(500)), limit=1_000)
    steps = list(waiting.expiring(NOW))
    assert max(map(len, steps)) == STEP
    assert sum(map(len, steps)) == 500
