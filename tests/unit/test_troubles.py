"""What goes wrong again and again is told in a few lines."""

from __future__ import annotations

import logging

import pytest

from cosmodrome.testing.clock import FakeClock
from cosmodrome.troubles import TOLD_EVERY_MS, Trouble

log = logging.getLogger(__name__)


async def test_an_hour_of_trouble_is_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    trouble = Trouble(log, "messages cannot be delivered now", clock)
    trouble.over()
    assert not caplog.records
    for _ in range(3_600):
        trouble.met("the disk has no room")
        await clock.advance(1_000)
    trouble.over()
    trouble.over()
    trouble.met("the disk has no room")
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == lines[-1] == "messages cannot be delivered now: the disk has no room; trying again"
    assert lines[1] == "messages cannot be delivered now, 61 times by now: the disk has no room; trying again"
    assert lines[-2] == "no longer so, after 3600 times: messages cannot be delivered now"
    assert len(lines) == 3_600 * 1_000 // TOLD_EVERY_MS + 2
