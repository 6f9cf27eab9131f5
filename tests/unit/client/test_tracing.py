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
        self.may_send = asyncio.Event()
        self.may_send.set()

    async def start(self) -> None:
        self.running = True

    async def stop(self) -> None:
        self.running = False

    async def send(self, message: Message) -> None:
        await self.may_send.wait()
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


async def test_nothing_is_dropped_as_long_as_the_sender_keeps_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MAX_WAITING", 2 * RECORDS_PER_MESSAGE)
    sender = Sender()
    tracer = Tracer(sender, "g", FakeClock(), topic="traces")
    await tracer.start()
    for number in range(10 * RECORDS_PER_MESSAGE):
        note(tracer, number)
        await asyncio.sleep(0)
    await tracer.stop()
    assert sum(len(trace.decode(message.body)) for message in sender.sent) == 10 * RECORDS_PER_MESSAGE
    assert {message.topic for message in sender.sent} == {"traces"}
    assert len(sender.sent) <= 11  # by the full message, not each by itself


async def test_the_end_sends_what_is_left_and_stops_the_sender() -> None:
    sender = Sender()
    tracer = Tracer(sender, "g", FakeClock())
    await tracer.start()
    assert sender.running
    note(tracer, 1)
    await tracer.stop()
    assert (len(sender.sent), sender.running) == (1, False)


async def test_what_is_being_sent_when_the_end_comes_is_not_lost() -> None:
    sender, clock = Sender(), FakeClock()
    sender.may_send.clear()
    tracer = Tracer(sender, "g", clock)
    await tracer.start()
    note(tracer, 1)
    await clock.advance(FLUSH_INTERVAL_MS)
    note(tracer, 2)
    stopping = asyncio.create_task(tracer.stop())
    await asyncio.wait([stopping], timeout=0.05)
    sender.may_send.set()
    await stopping
    assert [record.timestamp for message in sender.sent for record in trace.decode(message.body)] == [1, 2]


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
