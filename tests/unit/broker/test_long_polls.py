"""Pulls that wait: which go on when a message arrives, which when their time is up, and none is ever lost."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cosmodrome.broker.long_polls import HeldPull, LongPolls

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
