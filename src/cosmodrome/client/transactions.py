"""Sending messages in transactions."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from typing import Any, Literal, NamedTuple, cast, get_args

from cosmodrome.client import hooks, outgoing
from cosmodrome.client.async_sends import FINISH_SECONDS
from cosmodrome.client.hooks import EndTransactionContext, RpcHook, SendMode
from cosmodrome.client.incoming import received, unpack_body
from cosmodrome.client.namespaces import unwrap_queue, unwrap_topic, wrap_topic
from cosmodrome.client.producer import MAX_TRIES, Producer
from cosmodrome.client.producer_options import ProducerOptions
from cosmodrome.client.sending import now
from cosmodrome.client.threads import DaemonThreads
from cosmodrome.clock import Clock
from cosmodrome.codes import RequestCode, ResponseCode
from cosmodrome.config import ClientConfig
from cosmodrome.errors import ClientError, ConfigError, CosmodromeError, DamagedRecord, InvalidArgument, InvalidMessage
from cosmodrome.model import Message, MessageQueue, Property, ReceivedMessage, SendResult, SendStatus
from cosmodrome.net.connection import Connection
from cosmodrome.wire import properties as props
from cosmodrome.wire import trace
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import SysFlag, decode_records, parse_offset_msg_id
from cosmodrome.wire.requests import CheckTransactionState, EndTransaction

log = logging.getLogger(__name__)

# What is executed may send in transactions itself and wait for that, so it finds a thread unless there is a great many.
EXECUTE_THREADS = 64
# Brokers ask again, so a check may wait; but not for one that hangs.
CHECK_THREADS = 4


class TransactionState(IntEnum):
    """What is to become of a message; with UNKNOWN the broker asks again later."""

    UNKNOWN = 0
    COMMIT = SysFlag.COMMIT
    ROLLBACK = SysFlag.ROLLBACK


# What becomes of a transaction whose `execute` raised.
OnError = Literal["unknown", "rollback"]

# As Java writes them down.
_TRACED_STATES = {
    TransactionState.UNKNOWN: "UNKNOW",
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
}
_TRACED_REGION = "DefaultRegion"


class TransactionResult(NamedTuple):
    """Where the message is stored, and what was decided about it."""

    sent: SendResult
    state: TransactionState


class _Ending(NamedTuple):
    """A message whose half is stored, and what is to be done about it."""

    message: Message
    sent: SendResult
    on_error: OnError
    timeout_ms: float


# What the application does in its own transaction, and how it finds out later what became of that: def or async def.
# The first is called with the message and whatever was given to `send_in_transaction` for it.
Execute = Callable[..., TransactionState | Awaitable[TransactionState]]
Check = Callable[[ReceivedMessage], TransactionState | Awaitable[TransactionState]]


class TransactionProducer(Producer):
    """Sends messages that are delivered only if the application's own work succeeds.

        def pay(message, order): ...; return TransactionState.COMMIT
        def check(message): return TransactionState.COMMIT if is_paid(message.keys) else TransactionState.ROLLBACK

        async with TransactionProducer("payments", "127.0.0.1:9876", check=check) as producer:
            await producer.send_in_transaction(Message("orders", b"...", keys="7"), pay, order)

    If the broker does not hear what became of a message, because this process ended or the network failed, it asks one
    producer of the group, this one or another: `check` must find the answer for the transactions of all of them.
    """

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        check: Check,
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
        if not callable(check):
            raise ConfigError(f"check is {check!r}; it must be a function that returns a TransactionState")
        self._check = check
        self._executing = DaemonThreads(EXECUTE_THREADS, "cosmodrome-execute")
        self._checking = DaemonThreads(CHECK_THREADS, "cosmodrome-check")
        self._poll_route_ms = (config or ClientConfig()).poll_route_interval_ms
        self._instance.handlers[RequestCode.CHECK_TRANSACTION_STATE] = self._asked

    async def _start(self) -> None:
        await super()._start()
        self._instance.run(self._be_known(), "template")

    async def _stop(self) -> None:
        try:
            await super()._stop()
        finally:
            for threads in (self._executing, self._checking):
                threads.shutdown(cancel_futures=True)

    async def _be_known(self) -> None:
        """Brokers ask those whom they know by their heartbeats: also one that has sent nothing, as a restarted one."""
        template = self._options.template_topic
        while True:
            try:
                await self._instance.routes.topic(template)
                return
            except CosmodromeError as error:
                log.info("brokers do not hear of this producer before it sends: %s", error)
                self._instance.routes.forget(template)
            await self._clock.sleep(self._poll_route_ms)

    async def send_in_transaction(
        self,
        message: Message,
        execute: Execute,
        *args: Any,
        on_error: OnError = "unknown",
        timeout_ms: float | None = None,
    ) -> TransactionResult:
        """Store the message, call `execute(message, *args)`, and tell the broker its outcome.

        `execute` gets a copy of the message that has the `transaction_id`. What it raises is raised again, and the
        transaction stays open: it may have come after the commit of a database, so the broker will ask. With
        `on_error="rollback"` the producer asks the broker to drop the message instead; that is right only if nothing
        can fail after the work is done. A cancellation leaves the transaction open in any case; it reaches an `execute`
        that is an async def, and one that is a def goes on in its thread. Once there is an outcome, the producer sends
        it in any case.
        """
        self._require_running()
        outgoing.check_is_message(message)
        if not callable(execute):
            raise InvalidMessage(
                f"execute is {execute!r}; it must be a function that returns a TransactionState", "execute"
            )
        if outgoing.is_delayed(message):
            raise InvalidMessage("a message in a transaction cannot be delayed", "delay")
        if on_error not in get_args(OnError):
            raise InvalidArgument(f'on_error is {on_error!r}; it must be "unknown" or "rollback"')
        deadline = self._deadline(timeout_ms)
        with self._async_sends.awaited(deadline):
            sent = await self._send_half(message, deadline)
        ending = _Ending(message, sent, on_error, self._timeout_ms(timeout_ms))
        with self._async_sends.awaited(now() + FINISH_SECONDS):
            state = await self._execute(ending, execute, args)
        return TransactionResult(sent, state)

    async def _execute(self, ending: _Ending, execute: Execute, args: Sequence[Any]) -> TransactionState:
        if ending.sent.status is not SendStatus.SEND_OK:
            # It may be lost; what must not be is done only after it is safe.
            return await self._settle(ending, _rolled_back())
        message = outgoing.snapshot(ending.message)
        message.transaction_id = ending.sent.msg_id
        if inspect.iscoroutinefunction(execute):
            return await self._settle(ending, execute(message, *args))
        work = self._settle(ending, _in_thread(self._executing, execute, message, *args))
        return await asyncio.shield(self._async_sends.finish(work))

    async def _send_half(self, message: Message, deadline: float) -> SendResult:
        ready = self._ready(message)
        properties = ready.properties + props.encode({Property.TRAN_MSG: "true", Property.PGROUP: self._group})
        half = ready._replace(properties=properties, sys_flag=ready.sys_flag | SysFlag.PREPARED)
        return await self._send_chosen(half, None, None, None, deadline, SendMode.SYNC)

    async def _settle(self, ending: _Ending, outcome: Awaitable[TransactionState]) -> TransactionState:
        """Wait for the outcome, and tell the broker."""
        state = TransactionState.UNKNOWN
        try:
            try:
                returned = await outcome
            except Exception:
                if ending.on_error == "rollback":
                    state = TransactionState.ROLLBACK
                raise
            state = _decided("execute", returned)
        finally:
            sent = ending.sent
            address = self._instance.routes.address(sent.queue.broker_name) or ""
            self._note_end(ending.message, sent.msg_id, address, state)
            if state is not TransactionState.UNKNOWN:
                await asyncio.shield(self._async_sends.finish(self._end(sent, state, ending.timeout_ms)))
        return state

    async def _end(self, sent: SendResult, state: TransactionState, timeout_ms: float) -> None:
        """Tell the broker. If it does not hear, it will ask."""
        _, _, physical_offset = parse_offset_msg_id(sent.offset_msg_id)
        request = EndTransaction(
            self._group,
            sent.queue_offset,
            physical_offset,
            state,
            msg_id=sent.msg_id,
            transaction_id=sent.transaction_id,
            topic=wrap_topic(self._namespace, sent.queue.topic),
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
        try:
            (record,) = decode_records(command.body)
        except DamagedRecord as error:  # nothing is decided about a message that is not what was sent
            log.error("%s asks about transaction %s, but it is damaged: %s", connection.peer, asked.msg_id, error)
            return
        message = received(record, MessageQueue(record.topic, asked.broker_name or "", record.queue_id), {})
        if message.properties.get(Property.PGROUP) != self._group:
            log.warning("%s asks about a message of another group", connection.peer)
            return
        unpack_body(message)
        message.topic = unwrap_topic(self._namespace, message.topic)
        message.queue = unwrap_queue(self._namespace, message.queue)
        # As a task: `check` may use what needs one, and answers to brokers begin without.
        state = _decided("check", await asyncio.create_task(self._checked(message)))
        self._note_end(message, message.msg_id, connection.peer, state, from_check=True)
        answer = EndTransaction(
            self._group,
            asked.tran_state_table_offset,
            asked.commit_log_offset,
            state,
            True,
            asked.msg_id,
            asked.transaction_id,
            record.topic,  # 5.x brokers ask in the name of the half topic, to which no account may publish
            asked.broker_name,
        )
        self._instance.send_on(connection, Command.request(RequestCode.END_TRANSACTION, answer, oneway=True))

    async def _checked(self, message: ReceivedMessage) -> TransactionState:
        """Call a def in a thread, an async def here."""
        if inspect.iscoroutinefunction(self._check):
            return cast(TransactionState, await self._check(message))
        return await _in_thread(self._checking, self._check, message)

    def _note_end(
        self,
        message: Message | ReceivedMessage,
        msg_id: str,
        address: str,
        state: TransactionState,
        *,
        from_check: bool = False,
    ) -> None:
        """Show hooks and traces what was decided, also if that is nothing. The id is that of the message."""
        if watching := self._options.end_transaction_hooks:
            context = EndTransactionContext(
                self._plain_group, message, address, msg_id, msg_id, state, from_check, self._namespace
            )
            hooks.tell([hook.end_transaction for hook in watching], context)
        if self._tracer is None:
            return
        keys = outgoing.joined_keys(message.keys)
        record = trace.EndTransaction(
            self._clock.now_ms(),
            message.properties.get(Property.MSG_REGION) or _TRACED_REGION,
            self._plain_group,
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


def _decided(function: str, state: TransactionState) -> TransactionState:
    """What a function of the application returned, if it is a decision at all: None and True are none."""
    if isinstance(state, TransactionState):
        return state
    wanted = "TransactionState.COMMIT, ROLLBACK or UNKNOWN"
    raise ClientError(f"{function} returned {state!r}; it must return {wanted}: the broker will ask")


async def _rolled_back() -> TransactionState:
    return TransactionState.ROLLBACK


async def _in_thread(threads: DaemonThreads, function: Callable[..., Any], *args: Any) -> TransactionState:
    result = await threads.run(function, *args)
    if inspect.isawaitable(result):  # a def that hands out a coroutine, as functools.partial does
        result = await result
    return cast(TransactionState, result)
