"""Asking something with a message, and answering it."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from cosmodrome.client.async_sends import Callback
from cosmodrome.client.hooks import RpcHook, SendMode
from cosmodrome.client.incoming import unpack_body
from cosmodrome.client.outgoing import body_size, check_body, snapshot
from cosmodrome.client.producer import ANSWERS_ROLE, MAX_TRIES, PRODUCER_ROLE, Producer
from cosmodrome.client.producer_options import ProducerOptions
from cosmodrome.client.queue_choice import Selector
from cosmodrome.client.sending import now
from cosmodrome.clock import Clock
from cosmodrome.codes import RequestCode
from cosmodrome.config import ClientConfig
from cosmodrome.errors import CallTimeout, InvalidMessage
from cosmodrome.model import AUTO_CREATE_TOPIC, Message, MessageQueue, Property, ReceivedMessage
from cosmodrome.net.connection import Connection
from cosmodrome.wire import properties as props
from cosmodrome.wire.command import Command
from cosmodrome.wire.requests import PushReply, SendMessage

log = logging.getLogger(__name__)

_REPLY = "reply"


class RequestProducer(Producer):
    """Sends messages that are answered, and answers them.

        async with RequestProducer("shop", "127.0.0.1:9876") as producer:
            answer = await producer.request(Message("prices", b"apples"))

    A consumer of the topic answers with a RequestProducer of its own: `await producer.reply(message, b"3.50")`. The
    first answer counts, however many consumers there are. An answer is pushed to whoever asked, and is dropped if
    nobody waits for it any more.
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
        super().__init__(
            group,
            namesrv,
            max_tries=max_tries,
            trace=trace,
            options=options,
            rpc_hooks=rpc_hooks,
            config=config,
            clock=clock,
        )
        self._asked: dict[str, asyncio.Future[ReceivedMessage]] = {}
        self._instance.handlers[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = self._answered

    async def _start(self) -> None:
        # Brokers push them to a client id: to whichever of its producers they heard of last.
        self._instance.claim(ANSWERS_ROLE, not_beside=PRODUCER_ROLE)
        await super()._start()

    async def request(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        selector: Selector | None = None,
        arg: Any = None,
        timeout_ms: float | None = None,
    ) -> ReceivedMessage:
        """Send the message and return the answer to it. CallTimeout when none came in time; else as `send`."""
        self._require_running()
        began, limit_ms = now(), self._timeout_ms(timeout_ms)
        with self._async_sends.awaited(began + limit_ms / 1000):
            return await self._request(message, queue, selector, arg, limit_ms, began, SendMode.SYNC)

    def request_async(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        selector: Selector | None = None,
        arg: Any = None,
        callback: Callback[ReceivedMessage] | None = None,
        timeout_ms: float | None = None,
    ) -> asyncio.Future[ReceivedMessage]:
        """Begin to ask, and return what will be the answer; all else is as with `send_async`."""
        self._require_running()
        return self._ask_later(message, queue, selector=selector, arg=arg, callback=callback, timeout_ms=timeout_ms)()

    def _ask_later(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        selector: Selector | None = None,
        arg: Any = None,
        callback: Callback[ReceivedMessage] | None = None,
        timeout_ms: float | None = None,
    ) -> Callable[[], asyncio.Future[ReceivedMessage]]:
        message = snapshot(message)

        def begin() -> asyncio.Future[ReceivedMessage]:
            began, limit_ms = now(), self._timeout_ms(timeout_ms)
            return self._async_sends.start(
                lambda: self._request(message, queue, selector, arg, limit_ms, began, SendMode.ASYNC),
                body_size(message),
                began + limit_ms / 1000,
                callback,
            )

        return begin

    async def _request(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        arg: Any,
        timeout_ms: float,
        began: float,
        mode: SendMode,
    ) -> ReceivedMessage:
        deadline = began + timeout_ms / 1000
        correlation_id = str(uuid.uuid4())
        wanted = {
            Property.CORRELATION_ID: correlation_id,
            Property.REPLY_TO_CLIENT: self.client_id,
            Property.TTL: str(int(timeout_ms)),
        }
        ready = self._ready(message)
        ready = ready._replace(properties=ready.properties + props.encode(wanted), is_request=True)
        answer: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._asked[correlation_id] = answer
        try:
            await self._send_chosen(ready, queue, selector, arg, deadline, mode)
            try:
                async with asyncio.timeout_at(deadline):
                    return await answer
            except TimeoutError:
                raise CallTimeout(f"the consumer of {message.topic}", timeout_ms) from None
        finally:
            del self._asked[correlation_id]

    async def _answered(self, _connection: Connection, command: Command) -> Command:
        """PUSH_REPLY_MESSAGE_TO_CLIENT: here is the answer to a request of ours."""
        message = _received(PushReply.decode(command), bytes(command.body))
        unpack_body(message)
        answer = self._asked.get(message.properties.get(Property.CORRELATION_ID, ""))
        if answer is None or answer.done():
            log.info("an answer came that nobody waits for any more: %s", message.properties)
        else:
            answer.set_result(message)
        return command.reply()

    async def reply(self, request: ReceivedMessage, body: bytes, *, timeout_ms: float | None = None) -> None:
        """Answer a request. BrokerError when the broker could not reach whoever asked, who may have given up."""
        self._require_running()
        deadline = self._deadline(timeout_ms)
        asked = request.properties
        if not {Property.CORRELATION_ID, Property.REPLY_TO_CLIENT, Property.CLUSTER} <= asked.keys():
            raise InvalidMessage(f"{request.msg_id} asks for no answer: it was not sent by `request`", "request")
        with self._async_sends.awaited(deadline):
            await self._reply(request, body, deadline)

    async def _reply(self, request: ReceivedMessage, body: bytes, deadline: float) -> None:
        asked = request.properties
        topic = f"{asked[Property.CLUSTER]}_REPLY_TOPIC"
        check_body(body, self._options.max_message_bytes)
        is_large = len(body) >= self._aside_from_bytes
        packed, sys_flag = await self._pack_aside(body, topic, deadline) if is_large else self._pack(body)
        await self._sending.route(topic, deadline)
        # Whoever asked is known to the broker that took the request; others may never have heard of it.
        address = self._instance.master(request.queue.broker_name)
        kept = (Property.CORRELATION_ID, Property.REPLY_TO_CLIENT, Property.TTL)
        properties = {Property.MSG_TYPE: _REPLY, **{name: asked[name] for name in kept if name in asked}}
        now_ms = self._clock.now_ms()
        header = SendMessage(
            self._group,
            topic,
            AUTO_CREATE_TOPIC,
            1,
            0,
            sys_flag,
            now_ms,
            0,
            props.encode(properties),
            0,
            self._instance.unit_mode,
        )
        command = Command(RequestCode.SEND_REPLY_MESSAGE_V2, header.lettered_fields(), packed)
        await self._instance.ask(address, command, max((deadline - now()) * 1000, 1))


def _received(header: PushReply, body: bytes) -> ReceivedMessage:
    """A reply is pushed on its way into the store, so it has no place there yet."""
    return ReceivedMessage(
        header.topic,
        body,
        props.decode(header.properties or ""),
        header.flag,
        header.sys_flag,
        MessageQueue(header.topic, "", header.queue_id),
        -1,
        -1,
        header.born_timestamp,
        header.born_host,
        header.store_timestamp,
        header.store_host,
        header.reconsume_times or 0,
        "",
        len(body),
    )
