"""Which queue a message goes to."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.client.faults import Faults
from cosmodrome.client.queue_choice import SelectByMachineRoom, Turns, select_by_hash, select_randomly
from cosmodrome.errors import ConfigError, SendFailed
from cosmodrome.model import Message, MessageQueue

MESSAGE = Message("T", b"x")


def queues(count: int, *brokers: str) -> list[MessageQueue]:
    return [MessageQueue("T", broker, queue_id) for broker in brokers or ("a",) for queue_id in range(count)]


# --- selectors


@pytest.mark.parametrize(
    ("arg", "queue_id"),
    [
        ("order-2", 9),  # its hashCode() is -1207111309: Java takes the remainder, then its absolute value
        ("a", 7),
        ("", 0),
        ("中文", 4),
        (7, 7),
        (-7, 7),
        (2**31 - 1, 7),
        (-(2**31), 8),
        (2**31, 8),  # a Long: its halves are mixed
        (2**32 + 5, 4),
        (-(2**40), 6),
    ],
)
def test_a_hash_chooses_the_queue_that_java_chooses(arg: str | int, queue_id: int) -> None:
    assert select_by_hash(queues(10), MESSAGE, arg).queue_id == queue_id


@given(st.text(max_size=30), st.integers(1, 40))
def test_the_same_argument_has_the_same_queue(arg: str, count: int) -> None:
    assert select_by_hash(queues(count), MESSAGE, arg) == select_by_hash(queues(count), Message("T", b"y"), arg)


@pytest.mark.parametrize("arg", [None, True, 1.5, b"bytes"])
def test_what_java_hashes_in_another_way_is_refused(arg: object) -> None:
    with pytest.raises(TypeError, match="text or a whole number"):
        select_by_hash(queues(2), MESSAGE, arg)


def test_a_random_queue_is_any_queue() -> None:
    chosen = {select_randomly(queues(3), MESSAGE, None).queue_id for _ in range(200)}
    assert chosen == {0, 1, 2}


def test_a_machine_room_is_the_first_part_of_a_brokers_name() -> None:
    everywhere = queues(2, "hz@a", "hz@b", "sh@c", "plain")
    near = {SelectByMachineRoom(["hz"])(everywhere, MESSAGE, None).broker_name for _ in range(200)}
    assert near == {"hz@a", "hz@b"}
    assert SelectByMachineRoom(["sh"])(everywhere, MESSAGE, 3) == MessageQueue("T", "sh@c", 1)
    nowhere = {SelectByMachineRoom(["plain", "bj"])(everywhere, MESSAGE, None).broker_name for _ in range(200)}
    assert nowhere == {"hz@a", "hz@b", "sh@c", "plain"}
    with pytest.raises(ConfigError, match="give a list"):
        SelectByMachineRoom("hz")


# --- turns


@given(st.integers(1, 8), st.integers(1, 5))
def test_every_queue_has_its_turn(count: int, rounds: int) -> None:
    turns, all_queues = Turns(), queues(count)
    used = Counter(turns.next("T", all_queues, 0) for _ in range(count * rounds))
    assert set(used.values()) == {rounds}
    assert "T" in turns
    assert "U" not in turns


@given(st.integers(1, 4), st.sampled_from(["a", "b", "c"]), st.integers(0, 12))
def test_the_broker_that_failed_is_passed_over_unless_there_is_no_other(count: int, failed: str, skip: int) -> None:
    turns = Turns()
    for _ in range(skip):
        turns.next("T", queues(count, "a", "b", "c"), 0)
    assert turns.next("T", queues(count, "a", "b", "c"), 0, failed).broker_name != failed
    assert turns.next("T", queues(count, failed), 0, failed).broker_name == failed


def test_no_queue_at_all_is_an_error() -> None:
    with pytest.raises(SendFailed, match="no queue of topic T"):
        Turns().next("T", [], 0)


def test_slow_brokers_are_passed_over_while_one_is_available() -> None:
    faults = Faults()
    turns, all_queues = Turns(faults), queues(2, "a", "b", "c")
    faults.note("a", 1, 0, failed=True)
    faults.note("b", 3_000, 0)
    assert {turns.next("T", all_queues, 0).broker_name for _ in range(12)} == {"c"}
    assert {turns.next("T", all_queues, 180_000).broker_name for _ in range(12)} == {"b", "c"}


def test_if_none_is_available_one_of_the_better_half_is_taken() -> None:
    faults = Faults()
    turns, all_queues = Turns(faults), queues(2, "a", "b")
    faults.note("a", 20_000, 0)
    faults.note("b", 700, 0)
    used = [turns.next("T", all_queues, 0) for _ in range(4)]
    assert {queue.broker_name for queue in used} == {"b"}
    assert {queue.queue_id for queue in used} == {0, 1}


def test_a_better_broker_without_queues_of_the_topic_is_of_no_use_to_it() -> None:
    faults = Faults()
    turns = Turns(faults)
    faults.note("elsewhere", 600, 0)
    faults.note("a", 16_000, 0)
    faults.note("b", 20_000, 0)
    assert {turns.next("T", queues(2, "a", "b"), 0).broker_name for _ in range(4)} == {"a"}
    assert not faults.is_available("elsewhere", 0)


@pytest.mark.parametrize("seen", [{}, {"b": 600}, {"a": 16_000, "b": 20_000, "c": 20_000}])
def test_a_try_that_follows_another_goes_to_another_broker_whatever_was_seen_of_it(seen: dict[str, int]) -> None:
    faults = Faults()
    turns, all_queues = Turns(faults), queues(2, "a", "b", "c")
    for broker, latency_ms in seen.items():
        faults.note(broker, latency_ms, 0)
    assert "a" not in {turns.next("T", all_queues, 0, "a").broker_name for _ in range(12)}
    assert turns.next("T", queues(2, "a"), 0, "a").broker_name == "a"
