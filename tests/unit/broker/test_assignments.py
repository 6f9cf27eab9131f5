"""Who reads which queue when the broker decides it."""

from __future__ import annotations

import pytest

from cosmodrome.broker.assignments import STRATEGIES, assigned
from cosmodrome.model import MessageQueue, RequestMode
from cosmodrome.wire.bodies import RequestModeBody

QUEUES = [MessageQueue("T", broker, queue_id) for broker in ("a", "b") for queue_id in range(3)]
AVG, CIRCLE = STRATEGIES["AVG"], STRATEGIES["AVG_BY_CIRCLE"]
PULL = RequestModeBody("T", "g")


def popping(share: int) -> RequestModeBody:
    return RequestModeBody("T", "g", RequestMode.POP, share)


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=list(STRATEGIES))
@pytest.mark.parametrize("members", [1, 2, 4, 6, 9])
def test_who_pulls_has_queues_of_its_own(strategy: object, members: int) -> None:
    assert callable(strategy)
    clients = [f"c{number}" for number in range(members)]
    shares = [assigned(QUEUES, clients, client, strategy, PULL) for client in clients]
    assert sorted(queue for share in shares for queue in share) == sorted(QUEUES)


def test_strategies_are_apaches() -> None:
    assert assigned(QUEUES, ["c1", "c0"], "c0", AVG, PULL) == QUEUES[:3]
    assert assigned(QUEUES, ["c1", "c0"], "c1", CIRCLE, PULL) == QUEUES[1::2]
    assert assigned(QUEUES, ["c1", "c0"], "stranger", CIRCLE, PULL) == []


@pytest.mark.parametrize("share", [-1, 0, 3, 4])
def test_who_pops_gets_any_queue_of_each_broker(share: int) -> None:
    clients = ["c0", "c1", "c2", "c3"]
    expected = [MessageQueue("T", "a", -1), MessageQueue("T", "b", -1)]
    assert assigned(QUEUES, clients, "c2", AVG, popping(share)) == expected


def test_popping_members_may_share_the_queues_of_those_after_them() -> None:
    clients = ["c0", "c1", "c2", "c3", "c4", "c5"]
    assert assigned(QUEUES, clients, "c5", AVG, popping(2)) == [QUEUES[0], QUEUES[1], QUEUES[5]]
    many = [f"c{number}" for number in range(9)]
    assert [assigned(QUEUES, many, client, AVG, popping(2)) for client in many] == [
        [QUEUES[number % 6]] for number in range(9)
    ]
    assert assigned(QUEUES, clients, "stranger", AVG, popping(2)) == []
