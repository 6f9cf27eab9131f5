"""What an audit reckons without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from cosmodrome.model import MessageQueue
from cosmodrome.pipelines import audit
from cosmodrome.pipelines.audit import Outside, missed, taken
from cosmodrome.spark.options import source_options

QUEUES = tuple(MessageQueue("orders", "broker-a", queue_id) for queue_id in range(3))
FIRST, LATEST = 10, 20


@pytest.mark.parametrize(
    ("committed", "first", "lost"), [(5, 10, 5), (10, 10, 0), (12, 10, 0), (0, 0, 0), (None, 10, 0)]
)
def test_what_was_deleted_before_a_group_came_to_it(committed: int | None, first: int, lost: int) -> None:
    assert missed(committed, first) == lost


class _Positions:
    """Queues from 10 to 20. One is asked for from before it begins, one to behind its end, and one behind its end."""

    def __init__(self, *_: object) -> None:
        pass

    def queues(self) -> tuple[MessageQueue, ...]:
        return QUEUES

    def earliest(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        return dict.fromkeys(queues, FIRST)

    def latest(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        return dict.fromkeys(queues, LATEST)

    def start(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        return dict(zip(queues, (3, 12, 25), strict=True))

    def end(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        return dict(zip(queues, (18, 30, 40), strict=True))

    def committed(self, queue: MessageQueue) -> int | None:
        return 15


def test_nothing_is_missing_that_a_queue_has_not_any_more_or_not_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "Positions", _Positions)
    options = source_options({"nameServer": "x:1", "subscribe": "orders"}, streaming=False)
    snapshot = taken(cast("Any", None), options, ["billing"])
    assert [(snapshot.start[queue], snapshot.end[queue]) for queue in QUEUES] == [(10, 18), (12, 20), (20, 20)]
    assert snapshot.outside == [
        Outside(QUEUES[0], "start", 3, 10),
        Outside(QUEUES[1], "end", 30, 20),
        Outside(QUEUES[2], "start", 25, 20),
        Outside(QUEUES[2], "end", 40, 20),
    ]
    (table,) = audit._outside_tables(snapshot.outside, 3)
    assert table.title.endswith("moved to the edge, the first 3")
    assert table.rows[0] == ("orders", "broker-a", 0, "start", 3, 10)
    assert audit._outside_tables((), 3) == []
