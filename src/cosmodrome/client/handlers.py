"""The application's handlers: what they want, and calling them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast, get_origin

from cosmodrome.client import hooks
from cosmodrome.client.consume_stats import ConsumeStatistics
from cosmodrome.client.described import described, duration
from cosmodrome.client.hooks import ConsumeContext, ConsumeHook
from cosmodrome.client.incoming import unpack_body
from cosmodrome.client.lifecycle import whose
from cosmodrome.client.results import Ended, as_they_come, check_result, in_order
from cosmodrome.client.threads import DaemonThreads
from cosmodrome.client.tracing import Consuming, Tracer
from cosmodrome.clock import Clock
from cosmodrome.errors import ClientError, ConfigError, InvalidArgument, RetryLater, WrongType, check_number
from cosmodrome.model import Property, ReceivedMessage

log = logging.getLogger(__name__)

# What a handler that takes a list gets at most, unless `batch` says otherwise: as much as a pull brings.
DEFAULT_BATCH = 32
MAX_BATCH = 1_024

# handler(message) or handler(messages), def or async def; what it returns matters only as `results` says.
MessageHandler = Callable[[ReceivedMessage], Any]
ListHandler = Callable[[list[ReceivedMessage]], Any]
Handler = MessageHandler | ListHandler

# A handler that runs for so long, or for the consume timeout if that is shorter, is named in the log.
STUCK_MS = 60_000
_STUCK_ROUNDS = 10
# How long a handler that is cancelled may take to clean up.
CANCEL_SECONDS = 1.0

_ROOM = contextlib.nullcontext()
_LIST_NAMES = frozenset({"list", "List", "Sequence", "Iterable", "Collection"})
_LIST_TYPES = (list, Sequence, Iterable, Collection)


class Consume(NamedTuple):
    """A handler and how it wants its messages."""

    handler: Handler
    batch: int | None  # None: one message at a time, not in a list
    is_async: bool

    @classmethod
    def by(cls, handler: Handler, batch: int | None = None) -> Consume:
        """Lists of up to `batch` messages if that is given, or lists if its parameter is annotated as one; else single
        messages."""
        if not callable(handler):
            raise WrongType(f"the handler is {handler!r}; it must be a function of a message, or of a list of them")
        if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise WrongType(f"the handler {handler!r} has a yield, so calling it would do nothing; leave that out")
        _check_takes_one(handler)
        if batch is not None:
            check_number(1, batch=batch)
            if batch > MAX_BATCH:
                raise InvalidArgument(f"batch is {batch}; it must be a whole number from 1 to {MAX_BATCH}")
        if batch is None and _takes_a_list(handler):
            batch = DEFAULT_BATCH
        called = handler if inspect.isroutine(handler) else type(handler).__call__
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called)
        return cls(handler, batch, is_async)

    def portions(self, messages: list[ReceivedMessage]) -> Iterable[list[ReceivedMessage]]:
        size = self.batch or 1
        return (messages[start : start + size] for start in range(0, len(messages), size))

    def argument(self, messages: list[ReceivedMessage]) -> ReceivedMessage | list[ReceivedMessage]:
        return [*messages] if self.batch else messages[0]  # the handler may do with its list what it likes


def _check_takes_one(handler: Handler) -> None:
    """WrongType if every call would fail, and every message end as a dead letter."""
    try:
        signature = inspect.signature(handler, follow_wrapped=False)  # a decorator may add to what it is called with
    except (TypeError, ValueError):  # some built-ins have no signature
        return
    try:
        signature.bind(object())
    except TypeError as error:
        raise WrongType(
            f"the handler {handler!r} cannot be called with one argument, a message or a list of them: {error}"
        ) from None


def _takes_a_list(handler: Handler) -> bool:
    """By the text of the annotation if it is text: its names may not exist at run time."""
    try:
        parameter = next(iter(inspect.signature(handler).parameters.values()), None)
    except (TypeError, ValueError):  # some built-ins have no signature
        return False
    annotation = None if parameter is None else parameter.annotation
    if isinstance(annotation, str):
        return annotation.partition("[")[0].rpartition(".")[2].strip() in _LIST_NAMES
    return (get_origin(annotation) or annotation) in _LIST_TYPES


@dataclass(eq=False, slots=True)
class _Running:
    """A call under way, and after how long the log names it next."""

    messages: list[ReceivedMessage]
    began_ms: int
    due_ms: int


class Calls:
    """Calls handlers: an `async def` here, a plain `def` in one of up to `max_threads` threads.

    `min_threads` of them are started ahead, and the others when they are needed. Every call is traced and shown to
    the hooks; what a handler raises is returned.
    """

    def __init__(
        self,
        group: str,
        clock: Clock,
        *,
        max_threads: int,
        min_threads: int = 0,
        namespace: str = "",
        tracer: Tracer | None = None,
        consume_hooks: Sequence[ConsumeHook] = (),
        statistics: ConsumeStatistics | None = None,
        orderly: bool = False,
        consume_timeout_ms: int | None = None,
    ) -> None:
        if not 0 <= min_threads <= max_threads or max_threads < 1:
            raise ConfigError(f"min_threads is {min_threads} and max_threads {max_threads}; they must be 0 ≤ min ≤ max")
        self.group = group
        self._clock = clock
        self._namespace = namespace
        self._tracer = tracer
        self._hooks = consume_hooks
        self._statistics = statistics
        self._orderly = orderly
        self._consume_timeout_ms = consume_timeout_ms
        self._min_threads = min_threads
        self._threads = DaemonThreads(max_threads, "cosmodrome-handler")
        self._free_threads = asyncio.Semaphore(max_threads)
        self._stuck_ms = STUCK_MS if consume_timeout_ms is None else min(consume_timeout_ms, STUCK_MS)
        self._running: set[_Running] = set()
        # By thread: who waits for the handler that runs there.
        self._callers: dict[object, asyncio.Task[Any]] = {}

    def start(self) -> None:
        self._threads.start(self._min_threads)

    def shutdown(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def room(self, consume: Consume) -> AbstractAsyncContextManager[Any]:
        """To be entered before `call`, so that a handler that is called runs and does not wait for a thread."""
        return _ROOM if consume.is_async else self._free_threads

    async def call(
        self, consume: Consume, messages: list[ReceivedMessage], given_back: Callable[[], int] = lambda: 0
    ) -> Ended:
        """Only a cancellation of ours is raised, and what ends the program; whatever else a handler raises, as a
        CancelledError of its own, it has failed. `given_back` counts those that the broker has taken back meanwhile."""
        began_ms, date_ms = self._clock.steady_ms(), self._clock.now_ms()
        for message in messages:
            message.properties[Property.CONSUME_START_TIME] = str(date_ms)
        running = _Running(messages, began_ms, self._stuck_ms)
        self._running.add(running)
        try:
            return await self._call_watched(consume, messages, began_ms, given_back)
        finally:
            self._running.discard(running)

    async def _call_watched(
        self, consume: Consume, messages: list[ReceivedMessage], began_ms: int, given_back: Callable[[], int]
    ) -> Ended:
        tracing = None if self._tracer is None else self._tracer.consuming(messages)
        context = self._before(messages) if self._hooks else None
        result: Any = None
        error: BaseException | None
        try:
            for message in messages:
                unpack_body(message)
            result = await self._call(consume, consume.argument(messages))
            if result is not None:
                check_result(result, orderly=self._orderly)
            error = None
        except asyncio.CancelledError as cancelled:
            error = cancelled
            if this_task().cancelling():
                self._tell(messages, self._ended(None, error, began_ms, given_back()), tracing, context)
                raise
        except BaseException as raised:  # pytest.fail, for one, raises no Exception
            if _ends_the_program(raised):
                raise
            error = raised
        ended = self._ended(result, error, began_ms, given_back())
        self._tell(messages, ended, tracing, context)
        return ended

    def _ended(self, result: Any, error: BaseException | None, began_ms: int, given_back: int) -> Ended:
        spent_ms, limit_ms = self._clock.steady_ms() - began_ms, self._consume_timeout_ms
        is_late = given_back > 0 or (limit_ms is not None and spent_ms >= limit_ms)
        return Ended(result, error, spent_ms, is_late, given_back)

    async def watch(self) -> None:
        """Name handlers in the log that run for long: after a minute, or the consume timeout, then at each doubling."""
        while True:
            await self._clock.sleep(max(self._stuck_ms // _STUCK_ROUNDS, 1))
            now_ms = self._clock.steady_ms()
            for running in self._running:
                if (ran_ms := now_ms - running.began_ms) >= running.due_ms:
                    running.due_ms = 2 * ran_ms
                    log.warning(
                        "handler still running: %s running=%s consume_timeout=%s",
                        described(self.group, running.messages),
                        duration(ran_ms),
                        "none"
                        if self._orderly or self._consume_timeout_ms is None
                        else duration(self._consume_timeout_ms),
                    )

    def _tell(
        self,
        messages: list[ReceivedMessage],
        ended: Ended,
        tracing: Consuming | None,
        context: ConsumeContext | None,
    ) -> None:
        error, verdict = ended.error, (in_order if self._orderly else as_they_come)(ended)
        if tracing is not None:
            tracing.ended(verdict.outcome, verdict.success)
        if context is not None:
            context.success, context.status, context.error = verdict.success, verdict.status, error
            context.outcome = verdict.outcome
            hooks.tell([hook.after_consume for hook in self._hooks], context)
        if self._statistics is not None:
            done = len(messages) if error is None else error.done if isinstance(error, RetryLater) else 0
            if self._orderly and not verdict.success and error is None:
                done = 0
            ok = max(done - ended.given_back, 0)
            now_ms = self._clock.steady_ms()
            self._statistics.consumed(messages[0].queue, ok, len(messages) - ok, ended.spent_ms, now_ms)

    async def _call(self, consume: Consume, argument: ReceivedMessage | list[ReceivedMessage]) -> Any:
        if consume.is_async:
            result = await cast("Callable[[Any], Any]", consume.handler)(argument)
            return await result if inspect.iscoroutine(result) else result  # it has forgotten an await
        in_thread = functools.partial(self._call_in_thread, this_task())
        result = await asyncio.get_running_loop().run_in_executor(self._threads, in_thread, consume.handler, argument)
        if inspect.isawaitable(result):  # a def that wraps an async def
            result = await result
        return result

    def _call_in_thread(self, caller: asyncio.Task[Any], handler: Handler, argument: Any) -> Any:
        thread = threading.get_ident()
        self._callers[thread] = caller
        try:
            return cast("Callable[[Any], Any]", handler)(argument)
        finally:
            del self._callers[thread]

    def caller(self) -> asyncio.Task[Any] | None:
        """Of the handler that runs here; outside of handlers, the current task."""
        return self._callers.get(whose()) or asyncio.current_task()

    def _before(self, messages: list[ReceivedMessage]) -> ConsumeContext:
        context = ConsumeContext(self.group, messages, messages[0].queue, self._namespace)
        hooks.tell([hook.before_consume for hook in self._hooks], context)
        return context


def _ends_the_program(raised: BaseException) -> bool:
    """In the main thread, a Ctrl-C or a signal that exits may come wherever a coroutine just is, and is no failure of a
    handler; in any other thread it is the handler that exits. A coroutine that is closed must not go on anywhere."""
    if isinstance(raised, (KeyboardInterrupt, SystemExit)):
        return threading.current_thread() is threading.main_thread()
    return isinstance(raised, GeneratorExit)


def this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "workers run as tasks"
    return task


async def drained(workers: Iterable[asyncio.Task[None]], timeout_ms: int, but_for: asyncio.Task[Any] | None) -> None:
    """Return when the handlers have ended; those that do not in time are cancelled, and not waited for much longer.

    The one that waits for this is neither waited for nor cancelled.
    """
    running = {worker for worker in workers if worker is not but_for}
    if running:
        _, running = await asyncio.wait(running, timeout=timeout_ms / 1000)
    if running:
        log.warning("handlers not ended by the stop: count=%d timeout=%s", len(running), duration(timeout_ms))
        for worker in running:
            worker.cancel()
        _, running = await asyncio.wait(running, timeout=CANCEL_SECONDS)
    if running:
        log.warning("%d handlers were cancelled and go on all the same", len(running))


def unhandled(message: ReceivedMessage) -> None:
    """The handler of messages nobody handles any more: they fail, and end as dead letters rather than unseen."""
    raise ClientError(f"no handler is subscribed to topic {message.topic}")
