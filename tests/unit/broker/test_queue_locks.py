"""Locks of orderly groups: one owner at a time, until it lets go or lets them lie."""

from __future__ import annotations

import pytest

from cosmodrome.broker.queue_locks import LOCK_LIFE_MS, QueueLocks
from cosmodrome.model import MessageQueue

NOW = 1_000_000
QUEUES = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]


@pytest.fixture
def locks() -> QueueLocks:
    return QueueLocks()


def test_the_first_to_ask_gets_the_queue_and_may_ask_again(locks: QueueLocks) -> None:
    assert locks.lock("g", "a", QUEUES[:2], NOW) == QUEUES[:2]
    assert locks.lock("g", "b", QUEUES, NOW) == QUEUES[2:]
    assert locks.lock("g", "a", QUEUES, NOW) == QUEUES[:2]


def test_groups_do_not_lock_each_other_out(locks: QueueLocks) -> None:
    assert locks.lock("g", "a", QUEUES, NOW) == locks.lock("h", "b", QUEUES, NOW) == QUEUES


def test_a_lock_lives_for_exactly_a_minute(locks: QueueLocks) -> None:
    assert LOCK_LIFE_MS == 60_000
    locks.lock("g", "a", QUEUES[:1], NOW)
    assert locks.lock("g", "b", QUEUES[:1], NOW + LOCK_LIFE_MS) == []
    assert locks.lock("g", "b", QUEUES[:1], NOW + LOCK_LIFE_MS + 1) == QUEUES[:1]
    assert locks.lock("g", "a", QUEUES[:1], NOW + LOCK_LIFE_MS + 1) == []


def test_asking_again_renews_and_being_refused_does_not(locks: QueueLocks) -> None:
    locks.lock("g", "a", QUEUES[:1], NOW)
    locks.lock("g", "a", QUEUES[:1], NOW + 50_000)
    assert locks.lock("g", "b", QUEUES[:1], NOW + 50_000 + LOCK_LIFE_MS) == []
    assert locks.lock("g", "b", QUEUES[:1], NOW + 50_001 + LOCK_LIFE_MS) == QUEUES[:1]


def test_only_the_owner_can_unlock(locks: QueueLocks) -> None:
    locks.lock("g", "a", QUEUES, NOW)
    locks.unlock("g", "b", QUEUES)
    assert locks.lock("g", "b", QUEUES, NOW) == []
    locks.unlock("g", "a", QUEUES[:1])
    assert locks.lock("g", "b", QUEUES, NOW) == QUEUES[:1]


def test_unlocking_what_is_not_locked_is_no_trouble(locks: QueueLocks) -> None:
    locks.unlock("g", "a", QUEUES)
    locks.lock("g", "a", QUEUES[:1], NOW)
    locks.unlock("g", "a", QUEUES)
    assert locks.lock("g", "b", QUEUES, NOW) == QUEUES


def test_locks_nobody_renews_are_forgotten_and_live_ones_kept(locks: QueueLocks) -> None:
    locks.lock("g", "a", QUEUES[:1], NOW)
    locks.lock("g", "a", QUEUES[1:2], NOW + 1)
    locks.lock("h", "a", QUEUES, NOW)
    locks.lock("i", "a", [], NOW)
    locks.expire(NOW + LOCK_LIFE_MS)
    assert locks.lock("g", "b", QUEUES[:2], NOW + LOCK_LIFE_MS) == []
    locks.expire(NOW + LOCK_LIFE_MS + 1)
    assert locks.lock("g", "b", QUEUES[:2], NOW + LOCK_LIFE_MS + 1) == QUEUES[:1]
    locks.expire(NOW + 3 * LOCK_LIFE_MS)
    assert locks._locks == {}, "the table must not outgrow its clients"


def test_a_group_is_orderly_while_one_of_its_clients_holds_a_queue() -> None:
    locks = QueueLocks(life_ms=60_000)
    assert not locks.is_orderly("g", 0)
    locks.lock("g", "c", [MessageQueue("t", "b", 0)], 0)
    assert locks.is_orderly("g", 60_000)
    assert not locks.is_orderly("g", 60_001)
    assert not locks.is_orderly("other", 0)
    locks.unlock("g", "c", [MessageQueue("t", "b", 0)])
    assert not locks.is_orderly("g", 0)
