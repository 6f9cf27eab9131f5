"""From a message that is ready to a broker's answer: tries, deadlines, traces and hooks."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from cosmodrome.client import hooks, outgoing
from cosmodrome.client.faults import Faults
from cosmodrome.client.hooks import MessageType, SendContext, SendMode
from cosmodrome.client.instance import Instance
from cosmodrome.client.lines import Place
from cosmodrome.client.namespaces import unwrap_topic
from cosmodrome.client.outgoing import Outgoing
from cosmodrome.client.producer_options import ProducerOptions
from cosmodrome.client.queue_choice import Turns
from cosmodrome.client.routes import TopicRoute, no_queue_to_write
from cosmodrome.client.tracing import Tracer
from cosmodrome.clock import Clock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import (
    BrokerError,
    CallTimeout,
    ClientError,
    ConnectionFailed,
    CosmodromeError,
    ProtocolError,
    RouteNotFound,
    SendAttempt,
    SendFailed,
    UnknownTopic,
)
from cosmodrome.model import MessageQueue, Property, SendResult, SendStatus
from cosmodrome.wire import properties as properties_string
from cosmodrome.wire.command import ONEWAY_BIT, Command
from cosmodrome.wire.record import SysFlag
from cosmodrome.wire.requests import SendMessage, SendReply
from cosmodrome.wire.trace import Pub

T = TypeVar("T")

# Before a further try at a broker that has failed, when there is no other.
SAME_BROKER_PAUSE_MS = 100

STATUS: Final[dict[int, SendStatus]] = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
}
# Refusals that another broker, or this one a moment later, may not repeat.
RETRIED_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
# A broker that cannot be reached must leave time for another. One that has the message is waited for as long as there
# is time, as Java's client does: it may be slow, and a second try would make a second copy.
REACHING_SHARE = 0.5

_SEND = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)


class Sending:
    """The way of a producer's messages to the brokers."""

    def __init__(
        self,
        group: str,
        plain_group: str,
        namespace: str,
        instance: Instance,
        clock: Clock,
        options: ProducerOptions,
        *,
        max_tries: int,
    ) -> None:
        self._group = group
        self._plain_group = plain_group  # without the namespace
        self._namespace = namespace
        self._instance = instance
        self._clock = clock
        self._options = options
        self._tries = {SendMode.SYNC: max_tries, SendMode.ASYNC: options.max_async_tries}
        self._faults = Faults(options.latency_ms, options.avoided_ms) if options.avoid_slow_brokers else None
        self._is_watched = bool(options.send_hooks or options.check_forbidden)
        self.turns = Turns(self._faults)
        self.tracer: Tracer | None = None

    # --- where to

    def find_route(self, topic: str) -> TopicRoute | None:
        return self._instance.routes.find(topic)

    def is_reached(self, queue: MessageQueue) -> bool:
        """Return whether there is a connection to the queue's broker."""
        address = self._instance.routes.address(queue.broker_name)
        return address is not None and self._instance.caller.is_connected(address)

    async def route(self, topic: str, deadline: float) -> TopicRoute:
        return self._instance.routes.find(topic) or await self._ask_route(topic, deadline)

    async def _ask_route(self, topic: str, deadline: float) -> TopicRoute:
        seconds = deadline - now()
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self._instance.routes.topic(topic)
        except RouteNotFound:
            self._instance.routes.forget(topic)  # a mistyped name is not asked for for ever
            raise await self._unknown(unwrap_topic(self._namespace, topic), deadline) from None
        except TimeoutError:
            if not limit.expired():
                raise  # a name server's own
            raise CallTimeout(self._instance.name_servers.described, seconds * 1000) from None

    async def _unknown(self, topic: str, deadline: float) -> ClientError:
        """Return the error of a topic that no name server knows: slaves alone make no topics, and register none."""
        try:
            async with asyncio.timeout(deadline - now()):
                groups = await self._instance.name_servers.slaves_without_master()
        except (ClientError, ProtocolError, TimeoutError):
            groups = ()
        if not groups:
            return UnknownTopic(topic)
        names = ", ".join(groups)
        return SendFailed(f"topic {topic!r} has no queue: no master of {names} is registered, only slaves")

    async def _no_queue(self, topic: str, route: TopicRoute) -> SendFailed:
        """Return the error of a topic that no broker takes messages for. A slave may be promoted any moment, so the
        routes are asked for soon; whoever tries again at once must not keep the event loop from doing that."""
        self._instance.routes.doubt()
        await asyncio.sleep(0)
        return no_queue_to_write(topic, route.route)

    def next_queue(self, topic: str, queues: Sequence[MessageQueue], failed_broker: str | None = None) -> MessageQueue:
        return self.turns.next(topic, queues, self._clock.steady_ms(), failed_broker)

    # --- trying

    async def anywhere(self, ready: Outgoing, deadline: float, mode: SendMode) -> SendResult:
        """Send to any queue, on another broker if one fails, as long as there are tries and time."""
        attempts: list[SendAttempt] = []
        failed_brokers: tuple[str, ...] = ()
        stored_unsafely: SendResult | None = None
        for tries_left in reversed(range(self._tries[mode])):
            route = self._instance.routes.find(ready.topic) or await self._ask_route(ready.topic, deadline)
            if not route.publish_queues:
                raise await self._no_queue(ready.topic, route)
            queue = self.next_queue(ready.topic, route.publish_queues, failed_brokers[-1] if failed_brokers else None)
            pause_ms = self._pause_ms(queue) if queue.broker_name in failed_brokers else 0
            if deadline - now() <= pause_ms / 1000:
                break
            if pause_ms:
                await self._clock.sleep(pause_ms)
            seconds = deadline - now()
            if tries_left and self._options.max_try_ms is not None:
                seconds = min(seconds, self._options.max_try_ms / 1000)
            has_alternative = tries_left > 0 and len(route.route.brokers) > 1
            if ready.has_alternative is not has_alternative:
                ready = ready._replace(has_alternative=has_alternative)
            try:
                result = await self._try_anywhere(queue, ready, seconds, mode)
            except BrokerError as refusal:
                if not _is_retried(refusal, mode):
                    if stored_unsafely is not None:
                        return stored_unsafely
                    raise
                attempts.append(SendAttempt(queue.broker_name, refusal))
            except (ConnectionFailed, CallTimeout) as error:
                attempts.append(SendAttempt(queue.broker_name, error))
            else:
                if result.status is SendStatus.SEND_OK or not self._wants_safer(mode):
                    return result
                stored_unsafely = result
            failed_brokers += (queue.broker_name,)
            self._instance.routes.doubt()
        if stored_unsafely is not None:
            return stored_unsafely
        counted = Counter(str(attempt.error) for attempt in attempts).items()
        tries = "; ".join(text if count == 1 else f"{text} ({count} times)" for text, count in counted)
        tries = tries or "no time was left for a single try"
        raise SendFailed(f"no broker took the message for {ready.messages[0].topic}: {tries}", attempts)

    def _pause_ms(self, queue: MessageQueue) -> int:
        """Before a further try at the same broker: it must be able to fare better."""
        address = self._instance.routes.address(queue.broker_name)
        back_off_ms = 0 if address is None else self._instance.caller.back_off_ms(address)
        return max(SAME_BROKER_PAUSE_MS, math.ceil(back_off_ms))

    def _wants_safer(self, mode: SendMode) -> bool:
        return mode is SendMode.SYNC and self._options.retry_another_broker_when_not_store_ok

    def _try_anywhere(
        self, queue: MessageQueue, ready: Outgoing, seconds: float, mode: SendMode
    ) -> Coroutine[Any, Any, SendResult]:
        if self._faults is None:
            return self.to(queue, ready, seconds, mode)
        return self._noted(self._faults, queue, lambda: self.to(queue, ready, seconds, mode))

    async def _noted(self, faults: Faults, queue: MessageQueue, send: Callable[[], Awaitable[T]]) -> T:
        """One try whose duration is remembered of the broker."""
        began = now()
        failed = False
        try:
            return await send()
        except BrokerError as refusal:
            failed = refusal.code in RETRIED_CODES  # any other speaks of the message, not of the broker
            raise
        except (ConnectionFailed, CallTimeout):
            failed = True
            raise
        finally:
            faults.note(queue.broker_name, (now() - began) * 1000, self._clock.steady_ms(), failed=failed)

    def to(
        self, queue: MessageQueue, ready: Outgoing, seconds: float, mode: SendMode
    ) -> Coroutine[Any, Any, SendResult]:
        """One try: send to this queue, and to no other."""
        address = self._instance.master(queue.broker_name)
        if ready.is_request:
            return self._introduced(queue, ready, address, seconds, mode)
        if self._is_watched:
            return self._watched(queue, ready, address, seconds, mode)
        return self._try(queue, ready, address, seconds)

    async def _introduced(
        self, queue: MessageQueue, ready: Outgoing, address: str, seconds: float, mode: SendMode
    ) -> SendResult:
        """A request goes to a broker that knows us by a heartbeat: else it would not know whom to give the answer."""
        deadline = now() + seconds
        share = REACHING_SHARE if ready.has_alternative else 1.0
        await self._instance.announced(address, max(seconds * share * 1000, 1))
        return await self.to(queue, ready._replace(is_request=False), deadline - now(), mode)

    async def _try(self, queue: MessageQueue, ready: Outgoing, address: str, seconds: float) -> SendResult:
        tracer = self.tracer
        began_ms = self._clock.steady_ms() if tracer is not None else 0
        try:
            timeout_ms = max(seconds, 0) * 1000
            if ready.place is not None:
                timeout_ms = await self._in_turn(ready.place, ready, address, timeout_ms)
            connect_timeout_ms = timeout_ms * REACHING_SHARE if ready.has_alternative else None
            command = self._command(ready, queue)
            reply = await self._instance.caller.call(address, command, timeout_ms, connect_timeout_ms)
            status = STATUS.get(reply.code)
            if status is None:
                raise BrokerError(reply.code, reply.remark or "", address)
        except CosmodromeError:
            if tracer is not None:
                self._trace(tracer, ready, address, began_ms)
            raise
        stored = SendReply.decode(reply)
        if tracer is not None:
            self._trace(tracer, ready, address, began_ms, stored, is_safe=status is SendStatus.SEND_OK)
        return SendResult(
            status,
            ready.unique_id,
            stored.msg_id,
            self._shown(queue, ready.messages[0].topic, stored.queue_id),
            stored.queue_offset,
            stored.transaction_id or "",
            stored.recall_handle or "",
        )

    async def _in_turn(self, place: Place, ready: Outgoing, address: str, timeout_ms: float) -> float:
        """Return what is left of the time when the message can be written at once, and all before it are."""
        deadline = now() + timeout_ms / 1000
        await self._instance.caller.connect(address, timeout_ms)
        await in_turn(place, ready.messages[0].topic, deadline)
        place.leave()
        return max(deadline - now(), 0) * 1000

    @staticmethod
    def _shown(queue: MessageQueue, topic: str, queue_id: int) -> MessageQueue:
        """The queue as the application knows it; nearly always that is the one it was sent to."""
        if queue.queue_id == queue_id and queue.topic == topic:
            return queue
        return MessageQueue(topic, queue.broker_name, queue_id)

    async def oneway_anywhere(self, ready: Outgoing, deadline: float) -> None:
        """Hand over to any broker, and remember of it how long that took or that it failed, as Java's clients do."""
        route = await self.route(ready.topic, deadline)
        if not route.publish_queues:
            raise await self._no_queue(ready.topic, route)
        queue = self.next_queue(ready.topic, route.publish_queues)
        if self._faults is None:
            await self.oneway(queue, ready, deadline - now())
        else:
            await self._noted(self._faults, queue, lambda: self.oneway(queue, ready, deadline - now()))

    async def oneway(self, queue: MessageQueue, ready: Outgoing, seconds: float) -> None:
        """Hand over to the connection; nothing tells whether it arrived."""
        address = self._instance.master(queue.broker_name)
        context = self._context(queue, ready, address, SendMode.ONEWAY) if self._is_watched else None
        if context is not None:
            ready = self._allowed(context, ready)
        command = self._command(ready, queue)
        command.flag |= ONEWAY_BIT
        try:
            if ready.place is not None:
                await self._in_turn(ready.place, ready, address, max(seconds, 0) * 1000)
            await self._instance.caller.oneway(address, command)
        except BaseException as error:
            self._tell_after(context, None, error)
            raise
        self._tell_after(context, None, None)

    # --- hooks

    async def _watched(
        self, queue: MessageQueue, ready: Outgoing, address: str, seconds: float, mode: SendMode
    ) -> SendResult:
        context = self._context(queue, ready, address, mode)
        ready = self._allowed(context, ready)
        try:
            result = await self._try(queue, ready, address, seconds)
        except BaseException as error:
            self._tell_after(context, None, error)
            raise
        self._tell_after(context, result, None)
        return result

    def _context(self, queue: MessageQueue, ready: Outgoing, address: str, mode: SendMode) -> SendContext:
        shown = self._shown(queue, ready.messages[0].topic, queue.queue_id)
        return SendContext(
            self._plain_group,
            ready.messages,
            shown,
            address,
            mode,
            ready.unique_id,
            self._namespace,
            message_type=_message_type(ready),
        )

    def _allowed(self, context: SendContext, ready: Outgoing) -> Outgoing:
        """What is to be sent once all hooks have seen it; those that forbid are asked first."""
        for check in self._options.check_forbidden:
            check(context)
        hooks.tell([hook.before_send for hook in self._options.send_hooks], context)
        if not context.properties or ready.is_batch:
            return ready
        return ready._replace(properties=outgoing.with_properties(ready.properties, context.properties))

    def _tell_after(self, context: SendContext | None, result: SendResult | None, error: BaseException | None) -> None:
        if context is not None:
            context.result, context.error = result, error
            hooks.tell([hook.after_send for hook in self._options.send_hooks], context)

    # --- what goes out, and what is written down

    def _command(self, ready: Outgoing, queue: MessageQueue) -> Command:
        options = self._options
        header = SendMessage(
            self._group,
            ready.topic,
            options.template_topic,
            options.new_topic_queues,
            queue.queue_id,
            ready.sys_flag,
            self._clock.now_ms(),
            ready.flag,
            ready.properties,
            0,
            self._instance.unit_mode,
            batch=ready.is_batch,
            broker_name=queue.broker_name,
        )
        return Command(_SEND_BATCH if ready.is_batch else _SEND, header.lettered_fields(), ready.body)

    def _trace(
        self,
        tracer: Tracer,
        ready: Outgoing,
        address: str,
        began_ms: int,
        stored: SendReply | None = None,
        *,
        is_safe: bool = False,
    ) -> None:
        """Write down how a try ended; `stored` is None if it failed. A broker may ask not to.

        As with Java's clients, only SEND_OK is a success. A message that is stored less safely has no success, but an
        offset message id.
        """
        if stored is not None and stored.trace_on is False:
            return
        properties = properties_string.decode(ready.properties)
        keys = properties.get(Property.KEYS, "")
        took_ms = self._clock.steady_ms() - began_ms
        record = Pub(
            self._clock.now_ms() - took_ms,
            (stored and stored.msg_region) or "",
            self._plain_group,
            ready.messages[0].topic,
            ready.unique_id,
            properties.get(Property.TAGS, ""),
            keys,
            address,
            len(ready.body),
            took_ms,
            outgoing.traced_type(properties),
            stored.msg_id if stored is not None else "",
            success=is_safe,
        )
        tracer.note(record, ready.unique_id, keys)


def _message_type(ready: Outgoing) -> MessageType:
    if ready.sys_flag & SysFlag.PREPARED:
        return MessageType.TRANSACTION_HALF
    return MessageType.DELAYED if outgoing.is_delayed(ready.messages[0]) else MessageType.NORMAL


def _is_retried(refusal: BrokerError, mode: SendMode) -> bool:
    """In the background only what the network did is tried again, never what a broker said: so does Java."""
    return mode is SendMode.SYNC and refusal.code in RETRIED_CODES


async def in_turn(place: Place, topic: str, deadline: float) -> None:
    """Wait until the place is at the front of its line; SendFailed when that takes too long."""
    try:
        async with asyncio.timeout_at(deadline):
            await place.front()
    except TimeoutError:
        raise SendFailed(f"the message for {topic} had no turn in time: those before it were not ready") from None


def now() -> float:
    return asyncio.get_running_loop().time()
