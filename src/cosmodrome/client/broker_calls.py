"""What brokers ask of a consumer on behalf of an operator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any, Protocol

from cosmodrome.client.incoming import received
from cosmodrome.client.results import Ended, OrderlyStatus, status_of
from cosmodrome.codes import RequestCode
from cosmodrome.errors import ClientError, DamagedRecord, ProtocolError, RetryLater
from cosmodrome.model import MessageQueue, ReceivedMessage
from cosmodrome.net.connection import Connection, Handler
from cosmodrome.wire.bodies import (
    ConsumeDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumerStatus,
    ResetOffsets,
)
from cosmodrome.wire.command import Command
from cosmodrome.wire.record import decode_records
from cosmodrome.wire.requests import ConsumeDirectly, GetConsumerStatus, GetRunningInfo, ResetOffset

log = logging.getLogger(__name__)


class Asked(Protocol):
    """The consumer that answers; topics and queues are those of the brokers."""

    async def reset_offsets(self, offsets: dict[MessageQueue, int]) -> None:
        """Go on at these offsets, and let go of what is in process; queues that are not ours are left alone."""
        ...

    def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """How far each of our queues of the topic is consumed."""
        ...

    def running_info(self, *, stacks: bool = False) -> ConsumerRunningInfo: ...

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        """Hand the message to its handler, now and whatever else is going on; it is not committed or sent back."""
        ...


class BrokerCalls:
    """Answers for one consumer of one group. `run` runs what takes a while in the background."""

    def __init__(self, group: str, consumer: Asked, run: Callable[[Coroutine[Any, Any, None], str], object]) -> None:
        self._group = group
        self._consumer = consumer
        self._run = run

    def register(self, handlers: MutableMapping[int, Handler]) -> None:
        handlers[RequestCode.RESET_CONSUMER_CLIENT_OFFSET] = self._reset_offsets
        handlers[RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT] = self._get_status
        handlers[RequestCode.GET_CONSUMER_RUNNING_INFO] = self._get_running_info
        handlers[RequestCode.CONSUME_MESSAGE_DIRECTLY] = self._consume_directly

    async def _reset_offsets(self, connection: Connection, command: Command) -> None:
        """RESET_CONSUMER_CLIENT_OFFSET: nobody waits for an answer, and it must not end with the connection."""
        request = ResetOffset.decode(command)
        self._check_group(request.group)
        offsets = {
            queue: offset
            for queue, offset in ResetOffsets.decode(command.body).offsets.items()
            if queue.topic == request.topic
        }
        log.info("%s sets offsets of %s: %s", connection.peer, request.topic, offsets)
        self._run(self._consumer.reset_offsets(offsets), f"reset {request.topic}")

    async def _get_status(self, _connection: Connection, command: Command) -> Command:
        """GET_CONSUMER_STATUS_FROM_CLIENT."""
        request = GetConsumerStatus.decode(command)
        self._check_group(request.group)
        return command.reply(body=ConsumerStatus(self._consumer.consumed_offsets(request.topic)).encode())

    async def _get_running_info(self, _connection: Connection, command: Command) -> Command:
        """GET_CONSUMER_RUNNING_INFO."""
        request = GetRunningInfo.decode(command)
        self._check_group(request.consumer_group)
        return command.reply(body=self._consumer.running_info(stacks=request.jstack_enable).encode())

    async def _consume_directly(self, connection: Connection, command: Command) -> Command:
        """CONSUME_MESSAGE_DIRECTLY: the stored message is in the body."""
        request = ConsumeDirectly.decode(command)
        self._check_group(request.consumer_group)
        try:
            records = decode_records(bytes(command.body))
        except DamagedRecord as error:
            raise ClientError(f"the message to consume is damaged: {error}") from error
        if len(records) != 1:
            raise ProtocolError(f"{len(records)} messages to consume; there should be one")
        (record,) = records
        queue = MessageQueue(record.topic, request.broker_name or "", record.queue_id)
        message = received(record, queue, {})
        log.info("%s has message %s of %s consumed", connection.peer, message.msg_id, message.topic)
        return command.reply(body=(await self._consumer.consume_directly(message)).encode())

    def _check_group(self, group: str) -> None:
        if group != self._group:
            raise ClientError(f"The Consumer Group <{group}> not exist in this consumer")


_IN_ORDER = {
    OrderlyStatus.SUCCESS: ConsumeResult.SUCCESS,
    OrderlyStatus.COMMIT: ConsumeResult.COMMIT,
    OrderlyStatus.ROLLBACK: ConsumeResult.ROLLBACK,
    OrderlyStatus.SUSPEND: ConsumeResult.LATER,
}


def directly_result(ended: Ended, *, order: bool = False) -> ConsumeDirectlyResult:
    """How a handler ended, in Java's words."""
    error = ended.error
    if error is None:
        result = _IN_ORDER[status_of(ended)] if order else ConsumeResult.SUCCESS
        return ConsumeDirectlyResult(result, order, spent_ms=ended.spent_ms)
    result = ConsumeResult.LATER if isinstance(error, RetryLater) else ConsumeResult.THROW_EXCEPTION
    return ConsumeDirectlyResult(result, order, remark=f"{type(error).__name__}: {error}", spent_ms=ended.spent_ms)
