"""Blocking calls whose caller is interrupted, as by Ctrl-C: nothing counts as handed out that nobody has got."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import patch

import pytest

from cosmodrome.blocking import ConsumeFrom, LitePullConsumer, MessageQueue
from cosmodrome.client.blocking import loop_thread
from tests.bounded import in_thread
from tests.unit.client.fake_cluster import fake_cluster

QUEUE = MessageQueue("T", "broker-a", 0)
ALL = [b"0", b"1", b"2"]


class Interrupt(BaseException):
    """As a handler of signals raises it in the thread that waits."""


class InterruptedWait:
    """The lock a caller waits for; he is interrupted while it is not free yet, or as soon as it is."""

    def __init__(self, behind: Any, once_ended: bool) -> None:
        self.release = behind.release
        self._behind = behind
        self._once_ended = once_ended

    def acquire(self, timeout: float) -> bool:
        assert self._behind.acquire(timeout=10 if self._once_ended else 0.05) is self._once_ended
        raise Interrupt


@contextmanager
def interrupted(*, once_ended: bool) -> Iterator[None]:
    """The one blocking call made here."""
    made = loop_thread._Call

    def make(*args: Any) -> Any:
        call = cast(Any, made(*args))
        call.ended = InterruptedWait(call.ended, once_ended)
        return call

    with patch.object(loop_thread, "_Call", make), pytest.raises(Interrupt):
        yield


async def reading(use: Callable[[LitePullConsumer], None], bodies: list[bytes]) -> None:
    """Let a thread use a consumer of a queue with these messages."""

    def run(namesrv: str) -> None:
        consumer = LitePullConsumer("g", namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, pull_batch=len(ALL))
        consumer.subscribe("T")
        with consumer:
            use(consumer)

    async with fake_cluster(T=1) as cluster:
        for body in bodies:
            await cluster.broker.append("T", 0, body)
        await in_thread(run, cluster.namesrv)


def polled(consumer: LitePullConsumer) -> list[bytes]:
    return [message.body for message in consumer.poll()]


async def test_what_a_poll_had_taken_when_it_was_interrupted_comes_again_in_order() -> None:
    def use(consumer: LitePullConsumer) -> None:
        with interrupted(once_ended=True):
            consumer.poll()
        assert polled(consumer) == ALL
        consumer.commit()
        assert consumer.committed(QUEUE) == len(ALL)

    await reading(use, ALL)


async def test_it_is_not_acknowledged_by_a_commit() -> None:
    def use(consumer: LitePullConsumer) -> None:
        with interrupted(once_ended=True):
            consumer.poll()
        consumer.commit()
        assert consumer.committed(QUEUE) == 0
        assert polled(consumer) == ALL

    await reading(use, ALL)


async def test_an_interrupt_on_the_way_to_the_caller_counts_as_well() -> None:
    def use(consumer: LitePullConsumer) -> None:
        with patch.object(consumer, "_pulled", side_effect=Interrupt), pytest.raises(Interrupt):
            consumer.poll()
        with patch.object(consumer._thread, "post"), interrupted(once_ended=True):  # twice: it can't even be said
            consumer.poll()
        consumer.commit()
        assert consumer.committed(QUEUE) == 0
        assert polled(consumer) == ALL

    await reading(use, ALL)


async def test_it_is_there_for_a_loop_too() -> None:
    def use(consumer: LitePullConsumer) -> None:
        with interrupted(once_ended=True):
            consumer.poll()
        assert next(iter(consumer)).body == ALL[0]

    await reading(use, [*ALL, b"and one more"])


async def test_what_the_poll_before_had_returned_is_acknowledged_all_the_same() -> None:
    def use(consumer: LitePullConsumer) -> None:
        assert polled(consumer) == ALL
        with interrupted(once_ended=False):
            consumer.poll(60_000)
        consumer.commit()
        assert consumer.committed(QUEUE) == len(ALL)

    await reading(use, ALL)


async def test_after_an_interrupted_poll_one_may_poll_at_once() -> None:
    def use(consumer: LitePullConsumer) -> None:
        for _ in range(5):
            with interrupted(once_ended=False):
                consumer.poll(60_000)
            assert consumer.poll(0) == []

    await reading(use, [])


async def test_what_an_interrupted_loop_was_to_get_is_not_acknowledged_by_going_on() -> None:
    def use(consumer: LitePullConsumer) -> None:
        messages = iter(consumer)
        with interrupted(once_ended=True):
            next(messages)
        assert [next(messages).body, next(messages).body] == ALL[:2]

    await reading(use, ALL)
