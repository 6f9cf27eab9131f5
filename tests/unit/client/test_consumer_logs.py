"""What a consumer's log says of messages that fail, handlers that hang and queues that are held back."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
from typing import Any

import pytest

from cosmodrome import LitePullConsumer, PushConsumer, ReceivedMessage, RetryLater, SuspendQueue
from cosmodrome.client.assigned_queue import HOLD_LOG_INTERVAL_MS
from cosmodrome.client.described import (
    MAX_REASON_BYTES,
    described,
    duration,
    next_delay,
    note_failure,
    one_line,
    quoted,
    reason_of,
)
from cosmodrome.client.handlers import STUCK_MS, Calls, Consume
from cosmodrome.client.lifecycle import cancelled
from cosmodrome.client.process_queue import CacheLimits, Hold, ProcessQueue
from cosmodrome.client.retry_copies import retry_copy
from cosmodrome.codes import RequestCode
from cosmodrome.model import ConsumeFrom, MessageQueue
from cosmodrome.testing import FakeClock
from cosmodrome.wire.bodies import ConsumerRunningInfo
from cosmodrome.wire.properties import MAX_SIZE_BYTES
from tests.unit.client import test_concurrent, test_orderly
from tests.unit.client.fake_cluster import fake_cluster, quick
from tests.unit.client.messages import received
from tests.unit.client.test_push_consumer import consumer_of, turn, until

SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
IDS = "group=g topic=T broker=broker-a queue=0 offset=0 msg_id=id-0 attempt=1"


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cosmodrome")


def raising(error: Exception) -> Any:
    async def handler(_message: ReceivedMessage) -> None:
        raise error

    return handler


# --- words


def test_a_message_is_named_by_all_that_finds_it() -> None:
    message = dataclasses.replace(received(offset=7), queue=MessageQueue("T", "b", 3), reconsume_times=2)
    message.properties["KEYS"] = 'order-1 a"b\nc'
    assert described("billing", [message, received(), received()]) == (
        'group=billing topic=T broker=b queue=3 offset=7 msg_id=id-7 keys="order-1 a\\"b\\nc" attempt=3 more=2'
    )
    assert quoted("plain-1") == "plain-1"
    assert quoted("") == '""'


def test_a_reason_is_one_short_line_whatever_was_raised() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert reason_of(ValueError("a\x01b\x02c\nd")) == "ValueError: a b c d"
    assert reason_of(ValueError()) == "ValueError"
    assert reason_of(RetryLater("the bank is closed")) == "the bank is closed"
    assert reason_of(Silent()) == "Silent: it has no text"
    assert len(reason_of(ValueError("é" * 1_000)).encode()) <= MAX_REASON_BYTES
    assert one_line("\ud800 and more") == "? and more"


def test_the_next_delivery_is_told_by_the_default_delay_levels() -> None:
    first, third = received(), dataclasses.replace(received(), reconsume_times=2)
    assert (next_delay(first, 0), next_delay(third, 0)) == ("10s", "1m")
    assert (next_delay(third, 3, 2), next_delay(third, 3, 3)) == ("dead-letters", "10s")
    assert [next_delay(first, level) for level in (1, 99, -1)] == ["1s", "2h", "dead-letters"]
    assert [duration(ms) for ms in (5, 1_500, 30_000, 75_000, 300_000, 7_200_000)] == [
        *("5ms", "1.5s", "30s"),
        *("75s", "5m", "2h"),
    ]


def test_a_copy_that_has_no_room_for_the_reason_goes_without_it() -> None:
    message = received()
    note_failure([message], "no")
    message.properties["big"] = "x" * (MAX_SIZE_BYTES - 632)
    header, _body = retry_copy(message, "g", "T", 3, 1, None, 0)
    assert "COSMODROME_LAST_ERROR" in (header.properties or "")
    message.properties["big"] += "x" * 40
    header, _body = retry_copy(message, "g", "T", 3, 1, None, 0)
    assert "COSMODROME_LAST_ERROR" not in (header.properties or "")


# --- handlers that fail


async def test_who_asks_for_a_message_again_is_in_the_log_with_delay_and_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = test_concurrent.Desk()
    desk.deliver(raising(RetryLater("the bank is closed", delay_level=5)))
    await test_concurrent.settle()
    assert f'message redelivery requested: {IDS} next=1m reason="the bank is closed"' in caplog.messages


async def test_a_list_is_named_by_the_first_message_that_is_not_done(caplog: pytest.LogCaptureFixture) -> None:
    desk = test_concurrent.Desk()
    desk.deliver(raising(RetryLater("busy", done=1)), 3, batch=3)
    await test_concurrent.settle()
    assert "offset=1 msg_id=id-1 attempt=1 more=1 next=10s reason=busy" in caplog.text


async def test_a_handler_past_its_time_out_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    desk = test_concurrent.Desk()
    handled: list[ReceivedMessage] = []

    async def handler(message: ReceivedMessage) -> None:
        handled.append(message)
        await asyncio.Event().wait()

    desk.deliver(handler)
    expiring = asyncio.create_task(desk.handlers.run())
    await desk.clock.advance(test_concurrent.CONSUME_TIMEOUT_MS)
    assert f"handler timed out: {IDS} consume_timeout=1m next=10s" in caplog.messages
    assert handled[0].properties["COSMODROME_LAST_ERROR"] == "the handler did not end within 1m"
    await cancelled([expiring])
    await desk.handlers.stop(0)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_handler_that_hangs_is_named_again_and_again_and_less_and_less(
    orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    calls = Calls("g", clock, max_threads=1, orderly=orderly, consume_timeout_ms=15 * 60_000)
    gate = asyncio.Event()

    async def handler(_message: ReceivedMessage) -> None:
        await gate.wait()

    watching = asyncio.create_task(calls.watch())
    calling = asyncio.create_task(calls.call(Consume.by(handler), [received()]))
    await clock.advance(STUCK_MS - 1)
    assert "still running" not in caplog.text
    await clock.advance(5 * STUCK_MS)
    told = re.findall(r"handler still running: (.*) running=(\w+) consume_timeout=(\w+)", caplog.text)
    limit = "none" if orderly else "15m"
    assert told == [(IDS, ran, limit) for ran in ("1m", "2m", "4m")]
    gate.set()
    await calling
    await clock.advance(5 * STUCK_MS)
    assert len(re.findall("still running", caplog.text)) == len(told)
    await cancelled([watching])


async def test_a_push_consumer_names_handlers_that_hang(caplog: pytest.LogCaptureFixture) -> None:
    clock, gate = FakeClock(), asyncio.Event()

    async def handler(_message: ReceivedMessage) -> None:
        await gate.wait()

    async with fake_cluster(T=1) as cluster, consumer_of(cluster, handler, clock=clock, consume_timeout_ms=100):
        await cluster.broker.append("T", 0, b"x", "KEYS\x01k\x02")

        async def pass_time() -> None:
            await clock.advance(10)
            await turn()

        await until(lambda: "handler still running: group=g topic=T" in caplog.text, pass_time)
        gate.set()


async def test_in_order_a_rest_and_a_dead_letter_say_why(caplog: pytest.LogCaptureFixture) -> None:
    desk = test_orderly.Desk(max_reconsume_times=0)
    desk.buries = False
    desk.deliver(raising(SuspendQueue(200, "the bank is closed")))
    await test_orderly.settle()
    assert f'queue suspended: {IDS} next=200ms reason="the bank is closed"' in caplog.messages


async def test_in_order_what_is_buried_is_in_the_log_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster(**{"T": 1, "%RETRY%g": 1}) as cluster:
        cluster.broker.answers[RequestCode.SEND_MESSAGE] = lambda command: command.reply()
        consumer = consumer_of(cluster, raising(ValueError("no")), orderly=True, max_reconsume_times=0)
        async with consumer:
            await cluster.broker.append("T", 0, b"x", "UNIQ_KEY\x01U\x02")
            (command,) = await cluster.broker.asked.wait_for(RequestCode.SEND_MESSAGE)
            await until(lambda: "sent to the dead letters" in caplog.text, turn)
        properties = command.fields["properties"] or ""
    assert "COSMODROME_LAST_ERROR\x01ValueError: no\x02" in properties
    ids = "group=g topic=T broker=broker-a queue=0 offset=0 msg_id=U attempt=1"
    assert f'message sent to the dead letters: {ids} dead_letter_topic=%DLQ%g reason="ValueError: no"' in "\n".join(
        caplog.messages
    )


async def test_what_is_broadcast_and_fails_is_dropped_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster(T=1) as cluster, consumer_of(cluster, raising(ValueError("no")), model="BROADCASTING"):
        await cluster.broker.append("T", 0, b"x", "UNIQ_KEY\x01U\x02")
        await until(lambda: "message dropped" in caplog.text, turn)
    ids = "group=g topic=T broker=broker-a queue=0 offset=0 msg_id=U attempt=1"
    assert f'message dropped, nothing broadcast comes again: {ids} reason="ValueError: no"' in "\n".join(
        caplog.messages
    )


async def test_a_message_that_is_taken_and_fails_is_in_the_log_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers[SEND_BACK] = lambda command: command.reply()
        await cluster.broker.append("T", 0, b"x", "UNIQ_KEY\x01U\x02")
        consumer = LitePullConsumer("g", config=quick(cluster.namesrv), consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe("T")
        async with consumer:
            async for message in consumer:
                with pytest.raises(RetryLater):
                    async with message:
                        raise RetryLater("the bank is closed", delay_level=-1)
                break
        assert cluster.broker.asked.of(SEND_BACK)[0].fields["lastError"] == "the bank is closed"
    ids = "group=g topic=T broker=broker-a queue=0 offset=0 msg_id=U attempt=1"
    assert f'redelivery requested: {ids} next=dead-letters reason="the bank is closed"' in "\n".join(caplog.messages)
    assert f"message sent to the dead letters: {ids} dead_letter_topic=%DLQ%g" in caplog.text


# --- queues that are held back


@pytest.mark.parametrize(
    ("limits", "hold"),
    [
        (CacheLimits(max_messages=2), Hold("max_messages", 3, 2)),
        (CacheLimits(max_bytes=250), Hold("max_bytes", 300, 250)),
        (CacheLimits(max_span=1), Hold("max_span", 2, 1)),
        (CacheLimits(max_messages_of_topic=4).shared_by(2), Hold("max_messages_of_topic", 3, 2)),
        (CacheLimits(max_bytes_of_topic=400).shared_by(2), Hold("max_bytes_of_topic", 300, 200)),
        (CacheLimits(), None),
    ],
)
def test_the_limit_that_holds_a_queue_has_a_name(limits: CacheLimits, hold: Hold | None) -> None:
    process = ProcessQueue(0, limits)
    process.put([received(offset=offset) for offset in range(3)], 3)
    assert process.hold == hold


async def test_a_queue_that_stays_held_is_in_the_log_and_in_the_running_info(caplog: pytest.LogCaptureFixture) -> None:
    clock, gate = FakeClock(), asyncio.Event()

    async def handler(_message: ReceivedMessage) -> None:
        await gate.wait()

    async def pass_time() -> None:
        await clock.advance(500)
        await turn()

    async with fake_cluster(T=1) as cluster:
        limits, first = CacheLimits(max_messages=2), ConsumeFrom.FIRST_OFFSET
        consumer = PushConsumer("g", cluster.namesrv, limits=limits, consume_from=first, clock=clock)
        consumer.subscribe("T", "*", handler)
        for _ in range(3):
            await cluster.broker.append("T", 0, b"x")
        async with consumer:
            await until(lambda: "consumer flow control" in caplog.text, pass_time)
            (line,) = (text for text in caplog.messages if "flow control" in text)
            assert line == (
                "consumer flow control: group=g topic=T broker=broker-a queue=0 "
                "limit=max_messages cached=3 allowed=2 held=5s oldest_offset=0"
            )
            info = ConsumerRunningInfo.decode(consumer.running_info().encode())
            shown = info.queues[MessageQueue("T", "broker-a", 0)].flow_control
            assert re.fullmatch(r"limit=max_messages cached=3 allowed=2 since=\d+ oldest_offset=0", shown)
            for _ in range(2 * HOLD_LOG_INTERVAL_MS // 500):
                await pass_time()
            assert caplog.text.count("consumer flow control") == 3
            gate.set()
            await until(lambda: consumer.consumed_offsets("T")[MessageQueue("T", "broker-a", 0)] == 3, pass_time)
            await pass_time()
            info = consumer.running_info()
            assert info.queues[MessageQueue("T", "broker-a", 0)].flow_control == ""
            assert b"flowControl" not in info.encode()
