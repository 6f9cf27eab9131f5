"""What type checkers find out about the functions that are given to producers.

mypy checks these lines with all others: each `type: ignore` stands where it finds a fault, and one that is not needed
would be a fault itself. The functions that are wrong are never called.
"""

from __future__ import annotations

from typing import assert_type

from cosmodrome import (
    Message,
    MessageQueue,
    Producer,
    ProducerOptions,
    ReceivedMessage,
    SendContext,
    SendResult,
    TransactionProducer,
    TransactionResult,
    TransactionState,
    blocking,
)
from cosmodrome.codes import RequestCode
from cosmodrome.wire.requests import SendReply
from tests.unit.client.fake_cluster import fake_cluster

OFFSET_ID = "7F00000100002A9F0000000000000000"


class Order(Message):
    customer = "eve"


def pay(_message: Message, order: str, cents: int = 1) -> TransactionState:
    assert (order, cents) == ("7", 1)
    return TransactionState.COMMIT


async def pay_later(_message: Message) -> TransactionState:
    return TransactionState.COMMIT


def pay_for(order: Order) -> TransactionState:
    assert order.customer == "eve"
    return TransactionState.COMMIT


def check(_message: ReceivedMessage) -> TransactionState:
    return TransactionState.UNKNOWN


async def check_later(_message: ReceivedMessage) -> TransactionState:
    return TransactionState.UNKNOWN


async def test_functions_that_are_right_are_taken() -> None:
    heard: list[SendResult | BaseException] = []
    async with fake_cluster(T=1) as cluster, TransactionProducer("g", cluster.namesrv, check=check_later) as producer:
        await producer.send_async(Message("T", b"x"), callback=heard.append)
        answers = cluster.broker.answers
        answers[RequestCode.SEND_MESSAGE_V2] = lambda command: command.reply(header=SendReply(OFFSET_ID, 0, 0))
        answers[RequestCode.END_TRANSACTION] = lambda command: command.reply()
        result = await producer.send_in_transaction(Message("T", b"x"), pay, "7")
        assert_type(result, TransactionResult)
        await producer.send_in_transaction(Message("T", b"x"), pay_later)
        await producer.send_in_transaction(Order("T", b"x"), pay_for)
        await producer.send_in_transaction(Message("T", b"x"), lambda message: TransactionState.ROLLBACK)
        fate = TransactionState.ROLLBACK
        await producer.send_in_transaction(Message("T", b"x"), lambda _, fate=fate: fate)
    assert len(heard) == 1


async def wrong(producer: TransactionProducer, message: Message) -> None:
    """Never called; read by mypy only."""
    await producer.send_in_transaction(message, lambda message: True)  # type: ignore[arg-type,return-value]
    await producer.send_in_transaction(message, pay_later, on_error="commit")  # type: ignore[arg-type]
    producer.send_async(message, callback=check)  # type: ignore[arg-type]
    await producer.send(message, selector=lambda queues, message, arg: 1)  # type: ignore[arg-type,return-value]


def wrong_checks() -> None:
    """Never called; read by mypy only."""
    TransactionProducer("g", check=pay)  # type: ignore[arg-type]
    TransactionProducer("g", check=lambda message: None)  # type: ignore[arg-type,return-value]
    blocking.TransactionProducer("g", check=lambda message: True)  # type: ignore[arg-type,return-value]
    ProducerOptions(check_forbidden=(check,))  # type: ignore[arg-type]
    ProducerOptions(send_hooks=(Producer,))  # type: ignore[arg-type]


def never(_context: SendContext) -> None:
    raise PermissionError


def first(queues: list[MessageQueue]) -> MessageQueue:
    return queues[0]


def wrong_without_await(producer: blocking.TransactionProducer, message: Message) -> None:
    """Never called; read by mypy only."""
    result = producer.send_in_transaction(message, pay, "7", on_error="rollback")
    assert_type(result, TransactionResult)
    producer.send_async(message, callback=check)  # type: ignore[arg-type]
    ProducerOptions(check_forbidden=(never,))
    producer.send(message, selector=first)  # type: ignore[arg-type]
