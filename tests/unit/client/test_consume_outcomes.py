"""How the end of a handler is shown to hooks, to the trace and in the figures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cosmodrome import ConsumeContext, ConsumeHook, OrderlyStatus, PushConsumer, RetryLater, SuspendQueue
from cosmodrome.client.consume_stats import ConsumeStatistics
from cosmodrome.client.handlers import Calls, Consume
from cosmodrome.client.lifecycle import cancelled
from cosmodrome.client.retry_copies import retry_copy
from cosmodrome.client.tracing import Tracer
from cosmodrome.codes import RequestCode
from cosmodrome.model import ConsumeFrom, Message, ReceivedMessage
from cosmodrome.testing import FakeClock
from cosmodrome.wire import trace
from cosmodrome.wire.trace import Outcome, SubAfter
from tests.unit.client.fake_cluster import fake_cluster, quick
from tests.unit.client.messages import received
from tests.unit.client.test_push_consumer import turn, until

TIMEOUT_MS = 60_000
AGAIN = "RECONSUME_LATER"
SUSPEND = OrderlyStatus.SUSPEND.value


class Sent:
    """A sender of traces that keeps their records."""

    def __init__(self) -> None:
        self.records: list[trace.TraceRecord] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def send(self, message: Message) -> None:
        self.records += trace.decode(message.body)


class Ends(ConsumeHook):
    def __init__(self) -> None:
        self.contexts: list[ConsumeContext] = []

    def after_consume(self, context: ConsumeContext) -> None:
        self.contexts.append(context)


class Bench:
    """Calls of handlers, and all who look on."""

    def __init__(self, *, orderly: bool = False) -> None:
        self.clock = FakeClock()
        self.hook, self.sent = Ends(), Sent()
        self.tracer = Tracer(self.sent, "g", self.clock)
        self.statistics = ConsumeStatistics(self.clock.now_ms())
        self.calls = Calls(
            "g",
            self.clock,
            max_threads=1,
            tracer=self.tracer,
            consume_hooks=[self.hook],
            statistics=self.statistics,
            orderly=orderly,
            consume_timeout_ms=TIMEOUT_MS,
        )

    async def told(self) -> tuple[Outcome | None, bool, str, int]:
        """What the hook saw, once the trace is known to say the same; and how many messages count as failed."""
        await self.tracer.start()
        await self.tracer.stop()
        (context,) = self.hook.contexts
        (after,) = [record for record in self.sent.records if isinstance(record, SubAfter)]
        assert (after.outcome, after.success) == (context.outcome, context.success)
        failed = self.statistics.status("T", self.clock.now_ms()).consume_failed_msgs
        return context.outcome, context.success, context.status, failed


def handler_of(bench: Bench, end: Any, spent_ms: int) -> Callable[[ReceivedMessage], Any]:
    async def handler(_message: ReceivedMessage) -> Any:
        await bench.clock.advance(spent_ms)
        if isinstance(end, Exception):
            raise end
        return end

    return handler


@pytest.mark.parametrize(
    ("end", "spent_ms", "told"),
    [
        (None, 5, (Outcome.SUCCESS, True, "CONSUME_SUCCESS", 0)),
        (None, TIMEOUT_MS, (Outcome.TIME_OUT, True, "CONSUME_SUCCESS", 0)),  # no broker took the message back
        (RuntimeError("no"), 5, (Outcome.EXCEPTION, False, AGAIN, 1)),
        (RuntimeError("no"), TIMEOUT_MS, (Outcome.EXCEPTION, False, AGAIN, 1)),
        (RetryLater("the bank is closed"), 5, (Outcome.FAILED, False, AGAIN, 1)),
        (RetryLater("the bank is closed"), TIMEOUT_MS, (Outcome.TIME_OUT, False, AGAIN, 1)),
        (RetryLater, 5, (Outcome.RETURNED_NULL, False, AGAIN, 1)),  # returned, not raised
    ],
)
async def test_each_end_has_its_kind(end: Any, spent_ms: int, told: tuple[Any, ...]) -> None:
    bench = Bench()
    await bench.calls.call(Consume.by(handler_of(bench, end, spent_ms)), [received()])
    assert await bench.told() == told


@pytest.mark.parametrize(
    ("end", "spent_ms", "told"),
    [
        (None, 5, (Outcome.SUCCESS, True, "SUCCESS", 0)),
        (None, TIMEOUT_MS, (Outcome.TIME_OUT, True, "SUCCESS", 0)),
        (OrderlyStatus.SUSPEND, 5, (Outcome.FAILED, False, SUSPEND, 1)),
        (OrderlyStatus.ROLLBACK, 5, (Outcome.FAILED, False, "ROLLBACK", 1)),
        (SuspendQueue(100), 5, (Outcome.FAILED, False, SUSPEND, 1)),
        (RuntimeError("no"), 5, (Outcome.EXCEPTION, False, SUSPEND, 1)),
        (SuspendQueue, 5, (Outcome.RETURNED_NULL, False, SUSPEND, 1)),
    ],
)
async def test_each_end_has_its_kind_in_order(end: Any, spent_ms: int, told: tuple[Any, ...]) -> None:
    bench = Bench(orderly=True)
    await bench.calls.call(Consume.by(handler_of(bench, end, spent_ms)), [received()])
    assert await bench.told() == told


async def test_a_handler_that_a_stop_cancels_has_failed_for_all_who_look_on() -> None:
    bench, begun = Bench(), asyncio.Event()

    async def handler(_message: ReceivedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def call() -> None:
        await bench.calls.call(Consume.by(handler), [received()])

    calling = asyncio.create_task(call())
    await begun.wait()
    await cancelled([calling])
    assert await bench.told() == (Outcome.FAILED, False, AGAIN, 1)


async def test_a_handler_that_returns_after_its_messages_went_back_is_no_success() -> None:
    hook = Ends()
    async with fake_cluster(T=1) as cluster:
        cluster.broker.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda command: command.reply()
        await cluster.broker.append("T", 0, b"slow")
        consumer = PushConsumer(
            "g",
            config=quick(cluster.namesrv),
            consume_from=ConsumeFrom.FIRST_OFFSET,
            consume_timeout_ms=10,
            consume_hooks=[hook],
        )

        @consumer.handles("T")
        async def handler(_message: ReceivedMessage) -> None:
            await until(lambda: 1 in consumer.consumed_offsets("T").values(), turn)  # the broker has the message

        async with consumer:
            await until(lambda: bool(hook.contexts), turn)
            counted = consumer.statistics("T")
    (context,) = hook.contexts
    assert (context.outcome, context.success, context.status) == (Outcome.TIME_OUT, False, AGAIN)
    assert (counted.consume_failed_msgs, counted.consume_ok_tps) == (1, 0.0)


async def test_a_message_says_since_when_it_is_handled_and_its_copy_does_not() -> None:
    bench = Bench()
    message = received()
    began_ms = bench.clock.now_ms()
    await bench.calls.call(Consume.by(handler_of(bench, None, 500)), [message])
    assert message.properties["CONSUME_START_TIME"] == str(began_ms)
    header, _body = retry_copy(message, "g", "T", 3, 1, None, 0)
    assert "CONSUME_START_TIME" not in (header.properties or "")
