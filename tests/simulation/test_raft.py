"""A thousand small Raft groups in bad times, and that what is watched in them shows every kind of mistake."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.raft_checks import Violation
from tests.simulation.raft_faults import (
    FAULTS,
    Fault,
    planted,
    seed_that_shows,
    shows_in_directed_test,
)
from tests.simulation.raft_lives import live_and_heal
from tests.simulation.raft_model import Bounds, explore
from tests.simulation.raft_plants import two_votes_in_a_term

SEEDS = int(os.environ.get("SEEDS", "1000"))
SEEDS_PER_TEST = 100

MET = {
    "acknowledged",
    "changes of the members",
    "cuts",
    "elections",
    "kill",
    "lost reads",
    "new logs",
    "partition",
    "pause",
    "power",
    "reads",
    "torn tail",
    "unsynced writes lost",
    "Busy",
    "ChangeRefused",
    "LogFull",
}


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_a_group_keeps_its_promises_and_gets_going_again(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, min(first + SEEDS_PER_TEST, SEEDS)):
        seen += live_and_heal(seed).events
    print(dict(seen))
    if SEEDS - first >= SEEDS_PER_TEST:
        assert {*seen} >= MET


def test_a_life_is_the_same_each_time() -> None:
    assert live_and_heal(7) == live_and_heal(7)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_shows_in_its_directed_test(fault: Fault) -> None:
    assert shows_in_directed_test(fault)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.seeds], ids=lambda fault: fault.name)
def test_a_planted_fault_shows_in_the_simulation(fault: Fault) -> None:
    assert seed_that_shows(fault, fault.seeds) is not None


def test_no_order_of_the_events_of_one_term_breaks_a_promise() -> None:
    found = explore(Bounds(terms=1))
    print(found)
    assert found.is_complete
    assert found.states > 400


def test_a_planted_fault_shows_among_all_orders_of_events() -> None:
    with planted(two_votes_in_a_term), pytest.raises(Violation, match="election safety"):
        explore(Bounds(terms=2, states=5_000))
