"""Sending messages."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from cosmodrome.client import outgoing
from cosmodrome.client.instance import Instance
from cosmodrome.client.lifecycle import Startable
from cosmodrome.client.routes import NEW_TOPIC_QUEUES, TopicRoute
from cosmodrome.client.tracing import Tracer
from cosmodrome.clock import Clock, SystemClock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import KIB, ClientConfig
from cosmodrome.errors import (
    BrokerError,
    CallTimeout,
    ConnectionFailed,
    CosmodromeError,
    InvalidMessage,
    ProtocolError,
    RouteNotFound,
    SendFailed,
)
from cosmodrome.model import (
    AUTO_CREATE_TOPIC,
    Message,
    MessageQueue,
    Property,
    SendResult,
    SendStatus,
    check_group,
)
from cosmodrome.wire import properties as properties_string
from cosmodrome.wire.bodies import HeartbeatData
from cosmodrome.wire.command import ONEWAY_BIT, Command
from cosmodrome.wire.ids import UniqueIds
from cosmodrome.wire.recall_handle import RecallHandle
from cosmodrome.wire.requests import RecallMessage, RecallReply, SendMessage, SendReply
from cosmodrome.wire.trace import Pub

log = logging.getLogger(__name__)

SEND_TIMEOUT_MS = 3_000
MAX_TRIES = 3
TRACE_GROUP_PREFIX = "_INNER_TRACE_PRODUCER-"
# Before a further try at the broker that just failed, when there is no other.
SAME_BROKER_PAUSE_MS = 100
# Compressing this much takes a millisecond and more, so it is done beside the event loop.
COMPRESS_ASIDE_FROM_BYTES = 64 * KIB

_STATUS: Final[dict[int, SendStatus]] = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
}
# Refusals that another broker, or this one a moment later, may not repeat.
_RETRIED_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)
_SEND = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)

# Chooses a queue for a message: (the topic's queues, the message, the `arg` given to send) → one of the queues.
Selector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]


class _Outgoing(NamedTuple):
    """A message, or a batch, ready to be sent to any queue of its topic."""

    topic: str
    unique_id: str
    body: bytes
    sys_flag: int
    flag: int
    properties: str
    is_batch: bool


class Producer(Startable):
    """Sends messages, each to a queue of its topic in turn.

        async with Producer("orders-app", "127.0.0.1:9876") as producer:
            result = await producer.send(Message("orders", b"..."))

    `send` returns once a broker has stored the message as safely as that broker promises. A failed try is repeated on
    another broker, at most `max_tries` in all, within the timeout. If a broker stored the message and only its answer
    was lost, that makes a duplicate with the same `msg_id`. A message for a chosen queue, or one-way, is tried once.
    With `trace`, every try that is answered or fails is written down for `cosmodrome trace`.
    """

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        max_tries: int = MAX_TRIES,
        trace: bool = False,
        config: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        config = config or ClientConfig()
        self._clock = clock or SystemClock()
        if max_tries < 1:
            raise ValueError(f"max_tries is {max_tries}; it must be at least 1")
        self._group = check_group(group)
        self._max_tries = max_tries
        self._instance = Instance(
            dataclasses.replace(config, namesrv=namesrv or config.namesrv),
            self._clock,
            self._announce,
            borrow_routes=True,
        )
        self._unique_ids = UniqueIds(socket.inet_aton(self._instance.ip))
        self._tracer = tracer_of(self._group, "PRODUCE", namesrv, config, self._clock) if trace else None
        self._turns: dict[str, int] = {}  # topic → how many queues were chosen; its start is random

    @property
    def client_id(self) -> str:
        return self._instance.client_id

    async def _start(self) -> None:
        self._instance.start()
        if self._tracer is not None:
            await self._tracer.start()

    async def _stop(self) -> None:
        if self._tracer is not None:
            await self._tracer.stop()
        await self._instance.stop(producer_group=self._group)

    def _announce(self, client_id: str) -> HeartbeatData:
        return HeartbeatData(client_id, producers=(self._group,))

    # --- sending

    async def send(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        selector: Selector | None = None,
        arg: Any = None,
        timeout_ms: float = SEND_TIMEOUT_MS,
    ) -> SendResult:
        """Store the message on a broker: in `queue`, in the one `selector` chooses, or in any.

        Raises InvalidMessage before anything is sent; SendFailed when every try failed; for a chosen queue the one
        failure itself: BrokerError, ConnectionFailed or CallTimeout.
        """
        deadline = _now() + timeout_ms / 1000
        self._require_running()
        if queue is not None and selector is not None:
            raise ValueError("give a queue or a selector, not both")
        ready = await self._ready(message)
        route = await self._route(message.topic, deadline)
        if selector is not None:
            queue = selector(route.publish_queues, message, arg)
        if queue is not None:
            return await self._send_to(queue, ready, deadline - _now())
        return await self._send_anywhere(ready, deadline)

    async def send_oneway(self, message: Message, queue: MessageQueue | None = None) -> None:
        """Hand the message to a broker without waiting for its answer: fast, and nobody knows whether it arrived."""
        self._require_running()
        ready = await self._ready(message)
        route = await self._route(message.topic, _now() + SEND_TIMEOUT_MS / 1000)
        queue = queue or self._next_queue(message.topic, route.publish_queues)
        command = self._command(ready, queue)
        command.flag |= ONEWAY_BIT
        await self._instance.caller.oneway(self._instance.master(queue.broker_name), command)

    async def send_batch(
        self,
        messages: Sequence[Message],
        queue: MessageQueue | None = None,
        *,
        timeout_ms: float = SEND_TIMEOUT_MS,
    ) -> SendResult:
        """Store messages of one topic in one queue, one behind the other, all or none.

        Ids in the result are comma-joined, in the order of the messages; the queue offset is the first message's.
        """
        deadline = _now() + timeout_ms / 1000
        self._require_running()
        ready = self._ready_batch(messages)
        await self._route(ready.topic, deadline)
        if queue is not None:
            return await self._send_to(queue, ready, deadline - _now())
        return await self._send_anywhere(ready, deadline)

    async def recall(self, topic: str, handle: str, *, timeout_ms: float = SEND_TIMEOUT_MS) -> str:
        """Take back a message that waits for its delivery time, by its SendResult's `recall_handle`; returns its id.

        BrokerError when the broker does not allow it (`recallMessageEnable`) or the message's time has come.
        """
        self._require_running()
        deadline = _now() + timeout_ms / 1000
        try:
            broker_name = RecallHandle.decode(handle).broker_name
        except ProtocolError as error:
            raise InvalidMessage(f"{handle!r} is not a recall handle") from error
        await self._route(topic, deadline)
        address = self._instance.master(broker_name)
        request = RecallMessage(topic, handle, self._group, broker_name)
        left_ms = max(deadline - _now(), 0) * 1000
        reply = await self._instance.caller.call(address, Command.request(RequestCode.RECALL_MESSAGE, request), left_ms)
        if reply.code != ResponseCode.SUCCESS:
            raise BrokerError(reply.code, reply.remark or "", address)
        return RecallReply.decode(reply).msg_id

    async def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues `send` may choose from."""
        self._require_running()
        outgoing.check_sendable_topic(topic)
        return (await self._route(topic, _now() + SEND_TIMEOUT_MS / 1000)).publish_queues

    # --- getting ready

    async def _ready(self, message: Message) -> _Outgoing:
        if message.topic not in self._turns:  # a topic once used has passed
            outgoing.check_sendable_topic(message.topic)
        body = message.body
        outgoing.check_body(body)
        unique_id = self._unique_ids.next()
        properties = outgoing.encode_properties(message, unique_id)
        if len(body) < COMPRESS_ASIDE_FROM_BYTES:
            body, sys_flag = outgoing.packed_body(body)
        else:
            body, sys_flag = await asyncio.to_thread(outgoing.packed_body, body)
        return _Outgoing(message.topic, unique_id, body, sys_flag, message.flag, properties, False)

    def _ready_batch(self, messages: Sequence[Message]) -> _Outgoing:
        outgoing.check_batch(messages)
        first = messages[0]
        outgoing.check_sendable_topic(first.topic)
        unique_ids = [self._unique_ids.next() for _ in messages]
        body = outgoing.encode_batch_body(messages, unique_ids)
        properties = outgoing.batch_properties(first.wait_store_ok)
        return _Outgoing(first.topic, ",".join(unique_ids), body, 0, 0, properties, True)

    async def _route(self, topic: str, deadline: float) -> TopicRoute:
        return self._instance.routes.find(topic) or await self._ask_route(topic, deadline)

    async def _ask_route(self, topic: str, deadline: float) -> TopicRoute:
        seconds = deadline - _now()
        try:
            async with asyncio.timeout(seconds):
                return await self._instance.routes.topic(topic)
        except RouteNotFound:
            self._instance.routes.forget(topic)  # a mistyped name is not asked for for ever
            raise
        except TimeoutError:
            raise CallTimeout("every name server", seconds * 1000) from None

    def _next_queue(self, topic: str, queues: Sequence[MessageQueue], avoid: str | None = None) -> MessageQueue:
        """The next queue in turn, skipping those of the broker to avoid unless there are no others."""
        if not queues:
            raise SendFailed(f"no queue of topic {topic} may be written to")
        turn = self._turns.get(topic)
        if turn is None:
            turn = random.randrange(len(queues))
        ahead = range(turn, turn + len(queues))
        chosen = turn
        if avoid is not None:
            chosen = next((i for i in ahead if queues[i % len(queues)].broker_name != avoid), turn)
        self._turns[topic] = chosen + 1
        return queues[chosen % len(queues)]

    # --- trying

    async def _send_anywhere(self, ready: _Outgoing, deadline: float) -> SendResult:
        failures: list[Exception] = []
        failed_broker: str | None = None
        for tries_left in reversed(range(self._max_tries)):
            route = await self._route(ready.topic, deadline)  # a failed try may have brought a new one
            queue = self._next_queue(ready.topic, route.publish_queues, failed_broker)
            if queue.broker_name == failed_broker:
                await self._clock.sleep(SAME_BROKER_PAUSE_MS)
            seconds = deadline - _now()
            if seconds <= 0:
                break
            if tries_left and len(route.route.brokers) > 1:
                seconds /= 2  # a broker that does not answer must leave time for another
            try:
                return await self._send_to(queue, ready, seconds)
            except BrokerError as refusal:
                if refusal.code not in _RETRIED_CODES:
                    raise
                failures.append(refusal)
            except (ConnectionFailed, CallTimeout) as error:
                failures.append(error)
            failed_broker = queue.broker_name
            self._instance.routes.doubt()
        tries = "; ".join(map(str, failures)) or "no time was left for a single try"
        raise SendFailed(f"no broker took the message for {ready.topic}: {tries}")

    async def _send_to(self, queue: MessageQueue, ready: _Outgoing, seconds: float) -> SendResult:
        address = self._instance.master(queue.broker_name)
        began_ms = self._clock.now_ms()
        try:
            status, stored = await self._stored(address, self._command(ready, queue), seconds)
        except CosmodromeError:
            self._trace(ready, address, began_ms, None)
            raise
        self._trace(ready, address, began_ms, stored)
        return SendResult(
            status,
            ready.unique_id,
            stored.msg_id,
            MessageQueue(ready.topic, queue.broker_name, stored.queue_id),
            stored.queue_offset,
            stored.transaction_id or "",
            stored.recall_handle or "",
        )

    async def _stored(self, address: str, command: Command, seconds: float) -> tuple[SendStatus, SendReply]:
        timeout_ms = max(seconds, 0) * 1000
        try:
            async with asyncio.timeout(seconds):  # connecting counts too
                reply = await self._instance.caller.call(address, command, timeout_ms)
        except TimeoutError:
            raise CallTimeout(address, timeout_ms) from None
        status = _STATUS.get(reply.code)
        if status is None:
            raise BrokerError(reply.code, reply.remark or "", address)
        return status, SendReply.decode(reply)

    def _trace(self, ready: _Outgoing, address: str, began_ms: int, stored: SendReply | None) -> None:
        """Write down how a try ended; `stored` is None if it failed. A broker may ask not to."""
        if self._tracer is None or (stored is not None and stored.trace_on is False):
            return
        properties = properties_string.decode(ready.properties)
        keys = properties.get(Property.KEYS, "")
        record = Pub(
            began_ms,
            (stored and stored.msg_region) or "",
            self._group,
            ready.topic,
            ready.unique_id,
            properties.get(Property.TAGS, ""),
            keys,
            address,
            len(ready.body),
            self._clock.now_ms() - began_ms,
            outgoing.traced_type(properties),
            stored.msg_id if stored is not None else "",
            success=stored is not None,
        )
        self._tracer.note(record, ready.unique_id, keys)

    def _command(self, ready: _Outgoing, queue: MessageQueue) -> Command:
        header = SendMessage(
            self._group,
            ready.topic,
            AUTO_CREATE_TOPIC,
            NEW_TOPIC_QUEUES,
            queue.queue_id,
            ready.sys_flag,
            self._clock.now_ms(),
            ready.flag,
            ready.properties,
            0,
            batch=ready.is_batch,
            broker_name=queue.broker_name,
        )
        return Command(_SEND_BATCH if ready.is_batch else _SEND, header.lettered_fields(), ready.body)


def tracer_of(group: str, role: str, namesrv: str, config: ClientConfig | None, clock: Clock) -> Tracer:
    """What writes down the traces of a group, with a producer of its own; Java's gives it such a name, too."""
    sender = Producer(f"{TRACE_GROUP_PREFIX}{group}-{role}", namesrv, config=config, clock=clock)
    return Tracer(sender, group, clock)


def _now() -> float:
    return asyncio.get_running_loop().time()
