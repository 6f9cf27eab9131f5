"""Traces on their way: some at a time, never too many, and never in anybody's way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cosmodrome import ClientConfig, ConsumeFrom, LitePullConsumer, PushConsumer
from cosmodrome.client import tracing
from cosmodrome.client.outgoing import encode_properties
from cosmodrome.client.tracing import FLUSH_INTERVAL_MS, MAX_BODY_BYTES, RECORDS_PER_MESSAGE, Tracer
from cosmodrome.errors import SendFailed
from cosmodrome.model import TRACE_TOPIC, Message
from cosmodrome.testing import FakeClock
from cosmodrome.wire import trace
from cosmodrome.wire.properties import MAX_SIZE_BYTES
from cosmodrome.wire.trace import Recall, SubAfter, SubBefore
from tests.unit.client.fake_cluster import PATIENCE_SECONDS, FakeCluster, fake_cluster


class Sender:
    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.running = False
        self.broken = False
        self.stumbles = 0
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
        if self.stumbles:
            self.stumbles -= 1
            raise KeyError("a hook fails")
        self.sent.append(message)


def note(tracer: Tracer, number: int) -> Recall:
    record = Recall(number, "", "g", "t", f"ID{number}")
    tracer.note(record, record.msg_id, "shared key")
    return record


def note_batch(tracer: Tracer, number: int, count: int) -> list[str]:
    """One record of a batch; its ids are as long as they really are."""
    ids = [f"{number:016X}{index:016X}" for index in range(count)]
    tracer.note(Recall(number, "", "g", "t", ",".join(ids)), ",".join(ids), "")
    return ids


def noted_in(messages: list[Message]) -> list[int]:
    """Which records the messages hold, by their numbers."""
    return [record.timestamp for message in messages for record in trace.decode(message.body)]


def properties_bytes(message: Message) -> int:
    return len(encode_properties(message, "0" * 32).encode())


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


async def test_batches_are_found_by_each_of_their_ids() -> None:
    sender = Sender()
    tracer = Tracer(sender, "g", FakeClock())
    await tracer.start()
    ids = [one for number in range(RECORDS_PER_MESSAGE) for one in note_batch(tracer, number, 32)]
    await tracer.stop()
    assert noted_in(sender.sent) == list(range(RECORDS_PER_MESSAGE))
    assert [key for message in sender.sent for key in message.keys] == ids
    assert max(map(properties_bytes, sender.sent)) < MAX_SIZE_BYTES - 1_000  # room for what brokers add
    assert len(sender.sent) == 2


async def test_a_batch_with_more_ids_than_fit_is_found_by_those_that_do() -> None:
    sender = Sender()
    tracer = Tracer(sender, "g", FakeClock())
    await tracer.start()
    note(tracer, 1)
    ids = note_batch(tracer, 2, 2_000)
    note(tracer, 3)
    await tracer.stop()
    assert noted_in(sender.sent) == [1, 2, 3]
    found_by = [one for one in ids if any(one in message.keys for message in sender.sent)]
    assert found_by == ids[: len(found_by)]
    assert len(found_by) > 800
    assert max(map(properties_bytes, sender.sent)) < MAX_SIZE_BYTES - 1_000


async def test_what_needs_several_messages_goes_out_in_one_round() -> None:
    sender, clock = Sender(), FakeClock()
    tracer = Tracer(sender, "g", clock)
    await tracer.start()
    for number in range(3):
        note_batch(tracer, number, 2_000)
    await clock.advance(FLUSH_INTERVAL_MS)
    assert noted_in(sender.sent) == [0, 1, 2]
    await tracer.stop()


async def test_large_records_go_in_several_messages() -> None:
    sender = Sender()
    tracer = Tracer(sender, "g", FakeClock())
    await tracer.start()
    for number in range(5):
        tracer.note(Recall(number, "", "g", "t" * (MAX_BODY_BYTES // 3), "ID"), "ID", "")
    tracer.note(Recall(5, "", "g", "t" * MAX_BODY_BYTES, "ID"), "ID", "")
    await tracer.stop()
    assert noted_in(sender.sent) == list(range(6))
    assert [len(trace.decode(message.body)) for message in sender.sent] == [2, 2, 1, 1]
    assert max(len(message.body) for message in sender.sent[:3]) <= MAX_BODY_BYTES


async def test_the_end_does_not_wait_for_a_broker_that_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "LAST_FLUSH_SECONDS", 0.05)
    sender = Sender()
    sender.may_send.clear()
    tracer = Tracer(sender, "g", FakeClock())
    await tracer.start()
    for number in range(2 * RECORDS_PER_MESSAGE + 1):
        note(tracer, number)
    await asyncio.wait_for(tracer.stop(), 5)
    assert not sender.running
    told = [record.getMessage() for record in caplog.records]
    assert told == ["101 traces were dropped: they could not be sent before the stop"]


async def test_a_hook_that_fails_costs_one_message_and_not_those_to_come(caplog: pytest.LogCaptureFixture) -> None:
    sender, clock = Sender(), FakeClock()
    tracer = Tracer(sender, "g", clock)
    await tracer.start()
    for number in range(3):
        sender.stumbles = 1 if number == 1 else 0
        note(tracer, number)
        await clock.advance(FLUSH_INTERVAL_MS)
    assert noted_in(sender.sent) == [0, 2]
    assert "1 traces were not stored" in caplog.text
    sender.stumbles = 1
    note(tracer, 3)
    await tracer.stop()
    assert not sender.running


# --- consumers


async def consumed_by_pushing(config: ClientConfig) -> None:
    handled = asyncio.Event()
    consumer = PushConsumer("g", config=config, consume_from=ConsumeFrom.FIRST_OFFSET, trace=True)
    consumer.subscribe("T", "*", lambda _message: handled.set())
    async with consumer:
        await handled.wait()


async def consumed_by_polling(config: ClientConfig) -> None:
    consumer = LitePullConsumer("g", config=config, consume_from=ConsumeFrom.FIRST_OFFSET, trace=True)
    consumer.subscribe("T")
    async with consumer:
        await consumer.poll()
        await consumer.commit()


def traces_in(cluster: FakeCluster) -> list[trace.TraceRecord]:
    stored = [one for (topic, _), queue in cluster.broker.queues.items() if topic == TRACE_TOPIC for one in queue]
    return [record for one in stored for record in trace.decode(one.body)]


@pytest.mark.parametrize("consumed", [consumed_by_pushing, consumed_by_polling])
async def test_a_group_is_written_down_without_its_namespace(
    consumed: Callable[[ClientConfig], Awaitable[None]],
) -> None:
    async with fake_cluster(**{"NS%T": 1, TRACE_TOPIC: 1}) as cluster:
        await cluster.broker.append("NS%T", 0, b"x")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await consumed(ClientConfig(namesrv=cluster.namesrv, namespace="NS"))
        found = [record for record in traces_in(cluster) if isinstance(record, SubBefore | SubAfter)]
    assert [record.group for record in found] == ["g", "g"]
