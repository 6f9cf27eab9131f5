"""The pop ledger: which checkpoint is decided when, and how far the queue is done."""

from __future__ import annotations

from cosmodrome.broker.pop.ledger import GRACE_MS, ReviveLedger
from cosmodrome.wire.bodies import Ack, CheckPoint

NOW = 1_700_000_000_000


def point(start: int = 0, count: int = 2, invisible_ms: int = 10_000) -> CheckPoint:
    return CheckPoint("T", "g", 0, start, tuple(range(start, start + count)), NOW, invisible_ms, "b")


def ack(of: CheckPoint, *offsets: int) -> Ack:
    return Ack(of.topic, of.group, of.queue_id, of.start_offset, offsets, of.pop_time_ms, of.broker_name)


def test_a_checkpoint_is_decided_when_every_ack_made_in_time_is_known() -> None:
    ledger, popped = ReviveLedger(0), point()
    ledger.checkpoint(popped)
    ledger.ack(ack(popped, 1), popped.revive_ms)
    assert ledger.first_due(popped.revive_ms + GRACE_MS - 1) is None
    due = ledger.first_due(popped.revive_ms + GRACE_MS)
    assert due is not None
    assert due.open_offsets == [0]
    assert ledger.done == -1
    ledger.decided(due)
    assert (ledger.done, len(ledger)) == (1, 0)


def test_decisions_keep_the_order_of_the_queue() -> None:
    ledger, long, short = ReviveLedger(0), point(0, invisible_ms=10_000), point(5, invisible_ms=1_000)
    ledger.checkpoint(long)
    ledger.checkpoint(short)
    assert ledger.first_due(short.revive_ms + GRACE_MS) is None
    decided = []
    while (due := ledger.first_due(long.revive_ms + GRACE_MS)) is not None:
        decided.append(due.point)
        ledger.decided(due)
    assert decided == [long, short]


def test_an_ack_that_comes_before_its_checkpoint_counts() -> None:
    ledger, popped = ReviveLedger(0), point()
    ledger.ack(ack(popped, 0, 1), popped.revive_ms)
    ledger.checkpoint(popped)
    assert ledger.first_due(popped.revive_ms) is None
    assert ledger.done == -1, "after a restart the ack must be read again"
    due = ledger.first_due(popped.revive_ms + GRACE_MS)
    assert due is not None
    assert due.open_offsets == []


def test_an_ack_whose_checkpoint_is_long_decided_is_passed() -> None:
    ledger, popped = ReviveLedger(7), point()
    ledger.ack(ack(popped, 0), popped.revive_ms)
    assert ledger.done == 6
    assert ledger.first_due(popped.revive_ms + GRACE_MS) is None
    assert ledger.done == 7


def test_a_checkpoint_that_is_there_already_counts_once() -> None:
    ledger, popped = ReviveLedger(0), point()
    ledger.checkpoint(popped)
    ledger.checkpoint(popped)
    ledger.decided(due) if (due := ledger.first_due(popped.revive_ms + GRACE_MS)) else None
    assert (ledger.done, len(ledger)) == (1, 0)


def test_what_was_put_again_before_a_failure_is_not_put_twice() -> None:
    ledger, popped = ReviveLedger(0), point(count=3)
    ledger.checkpoint(popped)
    due = ledger.first_due(popped.revive_ms + GRACE_MS)
    assert due is not None
    due.settled.add(0)
    again = ledger.first_due(popped.revive_ms + GRACE_MS)
    assert again is due
    assert due.open_offsets == [1, 2]


def test_gaps_of_the_queue_are_done() -> None:
    ledger = ReviveLedger(0)
    ledger.skip_to(12)
    assert (ledger.next_offset, ledger.done) == (12, 11)
    ledger.skip_to(3)
    assert ledger.next_offset == 12
