"""Raft groups in bad times, as many as you like, and all that can happen to small ones: `make torture`.

SEED is the first life, SEEDS how many there are. A life that breaks a promise is named by its seed, and is the same
each time: `live_and_heal(seed)`.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.raft_checks import Violation
from tests.simulation.raft_faults import planted
from tests.simulation.raft_lives import live_and_heal
from tests.simulation.raft_model import Bounds, explore
from tests.simulation.raft_plants import old_term_by_counting

SEED = int(os.environ.get("SEED") or 1)
SEEDS = int(os.environ.get("SEEDS") or 10_000)
SEEDS_A_LINE = 1_000

# A member has an entry of term 2, another one of term 3, and the next two elections are open (figure 8 of the paper).
FIGURE_8 = Bounds(terms=5, logs=((1, 2), (1,), (1, 3)), states=60_000)

# Two terms are explored to the end; of the rest, what is nearest to the beginning.
BOUNDS = [
    Bounds(terms=2),
    Bounds(terms=2, entries=1, states=60_000),
    Bounds(terms=2, crashes=1, is_sync_slow=True, states=60_000),
    Bounds(terms=3, states=60_000),
    FIGURE_8,
]


def test_groups_keep_their_promises_and_get_going_again() -> None:
    seen: Counter[str] = Counter()
    messages = longest_ms = 0
    for number, seed in enumerate(range(SEED, SEED + SEEDS), 1):
        report = live_and_heal(seed)
        seen += report.events
        messages += report.messages
        longest_ms = max(longest_ms, report.healed_ms)
        if number % SEEDS_A_LINE == 0 or number == SEEDS:
            print(
                f"raft seed {seed}: {number} lives, {messages} messages, {seen['elections']} elections, "
                f"{seen['acknowledged']} entries acknowledged, {seen['reads']} reads, "
                f"{seen['changes of the members']} changes of the members; healed within {longest_ms} ms",
                flush=True,
            )


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_no_order_of_events_breaks_a_promise(bounds: Bounds) -> None:
    found = explore(bounds, lambda line: print(f"raft model: {line}", flush=True))
    print(f"raft model: {bounds}: {found}", flush=True)
    assert found.is_complete or found.states >= bounds.states


def test_figure_8_is_found_where_entries_of_old_terms_are_counted() -> None:
    with planted(old_term_by_counting), pytest.raises(Violation, match="leader completeness"):
        explore(FIGURE_8)
