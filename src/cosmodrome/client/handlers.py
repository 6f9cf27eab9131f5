"""Running the application's handlers, so many at a time, and what happens when one fails."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, get_origin

from cosmodrome.client.incoming import unpack_body
from cosmodrome.client.lifecycle import cancelled
from cosmodrome.client.process_queue import ProcessQueue
from cosmodrome.client.tracing import Tracer
from cosmodrome.clock import Clock
from cosmodrome.errors import ClientError
from cosmodrome.model import ReceivedMessage
from cosmodrome.wire.trace import Outcome

log = logging.getLogger(__name__)

# What a handler that takes a list gets at most, unless `batch` says otherwise: as much as a pull brings.
DEFAULT_BATCH = 32
# A failed message that its broker did not take back is handed to the handler again after this.
LOCAL_RETRY_MS = 5_000

# handler(message) or handler(messages), def or async def; what it returns does not matter, what it raises does.
Handler = Callable[[Any], Any]

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
        if batch is not None and batch < 1:
            raise ValueError(f"batch is {batch}; it must be at least 1")
        if batch is None and _takes_a_list(handler):
            batch = DEFAULT_BATCH
        called = handler if inspect.isroutine(handler) else type(handler).__call__
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called)
        return cls(handler, batch, is_async)

    def portions(self, messages: list[ReceivedMessage]) -> Iterable[list[ReceivedMessage]]:
        size = self.batch or 1
        return (messages[start : start + size] for start in range(0, len(messages), size))

    def argument(self, messages: list[ReceivedMessage]) -> ReceivedMessage | list[ReceivedMessage]:
        return messages if self.batch else messages[0]


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


class Delivery(NamedTuple):
    """Messages of one queue for one call of a handler."""

    consume: Consume
    messages: list[ReceivedMessage]
    process: ProcessQueue


class Handlers:
    """Calls handlers, at most `max_in_flight` at a time; a plain `def` runs in a thread.

    A message leaves its process queue when its handler returned, or when it raised and the broker took the message
    back to deliver it later; never otherwise, so nothing is committed beyond a message that is not taken care of. What
    waits here is bounded by the process queues.
    """

    def __init__(
        self,
        max_in_flight: int,
        send_back: Callable[[ReceivedMessage], Awaitable[bool]],
        clock: Clock,
        tracer: Tracer | None = None,
    ) -> None:
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight is {max_in_flight}; it must be at least 1")
        self._max_in_flight = max_in_flight
        self._send_back = send_back
        self._clock = clock
        self._tracer = tracer
        self._waiting: deque[Delivery] = deque()
        self._working: set[asyncio.Task[None]] = set()
        self._retrying: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._threads = ThreadPoolExecutor(max_in_flight, thread_name_prefix="cosmodrome-handler")

    def submit(self, delivery: Delivery) -> None:
        if self._stopped:
            return
        self._waiting.append(delivery)
        if len(self._working) < self._max_in_flight:
            self._working.add(asyncio.create_task(self._work()))

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._deliver(self._waiting.popleft())
        finally:
            # Here and not in a done callback, which runs a turn later: a worker that is counted but has seen that
            # nothing waits would leave what is submitted in between to nobody.
            self._working.discard(_this_task())

    async def _deliver(self, delivery: Delivery) -> None:
        if delivery.process.released:
            return
        consuming = None if self._tracer is None else self._tracer.consuming(delivery.messages)
        outcome = Outcome.EXCEPTION
        try:
            await self._call(delivery)
            outcome = Outcome.SUCCESS
        except asyncio.CancelledError:
            if _this_task().cancelling():
                raise  # we are being stopped; a handler that raises it by itself has failed like any other
            await self._failed(delivery, "cancelled")
        except Exception as error:
            log.warning("a handler failed: %s", _described(delivery), exc_info=error)
            await self._failed(delivery, repr(error))
        else:
            _finish(delivery.process, delivery.messages)
        finally:
            if consuming is not None:
                consuming.ended(outcome)

    async def _call(self, delivery: Delivery) -> None:
        for message in delivery.messages:
            unpack_body(message)
        consume, argument = delivery.consume, delivery.consume.argument(delivery.messages)
        if consume.is_async:
            await consume.handler(argument)
            return
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._threads, consume.handler, argument)
        if inspect.isawaitable(result):  # a def that wraps an async def
            await result

    async def _failed(self, delivery: Delivery, reason: str) -> None:
        """Give the messages back to the broker; those it does not take are kept and tried again here."""
        if delivery.process.released:
            return
        taken = await asyncio.gather(*map(self._send_back, delivery.messages))
        _finish(delivery.process, itertools.compress(delivery.messages, taken))
        kept = [message for message, is_taken in zip(delivery.messages, taken, strict=True) if not is_taken]
        if kept and not self._stopped:
            log.warning("not taken back, trying again in %d ms: %s (%s)", LOCAL_RETRY_MS, _described(delivery), reason)
            task = asyncio.create_task(self._retry(delivery._replace(messages=kept)))
            self._retrying.add(task)
            task.add_done_callback(self._retrying.discard)

    async def _retry(self, delivery: Delivery) -> None:
        await self._clock.sleep(LOCAL_RETRY_MS)
        for message in delivery.messages:
            message.reconsume_times += 1
        self.submit(delivery)

    async def stop(self, timeout_ms: int) -> None:
        """Start no more handlers; wait for those that run, and give up on them after `timeout_ms`."""
        self._stopped = True
        self._waiting.clear()
        await cancelled(self._retrying)
        if self._working:
            _, late = await asyncio.wait(self._working, timeout=timeout_ms / 1000)
            if late:
                log.warning("%d handlers did not end in %d ms; others will get their messages", len(late), timeout_ms)
            await cancelled(late)
        self._threads.shutdown(wait=False, cancel_futures=True)


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "workers run as tasks"
    return task


def _finish(process: ProcessQueue, messages: Iterable[ReceivedMessage]) -> None:
    if not process.released:
        process.finish(messages)


def _described(delivery: Delivery) -> str:
    first = delivery.messages[0]
    more = f" and {len(delivery.messages) - 1} more" if len(delivery.messages) > 1 else ""
    return f"{first.topic} {first.msg_id} at {first.queue_offset} of {first.queue}{more}"


def unhandled(message: ReceivedMessage) -> None:
    """The handler of messages nobody handles any more: they fail, and end as dead letters rather than unseen."""
    raise ClientError(f"no handler is subscribed to topic {message.topic}")
