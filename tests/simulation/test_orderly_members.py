"""Order through joins, leaves, crashes and cuts, and that the watch over it sees what breaks it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from cosmodrome.client.held_queues import Held, QueuesInOrder
from cosmodrome.client.orderly import OrderlyHandlers
from cosmodrome.model import MessageQueue
from tests.simulation.orderly_members import MINUTE, run_group

SEEDS = 4
MAX_SEEDS = 20  # in which a mistake must show
DURATION_MS = 10 * MINUTE


@pytest.mark.parametrize("seed", range(SEEDS))
def test_messages_of_a_key_stay_in_order(tmp_path: Path, seed: int) -> None:
    report = run_group(tmp_path, seed, DURATION_MS)
    print(report)
    assert report.messages > 1_000
    assert {"joined", "left", "crashed", "cut off"} == {*report.changes}


@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_also_if_the_broker_forgets_the_locks_when_it_is_restarted(tmp_path: Path, seed: int) -> None:
    report = run_group(tmp_path, seed, DURATION_MS, restarts=True)
    print(report)
    assert report.changes["restarts"] > 2


# --- what the watch must see


def found_problem(folder: Path) -> str:
    for seed in range(MAX_SEEDS):
        try:
            run_group(folder / str(seed), seed, DURATION_MS)
        except AssertionError as problem:
            return str(problem)
    pytest.fail("nothing was seen")


def test_locks_that_are_given_to_everybody_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lock(_self: object, _group: str, _client: str, queues: Iterable[MessageQueue], _now_ms: int) -> object:
        return list(queues)

    monkeypatch.setattr("cosmodrome.broker.queue_locks.QueueLocks.lock", lock)
    assert "is inside" in found_problem(tmp_path)


def test_a_queue_that_is_let_go_while_its_handler_runs_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def let_go(self: OrderlyHandlers, queue: MessageQueue) -> None:
        self._lanes.pop(queue, None)

    monkeypatch.setattr(OrderlyHandlers, "let_go", let_go)
    assert "is inside" in found_problem(tmp_path)


def test_an_offset_that_is_read_before_the_lock_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[tuple[str, MessageQueue], int] = {}
    acquire = QueuesInOrder.acquire

    async def early(self: QueuesInOrder, queues: Iterable[MessageQueue], subscribed: object) -> set[MessageQueue]:
        wanted = list(queues)
        for queue in wanted:
            known.setdefault((self._instance.client_id, queue), await self._offsets.read(queue) or 0)
        return await acquire(self, wanted, subscribed)  # type: ignore[arg-type]

    read = QueuesInOrder._hold

    def start(self: QueuesInOrder, queue: MessageQueue, offset: int, subscribed: object) -> Held:
        return read(self, queue, known.pop((self._instance.client_id, queue), offset), subscribed)  # type: ignore[arg-type]

    monkeypatch.setattr(QueuesInOrder, "acquire", early)
    monkeypatch.setattr(QueuesInOrder, "_hold", start)
    assert "expected" in found_problem(tmp_path)
