"""Sending messages."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

from cosmodrome.client import outgoing
from cosmodrome.client.administration import Administration
from cosmodrome.client.async_sends import AsyncSends, Callback
from cosmodrome.client.batches import split_batches
from cosmodrome.client.hooks import RpcHook, SendMode
from cosmodrome.client.instance import DEFAULT_INSTANCE, Instance
from cosmodrome.client.lines import Lines, Place
from cosmodrome.client.namespaces import unwrap_queue, wrap_group, wrap_queue, wrap_topic
from cosmodrome.client.outgoing import Outgoing
from cosmodrome.client.producer_options import ProducerOptions
from cosmodrome.client.queue_choice import Selector, select_by_hash
from cosmodrome.client.routes import NewTopics, TopicRoute, no_queue_to_write
from cosmodrome.client.sending import Sending, in_turn, now
from cosmodrome.client.settings import at_least, client_config, each_is
from cosmodrome.client.threads import DaemonThreads
from cosmodrome.client.tracing import Tracer
from cosmodrome.clock import Clock, SystemClock
from cosmodrome.codes import RequestCode
from cosmodrome.config import KIB, ClientConfig
from cosmodrome.errors import ClientError, InvalidMessage, ProtocolError, SendFailed
from cosmodrome.model import Message, MessageQueue, Property, SendResult, check_topic
from cosmodrome.wire.bodies import HeartbeatData
from cosmodrome.wire.command import Command
from cosmodrome.wire.ids import UniqueIds
from cosmodrome.wire.recall_handle import RecallHandle
from cosmodrome.wire.requests import RecallMessage, RecallReply

MAX_TRIES = 3
TRACE_GROUP_PREFIX = "_INNER_TRACE_PRODUCER-"
TRACE_INSTANCE_PREFIX = "PID_CLIENT_INNER_TRACE_PRODUCER_"
# What a producer claims to be. Those who get answers get all of their client id.
PRODUCER_ROLE = "producer group"
ANSWERS_ROLE = "answers to requests"
# Compressing this much takes a millisecond and more, so it is done beside the event loop.
COMPRESS_ASIDE_FROM_BYTES = 64 * KIB
PACKING_THREADS = os.cpu_count() or 1

T = TypeVar("T")


class Producer(Administration):
    """Sends messages, each to a queue of its topic in turn.

        async with Producer("orders-app", "127.0.0.1:9876") as producer:
            result = await producer.send(Message("orders", b"..."))

    `send` returns once a broker has stored the message as safely as that broker promises. A failed try is repeated on
    another broker, at most `max_tries` in all, within `timeout_ms` (`ProducerOptions.send_timeout_ms`). If a broker
    stored the message and only its answer was lost, that makes a duplicate with the same `msg_id`. A message for a
    chosen queue, one with a sharding key, and one-way, is tried once. With `trace`, every try that is answered or fails
    is written down for `cosmodrome trace`.
    """

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        max_tries: int = MAX_TRIES,
        trace: bool = False,
        options: ProducerOptions | None = None,
        rpc_hooks: Sequence[RpcHook] = (),
        config: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        config = client_config(config, namesrv)
        at_least(1, max_tries=max_tries)
        self._clock = clock or SystemClock()
        self._options = options = ProducerOptions() if options is None else options
        each_is(ProducerOptions, options=options)
        self._namespace = config.namespace
        self._plain_group = outgoing.check_producer_group(group)
        self._group = outgoing.check_producer_group(wrap_group(config.namespace, group))
        self._instance = Instance(
            config,
            self._clock,
            self._announce,
            borrow_routes=True,
            new_topics=NewTopics(options.template_topic, options.new_topic_queues),
            rpc_hooks=rpc_hooks,
        )
        self._unique_ids = UniqueIds(socket.inet_aton(self._instance.ip))
        self._tracer = tracer_of(group, "PRODUCE", namesrv, config, self._clock, rpc_hooks) if trace else None
        self._sending = Sending(
            self._group,
            self._plain_group,
            self._namespace,
            self._instance,
            self._clock,
            options,
            max_tries=max_tries,
        )
        self._async_sends = AsyncSends(options.max_async_sends, options.max_async_bytes)
        self._packing = DaemonThreads(PACKING_THREADS, "cosmodrome-packing")
        self._aside_from_bytes = max(COMPRESS_ASIDE_FROM_BYTES, options.compress_from_bytes)
        self._lines = Lines()  # for topics whose route is awaited, and for queues with a message that is not ready

    @property
    def client_id(self) -> str:
        """Under this name brokers know the client: address, process and a number, or as `ClientConfig` says."""
        return self._instance.client_id

    async def _start(self) -> None:
        self._instance.claim(f"{PRODUCER_ROLE} {self._group}", not_beside=ANSWERS_ROLE)
        self._instance.start()
        if self._tracer is not None:
            await self._tracer.start()
        self._sending.tracer = self._tracer

    async def _stop(self) -> None:
        try:
            await self._async_sends.drain()
            if self._tracer is not None:
                await self._tracer.stop()
        finally:
            self._packing.shutdown()
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
        timeout_ms: float | None = None,
    ) -> SendResult:
        """Store the message on a broker: in `queue`, in the one `selector` or its sharding key chooses, or in any.

        Raises InvalidMessage before anything is sent; SendFailed when every try failed; for a chosen queue the one
        failure itself: BrokerError, ConnectionFailed or CallTimeout.
        """
        self._require_running()
        deadline = self._deadline(timeout_ms)
        with self._async_sends.awaited(deadline):
            return await self._send(message, queue, selector, arg, deadline, SendMode.SYNC)

    def send_async(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        selector: Selector | None = None,
        arg: Any = None,
        callback: Callback[SendResult] | None = None,
        timeout_ms: float | None = None,
    ) -> asyncio.Future[SendResult]:
        """Begin to send, and return what will be the result: await it, gather it, cancel it or ignore it.

        The message is sent as it is now, so it may be changed and sent again. `callback`, def or async def, is called
        with the result or with what was raised, which then counts as seen; not after a cancellation. Only failures of
        the network are tried again, at most `max_async_tries` in all. While `max_async_sends` messages or
        `max_async_bytes` are under way, TooManySends is raised: `await room()` first. Stopping the producer waits for
        all of them.
        """
        self._require_running()
        return self._send_later(message, queue, selector=selector, arg=arg, callback=callback, timeout_ms=timeout_ms)()

    def _send_later(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        selector: Selector | None = None,
        arg: Any = None,
        callback: Callback[SendResult] | None = None,
        timeout_ms: float | None = None,
    ) -> Callable[[], asyncio.Future[SendResult]]:
        """What begins to send the message as it is now; any thread may ask for it."""
        message = outgoing.snapshot(message)

        def begin() -> asyncio.Future[SendResult]:
            deadline = self._deadline(timeout_ms)
            return self._async_sends.start(
                lambda: self._send(message, queue, selector, arg, deadline, SendMode.ASYNC),
                outgoing.body_size(message),
                deadline,
                callback,
            )

        return begin

    async def room(self) -> None:
        """Return once `send_async` takes one more message."""
        self._require_running()
        await self._async_sends.room()

    async def _in_turn(self, begin: Callable[[], asyncio.Future[T]]) -> T:
        """For other threads, which cannot see whether there is room."""
        self._require_running()
        return await self._async_sends.in_turn(begin)

    async def send_oneway(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        selector: Selector | None = None,
        arg: Any = None,
    ) -> None:
        """Hand the message to a broker without waiting for its answer: fast, and nobody knows whether it arrived."""
        self._require_running()
        deadline = self._deadline()
        with self._async_sends.awaited(deadline):
            ready = self._ready(message)
            chosen, place = await self._choose(ready, queue, selector, arg, deadline)
            with place or nullcontext():
                if ready.is_unpacked:
                    ready = await self._packed_aside(ready, deadline)
                if chosen is None:
                    await self._sending.oneway_anywhere(ready, deadline)
                else:
                    await self._sending.oneway(chosen, ready._replace(place=place), deadline - now())

    async def send_batch(
        self,
        messages: Sequence[Message],
        queue: MessageQueue | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> SendResult:
        """Store messages of one topic in one queue, one behind the other, all or none.

        Ids in the result are comma-joined, in the order of the messages; the queue offset is the first message's.
        """
        self._require_running()
        deadline = self._deadline(timeout_ms)
        ready = self._ready_batch(messages)
        with self._async_sends.awaited(deadline):
            return await self._send_chosen(ready, queue, None, None, deadline, SendMode.SYNC)

    async def send_batches(
        self,
        messages: Iterable[Message],
        queue: MessageQueue | None = None,
        *,
        max_bytes: int | None = None,
        timeout_ms: float | None = None,
    ) -> AsyncIterator[SendResult]:
        """Send any number of messages in as few batches as `split_batches` makes, with a result for each.

        The messages are drawn as the batches go out, one batch after the other. When one fails, the results before it
        say what is stored. `timeout_ms` is for each batch.
        """
        for batch in split_batches(messages, max_bytes or self._options.max_message_bytes):
            yield await self.send_batch(batch, queue, timeout_ms=timeout_ms)

    async def recall(self, topic: str, handle: str, *, timeout_ms: float | None = None) -> str:
        """Take back a message that waits for its delivery time, by its SendResult's `recall_handle`; returns its id.

        BrokerError when the broker does not allow it (`recallMessageEnable`) or the message's time has come.
        """
        self._require_running()
        deadline = self._deadline(timeout_ms)
        try:
            broker_name = RecallHandle.decode(handle).broker_name
        except ProtocolError as error:
            raise InvalidMessage(f"{handle!r} is not a recall handle", "handle") from error
        wrapped = wrap_topic(self._namespace, topic)
        with self._async_sends.awaited(deadline):
            await self._sending.route(wrapped, deadline)
            address = self._instance.master(broker_name)
            request = RecallMessage(wrapped, handle, self._group, broker_name)
            left_ms = max((deadline - now()) * 1000, 1)
            reply = await self._instance.ask(address, Command.request(RequestCode.RECALL_MESSAGE, request), left_ms)
        return RecallReply.decode(reply).msg_id

    async def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues `send` may choose from."""
        self._require_running()
        wrapped = self._sendable_topic(topic)
        return self._shown_queues(await self._sending.route(wrapped, self._deadline()))

    def _timeout_ms(self, given_ms: float | None) -> float:
        return self._options.send_timeout_ms if given_ms is None else given_ms

    def _deadline(self, timeout_ms: float | None = None) -> float:
        return now() + self._timeout_ms(timeout_ms) / 1000

    async def _send(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        arg: Any,
        deadline: float,
        mode: SendMode,
    ) -> SendResult:
        ready = self._ready(message)
        if queue is None and selector is None and not message.sharding_key:
            if ready.is_unpacked:
                ready = await self._packed_aside(ready, deadline)
            return await self._sending.anywhere(ready, deadline, mode)
        return await self._send_chosen(ready, queue, selector, arg, deadline, mode)

    async def _send_chosen(
        self,
        ready: Outgoing,
        queue: MessageQueue | None,
        selector: Selector | None,
        arg: Any,
        deadline: float,
        mode: SendMode,
    ) -> SendResult:
        chosen, place = await self._choose(ready, queue, selector, arg, deadline)
        if chosen is not None and place is None:
            return await self._sending.to(chosen, ready, deadline - now(), mode)
        with place or nullcontext():
            if ready.is_unpacked:
                ready = await self._packed_aside(ready, deadline)
            if chosen is None:
                return await self._sending.anywhere(ready, deadline, mode)
            return await self._sending.to(chosen, ready._replace(place=place), deadline - now(), mode)

    async def _choose(
        self, ready: Outgoing, queue: MessageQueue | None, selector: Selector | None, arg: Any, deadline: float
    ) -> tuple[MessageQueue | None, Place | None]:
        """The one queue that will do, None if any will, and a place in its line.

        Messages of one queue reach its broker's connection in the order in which they come here. So whatever takes time
        is done in a line: in the topic's, asking for its route; in the queue's, compressing and connecting. A message
        that needs neither and finds no line gets no place: it has to be sent at once.
        """
        message, lines = ready.messages[0], self._lines
        route = self._sending.find_route(ready.topic)
        if route is not None and lines.is_empty(ready.topic):
            return self._in_line(ready, self._chosen_queue(message, route, queue, selector, arg))
        with lines.enter(ready.topic) as in_topic:
            route = await self._sending.route(ready.topic, deadline)
            await in_turn(in_topic, message.topic, deadline)
            return self._in_line(ready, self._chosen_queue(message, route, queue, selector, arg))

    def _in_line(self, ready: Outgoing, chosen: MessageQueue | None) -> tuple[MessageQueue | None, Place | None]:
        if chosen is None:
            return None, None
        is_ready = not ready.is_unpacked and not ready.is_request and self._sending.is_reached(chosen)
        return chosen, None if is_ready and self._lines.is_empty(chosen) else self._lines.enter(chosen)

    # --- choosing a queue

    def _chosen_queue(
        self,
        message: Message,
        route: TopicRoute,
        queue: MessageQueue | None,
        selector: Selector | None,
        arg: Any,
    ) -> MessageQueue | None:
        """The one queue that will do, as brokers know it; None if any will."""
        if queue is not None:
            if selector is not None:
                raise InvalidMessage("give a queue or a selector, not both", "queue", topic=message.topic)
            if not isinstance(queue, MessageQueue):
                reason = f"the queue is {queue!r}; it must be one of publish_queues({message.topic!r})"
                raise InvalidMessage(reason, "queue", topic=message.topic)
            if queue.topic != message.topic:
                reason = f"the message is for topic {message.topic}, the queue is one of {queue.topic}"
                raise InvalidMessage(reason, "queue", topic=message.topic)
            return wrap_queue(self._namespace, queue)
        if selector is None:
            if not message.sharding_key:
                return None
            selector, arg = select_by_hash, message.sharding_key
        queues = self._shown_queues(route)
        if not queues:
            self._instance.routes.doubt()
            raise no_queue_to_write(message.topic, route.route)
        chosen = selector(queues, message, arg)
        if not isinstance(chosen, MessageQueue) or chosen.topic != message.topic:
            raise ClientError(f"the selector chose {chosen!r}; it must return one of the queues")
        return wrap_queue(self._namespace, chosen)

    def _shown_queues(self, route: TopicRoute) -> tuple[MessageQueue, ...]:
        if not self._namespace:
            return route.publish_queues
        return tuple(unwrap_queue(self._namespace, queue) for queue in route.publish_queues)

    # --- getting ready

    def _ready(self, message: Message) -> Outgoing:
        """The message as it goes out, checked; a large body still has to be compressed, beside the event loop."""
        try:
            return self._ready_unless_wrong(message)
        except InvalidMessage as error:
            error.topic = error.topic or getattr(message, "topic", "")
            raise

    def _ready_unless_wrong(self, message: Message) -> Outgoing:
        is_large = outgoing.body_size(message) >= self._aside_from_bytes
        if is_large:
            outgoing.check_body(message.body, self._options.max_message_bytes)
        body, sys_flag = (message.body, 0) if is_large else self._pack(message.body)
        topic = self._sendable_topic(message.topic)
        unique_id = self._unique_ids.next()
        properties = outgoing.encode_properties(message, unique_id)
        if self._namespace:
            properties = f"{properties}{Property.INSTANCE_ID}\x01{self._namespace}\x02"
        return Outgoing(
            topic, unique_id, body, sys_flag, message.flag, properties, False, (message,), is_unpacked=is_large
        )

    async def _packed_aside(self, ready: Outgoing, deadline: float) -> Outgoing:
        body, sys_flag = await self._pack_aside(ready.body, ready.messages[0].topic, deadline)
        return ready._replace(body=body, sys_flag=ready.sys_flag | sys_flag, is_unpacked=False)

    async def _pack_aside(self, body: bytes, topic: str, deadline: float) -> tuple[bytes, int]:
        """Do as `_pack` in a thread: a large body would hold up the loop."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._packing.run(self._pack, body)
        except TimeoutError:
            raise SendFailed(f"the message for {topic} could not be compressed in time") from None

    def _pack(self, body: bytes) -> tuple[bytes, int]:
        options = self._options
        outgoing.check_body(body, options.max_message_bytes)
        return outgoing.packed_body(body, options.compress_from_bytes, options.compression_level, options.compression)

    def _ready_batch(self, messages: Sequence[Message]) -> Outgoing:
        try:
            return self._ready_batch_unless_wrong(messages)
        except InvalidMessage as error:
            if isinstance(messages, Sequence) and messages:
                error.topic = error.topic or getattr(messages[0], "topic", "")
            raise

    def _ready_batch_unless_wrong(self, messages: Sequence[Message]) -> Outgoing:
        outgoing.check_batch(messages, self._options.max_message_bytes)
        first = messages[0]
        topic = self._sendable_topic(first.topic)
        unique_ids = [self._unique_ids.next() for _ in messages]
        body = outgoing.encode_batch_body(messages, unique_ids, self._options.max_message_bytes)
        properties = outgoing.batch_properties(first.wait_store_ok)
        return Outgoing(topic, ",".join(unique_ids), body, 0, 0, properties, True, messages)

    def _sendable_topic(self, topic: str) -> str:
        """The topic as brokers know it, checked; one that was used before has passed."""
        wrapped = wrap_topic(self._namespace, topic) if self._namespace and isinstance(topic, str) else topic
        if not isinstance(wrapped, str) or wrapped not in self._sending.turns:
            outgoing.check_sendable_topic(wrapped)
        return wrapped


def tracer_of(
    group: str,
    role: str,
    namesrv: str,
    config: ClientConfig | None,
    clock: Clock,
    rpc_hooks: Sequence[RpcHook] = (),
) -> Tracer:
    """What writes down the traces of a group, with a producer and a client id of its own, named as Java names them."""
    config = config or ClientConfig()
    topic = check_topic(config.trace_topic)
    if config.instance_name != DEFAULT_INSTANCE:
        config = dataclasses.replace(config, instance_name=f"{TRACE_INSTANCE_PREFIX}{config.instance_name}")
    trace_group = f"{TRACE_GROUP_PREFIX}{group}-{role}"
    sender = Producer(trace_group, namesrv, rpc_hooks=rpc_hooks, config=config, clock=clock)
    return Tracer(sender, group, clock, topic)
