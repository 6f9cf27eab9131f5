"""Traces on their way: some at a time, never too many, and never in anybody's way."""

from __future__ import annotations

import asyncio

import pytest

from cosmodrome.client import tracing
from cosmodrome.client.tracing import FLUSH_INTERVAL_MS, RECORDS_PER_MESSAGE, Tracer
from cosmodrome.errors import SendFailed
from cosmodrome.model import TRACE_TOPIC, Message
from cosmodrome.testing import FakeClock
from cosmodrome.wire import trace
from cosmodrome.wire.trace import Recall


class Sender:
    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.running = False
        self.broken = False

    async def start(self) -> None:
        self.running = True

    async def stop(self) -> None:
        self.running = False

    async def send(self, message: Message) -> None:
        if self.broken:
            raise SendFailed("no broker took it")
        self.sent.append(message)


def note(tracer: Tracer, number: int) -> Recall:
    record = Recall(number, "", "g", "t", f"ID{number}")
    tracer.note(record, record.msg_id, "shared key")
    return record


async def test_traces_are_sent_together_with_the_keys_to_find_them_by() -> None:
    sender, clock = Sender(), FakeClock()
    tracer = Tracer(sender, "g", clock)
    await tracer.start()
    records = [note(tracer, number) for number in range(RECORDS_PER_MESSAGE + 1)]
    await clock.advance(FLUSH_INTERVAL_MS)
    first, second = sender.sent
    assert trace.decode(first.body) + trace.decode(second.body) == records
    assert (first.topic, second.keys) == (TRACE_TOPIC, ["ID50", "shared", "key"])
    await tracer.stop()


async def test_the_end_sends_what_is_left_and_stops_the_sender() -> None:
    sender = Sender()
    tracer = Tracer(sender, "g", FakeClock())
    await tracer.start()
    assert sender.running
    note(tracer, 1)
    await tracer.stop()
    assert (len(sender.sent), sender.running) == (1, False)


async def test_what_cannot_be_sent_is_dropped_and_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "MAX_WAITING", 2)
    sender, clock = Sender(), FakeClock()
    tracer = Tracer(sender, "g", clock)
    await tracer.start()
    for number in range(5):
        note(tracer, number)
    sender.broken = True
    await clock.advance(FLUSH_INTERVAL_MS)
    sender.broken = False
    note(tracer, 9)
    await clock.advance(FLUSH_INTERVAL_MS)
    await asyncio.wait_for(tracer.stop(), 5)
    assert [trace.decode(message.body)[0].timestamp for message in sender.sent] == [9]
    told = [record.getMessage() for record in caplog.records]
    assert any("3 traces were dropped" in line for line in told)
    assert any("2 traces were not stored" in line for line in told)
