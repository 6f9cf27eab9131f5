"""Refusing a client's settings when it is made, in words that name them. Pure."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import TypeVar

from cosmodrome.errors import ConfigError, WrongType

E = TypeVar("E", bound=Enum)
L = TypeVar("L")


def at_least(least: int, **settings: int) -> None:
    """ConfigError for the first that is smaller, or no whole number."""
    for name, value in settings.items():
        if not isinstance(value, int) or value < least:
            raise ConfigError(f"{name} is {value!r}; it must be a whole number, at least {least}")


def at_least_or_none(least: int, **settings: int | None) -> None:
    """The same for settings that may be left out."""
    at_least(least, **{name: value for name, value in settings.items() if value is not None})


def one_of(kind: type[E], **setting: object) -> E:
    """The member, by itself or by its value; ConfigError when it is neither."""
    ((name, value),) = setting.items()
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
        raise ConfigError(f"{name} is {value!r}; it must be one of {known}") from None


def listening(listener: L, *, awaited: bool) -> L:
    """The listener; WrongType if it cannot be called, or if it is an async def that nobody would await."""
    if not callable(listener):
        raise WrongType(f"the listener is {listener!r}; it must be a function")
    if not awaited and inspect.iscoroutinefunction(listener):
        raise WrongType(f"the listener {listener!r} is async def; nobody would await it: make it a def")
    return listener
