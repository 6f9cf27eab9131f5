"""Handlers as type checkers see them: mypy checks this file, and `warn_unused_ignores` that each ignore is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, assert_type

import pytest

from cosmodrome import PushConsumer, ReceivedMessage, blocking
from tests.unit.client.messages import received

MESSAGE = received()


def one(message: ReceivedMessage) -> int:
    return 1


async def one_async(message: ReceivedMessage) -> None: ...
def many(messages: list[ReceivedMessage]) -> None: ...
def sequence(messages: Sequence[ReceivedMessage]) -> None: ...
def of_numbers(number: int) -> None: ...
def of_texts(texts: list[str]) -> None: ...
def of_two(message: ReceivedMessage, more: int) -> None: ...


@pytest.mark.parametrize("make", [PushConsumer, blocking.PushConsumer])
def test_a_handler_takes_a_message_or_a_list_of_them(make: Callable[[str, str], Any]) -> None:
    for handler in (one, one_async, many, sequence, print):
        make("g", "127.0.0.1:1").subscribe("T", "*", handler)
        assert make("g", "127.0.0.1:1").handles("T")(handler) is handler


def test_what_type_checkers_take_works() -> None:
    consumer, face = PushConsumer("g", "127.0.0.1:1"), blocking.PushConsumer("g", "127.0.0.1:1")
    consumer.subscribe("T", "*", one)
    consumer.subscribe("T", "*", one_async, replace=True)
    consumer.subscribe("T", "*", many, batch=5, replace=True)
    consumer.subscribe("T", "*", sequence, replace=True)
    consumer.subscribe("T", "*", lambda message: print(message), replace=True)
    assert_type(consumer.handles("U")(one)(MESSAGE), int)
    assert_type(consumer.handles("V")(one_async)(MESSAGE).close(), None)
    consumer.handles("W", batch=5)(many)
    face.subscribe("T", "*", one)
    face.subscribe("T", "*", many, batch=5, replace=True)
    assert_type(face.handles("U")(one)(MESSAGE), int)


def test_what_type_checkers_refuse_is_refused_as_far_as_it_can_be_known() -> None:
    consumer, face = PushConsumer("g", "127.0.0.1:1"), blocking.PushConsumer("g", "127.0.0.1:1")
    consumer.subscribe("A", "*", of_numbers)  # type: ignore[arg-type]
    consumer.subscribe("B", "*", of_texts)  # type: ignore[arg-type]
    consumer.subscribe("C", "*", one, batch=5)  # type: ignore[arg-type]
    consumer.handles("D")(of_numbers)  # type: ignore[type-var]
    consumer.handles("E", batch=5)(one)  # type: ignore[type-var]
    face.subscribe("A", "*", of_numbers)  # type: ignore[arg-type]
    face.handles("B")(of_texts)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="one argument"):
        consumer.subscribe("F", "*", of_two)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="it must be a function"):
        face.subscribe("C", "*", 5)  # type: ignore[call-overload]
