"""Pulls that wait: which go on when a message arrives, which when their time is up, and none is ever lost."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cosmodrome.broker.long_polls import AT_ONCE, TAKEN_STEP, HeldPull, LongPolls

NOW = 1_000_000


def held(
    topic: str = "T", queue_id: int = 0, offset: int = 5, codes: frozenset[int] | None = None, deadline_ms: int = NOW
) -> HeldPull[str]:
    return HeldPull(topic, queue_id, offset, codes, deadline_ms, f"{topic}-{queue_id}-{offset}")


def polls(*pulls: HeldPull[str], limit: int = 100) -> LongPolls[str]:
    made: LongPolls[str] = LongPolls(limit)
    assert all(made.hold(pull) for pull in pulls)
    return made


def test_a_pull_goes_on_when_its_offset_is_there() -> None:
    pull = held(offset=5)
    waiting = polls(pull)
    assert waiting.take_arrived("T", 0, 5, tags_code=0) == []
    assert waiting.take_arrived("T", 0, 6, tags_code=0) == [pull]
    assert waiting.take_arrived("T", 0, 7, tags_code=0) == []
    assert len(waiting) == 0


def test_a_pull_far_behind_goes_on_too() -> None:
    pull = held(offset=0)
    assert polls(pull).take_arrived("T", 0, 1_000, tags_code=0) == [pull]


def test_messages_of_other_queues_and_topics_wake_nobody() -> None:
    waiting = polls(held())
    assert waiting.take_arrived("T", 1, 9, tags_code=0) == []
    assert waiting.take_arrived("U", 0, 9, tags_code=0) == []
    assert len(waiting) == 1


def test_a_pull_wakes_only_for_tags_it_wants() -> None:
    everything, some = held(codes=None), held(codes=frozenset({7, 8}))
    waiting = polls(some)
    assert waiting.take_arrived("T", 0, 6, tags_code=9) == []
    waiting.hold(everything)
    assert waiting.take_arrived("T", 0, 7, tags_code=9) == [everything]
    assert waiting.take_arrived("T", 0, 8, tags_code=8) == [some]


def test_a_crowd_is_woken_to_the_last_though_some_of_it_go_on_otherwise_meanwhile() -> None:
    """Those whose time is up between two steps are as many as one step takes."""
    early = [held(deadline_ms=NOW) for _ in range(2 * TAKEN_STEP)]
    late = [held(deadline_ms=NOW + 10_000) for _ in range(AT_ONCE)]
    waiting = polls(*early, *late, limit=1_000)
    assert waiting.take_arrived("T", 0, 6, tags_code=0) == []
    looking = waiting.looking()
    woken = next(looking)
    assert woken == early[:TAKEN_STEP]
    assert waiting.take_expired(NOW) == early[TAKEN_STEP:]
    assert [pull for step in looking for pull in step] == late
    assert len(waiting) == 0


def test_all_pulls_of_a_queue_go_on_in_the_order_they_came() -> None:
    pulls = [held(offset=offset) for offset in (5, 3, 5, 4)]
    assert polls(*pulls).take_arrived("T", 0, 6, tags_code=0) == pulls


def test_time_is_up_exactly_at_the_deadline() -> None:
    pull = held(deadline_ms=NOW)
    waiting = polls(pull)
    assert waiting.take_expired(NOW - 1) == []
    assert waiting.take_expired(NOW) == [pull]
    assert waiting.take_expired(NOW + 1) == []


def test_only_those_whose_time_is_up_expire() -> None:
    early, late, other = held(deadline_ms=NOW), held(deadline_ms=NOW + 1), held("U", deadline_ms=NOW)
    waiting = polls(early, late, other)
    assert waiting.take_expired(NOW) == [early, other]
    assert waiting.take_arrived("T", 0, 6, tags_code=0) == [late]


def test_beyond_the_limit_nothing_is_held_until_one_leaves() -> None:
    waiting = polls(held(offset=1), held(offset=9), limit=2)
    assert not waiting.hold(held())
    assert len(waiting) == 2
    waiting.take_arrived("T", 0, 2, tags_code=0)
    assert waiting.hold(held())
    assert not waiting.hold(held())


def test_all_can_be_taken_at_once() -> None:
    pulls = [held("T"), held("U"), held("T", 3)]
    waiting = polls(*pulls, limit=3)
    assert waiting.take_all() == pulls
    assert len(waiting) == 0
    assert waiting.hold(held())


def test_one_queue_has_a_limit_of_its_own() -> None:
    waiting: LongPolls[str] = LongPolls(10, 2)
    assert [waiting.hold(held(queue_id=0)) for _ in range(3)] == [True, True, False]
    assert waiting.hold(held(queue_id=1))


def crowd(count: int, owner: str, codes: frozenset[int] | None = None) -> list[HeldPull[str]]:
    return [HeldPull("T", 0, 5, codes, NOW, f"{owner}-{number}", owner) for number in range(count)]


def test_a_crowd_is_taken_in_steps_that_begin_with_one_pull_of_each_owner() -> None:
    many, one, two = crowd(1_000, "many"), crowd(1, "one"), crowd(2, "two")
    waiting = polls(*many, *one, *two, limit=10_000)
    assert waiting.take_arrived("T", 0, 6, tags_code=0) == []
    assert waiting.arrived
    steps = list(waiting.looking())
    assert [pull.waiter for pull in steps[0]][:4] == ["many-0", "one-0", "two-0", "many-1"]
    assert max(map(len, steps)) == TAKEN_STEP
    assert sum(map(len, steps)) == 1_003
    assert (len(waiting), waiting.arrived) == (0, {})


def test_an_arrival_costs_the_same_however_many_wait() -> None:
    """Pulls that do not want what comes, on a busy queue, would otherwise be looked at with every message."""

    class Counted(HeldPull[str]):
        looks = 0

        def wants(self, next_offset: int, tags_code: int) -> bool:
            Counted.looks += 1
            return super().wants(next_offset, tags_code)

    waiting: LongPolls[str] = LongPolls(10_000)
    for _ in range(5_000):
        waiting.hold(Counted("T", 0, 5, frozenset({1}), NOW, "never"))
    for number in range(1_000):
        waiting.take_arrived("T", 0, 6 + number, tags_code=2)
    assert Counted.looks <= 100
    steps = list(waiting.looking())
    assert len(steps) == 5, "of a thousand looks each, and once for all the messages"
    assert not any(steps)


def test_the_steps_of_a_crowd_take_nothing_twice_and_miss_nothing() -> None:
    waiting = polls(*crowd(300, "a", frozenset({1})), *crowd(300, "b", frozenset({2})), limit=1_000)
    waiting.take_arrived("T", 0, 6, tags_code=1)
    looking = waiting.looking()
    taken = next(looking)
    waiting.take_arrived("T", 0, 7, tags_code=2)  # while the steps go on
    taken += waiting.take_expired(NOW - 1) + [pull for step in looking for pull in step]
    assert sorted(pull.waiter for pull in taken) == sorted(
        f"{owner}-{number}" for owner in "ab" for number in range(300)
    )


def test_a_crowd_expires_in_steps() -> None:
    waiting = polls(*crowd(500, "a"), limit=1_000)
    steps = list(waiting.expiring(NOW))
    assert max(map(len, steps)) == TAKEN_STEP
    assert sum(map(len, steps)) == 500


class LongPollsModel(RuleBasedStateMachine):
    """Beside a plain list that is searched from end to end."""

    LIMIT = 6

    def __init__(self) -> None:
        super().__init__()
        self.polls: LongPolls[int] = LongPolls(self.LIMIT)
        self.list: list[HeldPull[int]] = []
        self.number = 0

    def take(self, expected: list[HeldPull[int]], taken: list[HeldPull[int]]) -> None:
        assert Counter(pull.waiter for pull in taken) == Counter(pull.waiter for pull in expected)
        self.list = [pull for pull in self.list if pull not in expected]

    @rule(
        topic=st.sampled_from("TU"),
        queue_id=st.integers(0, 1),
        offset=st.integers(0, 5),
        codes=st.none() | st.frozensets(st.integers(0, 2)),
        deadline_ms=st.integers(0, 9),
    )
    def hold(self, topic: str, queue_id: int, offset: int, codes: frozenset[int] | None, deadline_ms: int) -> None:
        self.number += 1
        pull = HeldPull(topic, queue_id, offset, codes, deadline_ms, self.number)
        assert self.polls.hold(pull) == (len(self.list) < self.LIMIT)
        if len(self.list) < self.LIMIT:
            self.list.append(pull)

    @rule(
        topic=st.sampled_from("TUV"), queue_id=st.integers(0, 2), next_offset=st.integers(0, 6), code=st.integers(0, 2)
    )
    def arrive(self, topic: str, queue_id: int, next_offset: int, code: int) -> None:
        expected = [
            pull
            for pull in self.list
            if (pull.topic, pull.queue_id) == (topic, queue_id)
            and pull.offset < next_offset
            and (pull.codes is None or code in pull.codes)
        ]
        self.take(expected, self.polls.take_arrived(topic, queue_id, next_offset, code))

    @rule(now_ms=st.integers(0, 9))
    def expire(self, now_ms: int) -> None:
        self.take([pull for pull in self.list if pull.deadline_ms <= now_ms], self.polls.take_expired(now_ms))

    @rule(topic=st.sampled_from("TUV"), queue_id=st.integers(0, 2))
    def reset(self, topic: str, queue_id: int) -> None:
        expected = [pull for pull in self.list if (pull.topic, pull.queue_id) == (topic, queue_id)]
        self.take(expected, self.polls.take_queue(topic, queue_id))

    @rule()
    def stop(self) -> None:
        self.take(list(self.list), self.polls.take_all())

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.polls) == len(self.list)


LongPollsModel.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestLongPolls = LongPollsModel.TestCase
