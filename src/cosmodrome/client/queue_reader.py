"""Reading a topic from outside any group: `tail` for queues."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Self

from cosmodrome.client.hooks import RpcHook
from cosmodrome.client.incoming import Isolation, received_messages, unpacked
from cosmodrome.client.instance import Instance
from cosmodrome.client.lifecycle import Startable
from cosmodrome.client.namespaces import unwrap_message, wrap_topic
from cosmodrome.client.offsets import max_offset, min_offset, offset_at
from cosmodrome.client.pulling import (
    PULL_MAX_BYTES,
    PULL_MAX_MESSAGES,
    PULL_RETRY_MS,
    PULL_SUSPEND_MS,
    PullAnswer,
    Puller,
)
from cosmodrome.client.settings import client_config
from cosmodrome.client.subscribing import Expression, subscription
from cosmodrome.clock import Clock, SystemClock
from cosmodrome.codes import ResponseCode
from cosmodrome.config import ClientConfig
from cosmodrome.errors import CosmodromeError
from cosmodrome.model import ALL_TAGS, READER_GROUP, MessageQueue, ReceivedMessage, Subscription, check_topic
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import PullFlag, PullMessage, PullReply

log = logging.getLogger(__name__)

MAX_READ_AHEAD = 1_000
# How far a broker's clock may be behind ours before the first messages of a new queue are missed.
CLOCK_SLACK_MS = 10_000


class TopicReader(Startable):
    """Every message of every queue of a topic, each queue in its order, for as long as one cares to listen.

        async with TopicReader("orders", "paid", namesrv="127.0.0.1:9876", from_earliest=True) as reader:
            async for message in reader:
                ...

    Reading takes nothing away from anybody: no group is joined and no offset stored. Queues and brokers that appear
    later are read too. Without `from_earliest`, it reads what is stored from its start on, or from `from_ms` on.
    """

    def __init__(
        self,
        topic: str,
        expression: Expression = ALL_TAGS,
        *,
        namesrv: str = "",
        from_earliest: bool = False,
        from_ms: int | None = None,
        rpc_hooks: Sequence[RpcHook] = (),
        config: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        config = client_config(config, namesrv)
        self._namespace = config.namespace
        self._clock = clock or SystemClock()
        self._topic = wrap_topic(config.namespace, check_topic(topic))
        self._from_earliest = from_earliest
        self._from_ms = from_ms
        self._started_ms = self._clock.now_ms()
        self._wanted = subscription(self._topic, expression, self._started_ms)
        self._messages: asyncio.Queue[ReceivedMessage | None] = asyncio.Queue(MAX_READ_AHEAD)
        self._reading: set[MessageQueue] = set()
        self._following = False  # until the queues that are there at the start have their offsets
        self._instance = Instance(
            config,
            self._clock,
            None,
            on_routes_changed=self._read_new_queues,
            rpc_hooks=rpc_hooks,
        )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        self._require_own_process()
        message = await self._messages.get() if self.running else None
        if message is None:
            self._end_loops()  # another one may wait
            raise StopAsyncIteration
        unwrap_message(self._namespace, message)
        return message

    async def _start(self) -> None:
        """The offsets are fixed here: nothing that is sent after this is missed."""
        self._instance.start()
        try:
            queues = (await self._instance.routes.topic(self._topic)).subscribe_queues
        except CosmodromeError as error:  # no such topic yet, or nobody to ask; that may change
            if error.is_lasting:
                raise
            log.warning("waiting for %s: %s", self._topic, error)
            queues = ()
        await asyncio.gather(*map(self._begin_with, queues))
        self._following = True
        self._read_new_queues()

    async def _stop(self) -> None:
        try:
            await self._instance.stop()
        finally:
            self._end_loops()

    def _end_loops(self) -> None:
        with contextlib.suppress(asyncio.QueueFull):  # then nobody is waiting for a message
            self._messages.put_nowait(None)

    async def _begin_with(self, queue: MessageQueue) -> None:
        """A queue that is there at the start; if its broker is away, it counts as one that comes later."""
        try:
            offset = await self._offset_now(queue)
        except CosmodromeError as error:
            if error.is_lasting:
                raise
            log.warning("waiting for %s: %s", queue, error)
            return
        self._read(queue, self._puller(queue, offset).run())

    def _read_new_queues(self) -> None:
        route = self._instance.routes.find(self._topic)
        if not self._following or route is None:
            return
        for queue in route.subscribe_queues:
            if queue not in self._reading:
                self._read(queue, self._join(queue))

    def _read(self, queue: MessageQueue, reading: Coroutine[Any, Any, None]) -> None:
        self._reading.add(queue)
        self._instance.run(reading, f"read {queue}")

    async def _join(self, queue: MessageQueue) -> None:
        while True:
            try:
                offset = await self._offset_then(queue)
                break
            except CosmodromeError as error:
                log.warning("waiting for %s: %s", queue, error)
                await self._clock.sleep(PULL_RETRY_MS)
        await self._puller(queue, offset).run()

    def _puller(self, queue: MessageQueue, offset: int) -> _ReadQueue:
        return _ReadQueue(queue, offset, self._wanted, self._messages, self._instance, self._clock)

    async def _offset_now(self, queue: MessageQueue) -> int:
        if self._from_ms is not None:
            return await offset_at(self._instance, queue, self._from_ms, READER_GROUP)
        edge = min_offset if self._from_earliest else max_offset
        return max(await edge(self._instance, queue), 0)  # Apache says -1 of a queue it does not know

    async def _offset_then(self, queue: MessageQueue) -> int:
        """Return where this queue stood when the reader started."""
        if self._from_earliest or self._from_ms is not None:
            return await self._offset_now(queue)
        return await offset_at(self._instance, queue, self._started_ms - CLOCK_SLACK_MS, READER_GROUP)


class _ReadQueue(Puller):
    """One queue, with the subscription sent along in every pull."""

    def __init__(
        self,
        queue: MessageQueue,
        offset: int,
        wanted: Subscription,
        messages: asyncio.Queue[ReceivedMessage | None],
        instance: Instance,
        clock: Clock,
    ) -> None:
        super().__init__(queue, instance, clock)
        self._offset = offset
        self._wanted = wanted
        self._messages = messages
        self._isolation = Isolation()

    @property
    def _is_full(self) -> bool:
        return False  # `_take` waits until there is room

    def _request(self, broker_id: int) -> PullMessage:
        return PullMessage(
            READER_GROUP,
            self.queue.topic,
            self.queue.queue_id,
            self._offset,
            self._isolation.count(PULL_MAX_MESSAGES, self._offset),
            PullFlag.SUSPEND | PullFlag.SUBSCRIPTION,
            0,
            PULL_SUSPEND_MS,
            subscription=self._wanted.expression,
            sub_version=self._wanted.version,
            expression_type=self._wanted.expression_type,
            max_msg_bytes=PULL_MAX_BYTES,
        )

    async def _take(self, request: PullMessage, reply: Command, offsets: PullReply) -> None:
        if reply.code == ResponseCode.SUCCESS:
            answer = PullAnswer(request, reply, offsets)
            pulled = received_messages(self.queue, self._wanted, answer)
            for message in pulled.messages:
                await self._messages.put(unpacked(message))
                self._offset = message.queue_offset + 1
            next_offset, damaged = self._isolation.settle(answer, pulled)
            if damaged is not None:
                log.error("passed over: %s", damaged)
            self._offset = max(self._offset, next_offset)
            return
        moves = reply.code == ResponseCode.PULL_OFFSET_MOVED
        # Else it goes forward, whatever a slave that lags suggests.
        self._offset = offsets.next_begin_offset if moves else max(self._offset, offsets.next_begin_offset)
