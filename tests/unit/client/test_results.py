"""What a handler returns: nothing that matters, unless it would be a message lost."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from cosmodrome import OrderlyStatus, ReceivedMessage, RetryLater, SuspendQueue
from cosmodrome.client.broker_calls import directly_result
from cosmodrome.client.handlers import Calls, Consume
from cosmodrome.client.results import Ended, status_of
from cosmodrome.errors import ClientError
from cosmodrome.testing import FakeClock
from cosmodrome.wire.bodies import ConsumeResult
from tests.unit.client.messages import received
from tests.unit.client.test_concurrent import Desk, settle

INNOCENT: list[object] = [None, 0, 7, False, True, "", "RECONSUME_LATER", [], {}, ValueError("noted"), int]
AGAIN = [RetryLater(), SuspendQueue(5), RetryLater, OrderlyStatus.SUSPEND, OrderlyStatus.ROLLBACK]


def generates(message: ReceivedMessage) -> Iterator[ReceivedMessage]:
    yield message


async def generates_async(message: ReceivedMessage) -> AsyncIterator[ReceivedMessage]:
    yield message


def returns(result: Any) -> Callable[[ReceivedMessage], Any]:
    async def handler(_message: ReceivedMessage) -> Any:
        return result

    return handler


@pytest.mark.parametrize("result", [*INNOCENT, OrderlyStatus.SUCCESS, OrderlyStatus.COMMIT], ids=repr)
async def test_what_a_handler_returns_does_not_matter(result: Any) -> None:
    desk = Desk()
    desk.deliver(returns(result))
    await settle()
    assert (desk.process.commit_offset, desk.sent_back) == (1, [])


@pytest.mark.parametrize("result", AGAIN, ids=repr)
async def test_who_wants_a_message_again_gets_it_and_is_told_how(result: Any, caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(takes_back=False)
    desk.deliver(returns(result))
    await settle()
    assert (desk.process.commit_offset, desk.sent_back) == (0, [0])
    assert "the handler returned" in caplog.text
    assert "raise" in caplog.text


@pytest.mark.parametrize("generate", [generates, generates_async])
async def test_what_is_behind_a_yield_was_not_done(generate: Callable[[ReceivedMessage], Any]) -> None:
    @functools.wraps(generate)
    async def decorated(message: ReceivedMessage) -> Any:
        return generate(message)

    desk = Desk(takes_back=False)
    desk.deliver(decorated)
    await settle()
    assert (desk.process.commit_offset, desk.sent_back) == (0, [0])


async def test_an_await_that_was_forgotten_is_made_up_for() -> None:
    handled: list[int] = []

    async def work(message: ReceivedMessage) -> None:
        handled.append(message.queue_offset)
        if message.queue_offset:
            raise ValueError

    async def handler(message: ReceivedMessage) -> Any:
        return work(message)

    desk = Desk(takes_back=False)
    desk.deliver(handler, 2)
    await settle()
    assert handled == [0, 1]
    assert (desk.process.commit_offset, desk.sent_back) == (1, [1])


@pytest.mark.parametrize("status", OrderlyStatus)
def test_in_order_a_status_is_known_by_its_text(status: OrderlyStatus) -> None:
    assert status_of(Ended(status, None, 0)) is status
    assert status_of(Ended(status.value, None, 0)) is status


@pytest.mark.parametrize("result", INNOCENT, ids=repr)
async def test_in_order_everything_else_is_success(result: Any) -> None:
    calls = Calls("g", FakeClock(), max_threads=1, orderly=True)
    ended = await calls.call(Consume.by(returns(result)), [received(offset=0)])
    assert status_of(ended) is OrderlyStatus.SUCCESS


async def test_in_order_an_exception_that_is_returned_suspends_and_operators_see_why() -> None:
    calls = Calls("g", FakeClock(), max_threads=1, orderly=True)
    ended = await calls.call(Consume.by(returns(SuspendQueue(5))), [received(offset=0)])
    assert status_of(ended) is OrderlyStatus.SUSPEND
    assert isinstance(ended.error, ClientError)
    shown = directly_result(ended, order=True)
    assert shown.result is ConsumeResult.THROW_EXCEPTION
    assert "raise it" in (shown.remark or "")
