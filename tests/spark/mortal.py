"""Drivers that die in mid-commit, without taking the test with them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from cosmodrome.spark.exactly_once import Committer, Ended, Half, Verdict
from cosmodrome.spark.ledger import BrokerLedger
from cosmodrome.spark.link import Cluster as Link
from cosmodrome.spark.sink import Written
from cosmodrome.spark.sink_options import SinkOptions


class DriverDied(Exception):
    pass


class MortalLedger(BrokerLedger):
    """Its driver dies when so many half messages are committed, in mid-call if that is within one."""

    def __init__(self, *args: Any, dies_after: int, **more: Any) -> None:
        super().__init__(*args, **more)
        self._left = dies_after

    def end(self, halves: Sequence[Half], verdict: Verdict) -> Ended:
        if verdict is Verdict.COMMIT:
            told, self._left = halves[: self._left], max(self._left - len(halves), 0)
            ended = super().end(told, verdict)
            if len(told) < len(halves):
                raise DriverDied
            return ended
        return super().end(halves, verdict)


def die_in_commit(given: SinkOptions, messages: list[Written], dies_after: int) -> None:
    link = Link(given.link)
    committer = Committer(MortalLedger(link, given, may_create=True, dies_after=dies_after), tries=3)
    with pytest.raises(DriverDied):
        committer.commit(f"job:{given.job_id}", uuid.uuid4().hex, [message.task() for message in messages])
    link.close()
