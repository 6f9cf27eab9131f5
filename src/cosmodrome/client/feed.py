"""Giving fetched messages to those who ask, and seeing to it that each is acknowledged or comes again."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar
from weakref import WeakSet

from cosmodrome.client.described import (
    BROKER_DECIDES_DELAY,
    described,
    duration,
    next_delay,
    note_failure,
    quoted,
    reason_noted,
    reason_of,
)
from cosmodrome.client.incoming import unpack_body
from cosmodrome.client.lifecycle import cancelled, whose
from cosmodrome.client.process_queue import ProcessQueue
from cosmodrome.client.pulled_message import PulledMessage, Receipt
from cosmodrome.client.ready import Ready
from cosmodrome.client.results import GivenBack
from cosmodrome.client.sending_back import LOCAL_RETRY_MS
from cosmodrome.client.watching import Watch
from cosmodrome.clock import Clock, sleep_unless
from cosmodrome.errors import CosmodromeError
from cosmodrome.model import Property, ReceivedMessage
from cosmodrome.wire.record import SysFlag

log = logging.getLogger(__name__)

S = TypeVar("S", bound="_Stream")


class Feed:
    """Messages in, messages out; any number of tasks may take them.

    A message leaves its process queue when it is acknowledged, or when the broker took it back; never otherwise, so
    nothing is committed beyond a message that is not taken care of.
    """

    def __init__(
        self, clock: Clock, send_back: Callable[[ReceivedMessage, int], Awaitable[bool]], watch: Watch
    ) -> None:
        self._clock = clock
        self._send_back = send_back
        self._watch = watch
        self._arrived = asyncio.Event()
        self._returned = asyncio.Event()  # somebody is done; looked at while stopping
        self._streams: WeakSet[_Stream] = WeakSet()
        self._entered: dict[int, tuple[PulledMessage, object | None]] = {}  # by identity, and by whom
        self._tasks: set[asyncio.Task[None]] = set()
        self.ready = Ready()
        self.stopped = False

    def put(self, messages: Sequence[PulledMessage], process: ProcessQueue) -> None:
        if self.stopped:
            return
        receipt = Receipt(process, self)
        for message in messages:
            message.fetched(receipt)
        self.ready.put(messages, process)
        self._arrived.set()

    # --- taking

    def take(self, holder: object | None) -> PulledMessage | None:
        while (message := self.ready.take()) is not None:
            if id(message) in self._entered:
                continue  # somebody has it in a block, which was entered after it was put back, and says how it ends
            if message.sys_flag & SysFlag.COMPRESSED and not self._unpacked(message):
                continue
            message.properties[Property.CONSUME_START_TIME] = str(self._clock.now_ms())
            message.taken(holder, self._watch.begin(message))
            return message
        return None

    def _unpacked(self, message: PulledMessage) -> bool:
        """What can't be unpacked goes back to the broker, and in the end to the dead letters."""
        try:
            unpack_body(message)
        except CosmodromeError as error:
            log.warning("body not unpacked: %s error=%s", described(self._watch.group, [message]), quoted(str(error)))
            note_failure([message], reason_of(error))
            self._run(self.refuse(message, BROKER_DECIDES_DELAY))
            return False
        return True

    def take_some(self, limit: int, holder: object) -> list[PulledMessage]:
        some: list[PulledMessage] = []
        while len(some) < limit and (message := self.take(holder)) is not None:
            some.append(message)
        return some

    async def wait(self) -> bool:
        """Until there may be something to take; False once it is stopped."""
        if self.stopped:
            self._returned.set()
            return False
        self._arrived.clear()
        await self._arrived.wait()
        return True

    async def wait_ms(self, timeout_ms: int) -> None:
        self._arrived.clear()
        await sleep_unless(self._arrived, self._clock, timeout_ms)

    def resume(self) -> None:
        """There may be something to take."""
        self._arrived.set()

    # --- coming back

    def entered(self, message: PulledMessage) -> None:
        self._entered[id(message)] = message, whose()

    def left(self, message: PulledMessage) -> None:
        self._entered.pop(id(message), None)
        self._returned.set()

    def put_back(self, message: PulledMessage) -> None:
        self._returned.set()
        if message.open and not self.stopped:
            self.ready.put_back(message)
            self._arrived.set()

    async def refuse(self, message: PulledMessage, delay_level: int) -> None:
        if not message.open:
            return
        log.info(
            "message redelivery requested: %s next=%s reason=%s",
            described(self._watch.group, [message]),
            next_delay(message, delay_level),
            quoted(reason_noted(message)),
        )
        if await self._send_back(message, delay_level):
            message.ack()  # it is the broker's again
        elif message.open and not self.stopped:
            ids = described(self._watch.group, [message])
            log.warning("message kept, given out here again: %s next=%s", ids, duration(LOCAL_RETRY_MS))
            self._run(self._retry(message))

    async def _retry(self, message: PulledMessage) -> None:
        await self._clock.sleep(LOCAL_RETRY_MS)
        message.reconsume_times += 1
        self.put_back(message)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- streams and their end

    def messages(self, *, auto_ack: bool) -> MessageStream:
        return self._followed(MessageStream(self, auto_ack))

    def batches(self, size: int) -> BatchStream:
        return self._followed(BatchStream(self, size))

    def _followed(self, stream: S) -> S:
        self._streams.add(stream)
        return stream

    def stop(self) -> None:
        """Give out nothing more; streams end when they are asked for the next."""
        self.stopped = True
        self.ready.clear()
        self._arrived.set()

    async def drained(self, timeout_ms: int, *, but_for: object | None) -> None:
        """Return when everyone is done with what he took, or after `timeout_ms`; whoever waits for this is not
        waited for."""
        deadline_ms = self._clock.steady_ms() + timeout_ms
        while busy := self._busy(but_for):
            left_ms = deadline_ms - self._clock.steady_ms()
            if left_ms <= 0:
                log.warning("%d messages were not done in %d ms; they will come again", busy, timeout_ms)
                break
            self._returned.clear()
            await sleep_unless(self._returned, self._clock, left_ms)
        await cancelled(self._tasks)

    def _busy(self, but_for: object | None) -> int:
        in_loops = sum(len(stream.in_hand) for stream in self._streams if stream.owner != but_for)
        in_blocks = sum(message.open for message, owner in self._entered.values() if owner != but_for)
        return in_loops + in_blocks


class _Stream(ABC):
    """What one `async for` goes over. Asking for more acknowledges what came last; a stream that is dropped, as by a
    `break` or an exception, puts back what was not acknowledged."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._me = object()  # not the stream itself: it must be gone as soon as its loop has dropped it
        self.owner = whose()

    def __aiter__(self) -> Self:
        """A loop that goes on where another was left gets first what that one did not acknowledge."""
        self.close()
        return self

    @property
    def in_hand(self) -> list[PulledMessage]:
        """Given out here, and neither acknowledged nor acknowledging themselves."""
        return [message for message in self._given() if message.holder is self._me and message.open]

    @abstractmethod
    def _given(self) -> Sequence[PulledMessage]:
        """What was given out last."""

    def close(self) -> None:
        """Put back what was not acknowledged."""
        for message in reversed(self.in_hand):
            message.holder = None
            message.unwatch(GivenBack("its loop ended before it was acknowledged"))
            self._feed.put_back(message)

    def __del__(self) -> None:
        self.close()


class MessageStream(_Stream):
    """One message at a time. Without `auto_ack`, a message is acknowledged only by itself."""

    def __init__(self, feed: Feed, auto_ack: bool) -> None:
        super().__init__(feed)
        self._holder = self._me if auto_ack else None
        self._last: PulledMessage | None = None

    async def __anext__(self) -> PulledMessage:
        last = self._last
        if last is not None:
            self._last = None
            if last.holder is self._me:
                last.ack()
        while (message := self._feed.take(self._holder)) is None:
            if not await self._feed.wait():
                raise StopAsyncIteration
        self._last = message
        return message

    def _given(self) -> Sequence[PulledMessage]:
        return () if self._last is None else (self._last,)


class BatchStream(_Stream):
    """Lists of up to `size` messages."""

    def __init__(self, feed: Feed, size: int) -> None:
        super().__init__(feed)
        self._size = size
        self._last: list[PulledMessage] = []

    async def __anext__(self) -> list[PulledMessage]:
        last, self._last = self._last, []
        for message in last:
            if message.holder is self._me:
                message.ack()
        while not (messages := self._feed.take_some(self._size, self._me)):
            if not await self._feed.wait():
                raise StopAsyncIteration
        self._last = messages
        return list(messages)

    def _given(self) -> Sequence[PulledMessage]:
        return self._last
