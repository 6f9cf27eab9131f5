"""Sending messages in transactions."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Any, NamedTuple, cast

from cosmodrome.client import outgoing
from cosmodrome.client.incoming import received, unpack_body
from cosmodrome.client.producer import SEND_TIMEOUT_MS, Producer
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.errors import ClientError, InvalidMessage
from cosmodrome.model import Message, MessageQueue, Property, ReceivedMessage, SendResult, SendStatus
from cosmodrome.net.connection import Connection
from cosmodrome.wire import properties as props
from cosmodrome.wire import trace
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import SysFlag, decode_records, parse_offset_msg_id
from cosmodrome.wire.requests import CheckTransactionState, EndTransaction

log = logging.getLogger(__name__)


class TransactionState(IntEnum):
    """What is to become of a message; with UNKNOWN the broker asks again later."""

    UNKNOWN = 0
    COMMIT = SysFlag.COMMIT
    ROLLBACK = SysFlag.ROLLBACK


# As Java writes them down.
_TRACED_STATES = {
    TransactionState.UNKNOWN: "UNKNOW",
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
}
_TRACED_REGION = "DefaultRegion"


class TransactionResult(NamedTuple):
    sent: SendResult
    state: TransactionState


# What the application does in its own transaction, and how it finds out later what became of that: def or async def.
Execute = Callable[[Message], TransactionState | Awaitable[TransactionState]]
Check = Callable[[ReceivedMessage], TransactionState | Awaitable[TransactionState]]


class TransactionProducer(Producer):
    """Sends messages that are delivered only if the application's own work succeeds.

        def pay(message): ...; return TransactionState.COMMIT
        def check(message): return TransactionState.COMMIT if is_paid(message.keys) else TransactionState.ROLLBACK

        async with TransactionProducer("payments", "127.0.0.1:9876", check=check) as producer:
            await producer.send_in_transaction(Message("orders", b"...", keys="7"), pay)

    If the broker does not hear what became of a message, because this process ended or the network failed, it asks one
    producer of the group, this one or another: `check` must find the answer for the transactions of all of them.
    """

    def __init__(self, group: str, namesrv: str = "", *, check: Check, **options: Any) -> None:
        super().__init__(group, namesrv, **options)
        self._check = check
        self._instance.handlers[RequestCode.CHECK_TRANSACTION_STATE] = self._asked

    async def send_in_transaction(
        self, message: Message, execute: Execute, *, timeout_ms: float = SEND_TIMEOUT_MS
    ) -> TransactionResult:
        """Store the message, call `execute`, and tell the broker its outcome.

        Whatever `execute` raises is raised again, and the transaction stays open: the broker will ask.
        """
        if message.delay_level or message.delay is not None or message.deliver_at is not None:
            raise InvalidMessage("a message in a transaction cannot be delayed")
        self._require_running()
        sent = await self._send_half(message, timeout_ms)
        state = TransactionState.UNKNOWN
        try:
            if sent.status is SendStatus.SEND_OK:
                state = TransactionState(await _outcome(execute, message))
            else:
                state = TransactionState.ROLLBACK  # it may be lost; what must not be is done only after it is safe
        finally:
            address = self._instance.routes.address(sent.queue.broker_name) or ""
            self._trace_end(message, sent.msg_id, address, state)
        await self._end(sent, state, timeout_ms)
        return TransactionResult(sent, state)

    async def _send_half(self, message: Message, timeout_ms: float) -> SendResult:
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        ready = await self._ready(message)
        await self._route(message.topic, deadline)
        properties = ready.properties + props.encode({Property.TRAN_MSG: "true", Property.PGROUP: self._group})
        half = ready._replace(properties=properties, sys_flag=ready.sys_flag | SysFlag.PREPARED)
        return await self._send_anywhere(half, deadline)

    async def _end(self, sent: SendResult, state: TransactionState, timeout_ms: float) -> None:
        """Tell the broker. If it does not hear, it will ask; if there is nothing to tell, too."""
        if state is TransactionState.UNKNOWN:
            return
        _, _, physical_offset = parse_offset_msg_id(sent.offset_msg_id)
        request = EndTransaction(
            self._group,
            sent.queue_offset,
            physical_offset,
            state,
            msg_id=sent.msg_id,
            transaction_id=sent.transaction_id,
            topic=sent.queue.topic,
            broker_name=sent.queue.broker_name,
        )
        try:
            address = self._instance.master(sent.queue.broker_name)
            command = Command.request(RequestCode.END_TRANSACTION, request)
            reply = await self._instance.caller.call(address, command, timeout_ms)
            if reply.code != ResponseCode.SUCCESS:
                log.warning("%s: %s is not taken: %s; the broker will ask", sent.msg_id, state.name, reply.remark)
        except ClientError as error:
            log.warning("%s: %s is not answered: %s; the broker will ask", sent.msg_id, state.name, error)

    async def _asked(self, connection: Connection, command: Command) -> None:
        """A broker asks what became of a message. If `check` fails, it hears nothing and will ask again."""
        asked = CheckTransactionState.decode(command)
        (record,) = decode_records(command.body)
        message = received(record, MessageQueue(record.topic, asked.broker_name or "", record.queue_id), {})
        if message.properties.get(Property.PGROUP) != self._group:
            log.warning("%s asks about a message of another group", connection.peer)
            return
        unpack_body(message)
        state = TransactionState(await _outcome(self._check, message))
        self._trace_end(message, message.msg_id, connection.peer, state, from_check=True)
        answer = EndTransaction(
            self._group,
            asked.tran_state_table_offset,
            asked.commit_log_offset,
            state,
            True,
            asked.msg_id,
            asked.transaction_id,
            asked.topic,
            asked.broker_name,
        )
        connection.send(Command.request(RequestCode.END_TRANSACTION, answer, oneway=True))

    def _trace_end(
        self,
        message: Message | ReceivedMessage,
        msg_id: str,
        address: str,
        state: TransactionState,
        *,
        from_check: bool = False,
    ) -> None:
        """Write down what was decided, also if that is nothing. A transaction's id is that of its message."""
        if self._tracer is None:
            return
        keys = outgoing.joined_keys(message.keys)
        record = trace.EndTransaction(
            self._clock.now_ms(),
            message.properties.get(Property.MSG_REGION) or _TRACED_REGION,
            self._group,
            message.topic,
            msg_id,
            message.tags,
            keys,
            address,
            trace.TracedType.TRANSACTION_COMMIT,
            msg_id,
            _TRACED_STATES[state],
            from_check,
        )
        self._tracer.note(record, msg_id, keys)


async def _outcome(function: Callable[[Any], Any], message: Message | ReceivedMessage) -> TransactionState:
    """Call a def in a thread, an async def here."""
    if inspect.iscoroutinefunction(function):
        result = await function(message)
    else:
        result = await asyncio.to_thread(function, message)
        if inspect.isawaitable(result):
            result = await result
    return cast(TransactionState, result)
