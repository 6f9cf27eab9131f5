"""Raft groups in bad times, as many as you like: `make torture`, or with SEED and SEEDS this sheet alone.

SEED is the first life, SEEDS how many there are. A life that breaks a promise is named by its seed, and is the same
each time: `live_and_heal(seed)`.
"""

from __future__ import annotations

import os
from collections import Counter

from tests.simulation.raft_lives import live_and_heal

SEED = int(os.environ.get("SEED") or 1)
SEEDS = int(os.environ.get("SEEDS") or 10_000)
SEEDS_A_LINE = 1_000


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
