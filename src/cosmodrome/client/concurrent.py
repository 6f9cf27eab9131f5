"""Handling messages as they come, so many at a time, and what happens when a handler fails."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from cosmodrome.client.described import (
    BROKER_DECIDES_DELAY,
    described,
    duration,
    next_delay,
    note_failure,
    quoted,
    reason_of,
)
from cosmodrome.client.handlers import Calls, Consume, drained, this_task
from cosmodrome.client.lifecycle import cancelled
from cosmodrome.client.process_queue import ProcessQueue
from cosmodrome.client.results import Ended
from cosmodrome.client.sending_back import LOCAL_RETRY_MS
from cosmodrome.clock import Clock
from cosmodrome.errors import RetryLater
from cosmodrome.model import ReceivedMessage

log = logging.getLogger(__name__)

# At which delay level a message comes again whose handler did not end in time.
TIMED_OUT_DELAY_LEVEL = 3
_EXPIRY_ROUNDS = 10  # a handler is given up at most a tenth of the consume timeout late

# Has the broker deliver a message again later, after a delay level; whether it agreed.
SendBack = Callable[[ReceivedMessage, int], Awaitable[bool]]


@dataclass(eq=False, slots=True)
class Delivery:
    """Messages of one queue for one call of a handler."""

    consume: Consume
    messages: list[ReceivedMessage]
    process: ProcessQueue
    given_back: int = 0  # while its handler ran, which was late

    @property
    def open(self) -> list[ReceivedMessage]:
        """Messages that are still to be taken care of: the broker may have taken back those of a slow handler."""
        process = self.process
        return [] if process.released else [message for message in self.messages if message.queue_offset in process]


class ConcurrentHandlers:
    """Calls handlers, at most `max_in_flight` at a time.

    A message leaves its process queue when its handler returned, or when it raised or took too long and the broker took
    the message back to deliver it later; never otherwise, so nothing is committed beyond a message that is not taken
    care of. What waits here is bounded by the process queues.
    """

    def __init__(
        self,
        max_in_flight: int,
        calls: Calls,
        send_back: SendBack,
        clock: Clock,
        consume_timeout_ms: int,
        max_reconsume_times: int | None = None,
    ) -> None:
        self._max_in_flight = max_in_flight
        self._calls = calls
        self._send_back = send_back
        self._clock = clock
        self._consume_timeout_ms = consume_timeout_ms
        self._limit = max_reconsume_times
        self._waiting: deque[Delivery] = deque()
        self._began_ms: dict[Delivery, int] = {}
        self._working: set[asyncio.Task[None]] = set()
        self._retrying: set[asyncio.Task[None]] = set()
        self._stopped = False

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
            self._working.discard(this_task())

    async def _deliver(self, delivery: Delivery) -> None:
        async with self._calls.room(delivery.consume):
            if self._stopped or delivery.process.released:
                return
            self._began_ms[delivery] = self._clock.steady_ms()
            try:
                ended = await self._calls.call(delivery.consume, delivery.messages, lambda: delivery.given_back)
            finally:
                del self._began_ms[delivery]
        if ended.error is None:
            _finish(delivery.process, delivery.messages)
        else:
            await self._failed(delivery, ended)

    async def _failed(self, delivery: Delivery, ended: Ended) -> None:
        """Finish what was done before the failure, and give the rest back to the broker."""
        done, delay_level = 0, BROKER_DECIDES_DELAY
        assert ended.error is not None, "it failed"
        reason = reason_of(ended.error)
        if isinstance(ended.error, RetryLater):
            done, delay_level = ended.error.done, ended.error.delay_level
        if failed := delivery.messages[done:]:
            ids, again = described(self._calls.group, failed), next_delay(failed[0], delay_level, self._limit)
            if isinstance(ended.error, RetryLater):
                log.info("message redelivery requested: %s next=%s reason=%s", ids, again, quoted(reason))
            else:
                log.warning("handler failed: %s next=%s reason=%s", ids, again, quoted(reason), exc_info=ended.error)
            note_failure(failed, reason)
        _finish(delivery.process, delivery.messages[:done])
        await self._give_back(delivery, delay_level)
        kept = delivery.open
        if kept and not self._stopped:
            ids = described(self._calls.group, kept)
            log.warning("message not taken back, handled here again: %s next=%s", ids, duration(LOCAL_RETRY_MS))
            task = asyncio.create_task(self._retry(replace(delivery, messages=kept)))
            self._retrying.add(task)
            task.add_done_callback(self._retrying.discard)

    async def _give_back(self, delivery: Delivery, delay_level: int) -> None:
        """What the broker takes is done here; the rest stays open."""
        failed = delivery.open
        taken = await asyncio.gather(*(self._send_back(message, delay_level) for message in failed))
        _finish(delivery.process, itertools.compress(failed, taken))

    async def _retry(self, delivery: Delivery) -> None:
        await self._clock.sleep(LOCAL_RETRY_MS)
        for message in delivery.messages:
            message.reconsume_times += 1
        self.submit(delivery)

    async def run(self) -> None:
        """Give up handlers that take longer than the consume timeout: their messages go back to the broker."""
        while True:
            await self._clock.sleep(max(self._consume_timeout_ms // _EXPIRY_ROUNDS, 1))
            limit_ms = self._clock.steady_ms() - self._consume_timeout_ms
            late = [delivery for delivery, began_ms in self._began_ms.items() if began_ms <= limit_ms]
            for delivery in late:
                if delivery.open:
                    self._tell_late(delivery)
                    before = len(delivery.open)
                    await self._give_back(delivery, TIMED_OUT_DELAY_LEVEL)
                    delivery.given_back += before - len(delivery.open)

    def _tell_late(self, delivery: Delivery) -> None:
        late, limit = delivery.open, duration(self._consume_timeout_ms)
        ids, again = described(self._calls.group, late), next_delay(late[0], TIMED_OUT_DELAY_LEVEL, self._limit)
        log.warning("handler timed out: %s consume_timeout=%s next=%s", ids, limit, again)
        note_failure(late, f"the handler did not end within {limit}")

    def is_worker(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether it calls handlers."""
        return task in self._working

    async def stop(self, timeout_ms: int, *, but_for: asyncio.Task[Any] | None = None) -> None:
        """Start no more handlers; wait for those that run, and give up on them after `timeout_ms`."""
        self._stopped = True
        self._waiting.clear()
        await cancelled(self._retrying)
        await drained(self._working, timeout_ms, but_for)


def _finish(process: ProcessQueue, messages: Iterable[ReceivedMessage]) -> None:
    if not process.released:
        process.finish(messages)
