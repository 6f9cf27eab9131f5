"""A guard: dates are asked for only where a date is meant. What lasts is measured with `steady_ms`.

A deadline, an age or a pause that is made of dates ends early, or never, when the machine's clock is set. Whoever needs
one more date says here what it is for; whoever needs a duration asks `Clock.steady_ms`, or a store's `Timeline`.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "cosmodrome"

# How often each module asks a clock for the date, and what for.
DATES = {
    "admin/core.py": (1, "the date that operators see ages by"),
    "admin/dead_letters.py": (1, "a born timestamp"),
    "admin/facts.py": (2, "the date here, beside which that of a broker is held, and the ages of locks"),
    "broker/broker.py": (1, "which day it is for the statistics"),
    "broker/pop/pops.py": (2, "born timestamps of checkpoints and acks"),
    "broker/processors/group_queries.py": (1, "how late a group is, with dates redated"),
    "broker/processors/heartbeat.py": (1, "the dates told to operators of when producers were last heard of"),
    "broker/processors/pop.py": (3, "how long a request was under way by its client's date, if that may be; an answer"),
    "broker/processors/recall.py": (1, "a born timestamp"),
    "broker/processors/reply.py": (2, "properties and a store timestamp that clients read"),
    "broker/processors/runtime.py": (
        2,
        "the boot time told to operators; how far a group is behind, with dates redated",
    ),
    "broker/tables.py": (1, "the timestamp of a data version"),
    "broker/timer_metrics.py": (1, "a timestamp for operators"),
    "broker/timers.py": (4, "versions of the checkpoint, a property of delivered messages"),
    "broker/transactions.py": (2, "an op's born timestamp; until when to look for a message"),
    "cli/check.py": (1, "the age of what was consumed, by store timestamp"),
    "cli/groups.py": (2, "the age of what was consumed, by store timestamp"),
    "cli/top.py": (1, "the age of what was consumed, by store timestamp"),
    "client/burying.py": (1, "a born timestamp"),
    "client/feed.py": (1, "CONSUME_START_TIME"),
    "client/handlers.py": (1, "CONSUME_START_TIME"),
    "client/lite_pull_consumer.py": (1, "the start time told to operators"),
    "client/membership.py": (2, "versions of subscriptions, which rise all the same"),
    "client/offsets.py": (1, "where a new group begins by date"),
    "client/pull_consumer.py": (1, "a version of a subscription"),
    "client/push_consumer.py": (2, "the start time told to operators"),
    "client/queue_reader.py": (1, "from when on messages are read, by store timestamp"),
    "client/requesting.py": (1, "a born timestamp"),
    "client/running_info.py": (1, "dates told to operators"),
    "client/sending.py": (2, "a born timestamp, a trace's"),
    "client/sending_back.py": (1, "a born timestamp"),
    "client/tracing.py": (3, "timestamps of traces"),
    "client/transactions.py": (1, "a born timestamp"),
    "store/cleaner.py": (2, "the hour of deleteWhen, and ages of files with dates redated"),
    "store/index_file.py": (1, "the name of a file; names rise all the same"),
    "store/message_store.py": (4, "store timestamps; how long an append took, with steps taken off"),
    "store/scrub.py": (3, "when the last scrub ended, also of an earlier process; never longer ago than one interval"),
    "store/skipped.py": (1, "a date in the register of skipped records"),
    "store/timeline.py": (6, "to notice that the date was set, and the date when that was noticed"),
    "testing/cluster.py": (1, "where the time of a cluster begins"),
    "testing/loop.py": (0, ""),
    "wire/ids.py": (1, "the time in a unique id, which rises all the same"),
    "clock.py": (2, "the date itself, and to let steady milliseconds change with it"),
    "pipelines/dead_letters.py": (1, "from which hour on dead letters are counted"),
    "spark/sending.py": (1, "a born timestamp"),
}


def test_every_date_that_is_asked_for_is_known() -> None:
    found: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        found[name] = sum(map(_asks_for_date, ast.walk(ast.parse(path.read_text()))))
    expected = Counter({name: count for name, (count, _) in DATES.items()})
    new = dict(found - expected)
    assert not new, f"these ask for more dates than are known: {new}; for what lasts ask steady_ms()"
    gone = dict(expected - found)
    assert not gone, f"these ask for fewer dates than are known: {gone}; say so here"


def _asks_for_date(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    called, owner = node.func.attr, ast.unparse(node.func.value)
    if called == "now_ms":
        return not owner.endswith("timeline") and owner != "timeline"
    return owner == "time" and called in ("time", "time_ns")
