"""Calling handlers: how they get their messages, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from cosmodrome.client import handlers
from cosmodrome.client.concurrent import ConcurrentHandlers, Delivery
from cosmodrome.client.handlers import DEFAULT_BATCH, Calls, Consume, unhandled
from cosmodrome.client.hooks import ConsumeContext
from cosmodrome.client.lifecycle import cancelled
from cosmodrome.client.process_queue import ProcessQueue
from cosmodrome.client.sending_back import LOCAL_RETRY_MS
from cosmodrome.errors import ClientError, RetryLater
from cosmodrome.model import ReceivedMessage
from cosmodrome.testing import FakeClock
from tests.bounded import in_thread
from tests.unit.client.messages import received

PATIENCE_SECONDS = 30
CONSUME_TIMEOUT_MS = 60_000


# --- how a handler wants its messages


def one(message: ReceivedMessage) -> None: ...
def untyped(messages): ...  # type: ignore[no-untyped-def]
def many(messages: list[ReceivedMessage]) -> None: ...
def sequence(messages: Sequence[ReceivedMessage]) -> None: ...
async def async_many(messages: Iterable[ReceivedMessage]) -> None: ...
async def async_one(message: ReceivedMessage) -> None: ...


class Callable:
    async def __call__(self, message: ReceivedMessage) -> None: ...

    def method(self, messages: list[ReceivedMessage]) -> None: ...


def evaluated(messages: Any) -> None: ...


evaluated.__annotations__["messages"] = list[ReceivedMessage]


@pytest.mark.parametrize(
    ("handler", "batch", "is_async"),
    [
        (one, None, False),
        (untyped, None, False),
        (many, DEFAULT_BATCH, False),
        (sequence, DEFAULT_BATCH, False),
        (async_many, DEFAULT_BATCH, True),
        (async_one, None, True),
        (Callable(), None, True),
        (Callable().method, DEFAULT_BATCH, False),
        (functools.partial(async_one), None, True),
        (evaluated, DEFAULT_BATCH, False),
        (print, None, False),
    ],
)
def test_a_handler_says_by_its_annotation_whether_it_wants_a_list(
    handler: Any, batch: int | None, is_async: bool
) -> None:
    consume = Consume.by(handler)
    assert (consume.batch, consume.is_async) == (batch, is_async)


def test_batch_decides_over_the_annotation() -> None:
    assert Consume.by(one, 5).batch == 5
    assert Consume.by(many, 1).batch == 1
    messages = [received(offset=offset) for offset in range(5)]
    assert [len(portion) for portion in Consume.by(one, 2).portions(messages)] == [2, 2, 1]
    assert Consume.by(one, 1).argument(messages[:1]) == messages[:1]
    assert Consume.by(one).argument(messages[:1]) is messages[0]
    with pytest.raises(ValueError, match="at least 1"):
        Consume.by(one, 0)


# --- calling them


class Desk:
    """Handlers over one process queue, and a broker that takes messages back or does not."""

    def __init__(self, max_in_flight: int = 4, takes_back: bool = True, max_threads: int | None = None) -> None:
        self.clock = FakeClock()
        self.takes_back = takes_back
        self.sent_back: list[int] = []
        self.delay_levels: list[int] = []
        self.process = ProcessQueue(0)
        self.calls = Calls("g", self.clock, max_threads=max_threads or max_in_flight or 1)
        self.handlers = ConcurrentHandlers(max_in_flight, self.calls, self._send_back, self.clock, CONSUME_TIMEOUT_MS)

    async def _send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        self.sent_back.append(message.queue_offset)
        self.delay_levels.append(delay_level)
        return self.takes_back

    def deliver(self, handler: Any, count: int = 1, batch: int | None = None) -> None:
        consume, first = Consume.by(handler, batch), self.process.next_offset
        messages = [received(offset=offset) for offset in range(first, first + count)]
        self.process.put(messages, first + count)
        for portion in consume.portions(messages):
            self.handlers.submit(Delivery(consume, portion, self.process))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_message_is_finished_when_its_handler_returns() -> None:
    desk, released = Desk(), asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        await released.wait()

    desk.deliver(handler, 3)
    await settle()
    assert desk.process.commit_offset == 0
    released.set()
    await desk.handlers.stop(1_000)
    assert desk.process.commit_offset == 3


async def test_what_comes_while_the_last_worker_leaves_is_handled_too() -> None:
    """A worker that is done with its loop, but not yet with its task, must not count as one that will look again."""
    desk = Desk(max_in_flight=1)
    handled: list[int] = []

    async def handler(message: ReceivedMessage) -> None:
        handled.append(message.queue_offset)
        if message.queue_offset == 0:  # runs after this worker's last step and before its task's done callbacks
            asyncio.get_running_loop().call_soon(desk.deliver, handler)

    desk.deliver(handler)
    await settle()
    assert handled == [0, 1]


async def test_no_more_run_at_a_time_than_allowed() -> None:
    desk, running, most, gate = Desk(max_in_flight=2), 0, 0, asyncio.Semaphore(0)
    done = asyncio.Semaphore(0)

    async def handler(message: ReceivedMessage) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.acquire()
        running -= 1
        done.release()

    desk.deliver(handler, 7)
    await settle()
    assert running == 2
    for _ in range(7):
        gate.release()
    async with asyncio.timeout(PATIENCE_SECONDS):
        for _ in range(7):
            await done.acquire()
    assert most == 2
    await desk.handlers.stop(1_000)


async def test_a_def_runs_beside_the_event_loop() -> None:
    desk, threads = Desk(), []
    loop, ran = asyncio.get_running_loop(), asyncio.Event()

    def handler(message: ReceivedMessage) -> None:
        threads.append(threading.current_thread())
        loop.call_soon_threadsafe(ran.set)

    desk.deliver(handler)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await ran.wait()
    await desk.handlers.stop(1_000)
    assert threads != [threading.current_thread()]
    assert desk.process.commit_offset == 1


async def test_a_def_that_returns_a_coroutine_has_it_awaited() -> None:
    desk, handled = Desk(), asyncio.Event()

    async def really(message: ReceivedMessage) -> None:
        handled.set()

    desk.deliver(lambda message: really(message))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await handled.wait()
    await desk.handlers.stop(1_000)
    assert desk.process.commit_offset == 1


class Boom(BaseException):
    """No Exception, as what pytest.fail raises is none."""


@pytest.mark.parametrize("error", [RuntimeError("no"), asyncio.CancelledError(), Boom("no")])
async def test_a_failed_message_goes_back_to_the_broker_and_is_finished_here(error: BaseException) -> None:
    desk = Desk(max_in_flight=1)

    async def handler(message: ReceivedMessage) -> None:
        raise error

    desk.deliver(handler, 2)
    await settle()
    assert sorted(desk.sent_back) == [0, 1]
    assert desk.process.commit_offset == 2
    await desk.handlers.stop(1_000)


@pytest.mark.parametrize("error", [Boom("no"), SystemExit("no"), KeyboardInterrupt("no")])
async def test_whatever_a_def_raises_it_has_failed(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    desk, handled = Desk(max_in_flight=1), asyncio.Event()
    loop = asyncio.get_running_loop()

    def handler(message: ReceivedMessage) -> None:
        if message.queue_offset == 0:
            raise error
        loop.call_soon_threadsafe(handled.set)

    desk.deliver(handler, 2)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await handled.wait()
    await desk.handlers.stop(1_000)
    assert desk.sent_back == [0]
    assert desk.process.commit_offset == 2
    (raised,) = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert raised is not None
    assert error in (raised, raised.__cause__)
    desk.calls.shutdown()


async def _call_of(end: Any) -> BaseException | None:
    """What a call of a coroutine that ends like this says of it."""

    async def handler(message: ReceivedMessage) -> None:
        end()

    calls = Calls("g", FakeClock(), max_threads=1)
    return (await calls.call(Consume.by(handler), [received()])).error


def _interrupted() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("end", "kind"), [(sys.exit, SystemExit), (_interrupted, KeyboardInterrupt)])
async def test_a_coroutine_that_exits_in_a_thread_has_failed_like_any_other(
    end: Any, kind: type[BaseException]
) -> None:
    assert isinstance(await in_thread(asyncio.run, _call_of(end)), kind)


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_that_comes_while_a_coroutine_handles_ends_the_program(
    number: signal.Signals, kind: type[BaseException]
) -> None:
    """In the main thread nobody can tell whether a handler exits or is just where the signal came."""
    handlers = {signal.SIGTERM: lambda *_: sys.exit(3), signal.SIGINT: signal.default_int_handler}
    before = signal.signal(number, handlers[number])  # in the background, or beside Spark, there are others
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(kind):
            loop.run_until_complete(_call_of(lambda: signal.raise_signal(number)))
    finally:
        signal.signal(number, before)
        loop.close()


async def test_what_the_broker_does_not_take_back_is_tried_here_again_and_holds_the_commit() -> None:
    desk, tries = Desk(takes_back=False), []

    async def handler(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        if len(tries) < 3:
            raise RuntimeError("not yet")

    desk.deliver(handler)
    await desk.clock.advance(LOCAL_RETRY_MS - 1)
    assert tries == [0]
    await desk.clock.advance(1)
    assert tries == [0, 1]
    assert desk.process.commit_offset == 0
    await desk.clock.advance(LOCAL_RETRY_MS)
    assert tries == [0, 1, 2]
    assert desk.process.commit_offset == 1
    await desk.handlers.stop(1_000)


async def test_a_failed_batch_goes_back_whole() -> None:
    desk = Desk()

    async def handler(messages: list[ReceivedMessage]) -> None:
        raise RuntimeError("all of them")

    desk.deliver(handler, 3)
    await settle()
    assert desk.sent_back == [0, 1, 2]
    await desk.handlers.stop(1_000)


async def test_a_body_that_cannot_be_unpacked_counts_as_failed() -> None:
    desk = Desk()
    seen: list[ReceivedMessage] = []
    consume, message = Consume.by(seen.append), received(b"not zlib", sys_flag=1)
    desk.process.put([message], 1)
    desk.handlers.submit(Delivery(consume, [message], desk.process))
    await settle()
    assert (seen, desk.sent_back) == ([], [0])
    await desk.handlers.stop(1_000)


async def test_messages_of_a_released_queue_are_neither_started_nor_finished() -> None:
    desk, gate, started = Desk(max_in_flight=1), asyncio.Event(), []

    async def handler(message: ReceivedMessage) -> None:
        started.append(message.queue_offset)
        await gate.wait()
        raise RuntimeError("too late to matter")

    desk.deliver(handler, 2)
    await settle()
    desk.process.released = True
    gate.set()
    await settle()
    assert (started, desk.sent_back, desk.process.commit_offset) == ([0], [], 0)
    await desk.handlers.stop(1_000)


async def test_stop_waits_for_what_runs_and_starts_nothing_more() -> None:
    desk, gate, started = Desk(max_in_flight=1), asyncio.Event(), []

    async def handler(message: ReceivedMessage) -> None:
        started.append(message.queue_offset)
        await gate.wait()

    desk.deliver(handler, 3)
    await settle()
    stopping = asyncio.create_task(desk.handlers.stop(60_000))
    await settle()
    assert not stopping.done()
    gate.set()
    await stopping
    assert (started, desk.process.commit_offset) == ([0], 1)
    desk.deliver(handler)
    await settle()
    assert started == [0]


async def test_stop_gives_up_on_a_handler_that_never_ends() -> None:
    desk = Desk()

    async def handler(message: ReceivedMessage) -> None:
        await asyncio.Event().wait()

    desk.deliver(handler)
    await settle()
    await desk.handlers.stop(1)
    assert desk.process.commit_offset == 0
    assert desk.sent_back == []


async def test_stop_gives_up_on_a_handler_that_cannot_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "CANCEL_SECONDS", 0.01)
    desk, gate = Desk(), asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()

    desk.deliver(handler)
    await settle()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await desk.handlers.stop(1)
    assert desk.process.commit_offset == 0
    gate.set()


async def test_what_a_handler_does_to_its_list_does_not_matter() -> None:
    desk = Desk()

    async def handler(messages: list[ReceivedMessage]) -> None:
        messages.clear()
        raise RetryLater(done=1)

    desk.deliver(handler, 3)
    await settle()
    assert desk.sent_back == [1, 2]
    assert desk.process.commit_offset == 3


def generates(message: ReceivedMessage) -> Any:
    yield message


async def generates_async(message: ReceivedMessage) -> Any:
    yield message


@pytest.mark.parametrize("handler", [None, "handle", generates, generates_async])
def test_what_would_never_run_is_no_handler(handler: Any) -> None:
    with pytest.raises(TypeError, match="handler"):
        Consume.by(handler)


async def test_a_handler_that_waits_for_a_thread_is_not_late() -> None:
    desk, gate, seen = Desk(max_threads=1), threading.Event(), list[int]()

    def handler(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        gate.wait(PATIENCE_SECONDS)

    desk.deliver(handler, 2)
    expiring = asyncio.create_task(desk.handlers.run())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not seen:  # noqa: ASYNC110  # it comes from a thread
            await asyncio.sleep(0.001)
        while not desk.sent_back:
            await desk.clock.advance(CONSUME_TIMEOUT_MS)
        assert desk.sent_back == [0]
        gate.set()
        while desk.process.commit_offset < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert seen == [0, 1]
    await cancelled([expiring])
    desk.calls.shutdown()


async def test_a_function_that_raises_stop_iteration_has_failed() -> None:
    desk = Desk()

    def handler(message: ReceivedMessage) -> None:
        next(iter(()))

    desk.deliver(handler)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not desk.sent_back:  # noqa: ASYNC110  # it comes from a thread
            await asyncio.sleep(0.001)
    desk.calls.shutdown()


def test_a_message_nobody_handles_fails() -> None:
    with pytest.raises(ClientError, match="no handler"):
        unhandled(received())


# --- asking for some of them again


@pytest.mark.parametrize(("done", "sent_back", "committed"), [(0, [0, 1, 2], 3), (2, [2], 3), (3, [], 3), (9, [], 3)])
async def test_of_a_list_only_what_is_not_done_comes_again(done: int, sent_back: list[int], committed: int) -> None:
    desk = Desk()

    async def handler(messages: list[ReceivedMessage]) -> None:
        raise RetryLater("later", done=done, delay_level=5)

    desk.deliver(handler, 3)
    await settle()
    assert desk.sent_back == sent_back
    assert desk.delay_levels == [5] * len(sent_back)
    assert desk.process.commit_offset == committed
    await desk.handlers.stop(1_000)


# --- handlers that take too long


async def test_a_handler_that_takes_too_long_has_its_messages_taken_back_once() -> None:
    desk, released = Desk(), asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        await released.wait()
        raise RuntimeError("much too late")

    expiring = asyncio.create_task(desk.handlers.run())
    desk.deliver(handler, 2)
    for _ in range(30):
        await desk.clock.advance(CONSUME_TIMEOUT_MS // 10)
        await settle()
    assert (desk.sent_back, desk.delay_levels) == ([0, 1], [3, 3])
    assert desk.process.commit_offset == 2
    released.set()
    await settle()
    assert desk.sent_back == [0, 1]
    await cancelled([expiring])
    await desk.handlers.stop(1_000)


async def test_what_the_broker_does_not_take_from_a_slow_handler_stays_with_it() -> None:
    desk, released = Desk(takes_back=False), asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        await released.wait()

    expiring = asyncio.create_task(desk.handlers.run())
    desk.deliver(handler)
    for _ in range(12):
        await desk.clock.advance(CONSUME_TIMEOUT_MS // 10)
        await settle()
    assert set(desk.sent_back) == {0}
    assert desk.process.commit_offset == 0
    released.set()
    await settle()
    assert desk.process.commit_offset == 1
    await cancelled([expiring])
    await desk.handlers.stop(1_000)


# --- threads and hooks


async def test_threads_are_there_ahead_and_never_more_than_the_most() -> None:
    calls = Calls("g", FakeClock(), min_threads=2, max_threads=3)
    names: set[str] = set()
    together = threading.Barrier(2)

    def handler(message: ReceivedMessage) -> None:
        names.add(threading.current_thread().name)
        together.wait(PATIENCE_SECONDS)

    calls.start()
    ended = await asyncio.gather(*(calls.call(Consume.by(handler), [received(offset=n)]) for n in range(8)))
    calls.shutdown()
    assert [end.error for end in ended] == [None] * 8
    assert 2 <= len(names) <= 3


@pytest.mark.parametrize(("least", "most"), [(-1, 3), (4, 3), (0, 0)])
def test_threads_that_cannot_be_are_refused(least: int, most: int) -> None:
    with pytest.raises(ValueError, match="min_threads"):
        Calls("g", FakeClock(), min_threads=least, max_threads=most)


async def test_hooks_see_how_a_call_went_and_do_no_harm() -> None:
    seen: list[tuple[str, str, bool]] = []

    class Watching:
        def before_consume(self, context: ConsumeContext) -> None:
            seen.append(("before", context.group, context.success))

        def after_consume(self, context: ConsumeContext) -> None:
            seen.append(("after", context.status, context.success))
            raise RuntimeError("a bad hook")

    async def failing(message: ReceivedMessage) -> None:
        raise RuntimeError("no")

    async def fine(message: ReceivedMessage) -> int:
        return 7

    calls = Calls("g", FakeClock(), max_threads=1, consume_hooks=[Watching()])
    failed = await calls.call(Consume.by(failing), [received()])
    ended = await calls.call(Consume.by(fine), [received()])
    assert isinstance(failed.error, RuntimeError)
    assert (ended.result, ended.error) == (7, None)
    assert seen == [
        ("before", "g", False),
        ("after", "RECONSUME_LATER", False),
        ("before", "g", False),
        ("after", "CONSUME_SUCCESS", True),
    ]
