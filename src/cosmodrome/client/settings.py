"""Refusing what a client is given, settings when it is made and arguments later, in words that name them. Pure."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeVar

from cosmodrome.config import ClientConfig
from cosmodrome.errors import ConfigError, InvalidParameter, WrongType, check_number
from cosmodrome.model import ConsumeFrom, MessageQueue, check_group

DEFAULT_CONSUMER_GROUP = "DEFAULT_CONSUMER"

E = TypeVar("E", bound=Enum)
L = TypeVar("L")
T = TypeVar("T")

NAMESRV_VARIABLE = "NAMESRV_ADDR"  # of the environment, as for Java's clients


def at_least(least: int, **settings: int) -> None:
    """ConfigError for the first that is smaller, or no whole number."""
    for name, value in settings.items():
        if not isinstance(value, int) or value < least:
            raise ConfigError(f"{name} is {value!r}; it must be a whole number, at least {least}")


def between(least: int, most: int, **settings: int | None) -> None:
    """ConfigError for the first that is none of these whole numbers; None has been left out."""
    at_least_or_none(least, **settings)
    for name, value in settings.items():
        if value is not None and value > most:
            raise ConfigError(f"{name} is {value}; it must be a whole number from {least} to {most}")


def check_consumer_group(group: str) -> str:
    """The group itself, or InvalidParameter. Java's clients take the default name for a forgotten one."""
    if group == DEFAULT_CONSUMER_GROUP:
        raise InvalidParameter(f"the group cannot be {group}; give each application a name of its own")
    return check_group(group)


def at_least_or_none(least: int, **settings: int | None) -> None:
    """The same for settings that may be left out."""
    at_least(least, **{name: value for name, value in settings.items() if value is not None})


def each_is(kind: type, **settings: object) -> None:
    """ConfigError for the first that is something else."""
    for name, value in settings.items():
        if not isinstance(value, kind):
            raise ConfigError(f"{name} is {value!r}; it must be a {kind.__name__}")


def one_of(kind: type[E], **setting: object) -> E:
    """The member, by itself or by its value; ConfigError when it is neither."""
    ((name, value),) = setting.items()
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
        raise ConfigError(f"{name} is {value!r}; it must be one of {known}") from None


def client_config(config: ClientConfig | None, namesrv: str) -> ClientConfig:
    """Return the config, or that of defaults, with these name servers, else its own, else those of NAMESRV_ADDR."""
    config = ClientConfig() if config is None else config
    each_is(ClientConfig, config=config)
    return dataclasses.replace(config, namesrv=namesrv or config.namesrv or os.environ.get(NAMESRV_VARIABLE, ""))


def check_start(consume_from: ConsumeFrom, consume_timestamp_ms: int | None) -> None:
    """ConfigError for a time that cannot be, or that nobody would look at."""
    at_least_or_none(0, consume_timestamp_ms=consume_timestamp_ms)
    if consume_timestamp_ms is not None and consume_from is not ConsumeFrom.TIMESTAMP:
        raise ConfigError("consume_timestamp_ms is for consume_from=ConsumeFrom.TIMESTAMP; else it would not count")


def check_queue(queue: MessageQueue) -> MessageQueue:
    """The queue; WrongType if it is something else, as the name of a topic."""
    if not isinstance(queue, MessageQueue):
        raise WrongType(f"the queue is {queue!r}; it must be a MessageQueue")
    return queue


def check_offsets(offsets: Mapping[MessageQueue, int]) -> Mapping[MessageQueue, int]:
    """The offsets; WrongType or InvalidArgument unless all are offsets of queues."""
    if not isinstance(offsets, Mapping):
        raise WrongType(f"the offsets are {offsets!r}; give a dict that has them by MessageQueue")
    for queue, offset in offsets.items():
        check_queue(queue)
        check_number(0, offset=offset)
    return offsets


def listed(kind: type[T], **argument: Iterable[T]) -> list[T]:
    """The members; WrongType if one is no `kind`, or if it is a single one, or a text, whose members are letters."""
    ((name, given),) = argument.items()
    members = None if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if members is None or not all(isinstance(member, kind) for member in members):
        raise WrongType(f"{name} is {given!r}; it must be a list of {kind.__name__}")
    return members


def listening(listener: L, *, awaited: bool) -> L:
    """The listener; WrongType if it cannot be called, or if it is an async def that nobody would await."""
    if not callable(listener):
        raise WrongType(f"the listener is {listener!r}; it must be a function")
    if not awaited and inspect.iscoroutinefunction(listener):
        raise WrongType(f"the listener {listener!r} is async def; nobody would await it: make it a def")
    return listener
