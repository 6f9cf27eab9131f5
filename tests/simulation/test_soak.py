"""An hour of mixed traffic with restarts and kills, and that its audit sees every kind of mistake."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cosmodrome.broker.broker import Broker
from cosmodrome.config import FlushDiskType
from cosmodrome.model import DLQ_PREFIX, RETRY_PREFIX
from cosmodrome.store import Appended, StoreMessage
from cosmodrome.wire import properties as props
from cosmodrome.wire.record import SysFlag
from cosmodrome.wire.requests import EndTransaction
from tests.simulation.soak import BILLING, MINUTE, ORDERS, PAYMENTS, REMINDERS, STEPS, Plan, number_of, soak
from tests.simulation.soak_ledger import Fate, Sent

QUIET = Plan(duration_ms=20 * MINUTE, longest_wait_ms=4 * MINUTE, kill_share=0)
SHORT = Plan(duration_ms=4 * MINUTE, longest_wait_ms=MINUTE, longest_drain_ms=4 * MINUTE)

Put = Callable[[StoreMessage], Any]


def test_an_hour_of_everything_loses_nothing(tmp_path: Path) -> None:
    report = soak(tmp_path, seed=1)
    print(report)
    assert set(report.messages) == set(Sent)
    assert set(report.fates) == set(Fate) - {Fate.LOST}
    assert min(report.stops, report.kills, report.crashes, report.rejoined) > 0


def test_without_kills_nothing_is_stored_twice(tmp_path: Path) -> None:
    report = soak(tmp_path, 2, FlushDiskType.SYNC_FLUSH, QUIET)
    print(report)
    assert report.stops > 5
    assert report.kills == 0


# --- what the audit must see


class Planted:
    """A mistake that happens once, a few chances after the beginning, whichever broker is alive then."""

    def __init__(self) -> None:
        self._chances_left = 3
        self.done = False
        self.number = 0  # of the message that is lost

    def strikes(self, chance: bool) -> bool:
        if not chance or self.done:
            return False
        self._chances_left -= 1
        self.done = self._chances_left <= 0
        return self.done


def dropping(put: Put, planted: Planted, topic: str) -> Put:
    """`put`, but one message of the topic is answered for and not stored."""
    before: list[Appended] = []

    def dropped(message: StoreMessage) -> Appended:
        if planted.strikes(bool(before) and message.topic == topic):
            planted.number = number_of(message.body)
            return before[-1]
        before.append(put(message))
        return before[-1]

    return dropped


def lose_normal(broker: Broker, planted: Planted) -> None:
    broker.store.append = dropping(broker.store.append, planted, ORDERS)  # type: ignore[method-assign, assignment]


def lose_dead_letter(broker: Broker, planted: Planted) -> None:
    put = dropping(broker.store.append, planted, DLQ_PREFIX + BILLING.name)
    broker.store.append = put  # type: ignore[method-assign, assignment]


def lose_delayed(broker: Broker, planted: Planted) -> None:
    broker.delays._put = dropping(broker.delays._put, planted, REMINDERS)


def lose_retry(broker: Broker, planted: Planted) -> None:
    broker.delays._put = dropping(broker.delays._put, planted, RETRY_PREFIX + BILLING.name)


def lose_timed(broker: Broker, planted: Planted) -> None:
    broker.timers._put = dropping(broker.timers._put, planted, REMINDERS)


def lose_commit(broker: Broker, planted: Planted) -> None:
    broker.transactions._put = dropping(broker.transactions._put, planted, PAYMENTS)


LOSSES = (lose_normal, lose_dead_letter, lose_delayed, lose_retry, lose_timed, lose_commit)


def test_every_planted_loss_is_seen(tmp_path: Path) -> None:
    planted = {loss: Planted() for loss in LOSSES}

    def meddle(broker: Broker) -> None:
        for loss, mistake in planted.items():
            loss(broker, mistake)

    with pytest.raises(AssertionError, match="seed 3: ") as caught:
        soak(tmp_path, 3, plan=SHORT, meddle=meddle)
    told = str(caught.value)
    for loss, mistake in planted.items():
        assert mistake.done, loss
        found = re.search(rf"message {mistake.number} \(.*LOST to .*\n.*sending \(", told)
        assert found, f"{loss.__name__}: message {mistake.number} is not among\n{told}"


def lose_from_the_middle_of_a_queue(broker: Broker, planted: Planted) -> None:
    """An offset of the orderly group runs one ahead."""
    commit = broker.offsets.commit

    def ahead(group: str, topic: str, queue_id: int, offset: int) -> None:
        commit(group, topic, queue_id, offset + planted.strikes(topic == STEPS))

    broker.offsets.commit = ahead  # type: ignore[method-assign]


def commit_what_was_rolled_back(broker: Broker, planted: Planted) -> None:
    end = broker.transactions.end

    async def changed(request: EndTransaction) -> None:
        if planted.strikes(request.commit_or_rollback == SysFlag.ROLLBACK):
            request = dataclasses.replace(request, commit_or_rollback=SysFlag.COMMIT)
        await end(request)

    broker.transactions.end = changed  # type: ignore[method-assign]


def commit_twice(broker: Broker, planted: Planted) -> None:
    put = broker.transactions._put

    def twice(message: StoreMessage) -> Appended:
        if planted.strikes(message.topic == PAYMENTS):
            put(dataclasses.replace(message))
        return put(message)

    broker.transactions._put = twice


def deliver_early(broker: Broker, planted: Planted) -> None:
    due_ms = broker.delays._due_ms

    def hasty(level: int, now_ms: int) -> int | None:
        due = due_ms(level, now_ms)
        if due is None or due <= now_ms:
            return due
        next_one = broker.delays._record(level, broker.delays._offsets.next(level))
        return now_ms if planted.strikes(props.find(next_one.properties, "REAL_TOPIC") == REMINDERS) else due

    broker.delays._due_ms = hasty  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("mistake", "seen"),
    [
        (lose_from_the_middle_of_a_queue, "orderly, steps.*(LOST to stepping|came after)"),
        (commit_what_was_rolled_back, "although it was ROLLBACK"),
        (commit_twice, "2 times in payments"),
        (deliver_early, "ms early"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_mistake_is_seen(tmp_path: Path, mistake: Callable[[Broker, Planted], None], seen: str) -> None:
    planted = Planted()
    with pytest.raises(AssertionError, match=rf"seed 3: (.|\n)*{seen}(.|\n)*sending \("):
        soak(tmp_path, 3, plan=SHORT, meddle=lambda broker: mistake(broker, planted))
    assert planted.done
