"""The blocking face: the same producers and consumers, run on an event loop in a thread.

Nothing is decided here. Each method hands its arguments to the async object and waits for the outcome; any number of
threads may do so at once. `def` handlers run in threads of their own, so they may use a blocking producer.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from cosmodrome.client import producer, push_consumer
from cosmodrome.client.handlers import Handler
from cosmodrome.client.lifecycle import Startable
from cosmodrome.client.producer import SEND_TIMEOUT_MS, Selector
from cosmodrome.client.subscribing import Expression
from cosmodrome.config import ClientConfig
from cosmodrome.model import ConsumeFrom, Message, MessageQueue, SendResult
from cosmodrome.net.loop import loop_factory

T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread; one per process, started with the first client."""

    _shared: ClassVar[LoopThread | None] = None
    _making: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = loop_factory()()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cosmodrome-client", daemon=True)
        self._thread.start()

    @classmethod
    def shared(cls) -> LoopThread:
        with cls._making:
            if cls._shared is None or cls._shared._pid != os.getpid():
                cls._shared = cls()
            return cls._shared

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The outcome of `work`, done on the loop. An interrupted wait, as by Ctrl-C, cancels it."""
        self._check()
        outcome = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return outcome.result()
        except BaseException:
            outcome.cancel()
            raise

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("this client was made before a fork and is dead here; create it after the fork")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call on the client's own loop would wait for itself; use a def handler")


def _after_fork() -> None:
    LoopThread._making = threading.Lock()  # the old one may be held by a thread that is not here


os.register_at_fork(after_in_child=_after_fork)


class _Face:
    """Starting and stopping, common to both."""

    def __init__(self, behind: Startable) -> None:
        self._thread = LoopThread.shared()
        self._startable = behind

    def start(self) -> None:
        self._thread.run(self._startable.start)

    def stop(self) -> None:
        self._thread.run(self._startable.stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


class Producer(_Face):
    """`cosmodrome.Producer` without await."""

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        max_tries: int = producer.MAX_TRIES,
        trace: bool = False,
        config: ClientConfig | None = None,
    ) -> None:
        self._producer = producer.Producer(group, namesrv, max_tries=max_tries, trace=trace, config=config)
        super().__init__(self._producer)

    @property
    def client_id(self) -> str:
        return self._producer.client_id

    def send(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        selector: Selector | None = None,
        arg: Any = None,
        timeout_ms: float = SEND_TIMEOUT_MS,
    ) -> SendResult:
        return self._thread.run(
            lambda: self._producer.send(message, queue, selector=selector, arg=arg, timeout_ms=timeout_ms)
        )

    def send_oneway(self, message: Message, queue: MessageQueue | None = None) -> None:
        self._thread.run(lambda: self._producer.send_oneway(message, queue))

    def send_batch(
        self,
        messages: Sequence[Message],
        queue: MessageQueue | None = None,
        *,
        timeout_ms: float = SEND_TIMEOUT_MS,
    ) -> SendResult:
        return self._thread.run(lambda: self._producer.send_batch(messages, queue, timeout_ms=timeout_ms))

    def recall(self, topic: str, handle: str, *, timeout_ms: float = SEND_TIMEOUT_MS) -> str:
        return self._thread.run(lambda: self._producer.recall(topic, handle, timeout_ms=timeout_ms))

    def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        return self._thread.run(lambda: self._producer.publish_queues(topic))


class PushConsumer(_Face):
    """`cosmodrome.PushConsumer` without await. An `async def` handler runs on the client's own loop."""

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        max_in_flight: int = push_consumer.MAX_IN_FLIGHT,
        max_reconsume_times: int | None = None,
        stop_timeout_ms: int = push_consumer.STOP_TIMEOUT_MS,
        trace: bool = False,
        config: ClientConfig | None = None,
    ) -> None:
        self._consumer = push_consumer.PushConsumer(
            group,
            namesrv,
            consume_from=consume_from,
            consume_timestamp_ms=consume_timestamp_ms,
            max_in_flight=max_in_flight,
            max_reconsume_times=max_reconsume_times,
            stop_timeout_ms=stop_timeout_ms,
            trace=trace,
            config=config,
        )
        super().__init__(self._consumer)

    @property
    def client_id(self) -> str:
        return self._consumer.client_id

    @property
    def assigned_queues(self) -> list[MessageQueue]:
        async def look() -> list[MessageQueue]:
            return self._consumer.assigned_queues

        return self._thread.run(look)

    def subscribe(self, topic: str, expression: Expression, handler: Handler, *, batch: int | None = None) -> None:
        async def subscribe() -> None:
            self._consumer.subscribe(topic, expression, handler, batch=batch)

        self._thread.run(subscribe)

    def unsubscribe(self, topic: str) -> None:
        async def unsubscribe() -> None:
            self._consumer.unsubscribe(topic)

        self._thread.run(unsubscribe)
